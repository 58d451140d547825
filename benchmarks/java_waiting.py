"""How soon does a sleeping reader get what a JVM appends, and what does sleeping cost?

A JVM wakes no reader, so a thread has to check. Reaction: a JVM appends at a steady rate and notes the
monotonic clock after each append. Measured is the time from there until the event loop has the message, so
the regularity of the JVM's rate does not matter. Idle: processor time of a whole process with one sleeping
reader of a queue that a JVM made and has open.
"""

import asyncio
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from aiochronicle import open_reader
from benchmarks.contestants import LOOPS
from benchmarks.measure import Result, percentile, skip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.building import missing
from interop.judge import Judge, JudgeQueue

RATES_HZ = (5_000, 1_000, 100)
REACTION_S = 5.0
WARM_UP_S = 1.0
IDLE_S = 20.0


def run(directory: Path, quick: bool) -> Iterator[Result]:
    reason = missing()
    if reason is not None:
        skip("java", "Chronicle Queue", reason)
        return
    with Judge() as judge:
        for loop in LOOPS:
            for rate_hz in RATES_HZ:
                path = directory / f"reaction-{loop}-{rate_hz}"
                with judge.open(path) as queue:
                    yield react(queue, path, loop, rate_hz, 0.5 if quick else REACTION_S)
            path = directory / f"idle-{loop}"
            with judge.open(path) as queue:
                queue.append_bytes(b"one")
                yield idle(path, loop, 2.0 if quick else IDLE_S)


def react(queue: JudgeQueue, path: Path, loop: str, rate_hz: int, seconds: float) -> Result:
    warm_up = int(rate_hz * WARM_UP_S)
    count = warm_up + int(rate_hz * seconds)
    stamps = path.with_name(f"{path.name}.stamps")

    async def receive() -> list[int]:
        received = []
        with open_reader(path) as reader:
            reader.seek_last()
            queue.start_append(count=count, rate_hz=rate_hz, stamps=stamps)
            async for _ in reader:
                received.append(time.monotonic_ns())
                if len(received) == count:
                    break
        return received

    queue.append_bytes(b"the file is there")
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        received = runner.run(receive())
    queue.stop_append(let_finish=True)
    appended = struct.unpack(f"{count}q", stamps.read_bytes())
    # A message can arrive before the JVM has read the clock.
    pairs = zip(received[warm_up:], appended[warm_up:], strict=True)
    taken_us = [max(0.0, (here - there) / 1e3) for here, there in pairs]
    p50, p99 = percentile(taken_us, 0.5), percentile(taken_us, 0.99)
    return Result.at_most(
        "java",
        f"p99 after a JVM's append, {rate_hz:,} a second, {loop}",
        p99,
        1_000,
        "us",
        f"p50 {p50:.0f} us, worst {max(taken_us):,.0f} us of {len(taken_us):,}",
    )


def idle(path: Path, loop: str, seconds: float) -> Result:
    command = [sys.executable, "-m", "benchmarks.java_waiting", str(path), loop, str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    percent = float(done.stdout)
    what = f"processor time of a reader that sleeps, {loop}"
    return Result.at_most("java", what, percent, 1.0, "%", f"over {seconds:.0f} s")


async def sleep_over(path: str, seconds: float) -> float:
    """Return the per cent of a core that this process needs while a reader waits for the next message."""
    with open_reader(path) as reader:
        reader.seek_last()
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(3.0)  # a queue that has been idle for long
        before, started_s = _cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        used_s, taken_s = _cpu_s() - before, time.monotonic() - started_s
        assert not waiting.done()
        waiting.cancel()
    return 100 * used_s / taken_s


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOPS[sys.argv[2]]) as given:
        print(given.run(sleep_over(sys.argv[1], float(sys.argv[3]))))
