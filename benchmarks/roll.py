"""Does the beginning of a new segment slow down an append?

Every append is timed on its own, in real time, over many segment rolls, as fast as the loop goes; the best
of several runs counts. One append in 43,690 rolls, so the 99.9th percentile shows whether the work around
rolls (preparing, populating, sealing and syncing, in other threads) disturbs appends; the details have the
worst append and the number of rolls that found no prepared segment. The time of an append includes the calls
of the clock around it.

First with an idle disk, after all dirty pages were written. Then beside a process that writes to the same
disk and syncs it, as fast as it can.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiochronicle import Writer, open_writer
from benchmarks.measure import PAYLOAD, Result, percentile

SEGMENT_BYTES = 8 << 20
RECORD_BYTES = 192
ROLLS = 12
LOAD_FILE_BYTES = 512 << 20
LOAD_SECONDS_MAX = 120.0  # if it is not stopped


def load_disk(path: Path, seconds_max: float) -> None:
    """Write a file repeatedly, and sync it each time."""
    block = bytes(1 << 20)
    until_s = time.monotonic() + seconds_max
    while time.monotonic() < until_s:
        with path.open("wb") as file:
            for _ in range(LOAD_FILE_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())


@contextmanager
def busy_disk(directory: Path, seconds_max: float = LOAD_SECONDS_MAX) -> Iterator[None]:
    """Run another process that writes to the disk inside the ``with`` block."""
    path = directory / "load"
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.roll", path, str(seconds_max)]
    process = subprocess.Popen(command)
    os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))  # if ours is another
    try:
        while not path.exists() or path.stat().st_size < LOAD_FILE_BYTES // 4:
            if process.poll() is not None:
                raise RuntimeError(f"the load on the disk ended with {process.returncode}")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)


def time_appends(writer: Writer, count: int) -> list[float]:
    clock = time.perf_counter_ns
    taken_ns = [0.0] * count
    for number in range(count):
        started_ns = clock()
        writer.append(PAYLOAD)
        taken_ns[number] = clock() - started_ns
    return taken_ns


def measure(directory: Path, name: str, quick: bool) -> tuple[float, str]:
    """Return the best ratio of several runs, and its details."""
    rolls = 2 if quick else ROLLS
    count = SEGMENT_BYTES // RECORD_BYTES * rolls + 1
    attempts: list[tuple[float, str]] = []
    for attempt in range(1 if quick else 3):
        with open_writer(directory / f"{name}{attempt}", segment_size=SEGMENT_BYTES) as writer:
            taken_ns = time_appends(writer, count)
            statistics = writer.statistics()
        median_ns = percentile(taken_ns, 0.5)
        tail_ns = percentile(taken_ns, 0.999)
        detail = (
            f"{tail_ns:.0f} ns / {median_ns:.0f} ns, {statistics.rolls} rolls,"
            f" {statistics.rolls_unprepared} unprepared, worst {max(taken_ns) / 1000:.0f} us"
        )
        attempts.append((tail_ns / median_ns, detail))
    return min(attempts)


def run(directory: Path, quick: bool) -> list[Result]:
    what = "p99.9 / median of append over rolls"
    os.sync()
    ratio, detail = measure(directory, "roll", quick)
    at_rest = Result.at_most("roll", what, ratio, 20, "x", detail)
    with busy_disk(directory):
        ratio, detail = measure(directory, "roll-busy", quick)
    return [
        at_rest,
        Result.at_most("roll", what + ", disk busy", ratio, 20, "x", detail),
    ]


if __name__ == "__main__":
    load_disk(Path(sys.argv[1]), float(sys.argv[2]))
