"""The other process: ``python -m benchmarks.producers ROLE ADDRESS …``.

Says ``ready``, then does what each line on standard input asks for: so many messages, so many
microseconds apart (0 = as fast as it goes). A message is 100 bytes. Where there is time between
them, it begins with the moment at which it was sent; where there is none, the last one differs from
all others, so that who has counted up to it knows that none was lost or came twice.
"""

import asyncio
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import chain, islice, repeat
from pathlib import Path

from benchmarks.measure import PAYLOAD

__all__ = ["FRAME", "LAST", "PIPELINED", "STAMP", "ZMQ_QUEUE", "in_a_row"]

LAST = PAYLOAD[::-1]

STAMP = struct.Struct("<q")
FRAME = struct.Struct("<I")  # length of what follows in a stream of bytes
PIPELINED = 100  # commands that Redis is sent at once
ZMQ_QUEUE = 100_000  # messages; with its default of 1,000 it is slower

_REST = PAYLOAD[STAMP.size :]


def stamped() -> bytes:
    return STAMP.pack(time.monotonic_ns()) + _REST


def in_a_row(count: int, prefix: bytes = b"") -> Iterator[bytes]:
    """Return so many payloads, the last of which is recognised."""
    return chain(repeat(prefix + PAYLOAD, count - 1), [prefix + LAST])


def serve(send: Callable[[bytes], object], burst: Callable[[int], object] | None = None) -> None:
    """Do what standard input says; ``burst`` sends many at once, where there is a way to."""
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


def eventfd(bell: str, memory: str) -> None:
    fd = int(bell)
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


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (chronicle, eventfd, libchronicle, pyzmq, redis, streams)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
