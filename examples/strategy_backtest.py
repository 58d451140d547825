"""Back-test: the coroutine that trades live runs unchanged over history, twice with the same result.

First a process records a feed while the strategy trades on it live. Then the same strategy
runs over the recording in virtual time: its sleeps and timeouts follow the recorded ticks and take no
real time. Two runs give the same orders at the same times, to the nanosecond.
"""

import asyncio
import hashlib
import random
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

TICKS = 400


def feed(path: Path) -> None:
    """Run a market as a process; the time between ticks depends on the machine."""
    prices = random.Random("market")
    price = 1000
    with aiochronicle.open_writer(path) as ticks:
        for _ in range(TICKS):
            price += prices.choice((-1, 0, 1))
            ticks.append(b"%d" % price)
            time.sleep(prices.random() / 1000)
        ticks.append(b"close")


async def strategy(
    ticks: aiochronicle.Reader | aiochronicle.Replay, orders: aiochronicle.Writer
) -> None:
    """Buy on a falling price, sell 5 ms later, live or over history."""
    selling: set[asyncio.Task[None]] = set()

    async def sell_later(price: int) -> None:
        await asyncio.sleep(0.005)
        orders.append(b"sell %d" % price)

    last = 0
    async for tick in ticks:
        if tick.payload == b"close":
            break
        price = int(tick.payload)
        if price < last:
            orders.append(b"buy %d" % price, cause=tick)
            task = asyncio.create_task(sell_later(price))
            selling.add(task)
            task.add_done_callback(selling.discard)
        last = price
    await asyncio.gather(*selling)


async def trade_live(root: Path) -> None:
    async with (
        aiochronicle.aopen_reader(root / "ticks", "strategy", wait_for_queue=True) as ticks,
        aiochronicle.aopen_writer(root / "orders") as orders,
    ):
        await strategy(ticks, orders)


async def trade_in_the_past(ticks: aiochronicle.Replay, path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, aiochronicle.VirtualTimeLoop)
    async with aiochronicle.aopen_writer(path, clock=loop.time_ns) as orders:
        await strategy(ticks, orders)


def digest(path: Path) -> tuple[int, str]:
    """Return the number of orders, and a digest of every order and its time."""
    count, seen = 0, hashlib.sha256()
    with aiochronicle.open_reader(path) as orders:
        for order in orders:
            count += 1
            seen.update(b"%d %b\n" % (order.timestamp_ns, order.payload))
    return count, seen.hexdigest()


def main(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    market = get_context("spawn").Process(target=feed, args=(root / "ticks",))
    market.start()
    aiochronicle.run(trade_live(root))
    market.join()
    for name in ("run-1", "run-2"):
        with aiochronicle.replay(root / "ticks") as ticks:
            aiochronicle.run_virtual(trade_in_the_past(ticks, root / name), ticks)
    live, first, second = (digest(root / name) for name in ("orders", "run-1", "run-2"))
    assert first == second
    assert live[0] == first[0]
    print(f"digest of the first back-test {first[1]}, of the second {second[1]}")
    print(f"{live[0]} orders live and in two back-tests, which agree to the nanosecond")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
