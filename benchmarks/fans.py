"""What does a message cost, by the number of source queues or of readers that get it?

Fan-in: ``for message in fan_in`` over 1, 8, 64 or 512 queues on the disk and in the page cache, whose
messages are interleaved at random; real time per message. Fan-out: this process appends as fast as it goes,
another one has 1, 2, 8 or 64 readers, each a task of one event loop; real time from the first append until
the last reader has the last message, per message appended and per message delivered. 100 bytes each.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from aiochronicle import FanIn, Reader, open_reader, open_writer
from benchmarks.measure import PAYLOAD, Figure
from benchmarks.merge import fill

__all__ = ["figures"]

SOURCES = (1, 8, 64, 512)
READERS = (1, 2, 8, 64)
MESSAGES = 400_000
MESSAGES_QUICK = 2_000
DELIVERIES = 1_600_000  # by all readers together, maximum
ROUNDS = 5


def time_fan_in(paths: list[Path], messages: int) -> float:
    """Return nanoseconds per message."""
    with ExitStack() as stack:
        readers = [stack.enter_context(open_reader(path, start="first")) for path in paths]
        fan_in = stack.enter_context(FanIn(readers))
        started_ns = time.perf_counter_ns()
        deque(fan_in, maxlen=0)
        return (time.perf_counter_ns() - started_ns) / messages


async def take(reader: Reader, count: int) -> None:
    async for message in reader:
        if (message.seq + 1) % count == 0:
            return


async def read_all(path: str, readers: int, count: int) -> None:
    """Run the readers in the other process; print a line when all of them have this many messages."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_reader(path, start="first"))
            for _ in range(readers)
        ]
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            await asyncio.gather(*(take(reader, count) for reader in opened))
            print("done", flush=True)


def time_fan_out(path: Path, readers: int, count: int, rounds: int) -> list[float]:
    """Return nanoseconds per message appended."""
    command = [sys.executable, "-m", __name__, str(path), str(readers), str(count)]
    found: list[float] = []
    with open_writer(path) as writer:
        others = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert others.stdin is not None
        assert others.stdout is not None
        try:
            others.stdout.readline()
            for _ in range(rounds):
                print("start", file=others.stdin, flush=True)
                started_ns = time.perf_counter_ns()
                for _ in range(count):
                    writer.append(PAYLOAD)
                if others.stdout.readline() != "done\n":
                    raise RuntimeError("the readers ended early")
                found.append((time.perf_counter_ns() - started_ns) / count)
        finally:
            others.communicate()
    return found


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure each number of sources, then each number of readers."""
    messages = MESSAGES_QUICK if quick else MESSAGES
    rounds = 1 if quick else ROUNDS
    for sources in SOURCES:
        place = directory / f"fan-in-{sources}"
        place.mkdir()
        paths = fill(place, sources, messages, 1)
        samples = [time_fan_in(paths, messages) for _ in range(rounds)]
        shutil.rmtree(place)
        yield Figure(
            question="fans", case=f"fan-in of {sources} queues", unit="ns", samples=samples
        )
    for readers in READERS:
        count = min(messages, DELIVERIES // readers)
        samples = time_fan_out(directory / f"fan-out-{readers}", readers, count, rounds)
        yield Figure(
            question="fans", case=f"fan-out to {readers}, appended", unit="ns", samples=samples
        )
        yield Figure(
            question="fans",
            case=f"fan-out to {readers}, delivered",
            unit="ns",
            samples=[sample / readers for sample in samples],
        )


if __name__ == "__main__":
    asyncio.run(read_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
