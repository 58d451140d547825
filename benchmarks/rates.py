"""How old is a message when a reader has it, at a rate that waits for no reader?

Another process appends 100, 2,000 or 50,000 messages a second. Each has the moment at which it was due, not
the one at which it was sent: a late sender or a lagging reader increases the age of all messages that were
due in that time (no coordinated omission). Ages go into an HdrHistogram with three digits. The reader is an
``async for`` on asyncio's loop and on uvloop; payloads have 100 bytes, and the queue is on the disk,
``flush="async"``: persisted, durable after the kernel's write-back.

A sender that had to sleep for less than 200 us spins instead.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from aiochronicle import open_reader, open_writer
from benchmarks.contestants import LOOPS
from benchmarks.measure import PAYLOAD, Figure
from benchmarks.producers import STAMP

__all__ = ["figures"]

RATES = (100, 2_000, 50_000)
SECONDS = 5.0
SECONDS_QUICK = 0.1
ROUNDS = 3
TOO_LONG_S = 120
LONGEST_NS = 60_000_000_000
SPIN_NS = 200_000
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

_REST = PAYLOAD[STAMP.size :]


def send(path: str, rate: int, count: int) -> None:
    """Append on schedule, in the other process."""
    with open_writer(path) as writer:
        print("ready", flush=True)
        sys.stdin.readline()
        start_ns = time.monotonic_ns() + 10_000_000
        for number in range(count):
            due_ns = start_ns + number * 1_000_000_000 // rate
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                if left_ns > SPIN_NS:
                    time.sleep((left_ns - SPIN_NS) / 1e9)
            writer.append(STAMP.pack(due_ns) + _REST)
        sys.stdin.readline()


async def follow(path: Path, count: int, start: IO[str]) -> HdrHistogram:
    histogram = HdrHistogram(1, LONGEST_NS, 3)
    async with asyncio.timeout(TOO_LONG_S), open_reader(path, start="first") as reader:
        print("start", file=start, flush=True)
        async for message in reader:
            (due_ns,) = STAMP.unpack_from(message.payload)
            histogram.record_value(max(time.monotonic_ns() - due_ns, 1))
            if message.seq == count - 1:
                break
    return histogram


def collect(
    path: Path, rate: int, count: int, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> HdrHistogram:
    """Let the other process send, and return the ages."""
    command = [sys.executable, "-m", __name__, str(path), str(rate), str(count)]
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sender.stdin is not None
    assert sender.stdout is not None
    try:
        sender.stdout.readline()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(follow(path, count, sender.stdin))
    finally:
        sender.communicate("end\n")


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure each rate on each loop."""
    seconds = SECONDS_QUICK if quick else SECONDS
    for loop_name, loop_factory in LOOPS.items():
        for rate in RATES:
            count = max(round(rate * seconds), 2)
            samples: dict[str, list[float]] = {name: [] for name in PERCENTILES}
            for number in range(1 if quick else ROUNDS):
                place = directory / f"rate-{loop_name}-{rate}-{number}"
                histogram = collect(place, rate, count, loop_factory)
                for name, percent in PERCENTILES.items():
                    samples[name].append(histogram.get_value_at_percentile(percent) / 1e3)
            for name, values in samples.items():
                case = f"{rate:,} msg/s, {loop_name}, {name}"
                yield Figure(question="age", case=case, unit="us", samples=values)


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
