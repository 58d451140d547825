"""The interface of a service for the tests of bad events: how a message passes through it.

The service runs in the test's own event loop. So a test that appends a message and damages it, without an
await in between, can be sure that the service has not read it yet.
"""

import asyncio
import itertools
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from aiochronicle import Writer, open_writer

__all__ = ["QUEUES", "SEGMENT_BYTES", "WITHIN_S", "Service", "until"]

WITHIN_S = 20.0
SEGMENT_BYTES = 1 << 16
QUEUES = ("a", "b")


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


class Service(ABC):
    """A service under test and its peers.

    It is set up to continue after any event in its queues, as the guide recommends.
    """

    covers: ClassVar[tuple[type, ...]]  # the public classes under test
    queues: ClassVar[tuple[str, ...]] = QUEUES  # that the service reads
    handles: ClassVar[bool] = False  # calls a user's handler for each message
    serial: ClassVar[bool] = True  # one handler at a time
    finds: ClassVar[bool] = False  # discovers the queues under the root

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writers: dict[str, Writer] = {}
        self.taken: list[bytes] = []
        self.on_message: Callable[[bytes], None] | None = None
        self.hanging: set[bytes] = set()  # payloads whose handler never returns
        self.supervised = False  # the test restarts the service when it ends
        self._task: asyncio.Task[None] | None = None
        self._numbers = itertools.count()

    def input(self, queue: str) -> Path:
        """Return the directory of a queue that the service reads."""
        return self.root / "in" / queue

    def make(self, queue: str) -> Writer:
        """Make a queue, or open it again."""
        writer = open_writer(self.input(queue), segment_size=SEGMENT_BYTES, ready=True)
        self.writers[queue] = writer
        return writer

    def make_peers(self) -> None:
        """Make all queues that the service reads, before it starts."""
        (self.root / "in").mkdir(mode=0o700, exist_ok=True)
        for queue in self.queues:
            self.make(queue)

    def remove(self, queue: str) -> None:
        """Remove a queue that the service reads."""
        self.writers.pop(queue).close()
        shutil.rmtree(self.input(queue))

    async def start(self) -> None:
        """Open the service and run it in a task."""
        await self.open()
        self._task = asyncio.create_task(self.run(), name=f"{type(self).__name__} under test")

    def payload(self) -> bytes:
        """Return a new, unique payload."""
        return b"message %d" % next(self._numbers)

    async def exchange(self, queue: str) -> None:
        """Send a message through the service, and wait until it has come out."""
        await self.arrives(self.put(queue))

    def put(self, queue: str) -> bytes:
        """Send a message to the service."""
        payload = self.payload()
        self.writers[queue].append(payload)
        return payload

    async def arrives(self, payload: bytes) -> None:
        """Wait until the service has processed the message."""
        await until(lambda: payload in self.taken or self._ended())
        assert payload in self.taken, "the service has ended"

    async def settled(self, payload: bytes) -> None:
        """Wait until a message whose handler failed the first time is finished."""
        await self.arrives(payload)

    def _ended(self) -> bool:
        if self._task is None or not self._task.done() or self.supervised:
            return False
        self._task.result()  # raises the exception that ended the service
        return True

    def take(self, payload: bytes) -> None:
        """Record a message; the service's loop calls this for each one."""
        if self.on_message is not None:
            self.on_message(payload)
        self.taken.append(payload)

    async def handle(self, payload: bytes) -> None:
        """Handle a message; the service calls this as the user's handler for each one."""
        if payload in self.hanging:
            await asyncio.Event().wait()
        self.take(payload)

    def damage(self, queue: str) -> None:
        """Send a message and damage its bytes before the service gets a turn."""
        writer = self.writers[queue]
        place = writer.position
        writer.append(b"damaged")
        at = writer.position
        if at.segment != place.segment:  # the message went into the next segment
            place = type(place)(at.segment, 64)
        with (self.input(queue) / f"{place.segment:09}.q").open("r+b") as segment:
            segment.seek(place.offset + 64)
            segment.write(b"D")

    def blank(self, queue: str) -> None:
        """Send a message and set its length to zero, as if it were not there yet."""
        writer = self.writers[queue]
        place = writer.position
        writer.append(b"blank")
        if writer.position.segment == place.segment:
            with (self.input(queue) / f"{place.segment:09}.q").open("r+b") as segment:
                segment.seek(place.offset)
                segment.write(bytes(4))

    def lose(self, queue: str) -> None:
        """Remove segments before the service gets a turn to read them."""
        writer = self.writers[queue]
        first = writer.position.segment
        while writer.position.segment < first + 4:
            writer.append(b"x" * 4096)
        for number in range(first, first + 3):
            (self.input(queue) / f"{number:09}.q").unlink()

    async def stop(self) -> None:
        """Close the service, as its user does at the end."""
        async with asyncio.timeout(WITHIN_S):
            if self._task is not None and not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
            await self.close()

    def close_peers(self) -> None:
        """Close the objects that the test opened."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()

    @abstractmethod
    async def open(self) -> None:
        """Open the service."""

    @abstractmethod
    async def run(self) -> None:
        """Take messages one by one until the service is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Close the service in the loop."""

    @abstractmethod
    def close_now(self) -> None:
        """Close the service without a loop, because its own may already be closed."""
