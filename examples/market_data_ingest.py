"""Market data: one process and one queue per venue; one consumer sees all ticks in the order of their times.

Idle venues send heartbeats, so that strict order does not wait for them.
"""

import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

VENUES = ("XETR", "XLON", "XNAS")
TICKS = 1_000


def feed(root: Path, venue: str) -> None:
    with aiochronicle.open_writer(root / venue, heartbeat=0.01, ready=True) as writer:
        for number in range(TICKS):
            writer.append(f"{venue} {number}".encode())


async def ingest(root: Path) -> int:
    """Read ticks until all venues are done; return their number."""
    received = 0
    newest_ns = 0
    async with aiochronicle.Router(root, name="ingest", order="strict", max_wait=0.5) as router:
        async for tick in router:
            assert tick.timestamp_ns >= newest_ns or tick.late
            newest_ns = max(newest_ns, tick.timestamp_ns)
            received += 1
            if received % 100 == 0:
                router.commit()
            if received == TICKS * len(VENUES):
                router.commit()
                break
    return received


def main(root: Path) -> None:
    feeds = [get_context("spawn").Process(target=feed, args=(root, venue)) for venue in VENUES]
    for process in feeds:
        process.start()
    received = aiochronicle.run(ingest(root))
    for process in feeds:
        process.join()
    print(f"{received} ticks from {len(VENUES)} venues as one stream")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "feeds")
