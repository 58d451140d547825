"""What does an append cost a recorder, which keeps everything and never pauses?

16 million messages of 100 bytes into a new queue on the disk, 3 GiB of records, without a pause: no pages
prepared in advance last that long, and a host that overcommits memory must provide all of it. Real time per
message of each eighth; the last compared with the first of the same run, and with Java's last. Python, C and
Java take turns, and each round begins with another one. Java is the official Chronicle Queue in a separate
JVM, after a warm-up in another queue; without Java and Maven it is left out.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from statistics import median

from aiochronicle import open_writer
from benchmarks.building import build_program
from benchmarks.measure import PAYLOAD, Figure, Result, skip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.building import missing
from interop.judge import Judge

MESSAGES = 16_000_000
MESSAGES_QUICK = 160_000
PARTS = 8
ROUNDS = 3
WARM_UP = 1_000_000
REST_S = 3  # the host reclaims freed memory gradually
FULL_SPEED = ["-XX:TieredStopAtLevel=4", "-Xmx2g"]
RATIO_MAX = 2.5

Record = Callable[[Path, int], list[float]]


def record_in_python(path: Path, messages: int) -> list[float]:
    """Return the nanoseconds per message of each part."""
    parts: list[float] = []
    with open_writer(path) as writer:
        append = writer.append
        for _ in range(PARTS):
            started_ns = time.perf_counter_ns()
            for _ in repeat(None, messages // PARTS):
                append(PAYLOAD)
            parts.append((time.perf_counter_ns() - started_ns) / (messages // PARTS))
    return parts


def take_turns(directory: Path, messages: int, rounds: int) -> dict[str, list[list[float]]]:
    """Return the parts of each round of each contestant."""
    program = build_program("recorder_bench", directory)

    def record_in_c(path: Path, messages: int) -> list[float]:
        command: list[str | Path] = [program, "record", path, str(messages), str(PARTS)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return [float(line) for line in done.stdout.split()]

    contestants: dict[str, Record] = {"Python": record_in_python, "C": record_in_c}
    found: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        if reason := missing():
            skip("recorder", "Chronicle Queue", reason)
        else:
            judge = stack.enter_context(Judge(properties=FULL_SPEED))
            with judge.open(directory / "warm-up") as queue:
                queue.bench_append(PAYLOAD, min(WARM_UP, messages))

            def record_in_java(path: Path, messages: int) -> list[float]:
                with judge.open(path) as queue:
                    return queue.bench_append(PAYLOAD, messages // PARTS, PARTS)

            contestants["Java"] = record_in_java
        names = list(contestants)
        for number in range(rounds):
            for name in names:
                record = contestants[name]
                path = directory / f"recorder-{name}-{number}"
                found.setdefault(name, []).append(record(path, messages))
                shutil.rmtree(path)
                time.sleep(REST_S)
            names.append(names.pop(0))  # the first contestant finds other memory than the rest
    return found


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure all available contestants."""
    messages, rounds = (MESSAGES_QUICK, 1) if quick else (MESSAGES, ROUNDS)
    for name, runs in take_turns(directory, messages, rounds).items():
        for part, index in (("first", 0), ("last", -1)):
            case = f"{name}, {messages // 1_000_000} million messages, {part} eighth"
            samples = [run[index] for run in runs]
            yield Figure(question="recorder", case=case, unit="ns", samples=samples)


def run(directory: Path, quick: bool) -> Iterator[Result]:
    messages, rounds = (MESSAGES_QUICK, 1) if quick else (MESSAGES, ROUNDS)
    found = take_turns(directory, messages, rounds)
    ratio = median(run[-1] / run[0] for run in found["Python"])
    parts = " ".join(f"{part:.0f}" for part in found["Python"][-1])
    what = "last eighth of a recorder's appends / the first, from Python"
    yield Result.at_most("recorder", what, ratio, RATIO_MAX, "x", f"{parts} ns")
    if "Java" in found:
        ours, java = (median(run[-1] for run in found[name]) for name in ("C", "Java"))
        detail = f"{ours:.0f} ns / {java:.0f} ns"
        what = "last eighth of a recorder's appends in C / Java's"
        yield Result.at_most("recorder", what, ours / java, 1.0, "x", detail)
