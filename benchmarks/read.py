"""What does reading cost, compared with a list of bytes and with queue.SimpleQueue?

Measured is ``for message in reader: message.payload`` over a queue on disk that is in the page cache, by a
reader opened for each round, so mapping its pages is included. The list and the SimpleQueue hold as many
bytes objects with the same contents, each a separate object like the payloads; there are enough of them that
neither side fits into the processor's caches. The list is iterated with an empty body: both loops end with a
bytes object in hand. ``SimpleQueue.get`` is called on a queue that was filled before.

``read_block`` returns arrays of the places of the payloads, 1,024 messages at a time, without an object for
each; its bar is a time, because nothing else does the same.
"""

import time
from collections import deque
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue

from aiochronicle import open_reader, open_writer
from benchmarks.measure import PAYLOAD_BYTES, Best, Result

MESSAGES = 1_000_000
MESSAGES_QUICK = 50_000
BATCH = 100


def iterate_reader(path: Path) -> float:
    with open_reader(path) as reader:
        started_ns = time.thread_time_ns()
        for message in reader:
            message.payload  # noqa: B018
        return time.thread_time_ns() - started_ns


def read_blocks(path: Path) -> float:
    with open_reader(path) as reader:
        started_ns = time.thread_time_ns()
        while len(reader.read_block()):
            pass
        return time.thread_time_ns() - started_ns


def iterate_list(payloads: list[bytes]) -> float:
    started_ns = time.thread_time_ns()
    for _ in payloads:
        pass
    return time.thread_time_ns() - started_ns


def get_all(payloads: list[bytes]) -> float:
    memory: SimpleQueue[bytes] = SimpleQueue()
    deque(map(memory.put, payloads), maxlen=0)
    started_ns = time.thread_time_ns()
    for _ in repeat(None, len(payloads)):
        memory.get()
    return time.thread_time_ns() - started_ns


def run(directory: Path, quick: bool) -> list[Result]:
    count = MESSAGES_QUICK if quick else MESSAGES
    payloads = [b"%*d" % (PAYLOAD_BYTES, number) for number in range(count)]
    path = directory / "read"
    with open_writer(path) as writer:
        for start in range(0, count, BATCH):
            writer.append_many(payloads[start : start + BATCH])
    best: dict[str, float] = {
        name: float("inf") for name in ("reader", "block", "list", "SimpleQueue")
    }
    for _ in range(3 if quick else 15):
        best["reader"] = min(best["reader"], iterate_reader(path) / count)
        best["block"] = min(best["block"], read_blocks(path) / count)
        best["list"] = min(best["list"], iterate_list(payloads) / count)
        best["SimpleQueue"] = min(best["SimpleQueue"], get_all(payloads) / count)
    times = Best(best)
    what = "message.payload for each / "
    return [
        times.at_most(
            2.5, what + "iterating a list of bytes", question="read", pair=("reader", "list")
        ),
        times.at_most(
            0.5, what + "SimpleQueue.get", question="read", pair=("reader", "SimpleQueue")
        ),
        Result.at_most("read", "read_block, per message", times.ns["block"], 15, "ns"),
    ]
