"""The reader: open_reader and the Reader class.

``Reader.poll`` and iteration are C methods (csrc/python/reader.c): they load the commit word, check header
and payload, and create a Message over the mapped segment. This module does positions, seeking and waiting.
"""

import logging
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aiochronicle import _hot
from aiochronicle._base.arguments import (
    expect,
    flag,
    integer,
    number,
    one_of,
    permissions,
    positive,
    wrong_type,
    wrong_value,
)
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct, table, titled
from aiochronicle._columns.columns import BATCH_ROWS, PAYLOAD_BYTES_MAX
from aiochronicle._core import engine_log
from aiochronicle._core.backup_mark import refuse_backup
from aiochronicle._core.conflate import Feed
from aiochronicle._core.health import Health, format_reason, health_of
from aiochronicle._core.root_of_queues import refuse_root_of_queues
from aiochronicle._core.stream import Lag, Stream
from aiochronicle._typed.decoding import Decoders
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T, T_co
from aiochronicle.config import SpinThenPark, Timestamp
from aiochronicle.errors import (
    ChronicleError,
    InvalidArgument,
    InvalidName,
    NotSupported,
    QueueNotFound,
)

if TYPE_CHECKING:
    import pyarrow

    from aiochronicle._columns.column_reader import ColumnReader

__all__ = ["Reader", "ReaderStatistics", "open_reader"]

_log = logging.getLogger("aiochronicle.reader")

_FOREVER = 2**64 - 1

_STARTS = {
    "committed": lib.AC_START_COMMITTED,
    "first": lib.AC_START_FIRST,
    "last": lib.AC_START_LAST,
}

_UNITS = {"ns": 1, "us": 1000, "ms": 1_000_000, "s": 1_000_000_000}

TimestampSource = str | Timestamp | Callable[[bytes], int]
StartPoint = Literal["committed", "first", "last"] | int | datetime
WaitStrategy = Literal["park", "spin"] | SpinThenPark


class ReaderStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of one reader since it was opened, and its position.

    ``next_seq`` is the seq of the next message, or 0 if that is unknown. ``skipped_records`` counts corrupt
    records that were skipped. ``seq_restarts`` and ``timestamp_returns`` count seqs and timestamps that were
    smaller than the ones before, which writers of other programs can cause. ``announced`` is whether writers
    can find this reader to wake it, ``attended`` whether a writer is connected to it now.
    """

    messages: int
    payload_bytes: int
    skipped_records: int
    skipped_bytes: int
    seq_restarts: int
    timestamp_returns: int
    segments_entered: int
    commits: int
    waits: int
    parks: int
    segment: int
    offset: int
    next_seq: int
    segment_size: int
    queue_id: int
    announced: bool
    attended: bool


def unix_ns(moment: int | datetime, name: str = "the time") -> int:
    """Return a time, given as Unix nanoseconds or an aware datetime, in nanoseconds."""
    wanted = "Unix nanoseconds, an int from 0 to 2**63 - 1, or an aware datetime after 1970"
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{name} {moment!r} has no time zone: use an aware datetime")
        whole = int(moment.replace(microsecond=0).timestamp())
        nanoseconds = whole * 1_000_000_000 + moment.microsecond * 1000
    else:
        nanoseconds = expect(name, wanted, int, moment)
    if not 0 <= nanoseconds < 1 << 63:
        raise wrong_value(name, wanted, moment)
    return nanoseconds


def check_start(start: StartPoint) -> tuple[int, int]:
    """Return the engine's constant AC_START_* and its value."""
    if isinstance(start, datetime):
        return lib.AC_START_TIME, unix_ns(start, "start")
    if isinstance(start, int) and not isinstance(start, bool):
        return lib.AC_START_SEQ, integer("start", start, 0)
    return one_of("start", _STARTS, start, "a seq", "a datetime"), 0


def _commit_every(commit: object, name: str | None) -> int:
    if isinstance(commit, int) and not isinstance(commit, bool):
        every = positive("commit", commit)
    else:
        every = one_of("commit", {"manual": 0, "auto": 1}, commit, "a positive int")
    if every and name is None:
        raise InvalidArgument("an anonymous reader has no position to commit: give it a name")
    return every


def spin_ns_of(wait: WaitStrategy) -> int:
    """Return how long to poll before parking, in nanoseconds."""
    if isinstance(wait, SpinThenPark):
        return round(number("SpinThenPark.us", "microseconds, 0 to 1e9", wait.us, 0, 1e9) * 1000)
    return one_of("wait", {"park": 0, "spin": _FOREVER}, wait, "SpinThenPark(us)")


