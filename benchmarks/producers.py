"""The other process: ``python -m benchmarks.producers ROLE ADDRESS …``.

Prints ``ready``, then obeys each line on standard input: the number of messages, and the microseconds
between them (0 = as fast as possible). A message is 100 bytes. With time between them, a message begins with
the moment at which it was sent. Without, the last one differs from all others, so that a receiver that has
counted up to it knows that no message was lost or came twice.
"""

import asyncio
import ctypes
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.measure import PAYLOAD

__all__ = [
    "FRAME",
    "LAST",
    "NATS_STREAM",
    "PIPELINED",
    "STAMP",
    "ZMQ_QUEUE",
    "iceoryx_service",
    "in_a_row",
]

LAST = PAYLOAD[::-1]

STAMP = struct.Struct("<q")
FRAME = struct.Struct("<I")  # length of what follows in a stream of bytes
PIPELINED = 100  # commands that Redis is sent at once
ZMQ_QUEUE = 100_000  # messages; with its default of 1,000 it is slower

NATS_STREAM = "stream"
NATS_PENDING = 4_000  # publications that no acknowledgement has come for
ICEORYX_QUEUE = 8192  # samples that a subscriber has room for

_REST = PAYLOAD[STAMP.size :]


def iceoryx_service(name: str) -> tuple[Any, Any, Any]:
    """Return a node, its service of payloads, and their type; the sender waits for a full receiver."""
    iceoryx2 = import_module("iceoryx2")

    class Payload(ctypes.Structure):
        _fields_: ClassVar = [("data", ctypes.c_uint8 * len(PAYLOAD))]

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    builder = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(Payload)
    builder = builder.subscriber_max_buffer_size(ICEORYX_QUEUE).enable_safe_overflow(False)
    return node, builder.open_or_create(), Payload


def stamped() -> bytes:
    return STAMP.pack(time.monotonic_ns()) + _REST


def in_a_row(count: int, prefix: bytes = b"") -> Iterator[bytes]:
    """Return this many payloads, the last of which is recognisable."""
    return chain(repeat(prefix + PAYLOAD, count - 1), [prefix + LAST])


def serve(send: Callable[[bytes], object], burst: Callable[[int], object] | None = None) -> None:
    """Obey standard input; ``burst`` sends many messages at once, if there is a way to."""
    print("ready", flush=True)
    for line in sys.stdin:
        count, pause_us = map(int, line.split())
        if pause_us:
            for _ in repeat(None, count):
                time.sleep(pause_us / 1e6)
                send(stamped())
        elif burst:
            burst(count)
        else:
            for payload in in_a_row(count):
                send(payload)
        print("done", flush=True)


def chronicle(path: str) -> None:
    import aiochronicle

    with aiochronicle.open_writer(path) as writer:
        serve(writer.append)


def eventfd(event_fd: str, memory: str) -> None:
    fd = int(event_fd)
    with Path(memory).open("r+b") as file, mmap.mmap(file.fileno(), len(PAYLOAD)) as shared:

        def send(payload: bytes) -> None:
            shared[:] = payload
            os.eventfd_write(fd, 1)

        serve(send)


def libchronicle(path: str) -> None:
    from benchmarks.libchronicle import appender, silenced

    with (
        os.fdopen(os.dup(1), "w") as heard,
        redirect_stdout(heard),
        silenced(),
        appender(Path(path)) as append,
    ):
        serve(append)


def pyzmq(address: str) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.SNDHWM, ZMQ_QUEUE)
        socket.bind(address)
        serve(socket.send)


def streams(path: str) -> None:
    length = FRAME.pack(len(PAYLOAD))

    with asyncio.Runner() as runner:
        _, writer = runner.run(asyncio.open_unix_connection(path))

        async def burst(count: int) -> None:
            for number, frame in enumerate(in_a_row(count, length)):
                writer.write(frame)
                if number % PIPELINED == 0:
                    await writer.drain()
            writer.transport.set_write_buffer_limits(0)  # to the last byte
            await writer.drain()
            writer.transport.set_write_buffer_limits()

        serve(writer.write, lambda count: runner.run(burst(count)))
        writer.close()
        runner.run(writer.wait_closed())


def redis(path: str) -> None:
    from redis import Redis

    with Redis(unix_socket_path=path) as client:

        def send(payload: bytes) -> None:
            client.xadd("stream", {"": payload})

        def burst(count: int) -> None:
            payloads = in_a_row(count)
            for _ in range(count // PIPELINED):
                pipeline = client.pipeline(transaction=False)
                for payload in islice(payloads, PIPELINED):
                    pipeline.xadd("stream", {"": payload})
                pipeline.execute()

        serve(send, burst)


def nats(address: str) -> None:
    with asyncio.Runner() as runner:
        client = import_module("nats.aio.client").Client()
        runner.run(client.connect(address))
        stream = client.jetstream(publish_async_max_pending=NATS_PENDING)

        async def burst(count: int) -> None:
            for payload in in_a_row(count):
                await stream.publish_async(NATS_STREAM, payload)
            await stream.publish_async_completed()

        serve(
            lambda payload: runner.run(stream.publish(NATS_STREAM, payload)),
            lambda count: runner.run(burst(count)),
        )
        runner.run(client.close())


def iceoryx2(name: str) -> None:
    _, service, payload_type = iceoryx_service(name)
    strategy = import_module("iceoryx2").BackpressureStrategy.RetryUntilDelivered
    publisher = service.publisher_builder().backpressure_strategy(strategy).create()
    serve(lambda payload: publisher.send_copy(payload_type.from_buffer_copy(payload)))


def multiprocessing(path: str) -> None:
    from multiprocessing.connection import Client

    with Client(path, "AF_UNIX") as connection:
        serve(connection.send_bytes)


def persist_queue(path: str) -> None:
    queue = import_module("persistqueue").FIFOSQLiteQueue(
        path, multithreading=True, auto_commit=False
    )

    def burst(count: int) -> None:
        for number, payload in enumerate(in_a_row(count), 1):
            queue.put(payload)
            if number % PIPELINED == 0:
                queue.task_done()
        queue.task_done()

    serve(queue.put, burst)


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        chronicle,
        eventfd,
        iceoryx2,
        libchronicle,
        multiprocessing,
        nats,
        persist_queue,
        pyzmq,
        redis,
        streams,
    )
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
