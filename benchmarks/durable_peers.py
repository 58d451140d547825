"""How long does one durable message take, next to others that sync each message?

A message of 100 bytes and its sync, one after the other: ``append`` and ``flush_now`` from Python, and the
same in C; Walrus, a write-ahead log in Rust, with ``SyncEach``; and Java's Chronicle Queue with ``sync()``
of its appender in ``SyncMode.SYNC``. All write to the same disk, in turns. Real time; the median of a round
is one sample. For comparison: a bare ``pwrite`` and ``fdatasync`` of a file that already has its size.

cargo builds Walrus, Maven builds Chronicle Queue; a peer that is not available is left out.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from aiochronicle import open_writer
from benchmarks.building import ROOT, build_program
from benchmarks.measure import PAYLOAD, Figure, Result, skip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.building import missing
from interop.judge import Judge

APPENDS = 300
APPENDS_QUICK = 20
ROUNDS = 15
RATIO_MAX = 1.1
WALRUS = ROOT / "benchmarks" / "walrus"
BUILD_SECONDS = 300

Sync = Callable[[int], float]
"""Makes this many messages durable, and returns the median in microseconds."""


def build_walrus(directory: Path) -> Path | str:
    """Return the program, or the reason why there is none."""
    if shutil.which("cargo") is None:
        return "needs cargo"
    target = ROOT / "build" / "walrus"
    copy = directory / "walrus-source"
    shutil.copytree(WALRUS, copy)  # cargo writes Cargo.lock beside it
    command: list[str | Path] = ["cargo", "build", "--release", "--quiet"]
    command += ["--manifest-path", copy / "Cargo.toml", "--target-dir", target]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        return f"cargo could not build it: {done.stdout.strip().splitlines()[-1]}"
    return target / "release" / "walrus_bench"


class LineProgram:
    """A program that answers each number with a line of nanoseconds; a context manager."""

    def __init__(self, *command: str | Path, directory: Path) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=directory,
            env={**os.environ, "WALRUS_DATA_DIR": str(directory)},
        )

    def sync(self, count: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(count, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            word, *taken_ns = line.split()
            if word == "RESULT":
                return median(map(int, taken_ns)) / 1000
        raise RuntimeError("the program ended early")

    def __enter__(self) -> "LineProgram":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def open_contestants(stack: ExitStack, directory: Path) -> dict[str, Sync]:
    """Open the available peers."""
    writer = stack.enter_context(open_writer(directory / "ours"))

    def python(count: int) -> float:
        taken_ns: list[int] = []
        for _ in range(count):
            started_ns = time.perf_counter_ns()
            writer.append(PAYLOAD)
            writer.flush_now()
            taken_ns.append(time.perf_counter_ns() - started_ns)
        return median(taken_ns) / 1000

    bare_fd = os.open(directory / "bare", os.O_RDWR | os.O_CREAT, 0o600)
    stack.callback(os.close, bare_fd)
    os.write(bare_fd, bytes(64 << 20))
    os.fsync(bare_fd)
    bare_offset = 0

    def bare(count: int) -> float:
        nonlocal bare_offset
        taken_ns: list[int] = []
        for _ in range(count):
            started_ns = time.perf_counter_ns()
            os.pwrite(bare_fd, PAYLOAD, bare_offset)
            os.fdatasync(bare_fd)
            taken_ns.append(time.perf_counter_ns() - started_ns)
            bare_offset = (bare_offset + 192) % (64 << 20)
        return median(taken_ns) / 1000

    program = build_program("recorder_bench", directory)
    ours = LineProgram(program, "durable", directory / "ours-in-c", directory=directory)
    contestants: dict[str, Sync] = {
        "Python": python,
        "C": stack.enter_context(ours).sync,
        "pwrite": bare,
    }
    walrus = build_walrus(directory)
    if isinstance(walrus, str):
        skip("durable_peers", "Walrus", walrus)
    else:
        place = directory / "walrus"
        place.mkdir()
        contestants["Walrus"] = stack.enter_context(LineProgram(walrus, directory=place)).sync
    if reason := missing():
        skip("durable_peers", "Chronicle Queue", reason)
    else:
        judge = stack.enter_context(Judge(properties=["-XX:TieredStopAtLevel=4"]))
        queue = stack.enter_context(judge.open(directory / "java", sync_mode="SYNC"))

        def java(count: int) -> float:  # a round each, to have a median
            return median(queue.bench_append(PAYLOAD, 1, count, is_durable=True)) / 1000

        contestants["Java"] = java
    return contestants


def take_turns(directory: Path, quick: bool) -> dict[str, list[float]]:
    """Return the median of each round of each peer."""
    place = directory / "durable-peers"
    place.mkdir()
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        contestants = open_contestants(stack, place)
        for name, sync in contestants.items():
            sync(APPENDS_QUICK)  # warms up
            found[name] = []
        turn = list(contestants.items())
        for _ in range(1 if quick else ROUNDS):
            for name, sync in turn:
                found[name].append(sync(APPENDS_QUICK if quick else APPENDS))
            turn.reverse()  # or the same peer would always pay for its predecessor's writes
    return found


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure the available peers."""
    for name, samples in take_turns(directory, quick).items():
        case = f"one durable message, {name}"
        yield Figure(question="durable", case=case, unit="us", samples=samples)


def run(directory: Path, quick: bool) -> Iterator[Result]:
    found = {name: median(samples) for name, samples in take_turns(directory, quick).items()}
    for ours in ("Python", "C"):
        for peer in ("Walrus", "Java"):
            if peer in found:
                what = f"one durable message from {ours} / {peer}"
                detail = (
                    f"{found[ours]:.1f} us / {found[peer]:.1f} us, pwrite {found['pwrite']:.1f}"
                )
                ratio = found[ours] / found[peer]
                yield Result.at_most("durable_peers", what, ratio, RATIO_MAX, "x", detail)
