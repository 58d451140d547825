"""The list of services. Every object with which a user can receive messages belongs here."""

import asyncio
import contextlib
from pathlib import Path
from typing import ClassVar

from aiochronicle import (
    Attached,
    Bus,
    Conflation,
    Discovery,
    FanIn,
    Group,
    Message,
    Reader,
    Request,
    Requester,
    Responder,
    Router,
    TopicGroup,
    TopicReader,
    discover,
    forget_reader,
    open_group,
    open_reader,
    open_writer,
)
from aiochronicle._services.shared import SharedTopic
from aiochronicle.errors import ChronicleError, PositionLost, QueueGone, QueueNotFound

from .service import SEGMENT_BYTES, WITHIN_S, Service, until

__all__ = ["SERVICES"]

NAME = "service"
RESCAN_S = 0.2


class OneReader(Service):
    """``async for message in reader``; the user seeks past gaps and opens a queue that was replaced."""

    covers: ClassVar[tuple[type, ...]] = (Reader,)
    queues = ("a",)
    reader: Reader

    async def open(self) -> None:
        self.reader = self.open_reader()

    def open_reader(self) -> Reader:
        return open_reader(self.input("a"), NAME, on_corrupt="skip", wait_for_queue=True)

    async def run(self) -> None:
        while not self.reader.closed:
            try:
                await self.consume()
            except PositionLost:
                self.reader.seek_first()
            except QueueGone:
                self.reader.close()
                self.reader = self.open_reader()

    async def consume(self) -> None:
        async for message in self.reader:
            self.take(message.payload)
            self.reader.commit(message)

    async def close(self) -> None:
        await self.reader.aclose()

    def close_now(self) -> None:
        self.reader.close()


class Batches(OneReader):
    """``async for batch in reader.batches()``."""

    async def consume(self) -> None:
        async for batch in self.reader.batches():
            for message in batch:
                self.take(message.payload)
            self.reader.commit()


class DispatchingReader(OneReader):
    """``reader.dispatch()`` with automatic commits."""

    handles = True

    def open_reader(self) -> Reader:
        reader: Reader = open_reader(
            self.input("a"), NAME, commit="auto", on_corrupt="skip", wait_for_queue=True
        )

        @reader.on(Message)
        async def handle(message: Message) -> None:
            await self.handle(message.payload)

        return reader

    async def consume(self) -> None:
        await self.reader.dispatch()


class ConflatedReader(OneReader):
    """``async for message in reader.conflate(key)``, with a key for each message."""

    covers: ClassVar[tuple[type, ...]] = (Conflation,)

    async def consume(self) -> None:
        conflation = self.reader.conflate(lambda message: message.seq)
        async for message in conflation:
            self.take(message.payload)
            conflation.commit()


class SharedWork(Service):
    """``async for delivery in group``; the user starts over after a gap and joins again in a new queue."""

    covers: ClassVar[tuple[type, ...]] = (Group,)
    queues = ("a",)
    group: Group
    ending = False

    async def open(self) -> None:
        self.group = self.open_group()

    def open_group(self) -> Group:
        group = open_group(self.input("a"), NAME, on_corrupt="skip")
        assert isinstance(group, Group)
        return group

    async def run(self) -> None:
        while not self.ending:
            try:
                async for delivery in self.group:
                    async with delivery:
                        self.take(delivery.message.payload)
            except PositionLost:
                self.group.close()
                forget_reader(self.input("a"), NAME)
                await self.join()
            except QueueGone:
                await self.join()

    async def join(self) -> None:
        self.group.close()
        while not self.ending:
            try:
                self.group = self.open_group()
                return
            except (QueueNotFound, QueueGone):
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self.ending = True
        await self.group.aclose()

    def close_now(self) -> None:
        self.ending = True
        self.group.close()


