"""What does ``async for`` cost, compared with the plain ``for`` and with asyncio.Queue?

All three read the same number of existing payloads, count them and stop at the last one, on asyncio's own
loop. ``async for`` yields to the loop regularly, which is part of its cost.

In about one process of fifteen, the addresses that its libraries happen to get cost ``async for`` a sixth
(never with address randomisation off). So several processes measure: the best round of all counts, and the
ratio of the worst process is shown beside it.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from aiochronicle import open_reader, open_writer
from benchmarks.measure import PAYLOAD_BYTES, Best, Result

MESSAGES = 200_000
MESSAGES_QUICK = 20_000
BATCH = 100
PROCESSES = 3


async def iterate_async(path: Path, count: int) -> float:
    with open_reader(path) as reader:
        taken = 0
        started_ns = time.thread_time_ns()
        async for message in reader:
            message.payload  # noqa: B018
            taken += 1
            if taken == count:
                break
        return time.thread_time_ns() - started_ns


def iterate(path: Path, count: int) -> float:
    with open_reader(path) as reader:
        taken = 0
        started_ns = time.thread_time_ns()
        for message in reader:
            message.payload  # noqa: B018
            taken += 1  # noqa: SIM113 - as in the other loops
            if taken == count:
                break
        return time.thread_time_ns() - started_ns


async def get_all(payloads: list[bytes]) -> float:
    memory: asyncio.Queue[bytes] = asyncio.Queue()
    for payload in payloads:
        memory.put_nowait(payload)
    taken = 0
    started_ns = time.thread_time_ns()
    while True:
        await memory.get()
        taken += 1
        if taken == len(payloads):
            break
    return time.thread_time_ns() - started_ns


def measure(path: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the best round of each, in nanoseconds per message."""
    payloads = [b"%*d" % (PAYLOAD_BYTES, number) for number in range(count)]
    best = {name: float("inf") for name in ("async for", "for", "Queue.get")}
    for _ in range(rounds):
        best["async for"] = min(best["async for"], asyncio.run(iterate_async(path, count)) / count)
        best["for"] = min(best["for"], iterate(path, count) / count)
        best["Queue.get"] = min(best["Queue.get"], asyncio.run(get_all(payloads)) / count)
    return best


def measure_in_processes(
    path: Path, count: int, rounds: int, processes: int
) -> list[dict[str, float]]:
    arguments = [sys.executable, "-m", "benchmarks.loop", str(path), str(count), str(rounds)]
    outputs = [
        subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout
        for _ in range(processes)
    ]
    return [msgspec.json.decode(output, type=dict[str, float]) for output in outputs]


def run(directory: Path, quick: bool) -> list[Result]:
    count = MESSAGES_QUICK if quick else MESSAGES
    path = directory / "loop"
    with open_writer(path) as writer:
        for start in range(0, count, BATCH):
            payloads = [b"%*d" % (PAYLOAD_BYTES, start + i) for i in range(BATCH)]
            writer.append_many(payloads)
    measured = measure_in_processes(path, count, rounds=2 if quick else 12, processes=PROCESSES)
    times = Best({name: min(best[name] for best in measured) for name in measured[0]})

    def against(yardstick: str, bar: float, what: str) -> Result:
        ratio = times.ratio("async for", yardstick)
        worst = max(best["async for"] / best[yardstick] for best in measured)
        detail = f"{times.describe('async for', yardstick)}; worst process {worst:.2f} x"
        return Result.at_most("loop", what, ratio, bar, "x", detail)

    return [
        against("Queue.get", 1 / 3, "async for / await asyncio.Queue.get"),
        against("for", 1.6, "async for / for"),
    ]


if __name__ == "__main__":
    path, count, rounds = sys.argv[1:]
    print(msgspec.json.encode(measure(Path(path), int(count), int(rounds))).decode())
