"""Strategy fan-out: each feed writes a queue; every strategy merges all of them.

Strategies are processes that read independently: a slow one delays
neither the feeds nor the others.
"""

import asyncio
import contextlib
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

FEEDS = ("futures", "options")
STRATEGIES = {"arbitrage": 0.0, "reporting": 0.001}  # seconds that each needs for a batch
TICKS = 2_000


def feed(root: Path, name: str) -> None:
    with aiochronicle.open_writer(root / "feeds" / name) as writer:
        for number in range(TICKS):
            writer.append(f"{name} {number}".encode())


async def strategy(root: Path, name: str, pause_s: float) -> None:
    received = 0
    async with contextlib.AsyncExitStack() as stack:
        results = await stack.enter_async_context(
            aiochronicle.aopen_writer(root / "results" / name)
        )
        readers = [
            await stack.enter_async_context(aiochronicle.aopen_reader(root / "feeds" / feed, name))
            for feed in FEEDS
        ]
        fan_in = await stack.enter_async_context(aiochronicle.FanIn(readers))
        async for batch in fan_in.batches(max_messages=100):
            received += len(batch)
            fan_in.commit()
            await asyncio.sleep(pause_s)
            if received == TICKS * len(FEEDS):
                results.append(b"%d" % received)
                break


def run_strategy(root: Path, name: str, pause_s: float) -> None:
    aiochronicle.run(strategy(root, name, pause_s))


def main(root: Path) -> None:
    for folder in ("feeds", "results"):
        (root / folder).mkdir(parents=True)
    for name in FEEDS:
        aiochronicle.open_writer(root / "feeds" / name).close()
    spawn = get_context("spawn").Process
    processes = [
        spawn(target=run_strategy, args=(root, name, pause_s))
        for name, pause_s in STRATEGIES.items()
    ]
    processes += [spawn(target=feed, args=(root, name)) for name in FEEDS]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    results: list[int] = []
    for name in STRATEGIES:
        with aiochronicle.open_reader(root / "results" / name) as reader:
            results += [int(message.payload) for message in reader]
    assert results == [TICKS * len(FEEDS)] * len(STRATEGIES), results
    print(f"{len(STRATEGIES)} strategies, each saw all {TICKS * len(FEEDS)} ticks")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "desk")