def turns(burst: int, poll_max_us: int | None) -> tuple[int, int]:
    """Check ``burst`` and ``poll_max_us`` of a reader or a fan-in."""
    return (
        integer("burst", burst, 1, (1 << 31) - 1),
        0 if poll_max_us is None else integer("poll_max_us", poll_max_us, 50, 1_000_000),
    )


def _set_timestamp(config: Any, timestamp: TimestampSource | None) -> list[Any]:
    """Set the source of a Java queue's timestamps.

    Returns the objects that must stay alive until the reader is open.
    """
    wanted = "the name of a field, a Timestamp, a function or None"
    if timestamp is None:
        return []
    if isinstance(timestamp, str):
        timestamp = Timestamp(timestamp)
    if isinstance(timestamp, Timestamp):
        field = expect("timestamp", "the name of a field", str, timestamp.field)
        if not field or "\0" in field:
            raise wrong_value("timestamp", wanted, field)
        config.timestamp_unit_ns = one_of("Timestamp.unit", _UNITS, timestamp.unit)
        encoded = ffi.new("char[]", field.encode())
        config.timestamp_field = encoded
        return [encoded]
    if not callable(timestamp):
        raise wrong_type("timestamp", wanted, timestamp)
    config.timestamp_function = ffi.cast("ac_timestamp_t", _hot.timestamp_function())
    config.timestamp_context = ffi.cast("void *", id(timestamp))
    return [timestamp]


def check_timestamp(timestamp: TimestampSource | None) -> None:
    """Raise InvalidArgument if ``open_reader`` would not accept it."""
    _set_timestamp(ffi.new("ac_reader_config_t *"), timestamp)


def _place(position: Position) -> tuple[int, int]:
    expect("position", "a Position", Position, position)
    return (
        integer("Position.segment", position.segment, 0),
        integer("Position.offset", position.offset, 0),
    )


def open_reader(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    start: StartPoint = "committed",
    commit: Literal["manual", "auto"] | int = "manual",
    on_corrupt: Literal["raise", "skip"] = "raise",
    wait: WaitStrategy = "park",
    burst: int = 256,
    codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
    verify: bool = True,
    poll_max_us: int | None = None,
    wait_for_queue: bool = False,
    timestamp: TimestampSource | None = None,
    mode: int = 0o600,
    source: str | None = None,
    _expect: tuple[int, int, int] | None = None,
) -> "Reader[T]":
    """Open a queue for reading. In an event loop use ``aopen_reader``: opening waits for the disk.

    Raises QueueNotFound if there is no queue, NotAQueue if only subdirectories of the path are queues. The
    path may be a symbolic link to the queue; files and directories in the queue may not be links. A reader
    with a ``name`` keeps a committed position and resumes there; only one reader of a name can be open. A
    reader without a name needs read permission only, keeps no position, and starts at the first message.

    ``start`` is "committed" (for a new name: the first message), "first", "last" (only messages appended from
    now on), a seq, or an aware datetime. ``commit`` is "manual", "auto" (requesting the next message commits
    this one), or an int N (every N messages). ``on_corrupt="skip"`` skips corrupt records and counts them.
    ``verify=False`` does not check payload checksums.

    ``wait`` sets what ``async for`` and ``wait()`` do when there is nothing to read. "park" sleeps until
    the writer signals. "spin" polls in every iteration of the loop: half the latency, at the cost of a
    whole CPU. SpinThenPark(us) spins, then parks. ``async for`` yields to the event loop every ``burst``
    messages or 200 µs. If the writer does not signal, the queue is polled at intervals of at most
    ``poll_max_us``: 2,000 by default, 20,000 for Java queues.

    ``codec`` sets what ``message.decode()`` returns: a msgspec.Struct type, a Codec, or a Registry or list of
    them. Raises SchemaMismatch if the queue's schema.json has other types.

    A Java Chronicle Queue is recognised: ``seq`` is then Java's index, ``decode`` returns what Java wrote,
    and the name is that of a tailer that Java sees too. ``timestamp`` tells where its messages have their
    time: the name of a field with nanoseconds or a date and time, a Timestamp with another unit, or a
    function of the payload. Without it the timestamp is the start of the message's cycle. A message without
    the field raises TimestampUnknown.

    ``source`` sets ``message.source``, by default the name of the directory. ``replay``, Bus, Router and
    Spark set it to the path below their root, for instance "md/btc".

    With ``wait_for_queue`` neither the queue nor its directory need to exist yet. The reader waits, without
    polling, until a writer creates the queue. All messages are then new, so "last" starts at the first one.
    Until then seek and commit raise QueueNotFound.

    >>> with open_reader(queue, "audit") as reader:
    ...     for message in reader:
    ...         print(message.seq, message.payload)
    ...     reader.commit()
    0 b'hello'
    """
    config = ffi.new("ac_reader_config_t *")
    lib.ac_reader_defaults(config)
    commit_every = _commit_every(commit, name)
    spin_ns = spin_ns_of(wait)
    burst, poll_us = turns(burst, poll_max_us)
    # ffi.new owns the memory, so the object must live until the engine has copied the name.
    if name is not None and "\0" in expect("name", "a str or None", str, name):
        raise InvalidName(f"reader name {name!r} contains a NUL byte", path=os.fspath(path))
    encoded_name = ffi.NULL if name is None else ffi.new("char[]", os.fsencode(name))
    config.name = encoded_name
    config.start, config.start_value = check_start(start)
    config.verify = flag("verify", verify)
    config.skip_corrupt = one_of("on_corrupt", {"raise": 0, "skip": 1}, on_corrupt)
    config.mode = permissions(mode)
    config.wait_for_queue = flag("wait_for_queue", wait_for_queue)
    kept_alive = _set_timestamp(config, timestamp)
    if (
        _expect is not None
    ):  # (st_dev, st_ino, st_uid) of a queue that was found; QueueGone if replaced
        config.expected.given = 1
        config.expected.device, config.expected.inode, config.expected.owner = _expect
    encoded_path = encode_path(path)
    directory = os.fsdecode(encoded_path)
    if name is not None:  # a named reader would write its position into the backup
        refuse_backup(Path(directory))
    decoders = Decoders(directory, None if codec is None else registry_of(codec), _expect)
    handle = ffi.new("ac_reader_t **")
    error = new_error()
    engine_log.start()
    if wait_for_queue:  # no writer would create a queue there
        refuse_root_of_queues(Path(directory))
    try:
        check(lib.ac_reader_open(encoded_path, config, handle, error), error)
    except QueueNotFound:
        refuse_root_of_queues(Path(directory))
        raise
    del kept_alive
    stats = ffi.new("ac_reader_stats_t *")
    lib.ac_reader_stats(handle[0], stats)
    address = int(ffi.cast("uintptr_t", handle[0]))
    reader: Reader[T] = Reader(
        address,
        Path(directory).name if source is None else expect("source", "a str or None", str, source),
        stats.queue_id,
        commit_every,
        burst,
        spin_ns,
        poll_us * 1000,
        decoders,
        timestamp,
        name=name,
    )
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("opened: %s", printable(reader))
    return reader


