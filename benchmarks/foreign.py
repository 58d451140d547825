"""What do queues of other programs in this format cost, compared with our own?

Such queues (of chronicle-rs) have no check of headers and nothing in the spare bytes; foreign_bench.c writes
them. Reading: the same messages from one of theirs and from one of ours, both on the disk and in the page
cache, in C and with ``for message in reader: message.payload``. Following: their writer does not know our
eventfds, but wakes a futex. A reader sleeps until another process appends, 2,000 times a second. Measured is
the age of the message when the reader has it, compared with a reader of one of our queues. Opening for
writing: how many records the writer reads in a queue whose finished segments have indexes.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from aiochronicle import open_reader, open_writer
from benchmarks.building import build_program
from benchmarks.contestants import LOOPS, TOO_LONG_S
from benchmarks.measure import Figure, Result, percentile
from benchmarks.producers import STAMP

MESSAGES = 1_000_000
MESSAGES_QUICK = 20_000
MESSAGES_OPENED = 8_000_000
ROUNDS = 9
FOLLOWED = 200
FOLLOWED_QUICK = 10
APART_US = 500
SEGMENT_RECORDS = (128 << 20) // 192
READ_MAX = 1.1
FOLLOW_MAX = 2.0

Samples = dict[str, list[float]]


def read_in_c(program: Path, path: Path) -> float:
    done = subprocess.run([program, "read", path], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[0])


def read_in_python(path: Path, count: int) -> float:
    with open_reader(path, start="first") as reader:
        started_ns = time.thread_time_ns()
        for message in reader:
            message.payload  # noqa: B018
        return (time.thread_time_ns() - started_ns) / count


def measure_reading(directory: Path, program: Path, quick: bool) -> Samples:
    """Return nanoseconds per message of each round."""
    count = MESSAGES_QUICK if quick else MESSAGES
    found: Samples = {}
    theirs, ours = directory / "theirs", directory / "ours"
    for command, path in (("fill", theirs), ("copy", ours)):
        subprocess.run([program, command, path, str(count)], check=True)
    for _ in range(1 if quick else ROUNDS):
        for name, path in (("theirs", theirs), ("ours", ours)):
            found.setdefault(f"C, {name}", []).append(read_in_c(program, path))
            found.setdefault(f"Python, {name}", []).append(read_in_python(path, count))
    for path in (theirs, ours):
        shutil.rmtree(path)
    return found


@contextmanager
def sending(program: Path, path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that appends on request; a context manager."""
    command: list[str | Path] = [program, "send", path, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.communicate()


def ask(sender: subprocess.Popen[str], count: int) -> None:
    assert sender.stdin is not None
    print(count, APART_US, file=sender.stdin, flush=True)


def hear_done(sender: subprocess.Popen[str]) -> None:
    assert sender.stdout is not None
    sender.stdout.readline()


async def follow(path: Path, sender: subprocess.Popen[str], count: int) -> float:
    """Return the median age in microseconds."""
    ages: list[float] = []
    async with asyncio.timeout(TOO_LONG_S), open_reader(path, start="last") as reader:
        ask(sender, count)
        async for message in reader:
            (sent_ns,) = STAMP.unpack_from(message.payload)
            ages.append((time.monotonic_ns() - sent_ns) / 1000)
            if len(ages) == count:
                break
    hear_done(sender)
    return percentile(ages, 0.5)


def follow_in_c(program: Path, path: Path, sender: subprocess.Popen[str], count: int) -> float:
    command: list[str | Path] = [program, "follow", path, str(count)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    reader.stdout.readline()
    ask(sender, count)
    ages = [int(line) / 1000 for line in reader.communicate()[0].split()]
    hear_done(sender)
    return percentile(ages, 0.5)


def measure_following(directory: Path, program: Path, quick: bool) -> Samples:
    """Return the median age in microseconds of each round."""
    count = FOLLOWED_QUICK if quick else FOLLOWED
    found: Samples = {}
    queues = {"theirs": directory / "their-live", "ours": directory / "our-live"}
    with (
        sending(program, queues["theirs"], "foreign") as theirs,
        sending(program, queues["ours"], "native") as ours,
    ):
        for _ in range(1 if quick else ROUNDS):
            for name, sender in (("theirs", theirs), ("ours", ours)):
                age = follow_in_c(program, queues[name], sender, count)
                found.setdefault(f"C, {name}", []).append(age)
                for loop, factory in LOOPS.items():
                    with asyncio.Runner(loop_factory=factory) as runner:
                        age = runner.run(follow(queues[name], sender, count))
                    found.setdefault(f"{loop}, {name}", []).append(age)
    for path in queues.values():
        shutil.rmtree(path)
    return found


def measure_opening(directory: Path, program: Path, quick: bool) -> tuple[int, float]:
    """Return how many records our first writer reads, and how many milliseconds it takes."""
    path = directory / "opened"
    count = MESSAGES_QUICK if quick else MESSAGES_OPENED
    subprocess.run([program, "fill", path, str(count)], check=True)
    started_ns = time.perf_counter_ns()
    with open_writer(path) as writer:
        taken_ns = time.perf_counter_ns() - started_ns
        scanned = writer.recovery.records_scanned
        if writer.append(b"") != count:
            raise RuntimeError("the queue was not taken over whole")
    shutil.rmtree(path)
    return scanned, taken_ns / 1e6


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure reading and following."""
    program = build_program("foreign_bench", directory)
    for name, samples in measure_reading(directory, program, quick).items():
        yield Figure(question="foreign", case=f"reading, {name}", unit="ns", samples=samples)
    for name, samples in measure_following(directory, program, quick).items():
        case = f"waking, median of {FOLLOWED} messages, {name}"
        yield Figure(question="foreign", case=case, unit="us", samples=samples)


def run(directory: Path, quick: bool) -> Iterator[Result]:
    program = build_program("foreign_bench", directory)
    found = measure_reading(directory, program, quick)
    for name in ("C", "Python"):
        theirs, ours = min(found[f"{name}, theirs"]), min(found[f"{name}, ours"])
        detail = f"{theirs:.1f} ns / {ours:.1f} ns"
        what = f"reading a queue of another program / one of ours, {name}"
        yield Result.at_most("foreign", what, theirs / ours, READ_MAX, "x", detail)
    found = measure_following(directory, program, quick)
    for name in ("C", *LOOPS):
        theirs, ours = median(found[f"{name}, theirs"]), median(found[f"{name}, ours"])
        detail = f"{theirs:.1f} us / {ours:.1f} us"
        what = f"waking by another program's writer / by ours, median, {name}"
        yield Result.at_most("foreign", what, theirs / ours, FOLLOW_MAX, "x", detail)
    scanned, taken_ms = measure_opening(directory, program, quick)
    what = f"records looked at to open {MESSAGES_OPENED:,} of theirs for writing"
    yield Result.at_most("foreign", what, scanned, SEGMENT_RECORDS, "", f"{taken_ms:.0f} ms")
