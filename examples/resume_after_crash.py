"""A router that is killed several times, and neither loses an order nor sends one twice.

It consumes `orders` and produces `fills`. Each fill names the order that caused it, so after a
crash the queue of fills shows where to continue: there is no window between "produced" and
"committed". Fills are on disk before their orders are committed. If a power cut removes the
newest fills, their orders are therefore read again.
"""

import os
import random
import signal
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

ORDERS = 5_000
CRASHES = 3


def route(root: Path, crash_after: int | None) -> None:
    """Turn orders into fills; after this many, die without warning."""
    with (
        aiochronicle.open_writer(root / "fills") as writer,
        aiochronicle.open_reader(root / "orders", "router") as reader,
    ):
        done = writer.last_causes()  # which orders have their fill
        while batch := reader.read_batch(100):
            for order in batch:
                if done.covers(order):
                    continue  # read again after the crash, filled before it
                writer.append(b"fill of " + order.payload, cause=order)
                if crash_after is not None:
                    crash_after -= 1
                    if crash_after == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
            writer.flush_now()  # the fills reach the disk before their orders are committed
            reader.commit()


def main(root: Path, seed: int) -> None:
    with aiochronicle.open_writer(root / "orders") as writer:
        for number in range(ORDERS):
            writer.append(b"%d" % number)

    # Fewer than ORDERS in total, so that the last process has something left to do.
    chance = random.Random(seed)
    lives = [chance.randrange(1, ORDERS // (CRASHES + 1)) for _ in range(CRASHES)]
    for crash_after in [*lives, None]:
        router = get_context("spawn").Process(target=route, args=(root, crash_after))
        router.start()
        router.join()
        expected = 0 if crash_after is None else -signal.SIGKILL
        assert router.exitcode == expected, router.exitcode

    with aiochronicle.open_reader(root / "fills") as reader:
        fills = [message.payload for message in reader]
    assert fills == [b"fill of %d" % number for number in range(ORDERS)]
    print(
        f"{CRASHES} crashes (seed {seed}), {ORDERS} orders, {len(fills)} fills, each exactly once"
    )


if __name__ == "__main__":
    run_seed = int(os.environ.get("AIOCHRONICLE_SEED", "1"))
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), run_seed)
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory), run_seed)
