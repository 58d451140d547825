"""The contestants of messages between processes, on two event loops.

Every contestant has a process of its own that sends (producers.py); its receiver is opened here, in this
process.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import uvloop

from aiochronicle import Reader, open_reader, open_writer
from aiochronicle._core.reader import WaitStrategy
from benchmarks.libchronicle import (
    LIBRARY_VARIABLE,
    collector,
    create_queue,
    library_path,
    silenced,
)
from benchmarks.measure import PAYLOAD, skip
from benchmarks.producers import LAST, NATS_STREAM, ZMQ_QUEUE, iceoryx_service

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.building import missing as java_missing
from interop.judge import java_command

if TYPE_CHECKING:
    import zmq.asyncio
    from redis.asyncio import Redis

__all__ = ["LOOPS", "TOO_LONG_S", "Contestants", "Producer", "redis_entries", "skip_missing"]

TOO_LONG_S = 100  # for one round; a longer one is an error

BOTH_COMPILERS = ["-XX:TieredStopAtLevel=4"]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def missing(peer: str) -> str:
    """Return what must be installed to compare with this peer; empty if it is installed."""
    if peer == "pyzmq" and find_spec("zmq") is None:
        return "needs the package pyzmq"
    if peer == "redis" and find_spec("redis") is None:
        return "needs the package redis"
    if peer == "redis" and shutil.which("redis-server") is None:
        return "needs the program redis-server"
    if peer == "nats" and (find_spec("nats") is None or shutil.which("nats-server") is None):
        return "needs the package nats-py and the program nats-server"
    if peer == "iceoryx2" and find_spec("iceoryx2") is None:
        return "needs the package iceoryx2"
    if peer == "persist-queue" and find_spec("persistqueue") is None:
        return "needs the package persist-queue"
    if peer == "java":
        return java_missing() or ""
    if peer == "libchronicle" and not library_path():
        return f"needs {LIBRARY_VARIABLE} to name a build of it, see benchmarks/libchronicle.py"
    return ""


def skip_missing(question: str, *peers: str) -> None:
    """Return the names of the peers that are not installed."""
    for peer in peers:
        if why := missing(peer):
            skip(question, peer, why)


class Producer:
    """A process that obeys lines, as producers.py does; a context manager that ends it."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )

    def start(self, count: int, pause_us: int = 0) -> None:
        """Start sending messages."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {pause_us}\n")
        self._process.stdin.flush()

    def listen(self) -> str:
        """Block until the process prints a line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def hear(self, expected: str) -> None:
        """Block until the process prints this line."""
        heard = self.listen()
        if heard != expected:
            raise RuntimeError(f"the producer said {heard!r} instead of {expected!r}")

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its standard input, which ends the process


@contextmanager
def redis_server(directory: Path, socket: Path) -> Iterator[None]:
    """Run a Redis of our own, its files in the directory.

    It appends to a file and leaves syncing to the kernel. Like a queue with ``flush="async"``, that survives
    the end of any process.
    """
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "no",
    }
    command = ["redis-server"]
    for name, value in options.items():
        command += [f"--{name}", value]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            if server.poll() is not None:
                raise RuntimeError(f"redis-server ended with {server.returncode}")
            time.sleep(0.01)
        yield
    finally:
        server.terminate()
        server.wait()