class BusReader(OneReader):
    """A reader of a bus."""

    covers: ClassVar[tuple[type, ...]] = (Bus,)

    async def open(self) -> None:
        self.bus = Bus(self.root / "in")
        await super().open()

    def open_reader(self) -> Reader:
        return self.bus.reader("a", NAME, on_corrupt="skip")

    async def close(self) -> None:
        await self.bus.aclose()

    def close_now(self) -> None:
        self.bus.close()


class Merged(Service):
    """``async for message in fan_in``; the user attaches failed sources again."""

    covers: ClassVar[tuple[type, ...]] = (FanIn,)

    async def open(self) -> None:
        self.fan_in: FanIn = FanIn(on_error=self.on_error)
        self.names: dict[int, str] = {}
        for queue in self.queues:
            self.attach(queue, self.open_reader(queue))

    def open_reader(self, queue: str) -> Reader:
        return open_reader(self.input(queue), NAME, on_corrupt="skip")

    def attach(self, queue: str, reader: Reader) -> None:
        self.names[self.fan_in.attach(reader)] = queue

    def on_error(self, source: int, error: Exception) -> None:
        reader = self.fan_in.detach(source)
        queue = self.names.pop(source)
        if isinstance(error, PositionLost):
            reader.seek_first()
            self.attach(queue, reader)
        else:
            reader.close()
            self.attach_when_there(queue)

    def attach_when_there(self, queue: str) -> None:
        try:
            self.attach(queue, self.open_reader(queue))
        except ChronicleError:
            asyncio.get_running_loop().call_later(0.01, self.attach_when_there, queue)

    async def run(self) -> None:
        async for message in self.fan_in:
            self.take(message.payload)
            self.fan_in.commit(message)

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        readers = list(self.fan_in.sources().values())
        self.fan_in.close()
        for reader in readers:
            reader.close()


class Routed(Service):
    """``async for message in router``."""

    covers: ClassVar[tuple[type, ...]] = (Router,)
    finds = True

    async def open(self) -> None:
        self.router: Router = Router(
            self.root / "in", name=NAME, rescan_s=RESCAN_S, on_corrupt="skip", on_lost="skip"
        )
        await self.router.__aenter__()

    async def run(self) -> None:
        async for message in self.router:
            self.take(message.payload)
            self.router.commit(message)

    async def close(self) -> None:
        await self.router.aclose()

    def close_now(self) -> None:
        self.router.close()


class DispatchingRouter(Routed):
    """``router.dispatch()``."""

    handles = True

    async def open(self) -> None:
        await super().open()

        @self.router.on(Message)
        async def handle(message: Message) -> None:
            await self.handle(message.payload)
            self.router.commit(message)

    async def run(self) -> None:
        await self.router.dispatch(failed="again")


class ReadingTopic(Routed):
    """``async for message in topic_reader``; the queues belong to a topic with many writers."""

    covers: ClassVar[tuple[type, ...]] = (TopicReader,)

    def make_peers(self) -> None:
        SharedTopic(self.root / "in").make(0o600)
        super().make_peers()

    def input(self, queue: str) -> Path:
        return self.root / "in" / "queue" / queue

    async def open(self) -> None:
        self.router = TopicReader(
            self.root / "in", NAME, rescan_s=RESCAN_S, on_corrupt="skip", on_lost="skip"
        )


class SharedTopicWork(ReadingTopic):
    """``async for delivery in topic_group``; the user gives up lost messages of a queue."""

    covers: ClassVar[tuple[type, ...]] = (TopicGroup,)

    async def open(self) -> None:
        self.group: TopicGroup = TopicGroup(self.root / "in", NAME, on_corrupt="skip")

    async def run(self) -> None:
        while not self.group.closed:
            try:
                async for delivery in self.group:
                    async with delivery:
                        self.take(delivery.message.payload)
            except PositionLost:
                for queue, error in list(self.group.problems.items()):
                    if isinstance(error, PositionLost):
                        forget_reader(queue, NAME)

    async def close(self) -> None:
        await self.group.aclose()

    def close_now(self) -> None:
        self.group.close()