@_hot.own_methods
class Reader(_hot.Reader[T_co], Stream[T_co]):
    """Reads one queue. Created by open_reader; a context manager, ``with`` and ``async with``.

    ``for message in reader`` delivers the messages available now and stops; iterate again for newer ones.
    ``async for message in reader`` waits for more until the reader is closed.

    Cancelling a task anywhere in ``async for``, ``next`` or ``batches`` loses and repeats nothing: the
    position moves in the step that delivers the message. Several tasks may read from one reader; each
    message goes to one of them.
    """

    def __init__(
        self,
        address: int,
        source: str,
        queue_id: int,
        commit_every: int,
        burst: int,
        spin_ns: int,
        poll_max_ns: int,
        decoders: Decoders,
        timestamp: TimestampSource | None,
        *,
        name: str | None,
    ) -> None:
        super().__init__(
            address,
            source,
            queue_id,
            commit_every,
            burst,
            spin_ns,
            poll_max_ns,
            decoders,
            timestamp if callable(timestamp) else None,
        )
        self._name = name
        self.timestamp = timestamp  # the source of a Java queue's timestamps
        self._alone = (
            threading.RLock()
        )  # held in calls that release the interpreter lock; close waits
        self._decoders = decoders
        self._spin_ns = spin_ns
        self.commit_every = commit_every  # 0: manually

    @property
    def _handle(self) -> Any:
        return ffi.cast("ac_reader_t *", self._address)

    @property
    def path(self) -> str:
        """Directory of the queue."""
        return os.fsdecode(ffi.string(lib.ac_reader_path(self._handle)))

    @property
    def name(self) -> str | None:
        """Name under which the position is stored; None for an anonymous reader."""
        return self._name

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Return whether this is one of the codec's types."""
        return self._decoders.can_decode_to(wanted)

    def _refuse_calls(self) -> None:
        if lib.ac_queue_format(encode_path(self.path)) == lib.AC_FORMAT_NATIVE:
            raise NotSupported(
                "only messages of a Java queue can be method calls",
                path=self.path,
                advice="Register a handler for a type of the codec.",
            )

    def _readers_of_messages(self) -> "tuple[Reader[Any]]":
        return (self,)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until there is something to read; False after ``timeout`` seconds.

        For programs without an event loop. Other threads can run. Waiting counts as a request for the next
        message, so a reader that commits automatically commits, unless ``timeout`` is 0.
        """
        limit_s = checked_timeout(timeout)
        if limit_s != 0:
            self._commit_due()
        limit_ns = _FOREVER if limit_s is None else round(limit_s * 1e9)
        return self._wait(limit_ns, self._spin_ns)

    async def blocks(self, max_messages: int = 1024) -> AsyncIterator[_hot.Block]:
        """Iterate over Blocks: many messages without an object for each.

        A block has at least one message and at most ``max_messages``, all of one segment, and is returned as
        soon as a message is available. ``read_block`` is the same without waiting. If cancelled, it has taken
        nothing.

        >>> with open_reader(queue) as reader:
        ...     block = reader.read_block()
        ...     block.first_seq, list(block.lengths), block[0]
        (0, [5], b'hello')
        """
        while await self._ready():
            if block := self.read_block(max_messages):
                yield block

    def to_arrow(
        self, max_messages: int | None = None, *, columns: Sequence[str] | None = None
    ) -> "pyarrow.RecordBatch":
        """Return the messages available now, at most ``max_messages``, as columns. Never waits.

        Moves the position like read_batch. Returns at most 2 GiB of payload: call it again for the rest.
        ``columns`` are those of ``Slice.to_arrow``: without ``payload`` payloads are neither read nor
        checked; ``cause``, ``key`` and ``headers`` must be named.

        >>> with open_reader(queue) as reader:
        ...     reader.to_arrow().column("payload").to_pylist()
        [b'hello']
        """
        from aiochronicle._columns.column_reader import ColumnReader

        if max_messages is not None:
            positive("max_messages", max_messages)
        chosen = ColumnReader(self, columns)
        available = self.lag.messages
        rows = available if max_messages is None else min(available, max_messages)
        # At least one row: reading the next record raises an exception if it is damaged.
        return self._read_columns(chosen, max(rows, 1), PAYLOAD_BYTES_MAX)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the messages available now to pyarrow, polars and duckdb, batch by batch.

        The position moves with each batch.
        """
        from aiochronicle._columns.column_reader import ColumnReader, capsule

        columns = ColumnReader(self, None)
        return capsule(columns.schema, self._column_batches(columns), requested_schema)

    def _column_batches(self, columns: "ColumnReader") -> "Iterator[pyarrow.RecordBatch]":
        left = max(self.lag.messages, 1)
        while left > 0:
            batch = self._read_columns(columns, min(left, BATCH_ROWS))
            if not batch.num_rows:
                return
            left -= batch.num_rows
            yield batch

    def _read_columns(self, columns: "ColumnReader", *limits: int) -> "pyarrow.RecordBatch":
        with self._alone:
            self._commit_due()
            batch = columns.read(*limits)
            self._took(batch.num_rows)
        return batch

    def _feed(self) -> Feed:
        return Feed(
            source=self,
            readers=lambda: (self,),
            ready=self._ready,
            commit_before=self._commit_before,
            mark=lambda: partial(self.seek_position, self.position),
        )

    def _commit_before(self, oldest: _hot.Message | None, _: object) -> None:
        if oldest is None:
            self.commit()
        else:
            self.commit_position(oldest.position)

    def seek(self, seq: int) -> None:
        """Move to the first message whose seq is at least ``seq``, or to the end if there is none.

        A task that waits for the next message continues there. This is true of every seek.
        """
        integer("seq", seq, 0)
        self._move(lib.ac_reader_seek_seq, seq)

    def seek_time(self, moment: int | datetime) -> None:
        """Move to the first message at or after this time: Unix nanoseconds or an aware datetime."""
        self._move(lib.ac_reader_seek_time, unix_ns(moment, "moment"))

    def seek_first(self) -> None:
        """Move to the oldest message."""
        self._move(lib.ac_reader_seek_first)

    def seek_last(self) -> None:
        """Move to the end, after the newest message."""
        self._move(lib.ac_reader_seek_last)

    def seek_position(self, position: Position) -> None:
        """Move to a position that ``position`` or ``committed`` returned."""
        self._move(lib.ac_reader_seek_position, *_place(position))

    def step_over(self) -> None:
        """Skip the damage that the last read raised, and nothing else.

        For programs that decide about each CorruptionError; ``on_corrupt="skip"`` skips all of them. Either
        way ``skipped_records`` counts it. A ``commit`` directly afterwards commits the position after the
        damage.
        """
        self._move(lib.ac_reader_step_over)
        _hot.timestamp_failure()  # discard it

    def end_at(self, position: Position) -> None:
        """Stop reading at this position, even if more messages are appended.

        Waiting for more then never returns. A strict fan-in does not wait for this reader.
        """
        self._move(lib.ac_reader_end_at, *_place(position))

    @property
    def position(self) -> Position:
        """Position of the next message."""
        return self._position()

    def commit_position(self, position: Position) -> None:
        """Commit a position of this reader or of a message: a reader of this name resumes there."""
        self._commit_at(*_place(position))

    @property
    def committed(self) -> Position:
        """Position at which a reader of this name would resume."""
        return self._committed()

    @property
    def committed_seq(self) -> int | None:
        """The seq of the first message that is not committed.

        None for an anonymous reader, and if it is unknown because the position is no longer in the queue or
        the record there is damaged.

        >>> with open_reader(queue, "audit") as reader:
        ...     _ = reader.poll()
        ...     reader.commit()
        ...     reader.committed_seq
        1
        """
        return None if self._name is None else self.seq_at(self.committed)

    @property
    def durable_seq(self) -> int | None:
        """Every message before this seq is known to be on disk; None if that is unknown."""
        return self._ask_seq(lib.ac_reader_durable_seq)

    def seq_at(self, position: Position) -> int | None:
        """Return the seq of the first message at or after a position; None if unknown.

        At the end of the queue that is the seq of the next message to be appended.
        """
        return self._ask_seq(lib.ac_reader_seq_at, *_place(position))

    def _ask_seq(self, ask: Callable[..., int], *where: int) -> int | None:
        seq = ffi.new("uint64_t *")
        error = new_error()
        with self._alone:
            known = check(ask(self._handle, *where, seq, error), error)
        return int(seq[0]) if known else None

    @property
    def lag(self) -> Lag:
        """How far this reader lags: messages, bytes, and the age of the oldest unread message."""
        messages, size, age_ns = self._lag()
        return Lag(messages, size, age_ns / 1e9)

    def statistics(self) -> ReaderStatistics:
        """Return the counters of this reader."""
        stats = ffi.from_buffer("ac_reader_stats_t *", self._stats())
        values = {name: getattr(stats, name) for name in ReaderStatistics.__struct_fields__}
        flags = {"announced": bool(stats.announced), "attended": bool(stats.attended)}
        return ReaderStatistics(**{**values, **flags})

    @property
    def healthy(self) -> Health:
        """Whether the reader is open and can read the next record, which is neither damaged nor removed.

        A reader that waits for a queue that does not exist yet (``wait_for_queue``) is healthy. ``health``
        can also limit the lag.
        """
        what = "reader" if self._name is None else f"reader {self._name!r}"
        wrong: object = None
        try:
            if self.closed:
                wrong = "is closed"
            elif self._is_stuck():
                wrong = "cannot continue: the next record is damaged or was removed"
        except ChronicleError as error:
            wrong = error
        return health_of([] if wrong is None else [format_reason(what, self.path, wrong)])

    def _is_stuck(self) -> bool:
        """Return whether there is something to read, although the lag counts no message."""
        place, unread = self.position, self.lag.messages
        if unread or not self._wait(0, 0):
            return False
        unread = self.lag.messages
        return not unread and self.position == place  # or another task has read it

    def close(self) -> None:
        """Release the queue. Messages and views stay valid.

        Waits for a ``seek`` or ``to_arrow`` in another thread to end.
        """
        if self.closed:  # in a forked child, where a thread of the parent may have held the lock
            return
        with self._alone:
            super().close()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("closed: %s", printable(self))

    def _move(self, move: Callable[..., int], *where: int) -> None:
        error = new_error()
        with self._alone:
            check(move(self._handle, *where, error), error)
        self._wake()

    def _repr_html_(self) -> str:
        """Show the position and the counters in a notebook."""
        if self.closed:
            return titled(repr(self))
        rows: list[tuple[str, object]] = [("path", self.path), ("name", self._name)]
        try:
            rows += [("lag", self.lag), ("healthy", self.healthy.ok)]
        except ChronicleError as error:
            rows.append(("problem", error))
        counted = self.statistics()
        rows += [(name, getattr(counted, name)) for name in counted.__struct_fields__]
        return titled("Reader", table(rows))

    def __repr__(self) -> str:
        name = "anonymous" if self._name is None else repr(self._name)
        if self.closed:
            return f"<Reader {name} of {self.path!r} closed>"
        position = self.position
        return (
            f"<Reader {name} of {self.path!r} segment={position.segment} offset={position.offset}>"
        )

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