@contextmanager
def nats_server(directory: Path, port: int) -> Iterator[None]:
    """Run a NATS server of our own on loopback, whose streams are files in the directory."""
    command = ["nats-server", "--jetstream", "--store_dir", str(directory / "nats")]
    command += ["--addr", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_listening(port):
            if server.poll() is not None:
                raise RuntimeError(f"nats-server ended with {server.returncode}")
            time.sleep(0.01)
        yield
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def redis_entries(client: "Redis", last: bytes, count: int) -> tuple[bytes, list[bytes]]:
    """Wait for entries after ``last``, up to a maximum; return the new last id and the payloads."""
    reply: Any = await client.xread({"stream": last}, count, block=0)
    ((_, entries),) = reply
    return entries[-1][0], [fields[b""] for _, fields in entries]


class Contestants:
    """The contestants: the senders by name, and functions that open their receivers."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        """Make the directory; the stack closes what is opened in it."""
        directory.mkdir()
        self.stack = stack
        self.directory = directory
        # The path of a socket may have only about a hundred characters.
        self.sockets = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
        self.producers: dict[str, Producer] = {}

    def produce(self, name: str, role: str, *address: object, pass_fds: Sequence[int] = ()) -> None:
        """Start the sender."""
        command = [sys.executable, "-m", "benchmarks.producers", role, *map(str, address)]
        self.producers[name] = self.stack.enter_context(Producer(command, pass_fds))

    def await_producers(self) -> None:
        """Block until all senders are ready."""
        for producer in self.producers.values():
            producer.hear("ready")

    def chronicle(self, name: str, wait: WaitStrategy = "park") -> Reader:
        """Open one of our readers."""
        path = self.directory / name
        open_writer(path).close()
        self.produce(name, "chronicle", path)
        return self.stack.enter_context(open_reader(path, "peer", wait=wait))

    def libchronicle(self) -> Callable[[int], bytes] | None:
        """Open a tailer of a Chronicle queue, if the library is installed."""
        if missing("libchronicle"):
            return None
        self.stack.enter_context(silenced())
        path = self.directory / "libchronicle"
        create_queue(path)
        self.produce("libchronicle", "libchronicle", path)
        return self.stack.enter_context(collector(path))

    def pyzmq(self) -> "zmq.asyncio.Socket | None":
        """Open a PULL socket over ipc, if pyzmq is installed."""
        if missing("pyzmq"):
            return None
        import zmq
        import zmq.asyncio

        address = f"ipc://{self.sockets / 'zmq'}"
        self.produce("pyzmq", "pyzmq", address)
        context = self.stack.enter_context(zmq.asyncio.Context())
        socket = self.stack.enter_context(context.socket(zmq.PULL))
        socket.setsockopt(zmq.RCVHWM, ZMQ_QUEUE)
        socket.connect(address)
        return socket

    async def nats(self) -> "Any | None":
        """Open a consumer of a stream in files, if NATS is installed."""
        if missing("nats"):
            return None
        api = import_module("nats.js.api")
        port = free_port()
        self.stack.enter_context(nats_server(self.directory, port))
        client = import_module("nats.aio.client").Client()
        await client.connect(f"nats://127.0.0.1:{port}")
        self.stack.push_async_callback(client.close)
        stream = client.jetstream()
        await stream.add_stream(name=NATS_STREAM, subjects=[NATS_STREAM])
        self.produce("nats", "nats", f"nats://127.0.0.1:{port}")
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
        return await stream.pull_subscribe(NATS_STREAM, config=config)

    def iceoryx2(self) -> "Any | None":
        """Open a subscriber, if iceoryx2 is installed."""
        if missing("iceoryx2"):
            return None
        name = self.directory.name + str(os.getpid())
        node, service, _ = iceoryx_service(name)
        subscriber = service.subscriber_builder().create()
        self.stack.callback(lambda: (subscriber.delete(), node))
        self.produce("iceoryx2", "iceoryx2", name)
        return subscriber

    def multiprocessing(self) -> Connection:
        """Accept a ``multiprocessing`` connection."""
        path = str(self.sockets / "multiprocessing")
        listener = self.stack.enter_context(Listener(path, "AF_UNIX"))
        self.produce("multiprocessing", "multiprocessing", path)
        return self.stack.enter_context(listener.accept())

    def persist_queue(self) -> "Any | None":
        """Open a queue in a SQLite file, if persist-queue is installed."""
        if missing("persist-queue"):
            return None
        path = str(self.directory / "persist-queue")
        queue = import_module("persistqueue").FIFOSQLiteQueue(
            path, multithreading=True, auto_commit=False
        )
        self.stack.callback(queue.close)
        self.produce("persist-queue", "persist_queue", path)
        return queue

    def java(self) -> Producer | None:
        """Start a JVM that tails a Chronicle Queue and one that appends to it, if Maven can build them."""
        if missing("java"):
            return None
        path = str(self.directory / "java")

        def start(*arguments: str) -> Producer:
            command = java_command("judge.Peer", *arguments, properties=BOTH_COMPILERS)
            return self.stack.enter_context(Producer(command))

        self.producers["java"] = start("send", path, PAYLOAD.hex(), LAST.hex())
        tailer = start("receive", path)
        tailer.hear("ready")
        return tailer

    def redis(self) -> "Redis | None":
        """Open a client of our own Redis, if it is installed."""
        if missing("redis"):
            return None
        from redis.asyncio import Redis

        path = self.sockets / "redis"
        self.stack.enter_context(redis_server(self.directory, path))
        self.produce("redis", "redis", path)
        client = Redis(unix_socket_path=str(path))
        self.stack.push_async_callback(client.aclose)
        return client
