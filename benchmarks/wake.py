"""How long does a message take to wake a sleeping reader in another process?

Another process sends 2,000 messages a second, each with the moment at which it was sent; measured is its age
when this process has it. All contestants take turns in short rounds; the best median of a round counts,
since the noise of a shared machine only adds time.

The yardstick is a bare eventfd: the other process writes to it, this one watches it with
``loop.add_reader``, and the message is in a page of shared memory. It has no queue, no order and no second
message; nothing that wakes an event loop can be faster. The same queue is also read with ``wait="spin"``,
which polls in every turn of the loop and uses a whole processor while it waits.
"""

import asyncio
import mmap
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from aiochronicle import Reader
from benchmarks.contestants import (
    LOOPS,
    TOO_LONG_S,
    Contestants,
    Producer,
    redis_entries,
    skip_missing,
)
from benchmarks.measure import PAYLOAD_BYTES, Best, Result, percentile
from benchmarks.producers import STAMP

if TYPE_CHECKING:
    import zmq.asyncio
    from redis.asyncio import Redis

APART_US = 500
MESSAGES = 200
MESSAGES_QUICK = 10
ROUNDS = 15

Ages = list[float]
Medians = dict[str, list[float]]
Collect = Callable[[int], Awaitable[Ages]]


def age_ns(payload: bytes | mmap.mmap) -> float:
    (sent_ns,) = STAMP.unpack_from(payload)
    return float(time.monotonic_ns() - sent_ns)


async def collect_chronicle(reader: Reader, count: int) -> Ages:
    ages: Ages = []
    async for message in reader:
        ages.append(age_ns(message.payload))
        if len(ages) == count:
            break
    return ages


def watch_eventfd(contestants: Contestants) -> Collect:
    memory = contestants.directory / "page"
    memory.write_bytes(bytes(PAYLOAD_BYTES))
    event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    contestants.stack.callback(os.close, event_fd)
    file = contestants.stack.enter_context(memory.open("r+b"))
    shared = contestants.stack.enter_context(mmap.mmap(file.fileno(), PAYLOAD_BYTES))
    contestants.produce("eventfd", "eventfd", event_fd, memory, pass_fds=[event_fd])

    async def collect(count: int) -> Ages:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        ages: Ages = []
        received = 0

        def ring() -> None:
            nonlocal received
            received += os.eventfd_read(event_fd)
            ages.append(age_ns(shared))
            if received == count:
                finished.set_result(None)

        loop.add_reader(event_fd, ring)
        await finished
        loop.remove_reader(event_fd)
        return ages

    return collect


def await_pyzmq(socket: "zmq.asyncio.Socket") -> Collect:
    async def collect(count: int) -> Ages:
        return [age_ns(await socket.recv()) for _ in range(count)]

    return collect


def await_redis(client: "Redis") -> Collect:
    last = b"0"

    async def collect(count: int) -> Ages:
        nonlocal last
        ages: Ages = []
        while len(ages) < count:
            last, payloads = await redis_entries(client, last, MESSAGES)
            ages += map(age_ns, payloads)
        return ages

    return collect


async def take_turns(
    collectors: dict[str, Collect], producers: dict[str, Producer], messages: int, rounds: int
) -> Medians:
    medians: Medians = {name: [] for name in collectors}
    for _ in range(rounds):
        for name, collect in collectors.items():
            producers[name].start(messages, APART_US)
            async with asyncio.timeout(TOO_LONG_S):
                ages = await collect(messages)
            producers[name].hear("done")
            medians[name].append(percentile(ages, 0.5))
    return medians


async def measure(directory: Path, messages: int, rounds: int) -> Medians:
    """Return the median of each round of each contestant, in nanoseconds."""
    async with AsyncExitStack() as stack:
        contestants = Contestants(stack, directory)
        parked = contestants.chronicle("parked")
        spinning = contestants.chronicle("spinning", "spin")
        collectors: dict[str, Collect] = {
            "eventfd": watch_eventfd(contestants),
            "parked": lambda count: collect_chronicle(parked, count),
            "spinning": lambda count: collect_chronicle(spinning, count),
        }
        if socket := contestants.pyzmq():
            collectors["pyzmq"] = await_pyzmq(socket)
        if client := contestants.redis():
            collectors["redis"] = await_redis(client)
        contestants.await_producers()
        return await take_turns(collectors, contestants.producers, messages, rounds)


# Each contestant, its yardstick, and the allowed ratio of their times.
BARS = [
    ("parked", "eventfd", 1.15),
    ("parked", "pyzmq", 1 / 2),
    ("parked", "redis", 1 / 4),
    ("spinning", "parked", 1 / 2),
]


def run(directory: Path, quick: bool) -> list[Result]:
    messages = MESSAGES_QUICK if quick else MESSAGES
    results: list[Result] = []
    for loop_name, loop_factory in LOOPS.items():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            place = directory / f"wake-{loop_name}"
            medians = runner.run(measure(place, messages, 1 if quick else ROUNDS))
        times = Best({name: min(rounds) for name, rounds in medians.items()})
        for measured, yardstick, bar in BARS:
            if yardstick in times.ns:
                ratio = times.ratio(measured, yardstick)
                what = f"waking a {measured} reader / {yardstick}, median, {loop_name}"
                detail = times.describe(measured, yardstick)
                results.append(Result.at_most("wake", what, ratio, bar, "x", detail))
    skip_missing("wake", "pyzmq", "redis")
    return results
