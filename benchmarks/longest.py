"""What is the longest append, and what did it wait for?

200,000 messages of 100 bytes a second, in C, with retention (512 MiB kept, segments of 128 MiB), beside a
process that writes 512 MiB to the same disk and syncs them, over and over. Every append is timed. The kernel
counts how long the appender ran and waited for a processor, and how often it slept and faulted; the host of
a virtual machine took the rest of a long append. During a long append another thread notes the appender's
state and its stack in the kernel (which needs root). The appender has the priority of this program: to see
the engine and not the other work of the machine, start it with ``chrt --fifo 10``.
"""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.building import build_program
from benchmarks.measure import Figure, Result
from benchmarks.roll import busy_disk

RATE = 200_000
SECONDS = 60
SECONDS_QUICK = 1
ROUNDS = 3
KEPT_BYTES = 512 << 20
P999_MAX_US = 5.0
LONGEST_MAX_US = 5_000.0
SHOWN = 5


@dataclass(frozen=True)
class Found:
    """The result of one run."""

    percentiles_us: dict[str, float]
    own_longest_us: float  # of appends that the host did not interrupt
    faults: int
    causes: Counter[str]  # of appends over 1 ms: cause, state and stack
    longest_us: list[float]


def measure(directory: Path, program: Path, seconds: int) -> Found:
    """Append for this long beside a busy disk."""
    path = directory / "longest"
    command: list[str | Path] = [program, "longest", path, str(RATE), str(seconds), str(KEPT_BYTES)]
    with busy_disk(directory, seconds + 60):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(path)
    numbers: dict[str, int] = {}
    causes: Counter[str] = Counter()
    longest_us: list[float] = []
    for line in done.stdout.splitlines():
        name, _, rest = line.partition(" ")
        if name == "long":
            counted, _, cause = rest.partition(": ")
            causes[cause] += 1
            longest_us.append(float(counted.partition(" ")[0]))
        else:
            numbers[name] = int(rest)
    own_ns, faults = numbers.pop("own"), numbers.pop("faults")
    percentiles_us = {name: ns / 1000 for name, ns in numbers.items()}
    return Found(percentiles_us, own_ns / 1000, faults, causes, longest_us)


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure some runs."""
    program = build_program("recorder_bench", directory)
    runs = [
        measure(directory, program, SECONDS_QUICK if quick else SECONDS)
        for _ in range(1 if quick else ROUNDS)
    ]
    for name in runs[0].percentiles_us:
        case = f"{RATE:,} msg/s beside a busy disk, {'max' if name == '100' else 'p' + name}"
        samples = [run.percentiles_us[name] for run in runs]
        yield Figure(question="longest", case=case, unit="us", samples=samples)
    samples = [run.own_longest_us for run in runs]
    case = "max of those that the host did not interrupt"
    yield Figure(question="longest", case=case, unit="us", samples=samples)
    samples = [float(len(run.longest_us)) for run in runs]
    yield Figure(question="longest", case="appends over 1 ms", unit="", samples=samples)
    samples = [float(run.faults) for run in runs]
    yield Figure(question="longest", case="page faults of the appender", unit="", samples=samples)


def run(directory: Path, quick: bool) -> list[Result]:
    program = build_program("recorder_bench", directory)
    found = measure(directory, program, SECONDS_QUICK if quick else SECONDS)
    p999_us, longest_us = found.percentiles_us["99.9"], found.percentiles_us["100"]
    for cause, count in found.causes.most_common(SHOWN):
        print(f"longest  {count} x {cause}")
    what = f"{RATE:,} msg/s with retention beside a busy disk, "
    detail = f"{len(found.longest_us)} over 1 ms; {found.own_longest_us:.0f} us if not for the host"
    return [
        Result.at_most("longest", what + "p99.9", p999_us, P999_MAX_US, "us"),
        Result.at_most("longest", what + "longest", longest_us, LONGEST_MAX_US, "us", detail),
    ]
