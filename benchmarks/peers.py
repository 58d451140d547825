"""How fast do messages get from one process to another, compared with other ways to send them?

One process sends, this one receives in an event loop. Measured is the time from the start signal to the
sender until the last message has arrived: the median of rounds in which all contestants take turns. Our
queue is on disk, and everything that was sent survives the end of both processes. Of the others,
libchronicle keeps a mapped file as we do, and Redis is configured to do the same (appendonly, no fsync);
pyzmq, the unix socket and asyncio.Queue lose what they hold.

Each peer is used in its fast way: pyzmq takes all available messages after each wait, Redis uses 100
commands in a pipeline and 1,000 entries per read. libchronicle polls without a pause and yields to the loop
only after every 1,000 messages; libchronicle.py says how to include it. asyncio.Queue needs no second
process, so its two tasks share one.

Among the figures only: NATS JetStream with streams in files, publications in flight and pulls of 1,000;
iceoryx2, polled, whose writer waits for a full reader; a connection of multiprocessing, which blocks this
thread and needs no loop; persist-queue in a SQLite file, commits of 100; Java's Chronicle Queue between two
JVMs, whose tailer polls without a pause: this process only asks, and hears the last message.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aiochronicle import Reader
from benchmarks.contestants import (
    LOOPS,
    TOO_LONG_S,
    Contestants,
    Producer,
    redis_entries,
    skip_missing,
)
from benchmarks.measure import Figure, Result
from benchmarks.producers import FRAME, LAST, PIPELINED, in_a_row

if TYPE_CHECKING:
    import zmq.asyncio
    from redis.asyncio import Redis

MESSAGES = 40_000
MESSAGES_QUICK = 2_000
# These get fewer messages; otherwise they would take most of the time.
SHARES = {"redis": 10, "nats": 10, "persist-queue": 400}
ROUNDS = 31
DRAINED_AT_ONCE = 1_000

JAVA_WARM_UP = 400_000  # messages, after which both JVMs have compiled their code

MISSABLE = ("pyzmq", "redis", "libchronicle", "nats", "iceoryx2", "persist-queue", "java")

# The promised factors by which we are faster.
BARS = {"pyzmq": 4, "unix streams": 5, "asyncio.Queue": 2, "redis": 60, "libchronicle": 3}

# A function that takes this many messages and returns the payload of the last one.
Receive = Callable[[int], Awaitable[bytes]]


async def receive_chronicle(reader: Reader, count: int) -> bytes:
    async for message in reader:
        payload = message.payload
        count -= 1
        if count == 0:
            return payload
    raise RuntimeError("the reader was closed")


async def open_streams(contestants: Contestants) -> Receive:
    path = contestants.sockets / "streams"
    connected: asyncio.Future[asyncio.StreamReader] = asyncio.Future()

    def accept(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        contestants.stack.callback(writer.close)
        connected.set_result(stream)

    server = await asyncio.start_unix_server(accept, path)
    contestants.stack.callback(server.close)
    contestants.produce("unix streams", "streams", path)
    stream = await connected

    async def receive(count: int) -> bytes:
        payload = b""
        for _ in range(count):
            (length,) = FRAME.unpack(await stream.readexactly(FRAME.size))
            payload = await stream.readexactly(length)
        return payload

    return receive


def drain_pyzmq(waiting: "zmq.asyncio.Socket") -> Receive:
    import zmq

    draining: zmq.Socket[bytes] = zmq.Socket.shadow(waiting)

    async def receive(count: int) -> bytes:
        while True:
            await waiting.poll()
            try:
                for _ in range(DRAINED_AT_ONCE):
                    payload = draining.recv(zmq.NOBLOCK)
                    count -= 1
                    if count == 0:
                        return payload
            except zmq.Again:
                continue

    return receive


def drain_redis(client: "Redis") -> Receive:
    last = b"0"

    async def receive(count: int) -> bytes:
        nonlocal last
        payloads = [b""]
        while count:
            last, payloads = await redis_entries(client, last, DRAINED_AT_ONCE)
            count -= len(payloads)
        return payloads[-1]

    return receive


def poll_libchronicle(take: Callable[[int], bytes]) -> Receive:
    async def receive(count: int) -> bytes:
        payload = b""
        while count:
            taken = min(count, DRAINED_AT_ONCE)
            payload = take(taken)
            count -= taken
            await asyncio.sleep(0)
        return payload

    return receive


async def through_queue(count: int) -> bytes:
    memory: asyncio.Queue[bytes] = asyncio.Queue(DRAINED_AT_ONCE)

    async def produce() -> None:
        for payload in in_a_row(count):
            await memory.put(payload)

    producing = asyncio.create_task(produce())
    payload = b""
    for _ in range(count):
        payload = await memory.get()
    await producing
    return payload


async def take_turns(
    receivers: dict[str, Receive], producers: dict[str, Producer], messages: int, rounds: int
) -> dict[str, list[float]]:
    """Return the time per message of each round of each contestant, in nanoseconds."""
    taken_ns: dict[str, list[float]] = {name: [] for name in receivers}
    for _ in range(rounds):
        for name, receive in receivers.items():
            count = max(messages // SHARES.get(name, 1), PIPELINED)
            started_ns = time.perf_counter_ns()
            if name in producers:
                producers[name].start(count)
            async with asyncio.timeout(TOO_LONG_S):
                payload = await receive(count)
            taken_ns[name].append((time.perf_counter_ns() - started_ns) / count)
            if payload != LAST:
                raise RuntimeError(f"message {count} of {name} is not the last: {payload!r}")
            if name in producers:
                producers[name].hear("done")
    return taken_ns


def drain_nats(consumer: Any) -> Receive:
    async def receive(count: int) -> bytes:
        payload = b""
        while count:
            messages = await consumer.fetch(min(count, DRAINED_AT_ONCE))
            count -= len(messages)
            payload = messages[-1].data
        return payload

    return receive


def poll_iceoryx2(subscriber: Any) -> Receive:
    async def receive(count: int) -> bytes:
        while True:
            sample = subscriber.receive()
            if sample is None:
                await asyncio.sleep(0)
                continue
            count -= 1
            if count == 0:
                return bytes(sample.payload().contents.data)

    return receive


def block_on_multiprocessing(connection: Connection) -> Receive:
    async def receive(count: int) -> bytes:
        payload = b""
        for _ in range(count):
            payload = connection.recv_bytes()
        return payload

    return receive


def poll_persist_queue(queue: Any) -> Receive:
    empty: type[Exception] = import_module("persistqueue").Empty

    async def receive(count: int) -> bytes:
        payload = b""
        while count:
            try:
                payload = queue.get(block=False)
                count -= 1
            except empty:
                await asyncio.sleep(0.001)
            if count % PIPELINED == 0:
                queue.task_done()
        return payload

    return receive


def ask_java(tailer: Producer) -> Receive:
    async def receive(count: int) -> bytes:
        tailer.start(count)
        return bytes.fromhex(tailer.listen())

    return receive


async def open_more(contestants: Contestants) -> dict[str, Receive]:
    """Open the peers without a bar."""
    found = {"multiprocessing": block_on_multiprocessing(contestants.multiprocessing())}
    if consumer := await contestants.nats():
        found["nats"] = drain_nats(consumer)
    if subscriber := contestants.iceoryx2():
        found["iceoryx2"] = poll_iceoryx2(subscriber)
    if (queue := contestants.persist_queue()) is not None:  # an empty one is false
        found["persist-queue"] = poll_persist_queue(queue)
    if tailer := contestants.java():
        found["java"] = ask_java(tailer)
    return found


async def measure(
    directory: Path, messages: int, rounds: int, *, with_more: bool = False
) -> tuple[dict[str, list[float]], float]:
    """Return the nanoseconds per message of each round of each contestant, and our wake-ups per message."""
    async with AsyncExitStack() as stack:
        contestants = Contestants(stack, directory)
        reader = contestants.chronicle("us")
        receivers: dict[str, Receive] = {
            "us": lambda count: receive_chronicle(reader, count),
            "unix streams": await open_streams(contestants),
            "asyncio.Queue": through_queue,
        }
        if socket := contestants.pyzmq():
            receivers["pyzmq"] = drain_pyzmq(socket)
        if client := contestants.redis():
            receivers["redis"] = drain_redis(client)
        if take := contestants.libchronicle():
            receivers["libchronicle"] = poll_libchronicle(take)
        if with_more:
            receivers |= await open_more(contestants)
        contestants.await_producers()
        if "java" in receivers and rounds > 1:
            java = {"java": receivers["java"]}
            await take_turns(java, contestants.producers, JAVA_WARM_UP, 1)
        taken_ns = await take_turns(receivers, contestants.producers, messages, rounds)
        return taken_ns, reader.statistics().parks / (messages * rounds)


# What survives the end of all processes, and what survives a power cut.
KEPT = {
    "us": "aiochronicle: on disk, synced by the kernel",
    "pyzmq": "pyzmq over ipc: memory only",
    "unix streams": "asyncio streams over a unix socket: memory only",
    "asyncio.Queue": "asyncio.Queue, one process: memory only",
    "redis": "Redis streams, appendfsync no: on disk, synced by the kernel",
    "libchronicle": "libchronicle, polling: on disk, synced by the kernel",
    "nats": "NATS JetStream, acknowledged: on disk, synced every 2 minutes",
    "iceoryx2": "iceoryx2, polling: memory only",
    "multiprocessing": "multiprocessing.Connection, blocking: memory only",
    "persist-queue": "persist-queue, SQLite, commits of 100: on disk, synced",
    "java": "Java's Chronicle Queue, two JVMs, polling: on disk, synced by the kernel",
}


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure all rounds of the available contestants."""
    messages, rounds = (MESSAGES_QUICK, 1) if quick else (MESSAGES, ROUNDS)
    for loop_name, loop_factory in LOOPS.items():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            place = directory / f"peers-{loop_name}"
            rounds_ns, _ = runner.run(measure(place, messages, rounds, with_more=True))
        for name, samples in rounds_ns.items():
            case = f"{KEPT[name]}, {loop_name}"
            yield Figure(question="peers", case=case, unit="ns", samples=samples)
    skip_missing("peers", *MISSABLE)


def run(directory: Path, quick: bool) -> list[Result]:
    messages = MESSAGES_QUICK if quick else MESSAGES
    rounds = 1 if quick else ROUNDS
    results: list[Result] = []
    for loop_name, loop_factory in LOOPS.items():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            place = directory / f"peers-{loop_name}"
            rounds_ns, wakeups = runner.run(measure(place, messages, rounds))
        taken_ns = {name: median(times) for name, times in rounds_ns.items()}
        for peer, bar in BARS.items():
            if peer not in taken_ns:
                continue
            detail = f"{taken_ns['us']:.0f} ns / {taken_ns[peer]:.0f} ns"
            ratio = taken_ns["us"] / taken_ns[peer]
            what = f"process to process / {peer}, {loop_name}"
            results.append(Result.at_most("peers", what, ratio, 1 / bar, "x", detail))
        what = f"wake-ups per message at full speed, {loop_name}"
        results.append(Result.at_most("peers", what, wakeups, 0.01, ""))
    skip_missing("peers", "pyzmq", "redis", "libchronicle")
    return results
