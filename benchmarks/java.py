"""How fast are Java queues read and written, compared with Java itself on the same queue?

Java is the official Chronicle Queue in separate JVMs, see tests/interop; it warms up before the measurement.
Rounds alternate, and the best of each counts. Reading: each side reads one number of each payload; from
Python, ``for message in reader: message.payload``. Appending: both append to one queue in turns, with no
other writer, each message under the write lock of the queue. Fairness: two JVMs and two of our processes
append to one queue at full speed. Counted are the messages from the first one of the last process to start
to the last one of the first process to stop.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

from aiochronicle import open_reader, open_writer
from benchmarks.measure import PAYLOAD, PAYLOAD_BYTES, Best, Result, skip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.building import missing
from interop.judge import Judge
from interop.sharing import share_alike

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = 1_000_000
MESSAGES_QUICK = 50_000
APPENDS = 20_000
WARM_UP = 5
FAIRNESS_S = 5.0
FAIRNESS_RUNS = 7

FULL_SPEED = ["-XX:TieredStopAtLevel=4", "-Xmx2g"]


def run(directory: Path, quick: bool) -> Iterator[Result]:
    reason = missing()
    if reason is not None:
        skip("java", "Chronicle Queue", reason)
        return
    native = load(build(directory))
    with Judge(properties=FULL_SPEED) as judge:
        yield from reading(judge, native, directory / "java-read", quick)
        yield from appending(judge, native, directory / "java-append", quick)
    for is_warm in (True, False):
        yield fairness(directory, quick, is_warm=is_warm)


# --- the engine, by ctypes ---------------------------------------------------------------------

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32)


def build(directory: Path) -> Path:
    """Compile the C side together with the engine."""
    library = directory / "java_bench.so"
    flags = (ROOT / "csrc" / "compile_flags.txt").read_text(encoding="utf-8").split()
    sources = [*sorted((ROOT / "csrc").glob("*.c")), Path(__file__).with_name("java_bench.c")]
    flags += ["-fvisibility=default", "-fPIC", "-shared"]
    compiler = os.environ.get("CC", "cc")
    command: list[str | Path] = [compiler, *flags, "-I", ROOT / "csrc", *sources, "-o", library]
    subprocess.run(command, check=True)
    return library


def load(library: Path) -> ctypes.CDLL:
    native = ctypes.CDLL(str(library))
    native.bench_error.restype = ctypes.c_char_p
    native.bench_tail.restype = native.bench_each.restype = ctypes.c_double
    native.bench_tail.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)]
    native.bench_each.argtypes = [ctypes.c_char_p, CALLBACK]
    native.bench_writer.restype = ctypes.c_void_p
    native.bench_writer.argtypes = [ctypes.c_char_p]
    native.bench_writer_close.argtypes = [ctypes.c_void_p]
    native.bench_append.restype = ctypes.c_double
    native.bench_append.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_uint32,
        ctypes.c_uint32,
    ]
    return native


def checked(native: ctypes.CDLL, ns: float) -> float:
    if ns < 0:
        raise RuntimeError(native.bench_error().decode())
    return ns


def in_turns(contestants: dict[str, Callable[[], float]], rounds: int) -> Best:
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, contestant in contestants.items():
            best[name] = min(best[name], contestant())
    return Best(best)


# --- reading -----------------------------------------------------------------------------------


def reading(judge: Judge, native: ctypes.CDLL, path: Path, quick: bool) -> list[Result]:
    count = MESSAGES_QUICK if quick else MESSAGES
    encoded = os.fsencode(path)
    total = ctypes.c_uint64()
    with judge.open(path) as queue:
        queue.bench_append(PAYLOAD, count)

        def java() -> float:
            return min(queue.bench_tail(1))

        def c_tail() -> float:
            return checked(native, native.bench_tail(encoded, ctypes.byref(total)))

        def python_for() -> float:
            with open_reader(path) as reader:
                started_ns = time.monotonic_ns()
                for message in reader:
                    message.payload  # noqa: B018
                return (time.monotonic_ns() - started_ns) / count

        def callbacks() -> float:
            payloads: list[Any] = []

            def receive(_: int, payload: int, length: int) -> None:
                payloads.append(ctypes.string_at(payload, length))
                payloads.clear()

            return checked(native, native.bench_each(encoded, CALLBACK(receive)))

        queue.bench_tail(WARM_UP)
        best = in_turns(
            {"java": java, "c": c_tail, "for": python_for, "ctypes": callbacks}, 2 if quick else 10
        )
    size = f"{PAYLOAD_BYTES} bytes"
    return [
        best.at_least(1.0, f"C tail, {size} / Java tailer", question="java", pair=("c", "java")),
        best.at_least(
            0.3, "message.payload for each / Java tailer", question="java", pair=("for", "java")
        ),
        best.at_least(
            10.0,
            "message.payload for each / ctypes callback",
            question="java",
            pair=("for", "ctypes"),
        ),
    ]


# --- appending ---------------------------------------------------------------------------------


def appending(judge: Judge, native: ctypes.CDLL, path: Path, quick: bool) -> list[Result]:
    payload = PAYLOAD
    with ExitStack() as stack:
        queue = stack.enter_context(judge.open(path))
        queue.bench_append(payload, APPENDS, rounds=WARM_UP)
        writer = stack.enter_context(open_writer(path))
        handle = native.bench_writer(os.fsencode(path))
        if not handle:
            raise RuntimeError(native.bench_error().decode())
        stack.callback(native.bench_writer_close, handle)

        def java() -> float:
            return min(queue.bench_append(payload, APPENDS))

        def c_append() -> float:
            return checked(native, native.bench_append(handle, payload, len(payload), APPENDS))

        def python() -> float:
            started_ns = time.monotonic_ns()
            for _ in repeat(None, APPENDS):
                writer.append(payload)
            return (time.monotonic_ns() - started_ns) / APPENDS

        contestants = {"java": java, "c": c_append, "python": python}
        best = in_turns(contestants, 3 if quick else 40)
    return [
        best.at_most(1.3, "append in C / Java appender", question="java", pair=("c", "java")),
        best.at_most(
            2.0, "writer.append / Java appender", question="java", pair=("python", "java")
        ),
    ]


# --- fairness ----------------------------------------------------------------------------------


def fairness(directory: Path, quick: bool, *, is_warm: bool) -> Result:
    """Return the median of several runs."""
    count = 1 if quick else FAIRNESS_RUNS
    seconds = 2.0 if quick else FAIRNESS_S
    jvms = "warm" if is_warm else "cold"
    runs = []
    for n in range(count):
        path = directory / f"java-fair-{jvms}{n}"
        found = share_alike(path, seconds, FULL_SPEED, is_warm=is_warm)
        runs.append((min(found.values()), found))
    runs.sort(key=lambda run: run[0])
    least, all_shares = runs[len(runs) // 2]
    detail = ", ".join(f"{name} {share:.0%}" for name, share in all_shares.items())
    detail += f"; {runs[0][0]:.0%} to {runs[-1][0]:.0%} in {len(runs)} runs"
    what = f"least share of 2 {jvms} JVMs and 2 of ours"
    return Result.at_least("java", what, least, 0.1, "", detail)
