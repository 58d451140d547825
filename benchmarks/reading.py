"""What does reading a message from the page cache cost, by the way of reading and by payload size?

``for``, ``async for`` on asyncio's loop, ``read_batch`` and ``read_block`` of 1,024 messages, and
``to_arrow``, all with checksums verified, from a queue of 192 MiB, larger than any cache of the processor,
and from one of 512 KiB. Pages are mapped beforehand. Processor time of the reading thread; ``async for``
starts a task each time.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aiochronicle import Reader, open_reader, open_writer
from benchmarks.measure import Figure

__all__ = ["figures"]

LARGE_BYTES = 192 << 20
SMALL_BYTES = 512 << 10
QUICK_BYTES = 2 << 20
SIZES = (16, 100, 1024, 16 << 10, 64 << 10)
ROUNDS = 9
PASSES = 50  # passes over the small queue per sample
BATCH = 64


def plain(reader: Reader) -> None:
    for message in reader:
        message.payload  # noqa: B018


async def follow(reader: Reader, count: int) -> None:
    async for message in reader:
        message.payload  # noqa: B018
        count -= 1
        if not count:
            break


def batches(reader: Reader) -> None:
    while reader.read_batch(1024):
        pass


def blocks(reader: Reader) -> None:
    while len(reader.read_block(1024)):
        pass


def columns(reader: Reader) -> None:
    while reader.to_arrow(65_536).num_rows:
        pass


def measure(directory: Path, size: int, total: int, rounds: int) -> dict[str, list[float]]:
    """Return nanoseconds per message of each round."""
    count = max(total // ((64 + size + 63) // 64 * 64), BATCH) // BATCH * BATCH
    passes = PASSES if total == SMALL_BYTES else 1
    path = directory / f"reading-{size}-{total}"
    payloads = [b"%*d" % (size, number) for number in range(BATCH)]
    with open_writer(path) as writer:
        for _ in range(count // BATCH):
            writer.append_many(payloads)
    runner = asyncio.Runner()
    ways: dict[str, Callable[[Reader], None]] = {
        "for": plain,
        "async for": lambda reader: runner.run(follow(reader, count)),
        "read_batch": batches,
        "read_block": blocks,
        "to_arrow": columns,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    with runner, open_reader(path, start="first") as reader:
        blocks(reader)  # maps the pages
        for _ in range(rounds):
            for name, read in ways.items():
                taken_ns = 0
                for _ in range(passes):
                    reader.seek_first()
                    started_ns = time.thread_time_ns()
                    read(reader)
                    taken_ns += time.thread_time_ns() - started_ns
                found[name].append(taken_ns / (count * passes))
    shutil.rmtree(path)
    return found


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure each way and each size."""
    large = QUICK_BYTES if quick else LARGE_BYTES
    cases = [(size, large, "192 MiB") for size in SIZES] + [(100, SMALL_BYTES, "512 KiB")]
    for size, total, label in cases:
        found = measure(directory, size, total, 1 if quick else ROUNDS)
        for name, samples in found.items():
            case = f"{name}, {size} B, {label}"
            yield Figure(question="reading", case=case, unit="ns", samples=samples)
