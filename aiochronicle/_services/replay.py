"""Replays recorded queues as a stream: at the recorded speed, at a multiple of it, or as fast as possible.

A replay is a strict fan-in over its own readers. Each reader ends where its queue ended when the replay was
opened, so a queue with an open or killed writer neither lengthens nor delays the replay. The order depends
only on (timestamp, source), and is the same every time.

It has the methods of a Reader, so that a coroutine written for a Reader runs over history unchanged. A
message is available when it is due. In virtual time the event loop has the recorded time; with a ``speed``
the time is counted from the first message. At full speed, and without an event loop, all messages are due.
"""

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NoReturn, Self

from aiochronicle._base.arguments import expect_several, number, one_of, pathname
from aiochronicle._base.background import in_background
from aiochronicle._base.binding import lib
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.batches import check_limits
from aiochronicle._core.causes import Causes
from aiochronicle._core.conflate import Feed
from aiochronicle._core.fanin import FanIn
from aiochronicle._core.reader import Reader, TimestampSource, open_reader, unix_ns
from aiochronicle._core.slices import Recording
from aiochronicle._core.stream import Lag, Stream
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._hot import Message
from aiochronicle._layout import BACKUP, CONTROL, JAVA_TABLE, READERS, WAKE
from aiochronicle._services.virtual_time import VirtualTimeLoop
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgument,
    QueueNotFound,
    SchemaNotFound,
)

__all__ = ["Replay", "ReplayStatistics", "replay"]

Source = str | os.PathLike[str] | Reader
Target = str | os.PathLike[str] | Writer
Cause = Literal["recorded", "message"] | None

_HEADER_BYTES = 64
_YIELD_AFTER_MESSAGES = 256  # like a reader's `burst`
_ROLLING_S = 1.0  # much longer than a writer takes from one segment to the next


def replay(
    sources: Source | Iterable[Source],
    *,
    speed: float | None = None,
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
) -> "Replay[T]":
    """Open recorded queues as one stream, ordered by time.

    A source is the directory of a queue, a directory with queues below it, or a Reader. A Reader means its
    queue from the reader's position on; the reader itself does not move. For a Java queue with times in its
    messages, pass a Reader with a ``timestamp``. The replay ends at the current ends of the queues. ``start``
    and ``end`` (Unix nanoseconds or aware datetimes, ``end`` excluded) select a range. Messages with equal
    timestamps are ordered by the paths of their queues. ``message.source`` is the path of the queue below the
    given directory.

    ``speed`` applies in event loops: 1.0 keeps the recorded intervals between messages, N divides them by N,
    None delivers messages as fast as they are requested. In virtual time (``run_virtual``) the clock follows
    the messages, whatever the speed. ``codec`` is that of open_reader.

    >>> with replay(queue) as history:
    ...     [message.payload for message in history]
    [b'hello']
    """
    if speed is not None:
        number("speed", "a positive number or None", speed, sys.float_info.min, sys.float_info.max)
    start_ns = None if start is None else unix_ns(start, "start")
    end_ns = None if end is None else unix_ns(end, "end")
    if start_ns is not None and end_ns is not None and end_ns < start_ns:
        raise InvalidArgument(f"end {end!r} is before start {start!r}: exchange them")
    if isinstance(sources, str | os.PathLike | Reader):
        sources = [sources]
    expect_several("sources", "a path, a reader, or several of them", sources)
    places = [place for source in sources for place in _queues_of(source)]
    with contextlib.ExitStack() as opened:
        recorded: list[_RecordedQueue[T]] = []
        for place in sorted(places, key=lambda place: place.path):
            reader = opened.enter_context(
                open_reader(place.path, codec=codec, timestamp=place.timestamp, source=place.source)
            )
            recorded.append(_RecordedQueue(reader, place.position, start_ns, end_ns))
        _refuse_backups_beside_others([source.reader for source in recorded])
        history = Replay(recorded, speed)
        opened.pop_all()
        return history


class _Place(NamedTuple):
    """A queue to replay: its start position, the source of its timestamps, and its name."""

    path: str
    position: Position | None = None
    timestamp: TimestampSource | None = None
    source: str | None = None