class Discovering(Service):
    """``async for event in discover(root)``. Its messages are the events of queues that appear."""

    covers: ClassVar[tuple[type, ...]] = (Discovery,)
    finds = True

    async def open(self) -> None:
        self.discovery = discover(self.root / "in", rescan_s=RESCAN_S)

    async def run(self) -> None:
        async for event in self.discovery:
            if isinstance(event, Attached):
                self.take(event.path.encode())

    def put(self, queue: str) -> bytes:
        name = self.payload().decode().replace(" ", "-")
        with open_writer(self.input(name), segment_size=SEGMENT_BYTES, ready=True) as writer:
            return writer.path.encode()

    async def close(self) -> None:
        await self.discovery.aclose()

    def close_now(self) -> None:
        self.discovery.stop()


class Responding(Service):
    """``responder.serve(handler)``. Its messages are requests and their answers."""

    covers: ClassVar[tuple[type, ...]] = (Responder, Request)
    handles = True
    serial = False
    finds = True

    async def open(self) -> None:
        self.responder: Responder = Responder(
            self.root / "in",
            self.root / "out",
            name=NAME,
            rescan_s=RESCAN_S,
            on_corrupt="skip",
            on_lost="skip",
        )
        await self.responder.__aenter__()

    async def run(self) -> None:
        await self.responder.serve(self.answer)

    async def answer(self, request: Request) -> bytes:
        await self.handle(request.payload)
        return request.payload

    async def arrives(self, payload: bytes) -> None:
        await until(lambda: payload in self.answers() or self._ended())

    async def settled(self, payload: bytes) -> None:
        """Wait until the sender has got the error as an answer."""
        await until(lambda: any(b"RuntimeError" in answer for answer in self.answers()))

    def answers(self) -> list[bytes]:
        """Return all answers."""
        found = []
        for queue in self.queues:
            with (
                contextlib.suppress(ChronicleError),
                open_reader(self.root / "out" / queue) as reader,
            ):
                found += [message.payload for message in reader]
        return found

    async def close(self) -> None:
        await self.responder.aclose()

    def close_now(self) -> None:
        self.responder.close()


class Requesting(Service):
    """``await requester.request(...)``. Its messages are requests and their answers.

    It reads the queue of answers, which the test writes.
    """

    covers: ClassVar[tuple[type, ...]] = (Requester,)
    queues = ("a",)

    def make_peers(self) -> None:
        super().make_peers()
        (self.root / "out").mkdir(mode=0o700, exist_ok=True)

    async def open(self) -> None:
        self.requester: Requester = Requester(
            self.root / "out", self.root / "in", "a", on_corrupt="skip", on_lost="skip"
        )
        await self.requester.__aenter__()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def exchange(self, queue: str) -> None:
        while True:
            payload = self.payload()
            try:
                answer = await self.ask(queue, payload)
            except QueueGone:  # the queue of answers, while it waited
                continue
            self.take(answer.payload)
            return

    async def ask(self, queue: str, payload: bytes) -> Message:
        asking = asyncio.create_task(self.requester.request(payload, timeout=WITHIN_S))
        try:
            with open_reader(self.root / "out" / "a") as requests:
                async for request in requests:
                    if request.payload == payload:
                        self.writers[queue].append(payload, cause=request)
                        break
            return await asking
        finally:
            asking.cancel()

    async def close(self) -> None:
        await self.requester.aclose()

    def close_now(self) -> None:
        self.requester.close()


SERVICES: tuple[type[Service], ...] = (
    OneReader,
    Batches,
    DispatchingReader,
    ConflatedReader,
    SharedWork,
    BusReader,
    Merged,
    Routed,
    DispatchingRouter,
    ReadingTopic,
    SharedTopicWork,
    Discovering,
    Responding,
    Requesting,
)
