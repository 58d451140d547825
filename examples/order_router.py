"""A router between strategies and a market: orders in, acknowledgements back to their senders.

Strategies are processes that start at any time. Each writes orders into its own queue and
reads the answers from the reply queue of the same name. The router sends every order exactly
once, even if it is killed and started again: see `route`.
"""

import contextlib
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import aiochronicle
from aiochronicle.errors import ClosedError, QueueGone, SourceGone

STRATEGIES = 3
ORDERS = 200


def strategy(root: Path, name: str) -> None:
    replies = root / "orders.replies" / name
    with aiochronicle.open_writer(root / "orders" / name, ready=True) as orders:
        for number in range(ORDERS):
            orders.append(f"{name} {number}".encode())
        deadline_s = time.monotonic() + 30
        while not (replies / "READY").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with aiochronicle.open_reader(replies, name) as reader:
            received = 0
            while received < ORDERS and reader.wait(timeout=30):
                for answer in reader:
                    assert answer.payload == f"ack {name} {received}".encode()
                    received += 1
            reader.commit()
        assert received == ORDERS


async def route(root: Path, orders_max: int) -> int:
    market = await aiochronicle.aopen_writer(root / "market")
    # After a crash, the market queue shows which orders were sent.
    sent = market.last_causes()
    async with market, aiochronicle.Router(root / "orders", name="router") as router:
        async for batch in router.batches():
            for order in batch:
                if not sent.covers(order):
                    market.append(order.payload, cause=order)
                    sent.add(order)
            await market.flush()  # before an order is acknowledged or committed
            for order in batch:
                # A strategy may have left meanwhile; continue with the others.
                with contextlib.suppress(SourceGone, ClosedError, QueueGone):
                    reply = await router.reply(order)
                    reply.append(b"ack " + order.payload, cause=order)
            router.commit()
            if market.next_seq == orders_max:
                return market.next_seq
    raise AssertionError("the router ended before the last order")


def main(root: Path) -> None:
    (root / "orders").mkdir(parents=True)
    names = [f"strategy-{number}" for number in range(STRATEGIES)]
    spawn = get_context("spawn").Process
    strategies = [spawn(target=strategy, args=(root, name)) for name in names]
    for process in strategies:
        process.start()
    sent = aiochronicle.run(route(root, ORDERS * STRATEGIES))
    for process in strategies:
        process.join()
        assert process.exitcode == 0
    print(f"{sent} orders of {STRATEGIES} strategies sent and acknowledged")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "desk")
