"""What does merging many queues cost, compared with heapq.merge, a single queue, and fewer queues?

Measured is ``for message in fan_in``, with all queues on disk and in the page cache, against ``heapq.merge``
over the same readers by timestamp. Interleaved at random means that nearly every message comes from another
queue than the previous one; in bursts a queue has a hundred in a row. Waking is measured in real time: a
process appends the time, and the result is its age when an ``async for`` gets it, through one reader and
through a fan-in of 64 readers, of which the others are idle.
"""

import asyncio
import heapq
import random
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path

from aiochronicle import FanIn, Reader, open_reader, open_writer
from benchmarks.measure import PAYLOAD, Best, Result, percentile

MESSAGES = 400_000
MESSAGES_QUICK = 20_000
SOURCES = (8, 64, 512)
BURST = 100
WAKES = 400
WAKES_QUICK = 20

WRITERS = """
import sys, time, aiochronicle
writers = [aiochronicle.open_writer(path, segment_size=1 << 20) for path in sys.argv[1:]]
print("ready", flush=True)
for _ in sys.stdin:
    time.sleep(0.002)  # the reader has fallen asleep by then
    writers[0].append(b"%d" % time.monotonic_ns())
for writer in writers:
    writer.close()
"""


def fill(directory: Path, sources: int, messages: int, burst: int) -> list[Path]:
    """Distribute messages to the queues at random, this many in a row to each."""
    chance = random.Random(sources)
    times: list[list[int]] = [[] for _ in range(sources)]
    for start in range(0, messages, burst):
        times[chance.randrange(sources)] += range(start, start + burst)
    paths = [directory / f"{sources}-{burst}-{number}" for number in range(sources)]
    for path, own in zip(paths, times, strict=True):
        size = max(1 << 16, (len(own) * 192 + 8192) // 4096 * 4096)
        with open_writer(path, segment_size=size) as writer:
            for start in range(0, len(own), 100):
                stamps = own[start : start + 100]
                writer.append_many([PAYLOAD] * len(stamps), timestamps_ns=stamps)
    return paths


def merge_in_c(readers: list[Reader]) -> float:
    with FanIn(readers) as fan_in:
        started_ns = time.thread_time_ns()
        deque(fan_in, maxlen=0)
        return time.thread_time_ns() - started_ns


def merge_in_heapq(readers: list[Reader]) -> float:
    started_ns = time.thread_time_ns()
    deque(heapq.merge(*readers, key=attrgetter("timestamp_ns")), maxlen=0)
    return time.thread_time_ns() - started_ns


async def iterate(source: Reader | FanIn, messages: int) -> float:
    started_ns = time.thread_time_ns()
    async for _ in source:
        messages -= 1
        if messages == 0:
            break
    return time.thread_time_ns() - started_ns


def iterate_fan_in(readers: list[Reader], messages: int) -> float:
    with FanIn(readers) as fan_in:
        return asyncio.run(iterate(fan_in, messages))


def measure(paths: list[Path], messages: int, rounds: int, *, loops: bool = False) -> Best:
    best: dict[str, float] = dict.fromkeys(("fan-in", "heapq", "async"), float("inf"))
    with ExitStack() as stack:
        readers = [stack.enter_context(open_reader(path)) for path in paths]

        def rewound() -> list[Reader]:
            for reader in readers:
                reader.seek_first()
            return readers

        for _ in range(rounds):
            best["fan-in"] = min(best["fan-in"], merge_in_c(rewound()) / messages)
            best["heapq"] = min(best["heapq"], merge_in_heapq(rewound()) / messages)
            if loops:
                taken = iterate_fan_in(rewound(), messages) / messages
                best["async"] = min(best["async"], taken)
    return Best(best)


def measure_one_queue(path: Path, messages: int, rounds: int) -> float:
    best = float("inf")
    with open_reader(path) as reader:
        for _ in range(rounds):
            reader.seek_first()
            best = min(best, asyncio.run(iterate(reader, messages)) / messages)
    return best


async def wake_latencies_ns(
    source: Reader | FanIn, writers: "subprocess.Popen[str]", wakes: int
) -> list[float]:
    assert writers.stdin is not None
    latencies: list[float] = []
    writers.stdin.write("\n")
    writers.stdin.flush()
    async for message in source:
        latencies.append(time.monotonic_ns() - int(message.payload))
        if len(latencies) == wakes:
            break
        writers.stdin.write("\n")
        writers.stdin.flush()
    return latencies


def measure_wake(directory: Path, sources: int, wakes: int) -> float:
    paths = [directory / f"wake-{sources}-{number}" for number in range(sources)]
    for path in paths:
        open_writer(path, segment_size=1 << 20).close()
    command = [sys.executable, "-c", WRITERS, *map(str, paths)]
    with ExitStack() as stack:
        writers = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert writers.stdin is not None
        assert writers.stdout is not None
        writers.stdout.readline()
        readers = [stack.enter_context(open_reader(path)) for path in paths]
        source = readers[0] if sources == 1 else stack.enter_context(FanIn(readers))
        latencies = asyncio.run(wake_latencies_ns(source, writers, wakes))
        writers.stdin.close()
    return percentile(latencies, 0.5)


def run(directory: Path, quick: bool) -> list[Result]:
    messages = MESSAGES_QUICK if quick else MESSAGES
    rounds = 2 if quick else 7
    results: list[Result] = []
    costs: dict[int, float] = {}
    asynchronous = float("inf")
    for burst, bar, how in ((1, 1 / 4, "interleaved"), (BURST, 1 / 7, "in bursts")):
        for sources in SOURCES:
            paths = fill(directory, sources, messages, burst)
            times = measure(paths, messages, rounds, loops=(sources, burst) == (64, 1))
            if burst == 1:
                costs[sources] = times.ns["fan-in"]
            asynchronous = min(asynchronous, times.ns["async"])
            results.append(
                Result.at_most(
                    "merge",
                    f"{sources} queues {how} / heapq.merge",
                    times.ratio("fan-in", "heapq"),
                    round(bar, 3),
                    "x",
                    times.describe("fan-in", "heapq"),
                )
            )
    (one,) = fill(directory, 1, messages, 1)
    single = Best({"64": asynchronous, "one": measure_one_queue(one, messages, rounds)})
    growth = Best({"512": costs[512], "8": costs[8]})
    wakes = WAKES_QUICK if quick else WAKES
    wake = Best(
        {"64": measure_wake(directory, 64, wakes), "one": measure_wake(directory, 1, wakes)}
    )
    results += [
        Result.at_most(
            "merge",
            "async for over 64 queues / over one",
            single.ratio("64", "one"),
            2,
            "x",
            single.describe("64", "one"),
        ),
        Result.at_most(
            "merge",
            "512 queues / 8 queues, per message",
            growth.ratio("512", "8"),
            3,
            "x",
            growth.describe("512", "8"),
        ),
        Result.at_most(
            "merge",
            "waking through 64 queues / one, median",
            wake.ratio("64", "one"),
            1.5,
            "x",
            wake.describe("64", "one"),
        ),
    ]
    return results
