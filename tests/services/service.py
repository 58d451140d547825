"""What the suite of bad events needs to know of a service: how a message goes through it.

The service runs in the test's own event loop. So a test that appends a message and damages it without
awaiting anything in between can be sure that nobody has read it yet.
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
    """Return when the condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


class Service(ABC):
    """A service under test, and the peers that use it.

    It is set up to go on after whatever happens to its queues, in the way that the guide gives.
    """

    covers: ClassVar[tuple[type, ...]]  # the public classes that do the work
    queues: ClassVar[tuple[str, ...]] = QUEUES  # that it reads
    handles: ClassVar[bool] = False  # calls a handler of the user for each message
    serial: ClassVar[bool] = True  # one handler at a time
    finds: ClassVar[bool] = False  # looks for queues under the root by itself

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writers: dict[str, Writer] = {}
        self.taken: list[bytes] = []
        self.on_message: Callable[[bytes], None] | None = None
        self.hanging: set[bytes] = set()  # payloads whose handler never returns
        self.supervised = False  # the test starts it again when it ends
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
        """Make all queues that the service reads; before it starts."""
        (self.root / "in").mkdir(mode=0o700, exist_ok=True)
        for queue in self.queues:
            self.make(queue)

    def remove(self, queue: str) -> None:
        """Remove a queue that the service reads."""
        self.writers.pop(queue).close()
        shutil.rmtree(self.input(queue))

    async def start(self) -> None:
        """Open the service and let it run in a task of its own."""
        await self.open()
        self._task = asyncio.create_task(self.run(), name=f"{type(self).__name__} under test")

    def payload(self) -> bytes:
        """Return a payload that was not there before."""
        return b"message %d" % next(self._numbers)

    async def exchange(self, queue: str) -> None:
        """Send a message through the service, and return when it came out."""
        await self.arrives(self.put(queue))

    def put(self, queue: str) -> bytes:
        """Send a message to the service."""
        payload = self.payload()
        self.writers[queue].append(payload)
        return payload

    async def arrives(self, payload: bytes) -> None:
        """Return when the service has dealt with the message."""
        await until(lambda: payload in self.taken or self._ended())
        assert payload in self.taken, "the service has ended"

    async def settled(self, payload: bytes) -> None:
        """Return when a message whose handler failed the first time is done with."""
        await self.arrives(payload)

    def _ended(self) -> bool:
        if self._task is None or not self._task.done() or self.supervised:
            return False
        self._task.result()  # raises what ended it
        return True

    def take(self, payload: bytes) -> None:
        """Be called by the service's loop for each message."""
        if self.on_message is not None:
            self.on_message(payload)
        self.taken.append(payload)

    async def handle(self, payload: bytes) -> None:
        """Be called as the user's handler for each message."""
        if payload in self.hanging:
            await asyncio.Event().wait()
        self.take(payload)

    def damage(self, queue: str) -> None:
        """Send a message whose bytes are not what was written; nobody has a turn meanwhile."""
        writer = self.writers[queue]
        place = writer.position
        writer.append(b"damaged")
        at = writer.position
        if at.segment != place.segment:  # it went into the next one
            place = type(place)(at.segment, 64)
        with (self.input(queue) / f"{place.segment:09}.q").open("r+b") as segment:
            segment.seek(place.offset + 64)
            segment.write(b"D")

    def blank(self, queue: str) -> None:
        """Send a message whose length becomes zero, as if nothing were there yet."""
        writer = self.writers[queue]
        place = writer.position
        writer.append(b"blank")
        if writer.position.segment == place.segment:
            with (self.input(queue) / f"{place.segment:09}.q").open("r+b") as segment:
                segment.seek(place.offset)
                segment.write(bytes(4))

    def lose(self, queue: str) -> None:
        """Remove segments that the service has not read yet; nobody has a turn meanwhile."""
        writer = self.writers[queue]
        first = writer.position.segment
        while writer.position.segment < first + 4:
            writer.append(b"x" * 4096)
        for number in range(first, first + 3):
            (self.input(queue) / f"{number:09}.q").unlink()

    async def stop(self) -> None:
        """Close the service, as its user does when he has enough."""
        async with asyncio.timeout(WITHIN_S):
            if self._task is not None and not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
            await self.close()

    def close_peers(self) -> None:
        """Close what the test opened."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()

    @abstractmethod
    async def open(self) -> None:
        """Open the service."""

    @abstractmethod
    async def run(self) -> None:
        """Take one message after the other; end when the service is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Close the service in the loop."""

    @abstractmethod
    def close_now(self) -> None:
        """Close the service without a loop: the one it ran in may be closed."""
