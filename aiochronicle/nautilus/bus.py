"""The message bus of a nautilus_trader node: recorded into a queue, fed from queues.

Each message of the bus becomes a message of the queue: the payload comes from the serializer of the bus, the
key is the topic.

A bus also gives its listeners what a feed publishes, with ``external_pub=False`` or without. If this were
recorded, it would come back from the queue in a loop, so a feed tells the recorder of its bus what to leave
out.
"""

import logging
from collections.abc import AsyncIterable
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from aiochronicle._base.arguments import expect
from aiochronicle._base.printable import printable
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle.errors import ChronicleError, DecodeError

__all__ = ["BusFeed", "BusRecorder", "Serializer", "topic_of"]

_log = logging.getLogger("aiochronicle.nautilus")


class Serializer(Protocol):
    """The part of nautilus_trader's ``MsgSpecSerializer`` that is used here."""

    def serialize(self, obj: Any) -> bytes: ...
    def deserialize(self, obj_bytes: bytes) -> Any: ...


class MessageBus(Protocol):
    """The part of nautilus_trader's ``MessageBus`` that is used here."""

    @property
    def serializer(self) -> Serializer: ...
    def add_listener(self, listener: Any) -> None: ...
    def publish(self, topic: str, msg: Any, external_pub: bool = True) -> None: ...


class BusRecorder:
    """Appends what a message bus publishes: ``BusRecorder(node.kernel.msgbus, writer)``.

    It records everything that nautilus_trader can serialize, except the types in
    ``MessageBusConfig.types_filter``. The caller owns the writer, and closes it after the node.

    A message that cannot be appended does not stop the node. It is logged, ``failure`` is the exception
    from then on, and nothing more is recorded: a recording may end early, but it has no gaps.
    """

    def __init__(self, msgbus: MessageBus, writer: Writer[Any]) -> None:
        self._writer = expect("writer", "a Writer", Writer, writer)
        self._left_out: tuple[str, bytes] | None = None
        self._closed = False
        self.failure: ChronicleError | None = None
        msgbus.add_listener(self)

    def is_closed(self) -> bool:
        """Tell the bus whether to pass this listener over."""
        return self._closed

    def is_active(self) -> bool:
        """Tell the bus whether this listener wants messages."""
        return not self._closed

    def publish(self, topic: str, payload: bytes) -> None:
        """Append a message; called by the bus."""
        if self._left_out == (topic, payload):
            self._left_out = None
            return
        try:
            self._writer.append(payload, key=topic.encode())
        except ChronicleError as error:
            self.failure = error
            self._closed = True
            _log.error("the message bus is not recorded any more: %s", printable(error))

    def leave_out(self, message: tuple[str, bytes] | None) -> None:
        """Skip this message, given by topic and payload, when it is published; for feeds."""
        self._left_out = message

    def close(self) -> None:
        """Stop recording. A bus never removes its listeners, but skips this one from now on."""
        self._closed = True


class BusFeed:
    """Publishes messages of queues on a message bus, in the thread that calls it.

    Messages whose topic matches ``topics``, with the wildcards of the bus, are published: by default
    data, not the orders and events of other nodes. ``recorder`` is the one of the same bus, if it has
    one, so that what comes from a queue is not recorded again.

    ``asyncio.create_task(BusFeed(node.kernel.msgbus).run(reader))`` feeds a live node.
    """

    def __init__(
        self,
        msgbus: MessageBus,
        *,
        topics: str = "data.*",
        recorder: BusRecorder | None = None,
    ) -> None:
        self._msgbus = msgbus
        self._topics = expect("topics", "a str with wildcards", str, topics)
        self._recorder = recorder

    def publish(self, message: Message[Any]) -> bool:
        """Publish one message; False if its topic is not wanted.

        A message that the serializer of the bus does not know is published as bytes. An exception of a
        handler is raised here.
        """
        topic = topic_of(message)
        if not fnmatchcase(topic, self._topics):
            return False
        serializer = self._msgbus.serializer
        published: Any = message.payload
        again = published
        try:
            published = serializer.deserialize(message.payload)
            again = serializer.serialize(published)
        except (msgspec.DecodeError, TypeError):
            pass
        if self._recorder is not None:
            self._recorder.leave_out((topic, again))
        try:
            self._msgbus.publish(topic, published, external_pub=False)
        finally:
            if self._recorder is not None:
                self._recorder.leave_out(None)
        return True

    async def run(self, messages: AsyncIterable[Message[Any]]) -> None:
        """Publish the messages of a reader, fan-in or router until it is closed.

        Cancelled, it has published every message that it took.
        """
        async for message in messages:
            self.publish(message)


def topic_of(message: Message[Any]) -> str:
    """Return the topic of a message of a bus; DecodeError if it is none."""
    try:
        if message.key:
            return message.key.decode()
    except UnicodeDecodeError:
        pass
    raise DecodeError("its key is no topic: it is not of a message bus", seq=message.seq)
