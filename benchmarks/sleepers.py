"""What do sleeping readers cost the thread that appends?

Another process has 0, 1, 8 or 64 readers of one queue, each a task of one event loop; or 8 processes have
one each. This process appends a message whenever all of them sleep. The append then makes one system call
per reader, or two if there are many readers, and another thread makes the rest. Measured are its processor
time and its real time, in which the readers may already run on the same processor.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

from aiochronicle import Reader, Writer, open_reader, open_writer
from benchmarks.measure import PAYLOAD, Figure

__all__ = ["figures"]

READERS = {"0 readers": [], "1 readers": [1], "8 readers": [8], "64 readers": [64]}
READERS["8 readers in 8 processes"] = [1] * 8
APPENDS = 100
APPENDS_QUICK = 5
ROUNDS = 5
TOO_LONG_S = 60
LOOK_S = 0.001


async def read_on(reader: Reader) -> None:
    async for _ in reader:
        pass


async def sleep_many(path: str, count: int) -> None:
    """Run the readers, in the other process, until standard input ends."""
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(open_reader(path, start="last")) for _ in range(count)
        ]
        tasks = [asyncio.create_task(read_on(reader)) for reader in readers]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def await_wakeups(writer: Writer, expected: int) -> bool:
    """Append until one message wakes all readers; return False if this takes too long."""
    limit_s = time.monotonic() + TOO_LONG_S
    while time.monotonic() < limit_s:
        before = writer.statistics().wakeups
        writer.append(PAYLOAD)
        if writer.statistics().wakeups - before == expected:
            return True
        time.sleep(LOOK_S)
    return False


def time_appends(writer: Writer, readers: int, appends: int) -> tuple[float, float]:
    """Return the medians of processor time and real time of appends that woke all readers."""
    spent: list[tuple[int, int]] = []
    pause_s = LOOK_S
    while len(spent) < appends:
        time.sleep(pause_s)
        before = writer.statistics().wakeups
        cpu_ns, real_ns = time.thread_time_ns(), time.perf_counter_ns()
        writer.append(PAYLOAD)
        real_ns, cpu_ns = time.perf_counter_ns() - real_ns, time.thread_time_ns() - cpu_ns
        if writer.statistics().wakeups - before == readers:
            spent.append((cpu_ns, real_ns))
        else:  # some readers were still awake
            pause_s = min(pause_s * 2, 1.0)
    return statistics.median(cpu for cpu, _ in spent), statistics.median(real for _, real in spent)


@contextmanager
def sleeping(path: Path, count: int) -> Iterator[None]:
    """Run a process with this many readers; a context manager."""
    command = [sys.executable, "-m", __name__, str(path), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.communicate("end\n")


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure each number of readers."""
    appends = APPENDS_QUICK if quick else APPENDS
    for name, processes in READERS.items():
        path, count = directory / f"sleepers-{name}", sum(processes)
        with open_writer(path) as writer, ExitStack() as stack:
            for readers in processes:
                stack.enter_context(sleeping(path, readers))
            if not await_wakeups(writer, count):
                raise TimeoutError(f"{name} never slept at the same time")
            rounds = [time_appends(writer, count, appends) for _ in range(1 if quick else ROUNDS)]
        for index, what in enumerate(("processor time", "real time")):
            yield Figure(
                question="sleepers",
                case=f"append that wakes {name}, {what}",
                unit="ns",
                samples=[found[index] for found in rounds],
            )


if __name__ == "__main__":
    asyncio.run(sleep_many(sys.argv[1], int(sys.argv[2])))