def _queues_of(source: Source) -> list[_Place]:
    """Return the queues of a source; the name of a queue below a directory is its path below that."""
    if isinstance(source, Reader):
        return [_Place(source.path, source.position, source.timestamp, source.source)]
    path = Path(pathname("a source", source))
    with storage_errors(path):
        if not path.is_dir() or lib.ac_queue_format(os.fsencode(path)) != lib.AC_FORMAT_NONE:
            return [_Place(str(path))]
        below = list(_queues_below(path))
    if not below:
        raise QueueNotFound("there is no queue here or below", path=str(path))
    return [_Place(str(found), source=found.relative_to(path).as_posix()) for found in below]


def _queues_below(root: Path) -> Iterator[Path]:
    """Yield the queues below a directory. OSError if a directory cannot be listed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the directory was just removed
            raise error

    for directory, names, files in os.walk(root, onerror=refuse):
        if CONTROL in files or JAVA_TABLE in files:
            yield Path(directory)
            names[:] = [name for name in names if name not in (READERS, WAKE)]


def _refuse_backups_beside_others(readers: Sequence[Reader]) -> None:
    """Raise InvalidArgument for a queue and its backup: the replay would have each message twice."""
    known: dict[int, Reader] = {}
    for reader in readers:
        queue_id = reader.statistics().queue_id
        other = known.setdefault(queue_id, reader)
        if other is reader or queue_id == 0:
            continue
        if any(os.path.lexists(os.path.join(one.path, BACKUP)) for one in (other, reader)):  # noqa: PTH118
            raise _same_queue(reader, other)


def _same_queue(reader: Reader, other: Reader) -> InvalidArgument:
    return InvalidArgument(
        f"it has the same messages as {printable(other.path)}: they are copies or backups of one queue",
        path=reader.path,
        advice=f"Nothing was written. Give one of them, such as {printable(reader.path)}.",
    )


class _RecordedQueue(Generic[T]):
    """One queue of a replay: a reader that stops at the end of the recording."""

    def __init__(
        self,
        reader: Reader[T],
        position: Position | None,
        start_ns: int | None,
        end_ns: int | None,
    ) -> None:
        self.reader = reader
        self._recording: Recording | None = None
        if end_ns is None:
            reader.seek_last()
        else:
            reader.seek_time(end_ns)
        self._end = reader.position
        reader.end_at(self._end)
        if start_ns is not None:
            reader.seek_time(start_ns)
        elif position is not None:
            reader.seek_position(position)
        else:
            reader.seek_first()

    def count_left(self, until_ns: int | None) -> tuple[int, int]:
        """Return how many unread messages and bytes there are up to and including a time."""
        if self._recording is None:
            self._recording = Recording(self.reader.path, timestamp=self.reader.timestamp)
        part = self._recording.part(self.reader.position, self._end, until_ns)
        return self._recording.count(part), self._recording.length(part)

    def close(self) -> None:
        self.reader.close()
        if self._recording is not None:
            self._recording.close()


class ReplayStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a replay: ``messages`` delivered, and the number of its ``sources``."""

    sources: int
    messages: int


