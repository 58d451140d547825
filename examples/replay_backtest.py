"""Back-test: playback processes write recorded feeds with their recorded times, as fast as they can.

In strict order the merged stream is the same in every run, whichever process is faster.
"""

import contextlib
import hashlib
import random
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

FEEDS = ("bonds", "equities", "news")
TICKS = 2_000
OPENING_NS = 1_700_000_000_000_000_000


def playback(root: Path, name: str) -> None:
    """Write a recorded feed; a real program would read it from an archive."""
    history = random.Random(name)
    timestamp_ns = OPENING_NS
    with aiochronicle.open_writer(root / name, ready=True) as writer:
        for number in range(TICKS):
            timestamp_ns += history.randrange(0, 1_000_000, 1_000)
            writer.append(f"{name} {number}".encode(), timestamp_ns=timestamp_ns)


async def backtest(root: Path) -> str:
    """Run over the merged feeds; return a digest of what was seen, in order."""
    digest = hashlib.sha256()
    async with aiochronicle.discover(root) as found:
        for _ in FEEDS:  # attach all of them before the first tick is read
            await anext(found)
    async with contextlib.AsyncExitStack() as stack:
        # The order of attaching decides between equal times, so attach by name.
        readers = [
            await stack.enter_async_context(aiochronicle.aopen_reader(root / name))
            for name in FEEDS
        ]
        feeds = await stack.enter_async_context(aiochronicle.FanIn(readers, order="strict"))
        for _ in range(TICKS * len(FEEDS)):
            tick = await feeds.next()
            digest.update(b"%d " % tick.timestamp_ns + tick.payload)
        assert feeds.statistics().late == 0
    return digest.hexdigest()


def run_once(root: Path) -> str:
    root.mkdir(parents=True)
    players = [get_context("spawn").Process(target=playback, args=(root, name)) for name in FEEDS]
    for process in players:
        process.start()
    result = aiochronicle.run(backtest(root))
    for process in players:
        process.join()
    return result


def main(root: Path) -> None:
    first, second = run_once(root / "run-1"), run_once(root / "run-2")
    assert first == second
    print(f"two runs over {TICKS * len(FEEDS)} ticks, the same stream: {first[:16]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "replay")
