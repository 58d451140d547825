"""Recorded queues back as a stream: at their own pace, at a multiple of it, or as fast as possible.

A replay is a strict fan-in over readers of its own. Each of them ends where its queue ended when
the replay was opened, so a queue that is still written to, or whose writer was killed, neither
lengthens the replay nor holds it up: the order is that of (timestamp, source) and nothing else,
the same every time.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from aiochronicle._background import in_background
from aiochronicle._closing import Closing
from aiochronicle._hot import Message
from aiochronicle.errors import ClosedError, CorruptionError, InvalidArgument, QueueNotFound
from aiochronicle.fanin import FanIn
from aiochronicle.reader import Reader, open_reader, unix_ns
from aiochronicle.registry import Registry, TypeOrCodec
from aiochronicle.virtual_time import VirtualTimeLoop
from aiochronicle.writer import Position, Writer, open_writer

__all__ = ["Replay", "replay"]

Source = str | os.PathLike[str] | Reader
Target = str | os.PathLike[str] | Writer
Types = TypeOrCodec | Registry | Sequence[TypeOrCodec]
Cause = Literal["recorded", "message"] | None

_TURN_MESSAGES = 256  # then the loop gets a turn, as with a reader's `burst`
_ROLLING_S = 1.0  # far longer than a writer takes from one segment to the next


def replay(
    sources: Source | Iterable[Source],
    *,
    speed: float | None = None,
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    codec: Types | None = None,
) -> "Replay":
    """Open recorded queues to be read again as one stream, in order of time.

    A source is the directory of a queue, a directory with queues below it, or a Reader, which
    stands for its queue from its position on and is not moved itself. The replay ends with what
    is there now. ``start`` and ``end`` (Unix nanoseconds or aware datetimes, ``end`` excluded)
    cut out a range. Among equal timestamps the order is that of the queues' paths.

    ``speed`` is for ``async for``: 1.0 keeps the recorded distances between messages, N divides
    them by N, None hands over as fast as they are taken. In virtual time (``run_virtual``) the
    clock follows the messages, whatever the speed. ``codec`` is that of open_reader.

    >>> with replay(queue) as history:
    ...     [message.payload for message in history]
    [b'hello']
    """
    if speed is not None and not 0 < speed < float("inf"):
        raise InvalidArgument(f"speed must be a positive number or None, not {speed!r}")
    start_ns = None if start is None else unix_ns(start)
    end_ns = None if end is None else unix_ns(end)
    if start_ns is not None and end_ns is not None and end_ns < start_ns:
        raise InvalidArgument(f"end {end!r} is before start {start!r}")
    if isinstance(sources, str | os.PathLike | Reader):
        sources = [sources]
    places = [place for source in sources for place in _queues_of(source)]
    with contextlib.ExitStack() as opened:
        readers = [
            opened.enter_context(_open(path, position, start_ns, end_ns, codec))
            for path, position in sorted(places, key=lambda place: place[0])
        ]
        fan_in = opened.enter_context(FanIn(readers, order="strict"))
        return Replay(readers, fan_in, speed, opened.pop_all())


def _queues_of(source: Source) -> list[tuple[str, Position | None]]:
    """Return path, and position to begin at, of each queue that the source means."""
    if isinstance(source, Reader):
        return [(source.path, source.position)]
    path = Path(os.path.abspath(source))
    if not path.is_dir() or (path / "control.meta").exists():
        return [(str(path), None)]
    below = [str(found.parent) for found in path.rglob("control.meta")]
    if not below:
        raise QueueNotFound("there is no queue here, and none below", path=str(path))
    return [(found, None) for found in below]


def _open(
    path: str,
    position: Position | None,
    start_ns: int | None,
    end_ns: int | None,
    codec: Types | None,
) -> Reader:
    reader: Reader = open_reader(path, codec=codec)
    try:
        if end_ns is None:
            reader.seek_last()
        else:
            reader.seek_time(end_ns)
        reader.end_at(reader.position)
        if start_ns is not None:
            reader.seek_time(start_ns)
        elif position is not None:
            reader.seek_position(position)
        else:
            reader.seek_first()
    except BaseException:
        reader.close()
        raise
    return reader


class Replay(Closing):
    """A recording as a stream. Made by ``replay``; a context manager both ways.

    ``for message in replay`` goes through it at full speed, ``async for`` at the replay's. Both go
    on where the last message was handed over, and end with the recording. A consumer that is
    slower than the recording finds what is due waiting for it; nothing is left out.

    Cancelling a task anywhere in ``async for`` or ``next`` loses nothing: a message is taken in
    the step that hands it over. Several tasks may share a replay; each message goes to one.
    """

    def __init__(
        self,
        readers: list[Reader],
        fan_in: FanIn,
        speed: float | None,
        opened: contextlib.ExitStack,
    ) -> None:
        self._readers = readers
        self._fan_in = fan_in
        self._speed = speed
        self._opened = opened
        self._head: Message | None = None  # taken from the fan-in, not handed over yet
        self._turn_messages = 0
        self._anchor: tuple[asyncio.AbstractEventLoop, float, int] | None = None

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._fan_in.closed

    @property
    def paths(self) -> list[str]:
        """Directories of the replayed queues, in the order that decides among equal timestamps."""
        return [reader.path for reader in self._readers]

    @property
    def next_timestamp_ns(self) -> int | None:
        """Timestamp of the next message; None at the end."""
        head = self._peek()
        return None if head is None else head.timestamp_ns

    def __iter__(self) -> Iterator[Message]:
        while True:
            while self._head is not None:
                yield self._take(self._head)
            # One by one, and not `yield from`: a task may have looked at the next one meanwhile.
            for message in self._fan_in:
                yield message
                if self._looked_ahead:
                    break
            else:
                if not self._is_more_to_come():
                    return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        waited_for = None
        while not self.closed and (head := self._peek()) is not None:
            waiting = None if head is waited_for else self._until_due(head)
            if waiting is None:
                return self._take(head)
            waited_for = head
            await waiting
        raise StopAsyncIteration

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message; TimeoutError after ``timeout`` seconds.

        At the end of the recording it raises ClosedError, as a reader does that was closed.
        Cancelled or timed out, it has taken nothing.
        """
        try:
            async with asyncio.timeout(timeout):
                return await anext(self)
        except StopAsyncIteration:
            raise ClosedError("the recording has ended") from None

    def commit(self, message: Message | None = None) -> None:
        """Do nothing: for programs that commit to their reader. A replay keeps no position."""

    def into_now(self, target: Target, *, cause: Cause = "recorded") -> int:
        """Write the rest of the replay into new queues, at full speed; return how many messages.

        ``target`` is a writer, for everything in one queue, or a directory, for a queue of the
        same name per source. Payload, type and timestamp are the recorded ones, and so is the
        cause unless ``cause`` is "message", which makes the replayed message the cause of its
        copy: then what is in the target already is left out, so that a copy that was interrupted
        goes on where it was. None leaves causes away.
        """
        copies = _Copies(self._readers, target, cause)
        with contextlib.closing(copies):
            copies.open()
            for message in self:
                copies.append(message)
        return copies.count

    async def into(self, target: Target, *, cause: Cause = "recorded") -> int:
        """Write the rest of the replay into new queues, as ``into_now``, at the replay's speed.

        Cancelled, the targets are closed; what was written stays.
        """
        copies = _Copies(self._readers, target, cause)
        try:
            await in_background(copies.open)
            async for message in self:
                copies.append(message)
        finally:
            await asyncio.shield(in_background(copies.close))
        return copies.count

    def close(self) -> None:
        """Close it and the readers it opened. Messages stay valid."""
        self._head = None
        self._opened.close()

    @property
    def _looked_ahead(self) -> bool:
        return self._head is not None

    def _take(self, head: Message) -> Message:
        self._head = None
        return head

    def _peek(self) -> Message | None:
        if self._head is None:
            self._head = self._fan_in.poll()
            while self._head is None and self._is_more_to_come():
                self._head = self._fan_in.poll()
        return self._head

    def _is_more_to_come(self) -> bool:
        """The fan-in has nothing to give. That is the end, unless a source has not come to its own.

        Everything up to there had been written when we opened it. Only the end of a segment whose
        writer is just going on to the next may hide it, for a moment.
        """
        behind = [reader for reader in self._readers if not reader.ended]
        if not behind:
            return False
        if not self._fan_in.wait(_ROLLING_S):
            raise CorruptionError("what was recorded ends too early", path=behind[0].path)
        return True

    def _until_due(self, head: Message) -> Awaitable[None] | None:
        """Return what to wait for before the message is handed over, or None."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            return loop.arrival(head.timestamp_ns)
        if self._speed is not None:
            if self._anchor is None or self._anchor[0] is not loop:
                self._anchor = loop, loop.time(), head.timestamp_ns
            # From the first message on, not from the last one: being late does not add up.
            _, anchor_s, anchor_ns = self._anchor
            due_s = anchor_s + (head.timestamp_ns - anchor_ns) / 1e9 / self._speed
            left_s = due_s - loop.time()
            if left_s > 0:
                self._turn_messages = 0
                return asyncio.sleep(left_s)
        self._turn_messages += 1
        if self._turn_messages < _TURN_MESSAGES:
            return None
        self._turn_messages = 0
        return asyncio.sleep(0)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"queues={len(self._readers)}"
        return f"<Replay speed={self._speed} {state}>"


class _Copies:
    """Where a replay is written to: one writer for all sources, or one for each."""

    def __init__(self, readers: list[Reader], target: Target, cause: Cause) -> None:
        if cause not in ("recorded", "message", None):
            raise InvalidArgument(f'cause must be "recorded", "message" or None, not {cause!r}')
        self.count = 0
        self._readers = readers
        self._target = target
        self._cause = cause
        self._opened = contextlib.ExitStack()
        self._writers: dict[str, Writer] = {}  # by the name of the source
        self._copied: dict[int, int] = {}  # queue id to the newest seq that the target has of it

    def open(self) -> None:
        for reader in self._readers:
            if not isinstance(self._target, Writer) and reader.source in self._writers:
                raise InvalidArgument("two sources have the same name", path=reader.path)
            self._writers[reader.source] = writer = self._writer_for(reader)
            if self._cause == "message":
                queue_id = reader.statistics().queue_id
                if queue_id in self._copied:
                    raise InvalidArgument("two sources are the same queue", path=reader.path)
                newest = writer.last_cause(queue_id)
                self._copied[queue_id] = -1 if newest is None else newest

    def _writer_for(self, reader: Reader) -> Writer:
        if isinstance(self._target, Writer):
            return self._target
        path = Path(self._target) / reader.source
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = open_writer(path, segment_size=reader.statistics().segment_size)
        return self._opened.enter_context(writer)

    def append(self, message: Message) -> None:
        cause: Message | tuple[int, int] | None = None
        if self._cause == "recorded":
            cause = message.cause
        elif self._cause == "message":
            if message.seq <= self._copied[message.queue_id]:
                return
            cause = message
        self._writers[message.source].append(
            message, type_id=message.type_id, timestamp_ns=message.timestamp_ns, cause=cause
        )
        self.count += 1

    def close(self) -> None:
        self._opened.close()