class Replay(Stream[T], Generic[T]):
    """A recording as a stream. Created by ``replay``; a context manager, ``with`` and ``async with``.

    It is used like a Reader. ``async for``, ``next`` and ``batches`` wait until a message is due. ``for``,
    ``poll`` and ``read_batch`` return messages that are due, ``conflate`` returns the latest of them per key,
    and ``lag`` counts them. The stream ends with the recording. Without an event loop, or at full speed, all
    messages are due. All methods share one position. A consumer that is slower than the recording finds due
    messages waiting; none is skipped.

    Cancelling a task anywhere in ``async for``, ``next`` or ``batches`` loses nothing: a message is taken in
    the step that delivers it. Several tasks may share a replay; each message goes to one of them.
    """

    def __init__(self, recorded: "list[_RecordedQueue[T]]", speed: float | None) -> None:
        self._recorded = recorded
        self._closed = False
        self._fan_in = FanIn([source.reader for source in recorded], order="strict")
        self._speed = speed
        self._ahead: deque[Message[T]] = deque()  # taken from the fan-in, but not delivered yet
        self._error_ahead: Exception | None = None  # raised after those messages
        self._delivered_before = 0  # messages, before this fan-in was created
        self._since_yield = 0
        self._anchor: tuple[asyncio.AbstractEventLoop, float, int] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._reached_ns = 0  # due at least up to here: waiting for this time has ended

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    @property
    def paths(self) -> list[str]:
        """Directories of the replayed queues, in the order that applies to equal timestamps."""
        return [source.reader.path for source in self._recorded]

    @property
    def next_timestamp_ns(self) -> int | None:
        """Timestamp of the next message, due or not; None at the end."""
        head = self._peek()
        return None if head is None else head.timestamp_ns

    @property
    def lag(self) -> Lag:
        """Messages that are due but not delivered: their number, bytes, and how long the oldest has been due.

        Without a recorded time these are all remaining messages, and 0 seconds.
        """
        now_ns, head = self._now_ns(), self._peek()
        if head is None or not _is_due(head, now_ns):
            return Lag(0, 0, 0.0)
        ahead = [message for message in self._ahead if _is_due(message, now_ns)]
        messages, size = len(ahead), sum(_HEADER_BYTES + len(message) for message in ahead)
        for source in self._recorded:
            more_messages, more_bytes = source.count_left(now_ns)
            messages, size = messages + more_messages, size + more_bytes
        return Lag(messages, size, 0.0 if now_ns is None else (now_ns - head.timestamp_ns) / 1e9)

    def statistics(self) -> ReplayStatistics:
        """Return the counters of this replay."""
        taken = self._delivered_before + self._fan_in.statistics().delivered
        return ReplayStatistics(sources=len(self._recorded), messages=taken - len(self._ahead))

    def __iter__(self) -> Iterator[Message[T]]:
        return self._remaining() if self._now_ns() is None else iter(self.poll, None)

    def poll(self) -> Message[T] | None:
        """Return the next message if it is due now."""
        head = self._peek()
        if head is None or not _is_due(head, self._now_ns()):
            return None
        return self._ahead.popleft()

    def read_batch(
        self, max_messages: int = 1024, max_bytes: int | None = None
    ) -> list[Message[T]]:
        """Return messages that are due, within the limits; at least one message if there is any."""
        check_limits(max_messages, max_bytes)
        self._peek()
        return self._take(self._now_ns(), max_messages, max_bytes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        if not await self._ready():
            raise StopAsyncIteration
        return self._ahead.popleft()

    async def _next(self) -> Message[T]:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise ClosedError("the recording has ended") from None

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether there is something to read, like ``Reader.wait``; False at the end.

        For programs without an event loop, where it never waits. If it would block an event loop, it raises
        InvalidArgument: use ``next`` there.
        """
        head = self._peek()
        if head is not None and not _is_due(head, self._now_ns()):
            raise InvalidArgument("wait() would stop the event loop and its clock: await next()")
        return head is not None

    def commit(self, message: Message[Any] | None = None) -> None:
        """Do nothing. It exists for programs written for a Reader; a replay stores no position."""

    def seek(self, *place: object) -> NoReturn:
        """Raise InvalidArgument, like all other seek methods: a replay only moves forward."""
        raise InvalidArgument(
            "a replay cannot seek: open another one with replay(..., start=..., end=...)"
        )

    seek_time = seek_first = seek_last = seek_position = seek

    def into_now(self, target: Target, *, cause: Cause = "recorded") -> int:
        """Write the rest of the replay into new queues, at full speed; return the number of messages.

        ``target`` is a writer, or a directory in which each source gets a queue with its own name
        (``md/btc`` if that was its path below its root) and schema.json. Payload, type, timestamp and cause
        are the recorded ones. With ``cause="message"`` the replayed message is the cause of its copy, and
        messages that the target already has are omitted, so that an interrupted copy can be continued. With
        None the copies have no causes.
        """
        copier = _Copier(self._readers(), target, cause)
        with contextlib.closing(copier):
            copier.open()
            for message in self._remaining():
                copier.append(message)
        return copier.count

    async def into(self, target: Target, *, cause: Cause = "recorded") -> int:
        """Write the rest of the replay into new queues, as ``into_now``, at the replay's speed.

        If it is cancelled, the targets are closed; messages that were written stay.
        """
        copier = _Copier(self._readers(), target, cause)
        try:
            await in_background(copier.open)
            async for message in self:
                copier.append(message)
        finally:
            await asyncio.shield(in_background(copier.close))
        return copier.count

    def close(self) -> None:
        """Close it and its readers; for tasks that wait, the stream ends. Messages stay valid."""
        self._end()
        self._close_sources()

    async def aclose(self) -> None:
        """Close it without blocking the loop. If the caller is cancelled, it is still closed."""
        self._end()
        await in_background(self._close_sources)

    def _end(self) -> None:
        """End the stream for waiting tasks. Not from a thread: their futures belong to the loop."""
        self._closed = True
        self._ahead.clear()
        for waiting in self._waiting:
            if not waiting.get_loop().is_closed():
                _wake_up(waiting)

    def _close_sources(self) -> None:
        self._fan_in.close()
        for source in self._recorded:
            source.close()

    def _remaining(self) -> Iterator[Message[T]]:
        """Yield all remaining messages, due or not."""
        while True:
            while self._ahead or self._error_ahead:
                if self._peek() is not None:
                    yield self._ahead.popleft()
            # Not `yield from`: between two messages another method may have peeked ahead.
            for message in self._fan_in:
                yield message
                if self._has_peeked:
                    break
            else:
                if self._peek() is None:
                    return

    @property
    def _has_peeked(self) -> bool:
        return bool(self._ahead) or self._error_ahead is not None

    def _peek(self) -> Message[T] | None:
        """Return the next message without taking it; None at the end.

        An error in the recording is raised when it comes next.
        """
        while (head := self._peek_now()) is None and (reader := self._find_unread()) is not None:
            self._note_wait(reader, arrived=self._fan_in.wait(_ROLLING_S))
        return head

    async def _peek_async(self, number: int = 0) -> Message[T] | None:
        """Return message ``number`` after the next one like ``_peek``, without blocking the loop."""
        while (found := self._peek_now(number)) is None and (
            reader := self._find_unread()
        ) is not None:
            wait = partial(self._fan_in.wait, _ROLLING_S)
            try:
                self._note_wait(reader, arrived=await in_background(wait))
            except ClosedError:  # the replay was closed
                break
        return found

    def _peek_now(self, number: int = 0) -> Message[T] | None:
        """Return message ``number`` after the next one if it is visible now."""
        while len(self._ahead) <= number and self._error_ahead is None:
            try:
                message = self._fan_in.poll()
            except Exception as error:  # noqa: BLE001 - raised when it comes next
                self._error_ahead = error
                break
            if message is None:
                return None
            self._ahead.append(message)
        if number < len(self._ahead):
            return self._ahead[number]
        if number == 0 and self._error_ahead is not None:
            error_ahead, self._error_ahead = self._error_ahead, None
            raise error_ahead
        return None

    def _find_unread(self) -> Reader[T] | None:
        """Return a reader that has not reached its end, although the fan-in has no message now.

        All messages up to its end were written before the replay was opened. They are only invisible for a
        moment, while a writer moves from one segment to the next.
        """
        if self.closed or self._error_ahead is not None:
            return None
        return next((one.reader for one in self._recorded if not one.reader.ended), None)

    def _note_wait(self, reader: Reader[T], *, arrived: bool) -> None:
        if not arrived:
            self._error_ahead = CorruptionError("the recording ends too early", path=reader.path)

    def _take(
        self, until_ns: int | None, max_messages: int, max_bytes: int | None
    ) -> list[Message[T]]:
        count = size = 0
        while count < max_messages and (message := self._peek_now(count)) is not None:
            size += len(message)
            if not _is_due(message, until_ns) or (count and max_bytes and size > max_bytes):
                break
            count += 1
        return [self._ahead.popleft() for _ in range(count)]

    def _now_ns(self) -> int | None:
        """Return the current recorded time; None if everything is due."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if isinstance(loop, VirtualTimeLoop):
            return loop.time_ns()
        if self._speed is None:
            return None
        anchor_s, anchor_ns = self._anchor_in(loop)
        passed_ns = min((loop.time() - anchor_s) * self._speed * 1e9, 2.0**63)
        return max(anchor_ns + round(passed_ns), self._reached_ns)

    def _anchor_in(self, loop: asyncio.AbstractEventLoop) -> tuple[float, int]:
        """Return a time of the loop and the recorded time at that moment; later times follow from these.

        They are those of the first message, so delays do not accumulate.
        """
        if self._anchor is None or self._anchor[0] is not loop:
            head = self._peek_now()
            self._anchor = loop, loop.time(), 0 if head is None else head.timestamp_ns
        return self._anchor[1:]

    async def _ready(self) -> bool:
        """Wait until the next message is due; False at the end."""
        waited_for = None
        while not self.closed:
            head = self._peek_now()
            if head is None and (head := await self._peek_async()) is None:
                break
            waiting = None if head is waited_for else self._wait_until(head.timestamp_ns)
            if waiting is None:
                return True
            await waiting
            waited_for = head
            self._reached_ns = max(self._reached_ns, head.timestamp_ns)
        return False

    def _wait_until(self, timestamp_ns: int) -> Awaitable[None] | None:
        """Return an awaitable that completes when a recorded time is due, or None if it is due now."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            return self._end_at_close(loop.arrival(timestamp_ns))
        if self._speed is not None:
            anchor_s, anchor_ns = self._anchor_in(loop)
            due_s = anchor_s + (timestamp_ns - anchor_ns) / 1e9 / self._speed
            left_s = due_s - loop.time()
            if left_s > 0:
                self._since_yield = 0
                return self._end_at_close(_future_after(loop, left_s))
        self._since_yield += 1
        if self._since_yield < _YIELD_AFTER_MESSAGES:
            return None
        self._since_yield = 0
        return asyncio.sleep(0)

    def _end_at_close(self, waiting: "asyncio.Future[None]") -> "asyncio.Future[None]":
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return waiting

    async def _next_batch(
        self, max_messages: int, max_bytes: int | None, max_wait_s: float | None
    ) -> list[Message[T]]:
        while await self._ready():
            if max_wait_s:
                until_ns: int | None = await self._fill(max_messages, max_bytes, max_wait_s)
            else:
                until_ns = self._now_ns()
            batch = [] if self.closed else self._take(until_ns, max_messages, max_bytes)
            if batch:  # another task may have taken the messages
                return batch
        return []

    async def _fill(self, max_messages: int, max_bytes: int | None, max_wait_s: float) -> int:
        """Wait until a batch is full or its time is over; return the recorded time at which it ends."""
        first = self._peek_now()
        begin_ns = max(self._now_ns() or 0, 0 if first is None else first.timestamp_ns)
        until_ns = begin_ns + round(max_wait_s * 1e9)
        count = size = 0
        while not self.closed and count < max_messages and (max_bytes is None or size < max_bytes):
            message = await self._peek_async(count)
            due_ns = until_ns if message is None else min(message.timestamp_ns, until_ns)
            if (waiting := self._wait_until(due_ns)) is not None:
                await waiting
            if message is None or message.timestamp_ns > until_ns:
                break
            if self._ahead and self._ahead[0] is first:
                count, size = count + 1, size + len(message)
            else:  # another task has taken messages
                first, count, size = next(iter(self._ahead), None), 0, 0
        return until_ns

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Return whether messages may decode to this type."""
        return any(source.reader.decodes_to(wanted) for source in self._recorded)

    def _readers(self) -> list[Reader[T]]:
        return [source.reader for source in self._recorded]

    def _feed(self) -> Feed:
        return Feed(
            source=self,
            readers=self._readers,
            ready=self._ready,
            commit_before=lambda message, places: self.commit(),
            mark=self._mark,
        )

    def _mark(self) -> Callable[[], None]:
        """Return a function that moves the replay back to where it is now."""
        ahead, error_ahead = tuple(self._ahead), self._error_ahead
        delivered = self.statistics().messages
        positions = [source.reader.position for source in self._recorded]

        def go_back() -> None:
            self._fan_in.close()
            for source, position in zip(self._recorded, positions, strict=True):
                source.reader.seek_position(position)
            self._fan_in = FanIn(self._readers(), order="strict")
            self._delivered_before = delivered + len(ahead)
            self._ahead, self._error_ahead = deque(ahead), error_ahead

        return go_back

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"queues={len(self._recorded)}"
        return f"<Replay speed={self._speed} {state}>"


def _future_after(loop: asyncio.AbstractEventLoop, after_s: float) -> "asyncio.Future[None]":
    """Return a future that completes after this time."""
    future: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(after_s, _wake_up, future)
    future.add_done_callback(lambda _: timer.cancel())
    return future


def _wake_up(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _is_due(message: Message[Any], now_ns: int | None) -> bool:
    return now_ns is None or message.timestamp_ns <= now_ns


class _Copier:
    """Writes the messages of a replay, with one writer for all sources or one for each."""

    def __init__(self, readers: list[Reader], target: Target, cause: Cause) -> None:
        if cause is not None:
            one_of("cause", dict.fromkeys(("recorded", "message")), cause, "None")
        self.count = 0
        self._readers = readers
        self._target = target if isinstance(target, Writer) else pathname("target", target)
        self._cause = cause
        self._opened = contextlib.ExitStack()
        self._writers: dict[str, Writer] = {}  # by the name of the source
        self._copied: dict[
            str, Causes
        ] = {}  # by the name of the source: messages that its target has

    def open(self) -> None:
        self._refuse_twice()
        in_targets: dict[str, Causes] = {}  # each target is scanned once
        for reader in self._readers:
            self._writers[reader.source] = writer = self._writer_for(reader)
            if self._cause == "message":
                if writer.path not in in_targets:
                    in_targets[writer.path] = writer.last_causes()
                self._copied[reader.source] = in_targets[writer.path]

    def _refuse_twice(self) -> None:
        """Refuse sources that cannot be told apart, before anything is created."""
        names: set[str] = set()
        known: dict[int, Reader] = {}
        for reader in self._readers:
            if not isinstance(self._target, Writer) and reader.source in names:
                raise InvalidArgument(
                    "two sources have the same name: replay them into different directories",
                    path=reader.path,
                )
            names.add(reader.source)
            other = known.setdefault(reader.statistics().queue_id, reader)
            if self._cause == "message" and other is not reader:
                raise _same_queue(reader, other)

    def _writer_for(self, reader: Reader) -> Writer:
        if isinstance(self._target, Writer):
            return self._target
        path = Path(self._target) / reader.source
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        writer = open_writer(path, segment_size=reader.statistics().segment_size)
        self._opened.enter_context(writer)
        with contextlib.suppress(SchemaNotFound):
            writer.register(Registry.load(reader.path))
        return writer

    def append(self, message: Message) -> None:
        cause: Message | tuple[int, int] | None = None
        if self._cause == "recorded":
            cause = message.cause
        elif self._cause == "message":
            if self._copied[message.source].covers(message):
                return
            cause = message
        writer = self._writers[message.source]
        type_id, timestamp_ns = message.type_id, message.timestamp_ns
        expires_ns = message.expires_ns if self._cause == "recorded" else None
        key, headers = message.key, message.headers or None
        if expires_ns is None:
            writer.append(
                message,
                type_id=type_id,
                timestamp_ns=timestamp_ns,
                cause=cause,
                key=key,
                headers=headers,
            )
        else:  # a message that expires has no cause
            writer.append_expiring(
                message,
                expires_ns,
                type_id=type_id,
                timestamp_ns=timestamp_ns,
                key=key,
                headers=headers,
            )
        self.count += 1

    def close(self) -> None:
        self._opened.close()
