"""What does an append cost, in a burst and under sustained load?

A burst is 4 MiB of records into a queue that has just been opened: less than the pages that are ready before
the first append. Sustained load is 1 GiB, or 2 million messages, without a pause, which is more than any
preparation covers; its first and its last eighth are two figures. With retention the queue keeps 256 MiB,
without it everything. On the disk, and on tmpfs.

Real time of the appending thread, one process, no reader. Every round has a queue of its own.
"""

import shutil
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from aiochronicle import Retention, open_writer
from benchmarks.measure import Figure

__all__ = ["figures"]

SIZES = (16, 100, 1024, 16 << 10, 64 << 10)
BURST_BYTES = 4 << 20
SUSTAINED_BYTES = 1 << 30
MESSAGES_MAX = 2_000_000
QUICK_BYTES = 16 << 20
KEPT_BYTES = 256 << 20
PARTS = 8
ROUNDS = 3


def record_bytes(size: int) -> int:
    """Return the size of a payload's record in a segment."""
    return (64 + size + 63) // 64 * 64


def append_parts(path: Path, size: int, count: int, retention: Retention | None) -> list[float]:
    """Append this many messages; return the nanoseconds per message of each part."""
    payload = bytes(size)
    parts: list[float] = []
    with open_writer(path, retention=retention) as writer:
        append = writer.append
        for _ in range(PARTS):
            started_ns = time.perf_counter_ns()
            for _ in repeat(None, count // PARTS):
                append(payload)
            parts.append((time.perf_counter_ns() - started_ns) / (count // PARTS))
    shutil.rmtree(path)
    return parts


def measure_burst(directory: Path, size: int, rounds: int) -> list[float]:
    count = max(BURST_BYTES // record_bytes(size), PARTS)
    found: list[float] = []
    for number in range(rounds):
        parts = append_parts(directory / f"burst-{number}", size, count, None)
        found.append(sum(parts) / len(parts))
    return found


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure all cases."""
    rounds = 1 if quick else ROUNDS
    total = QUICK_BYTES if quick else SUSTAINED_BYTES
    with TemporaryDirectory(prefix="aiochronicle-bench-", dir="/dev/shm") as memory:
        for storage, place in (("disk", directory), ("tmpfs", Path(memory))):
            for size in SIZES:
                case = f"{size} B, {storage}"
                samples = measure_burst(place, size, rounds)
                yield Figure(question="append", case=f"burst, {case}", unit="ns", samples=samples)
                count = min(total // record_bytes(size), MESSAGES_MAX)
                for kept, retention in (
                    ("all kept", None),
                    ("256 MiB kept", Retention(max_bytes=KEPT_BYTES)),
                ):
                    runs = [
                        append_parts(place / f"{number}", size, count, retention)
                        for number in range(rounds)
                    ]
                    for part, index in (("first eighth", 0), ("last eighth", -1)):
                        yield Figure(
                            question="append",
                            case=f"sustained, {case}, {kept}, {part}",
                            unit="ns",
                            samples=[run[index] for run in runs],
                        )
