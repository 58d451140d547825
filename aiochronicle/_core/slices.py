"""Reads parts of a queue, by seq or time, as messages, Arrow columns, numpy arrays or Parquet.

A Slice is two positions, found through the seek indexes when it is created. It does not contain messages that
are appended later, so reading it again gives the same result.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from msgspec import UNSET, UnsetType

from aiochronicle._base.arguments import integer, one_of, pathname, positive, wrong_type
from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._base.closing import Closing
from aiochronicle._base.position import Position
from aiochronicle._base.report import table, titled
from aiochronicle._base.spans import Span, Spans, seq_after
from aiochronicle._columns.arrays import arrays
from aiochronicle._columns.columns import (
    BATCH_ROWS,
    handle_of,
    require_arrow,
)
from aiochronicle._columns.export import (
    Compression,
    ExportProgress,
    FileFormat,
    write_arrow,
    write_parquet,
)
from aiochronicle._core.kept import KeptSegment, why_kept
from aiochronicle._core.queue import ReaderInfo, inspect, list_readers
from aiochronicle._core.reader import Reader, TimestampSource, open_reader, unix_ns
from aiochronicle._core.verifying import VerifyReport, check_records
from aiochronicle._hot import Message
from aiochronicle._layout import segment_name
from aiochronicle.codec import T
from aiochronicle.config import Retention
from aiochronicle.errors import ChronicleError, ClosedError, InvalidArgument, PositionLost

if TYPE_CHECKING:
    import numpy
    import pyarrow

    from aiochronicle._columns.column_reader import Stretch
    from aiochronicle._columns.typed import OneType, OnUndecodable, TypedColumns

__all__ = ["Queue", "Recording", "Slice", "damage_in", "skipped_in"]

# Tables are read in larger pieces than streams, and by several threads from this many rows on.
_TABLE_BATCH_ROWS = 1 << 16
_ROWS_PER_THREAD_MIN = 1 << 18
_THREADS_MAX = 4

_TIME_MAX_NS = 2**63 - 1
_OFFSET_MAX = 2**64 - 1
_PREVIEWED = 5  # messages that a notebook shows
_PREVIEWED_BYTES = 64  # of each payload
_RECORD_BYTES_MIN = 64  # a header without a payload
_SPANS = 64  # initial capacity

_Bound: TypeAlias = tuple[int, int]  # AC_BOUND_*, value

_NO_BOUND: _Bound = (lib.AC_BOUND_NONE, 0)


class Queue(Closing):
    """A queue from which parts are read. Needs read permission only; a context manager.

    ``verify``, ``on_corrupt`` and ``timestamp`` are those of open_reader. Libraries that accept Arrow streams
    accept a Queue, or a Slice of it.

    >>> with Queue(queue) as whole:
    ...     [message.payload for message in whole.slice(0, 10)]
    [b'hello']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timestamp: TimestampSource | None = None,
        _expect: tuple[int, int, int] | None = None,
        _over_gaps: bool = False,
    ) -> None:
        self._recording = Recording(path, verify, on_corrupt, _expect, timestamp, _over_gaps)

    @property
    def path(self) -> str:
        """Directory of the queue."""
        return self._recording.path

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""
        return self._recording.finder.closed

    def close(self) -> None:
        """Release the queue. Tables and messages read from it stay valid."""
        self._recording.close()

    def readers(self) -> list[ReaderInfo]:
        """Return the readers that have a position in the queue, as list_readers does.

        >>> with Queue(queue) as whole:
        ...     whole.readers()
        []
        """
        return list_readers(self.path)

    def why_kept(self, *, retention: Retention | UnsetType | None = UNSET) -> list[KeptSegment]:
        """Return what keeps each segment, oldest first, like the function ``why_kept``.

        By the rules in force, or by those of ``retention``.

        >>> with Queue(queue) as whole:
        ...     [kept.text for kept in whole.why_kept()]
        ['is being written or prepared']
        """
        return why_kept(self.path, retention=retention)

    def slice(
        self, start: int | datetime | None = None, end: int | datetime | None = None
    ) -> "Slice":
        """Return the messages from ``start`` up to, but not including, ``end``.

        Each is a seq or an aware datetime; None means the first message, or the current end. As with Python's
        slices, a part outside the queue is empty, not an error.
        """
        return self._slice(_bound("start", start), _bound("end", end))

    def slice_time(self, start_ns: int | None = None, end_ns: int | None = None) -> "Slice":
        """Return the messages from one time up to, but not including, another, in Unix nanoseconds.

        >>> with Queue(queue) as whole:
        ...     whole.slice_time(0, 1).count
        0
        """
        return self._slice(_time_bound("start_ns", start_ns), _time_bound("end_ns", end_ns))

    def spans(self, start: int = 0, end: int | None = None) -> Spans | None:
        """Return which seqs exist from ``start`` up to but excluding ``end``; None if there are no gaps.

        Only the seqs of a Java queue have gaps: its indexes jump where a cycle begins.

        >>> with open_writer(tmp_path / "java", format="cq4") as writer:
        ...     index = writer.append(b"first")
        >>> with Queue(tmp_path / "java") as java:
        ...     [(span.start == index, span.end - span.start) for span in java.spans()]
        [(True, 1)]
        """
        recording = self._recording
        if not recording.is_java:
            return None
        part = recording.find(_bound("start", start), _bound("end", end))
        return recording.spans(part)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all messages that are available now to pyarrow, polars and duckdb, as ``slice()`` does."""
        return self.slice().__arrow_c_stream__(requested_schema)

    def _slice(self, start: _Bound, end: _Bound) -> "Slice":
        if start[0] == end[0] and start[1] > end[1]:
            raise InvalidArgument(f"start {start[1]} is after end {end[1]}: exchange them")
        return Slice(self._recording, self._recording.find(start, end))

    def __repr__(self) -> str:
        return f"<Queue {self.path!r}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        """Show the results of ``inspect`` and ``readers`` in a notebook."""
        if self.closed:
            return titled(repr(self))
        try:
            info, readers = inspect(self.path), self.readers()
        except ChronicleError as error:
            return titled(repr(self), table([("problem", error)]))
        fields = [
            (name, value)
            for name in info.__struct_fields__
            if name != "writer" and (value := getattr(info, name)) is not None
        ]
        if info.writer is not None:  # inspect(path).writer has the other fields
            shown = ("state", "pid", "command", "since_ns", "rate", "errors")
            fields += [(f"writer.{name}", getattr(info.writer, name)) for name in shown]
        headings = (
            "reader",
            "open",
            "committed",
            "committed_seq",
            "messages behind",
            "oldest unread, s",
        )
        rows = [
            (
                one.name,
                one.live,
                one.committed,
                one.committed_seq,
                one.lag.messages,
                one.lag.seconds,
            )
            for one in readers
        ]
        return titled(f"Queue {self.path}", table(fields), table(rows, headings) if rows else "")


class Recording:
    """Shared by a Queue and its slices: a reader that finds positions, and options to open others.

    The finder caches the indexes of segments. Thread-safe.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        verify: bool = True,
        on_corrupt: Literal["raise", "skip"] = "raise",
        expect: tuple[int, int, int] | None = None,  # identity of the directory, as in open_reader
        timestamp: TimestampSource | None = None,
        over_gaps: bool = False,  # continue after missing segments, which count as skipped
    ) -> None:
        self._over_gaps = over_gaps
        self._open = partial(
            open_reader,
            start="first",
            verify=verify,
            on_corrupt=on_corrupt,
            timestamp=timestamp,
            _expect=expect,
        )
        self._finder_lock = RLock()
        self.finder = self._open(path)
        self.path = self.finder.path
        self._segment_size = self.finder.statistics().segment_size
        self.skipped = 0  # damaged places that reading skipped
        self.is_java = self._segment_size == 0

    def find(self, start: _Bound, end: _Bound) -> Any:
        """Return the range between two bounds."""
        found = ffi.new("ac_range_t *")
        error = new_error()
        with self._finder_lock:
            check(lib.ac_reader_range(handle_of(self.finder), start, end, found, error), error)
        return found

    def count(self, part: Any) -> int:
        """Return how many messages there are in a range."""
        error = new_error()
        try:
            with self._finder_lock:
                return check(lib.ac_reader_count(handle_of(self.finder), part, error), error)
        except PositionLost as lost:
            nearest = self._after_gap(lost)
            before = lost.wanted.segment - 1, _OFFSET_MAX
            first = part.first_segment, part.first_offset
            pieces = (*first, *before), (*nearest, part.end_segment, part.end_offset)
            return sum(self.count(ffi.new("ac_range_t *", piece)) for piece in pieces)

    def _after_gap(self, lost: PositionLost) -> Position:
        """Return where reading continues after a missing segment; raise ``lost`` if it must not."""
        if not self._over_gaps or lost.nearest <= lost.wanted:
            raise lost
        return lost.nearest

    def read(self, reader: Reader, read: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield from ``read``, and continue after missing segments if ``over_gaps`` is set."""
        while True:
            try:
                yield from read()
                return
            except PositionLost as lost:
                reader.seek_position(self._after_gap(lost))
                self.skipped += 1

    def spans(self, part: Any) -> Spans:
        """Return the seqs of a range of a Java queue, cycle by cycle."""
        error = new_error()
        capacity = _SPANS
        while True:
            found = ffi.new("ac_span_t[]", capacity)
            with self._finder_lock:
                handle = handle_of(self.finder)
                count = check(lib.ac_reader_spans(handle, part, found, capacity, error), error)
            if count <= capacity:
                return tuple(Span(s.first_seq, s.end_seq, s.bytes) for s in found[0:count])
            capacity = count

    def part(self, first: Position, end: Position, until_ns: int | None) -> Any:
        """Return the range between two positions, up to and including a time."""
        begin, stop = first, end
        if until_ns is not None:
            found = self.find(_NO_BOUND, (lib.AC_BOUND_TIME, min(until_ns + 1, _TIME_MAX_NS)))
            stop = min(stop, Position(found.end_segment, found.end_offset))
        return ffi.new("ac_range_t *", (*begin, *max(begin, stop)))

    def length(self, part: Any) -> int:
        """Return the maximum size of a range in bytes; a segment may have ended early."""
        if self.is_java:
            return sum(span.size_bytes for span in self.spans(part))
        segments: int = part.end_segment - part.first_segment
        length: int = segments * self._segment_size + part.end_offset - part.first_offset
        return length

    def rows_max(self, part: Any) -> int:
        """Return how many records a range can have at most."""
        if self.is_java:
            return max(self.count(part), 1)
        return max(self.length(part) // _RECORD_BYTES_MIN, 1)

    def arrays(self, part: Any, layout: Any) -> "list[numpy.ndarray[Any, Any]]":
        """Return the payloads of a range as arrays over the segments."""
        with self._finder_lock:
            return arrays(self.finder, part, layout)

    @contextmanager
    def reading(self, part: Any) -> Generator[Reader]:
        """Yield a new reader that is limited to this range."""
        if self.finder.closed:
            raise ClosedError("the queue is closed", path=self.path)
        with self._open(self.path) as reader:
            error = new_error()
            check(lib.ac_reader_read_range(handle_of(reader), part, error), error)
            yield reader
            with self._finder_lock:
                self.skipped += reader.statistics().skipped_records

    def close(self) -> None:
        """Release the queue, after calls of other threads have ended."""
        if (
            self.finder.closed
        ):  # in a forked child, where a thread of the parent may have held the lock
            return
        with self._finder_lock:
            self.finder.close()

    def __del__(self) -> None:
        # No ResourceWarning: this reader has no position to commit, so nothing is lost without close.
        if hasattr(self, "finder"):
            self.close()


class Slice:
    """A part of a queue. Created by Queue.slice, and usable while the queue is open.

    It can be iterated over, and read by pyarrow, polars and duckdb as a stream of columns, any number of
    times.

    >>> import pyarrow
    >>> with Queue(queue) as whole:
    ...     pyarrow.table(whole.slice()).column("seq").to_pylist()
    [0]
    """

    def __init__(self, recording: Recording, part: Any) -> None:
        self._recording = recording
        self._part = part

    def __iter__(self) -> Iterator[Message]:
        with self._recording.reading(self._part) as reader:
            yield from self._recording.read(reader, lambda: iter(reader))

    @property
    def count(self) -> int:
        """Number of messages that were written, from the indexes.

        Reading returns fewer if it skips corrupt ones.
        """
        return self._recording.count(self._part)

    def batches(
        self,
        rows: int = BATCH_ROWS,
        columns: Sequence[str] | None = None,
        *,
        codec: "OneType | None" = None,
        on_undecodable: "OnUndecodable" = "raise",
    ) -> Iterator["pyarrow.RecordBatch"]:
        """Iterate over record batches of ``rows`` messages; the last may be shorter.

        A batch also ends at 64 MiB of payload. Only the requested ``columns`` are read: without
        "payload" the payloads are neither read nor checked. With a ``codec`` a batch has the fields
        of one type as columns, see ``to_arrow``, and a row for each message of that type.

        >>> with Queue(queue) as whole:
        ...     [batch.num_rows for batch in whole.slice().batches(columns=["seq"])]
        [1]
        """
        positive("rows", rows)
        shape = self._shape(columns, codec, on_undecodable)  # here, so that errors are raised now
        return self._batches(rows, shape, self._part)

    def _shape(
        self,
        columns: Sequence[str] | None,
        codec: "OneType | None",
        on_undecodable: "OnUndecodable",
    ) -> "_PlainColumns | TypedColumns":
        if codec is None:
            return _PlainColumns(columns)
        require_arrow()
        from aiochronicle._columns.typed import TypedColumns

        return TypedColumns(
            self._recording.path,
            codec,
            columns,
            on_undecodable,
            is_java=self._recording.is_java,
        )

    def _batches(
        self, rows: int, shape: "_PlainColumns | TypedColumns", part: Any
    ) -> Iterator["pyarrow.RecordBatch"]:
        from aiochronicle._columns.column_reader import ColumnReader

        # Buffers no larger than needed, because the last batch keeps its buffers whole.
        rows = min(rows, self._recording.rows_max(part))
        with self._recording.reading(part) as reader:
            columns = ColumnReader(reader, shape.raw, shape.types)
            for batch in self._recording.read(reader, lambda: columns.batches(rows)):
                yield shape.fit(batch, self._place_of)

    def _stretches(
        self, rows: int, columns: Sequence[str], types: Collection[int] | None
    ) -> "Iterator[Stretch]":
        """Iterate over record batches of messages of some types, each with the seqs that it covers."""
        from aiochronicle._columns.column_reader import ColumnReader

        rows = min(rows, self._recording.rows_max(self._part))
        with self._recording.reading(self._part) as reader:
            yield from ColumnReader(reader, columns, types).stretches(rows)

    def _place_of(self, seq: int) -> dict[str, Any]:
        """Return segment and offset of a message, for errors."""
        one = self._recording.find((lib.AC_BOUND_SEQ, seq), (lib.AC_BOUND_SEQ, seq + 1))
        with self._recording.reading(one) as reader:
            message = reader.poll()
            file = (message and message._java_file) or segment_name(one.first_segment)
        return {"path": f"{self._recording.path}/{file}", "offset": one.first_offset}

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        codec: "OneType | None" = None,
        on_undecodable: "OnUndecodable" = "raise",
    ) -> "pyarrow.Table":
        """Return the whole slice as a table. Several threads read it if it is large.

        With a ``codec`` the rows are the messages of one type, and each field is a column in place of the
        payload. ``codec`` is as in open_reader, but for one type, or the name of a type in the queue's
        schema.json. If the name of a field is taken, its column has the name of the type as a prefix. A
        payload that cannot be decoded raises DecodeError. If ``on_undecodable`` is "null", its row has
        nulls instead, and the column ``_corrupt`` has the reason.

        >>> with Queue(queue) as whole:
        ...     whole.slice().to_arrow(["seq", "type_id"]).to_pylist()
        [{'seq': 0, 'type_id': 0}]
        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     _ = writer.send(Trade(101.5))
        >>> with Queue(tmp_path / "trades") as trades:
        ...     trades.slice().to_arrow(["seq", "price"], codec=Trade).to_pylist()
        [{'seq': 0, 'price': 101.5}]
        """
        shape = self._shape(columns, codec, on_undecodable)
        from pyarrow import Table

        def read(part: Any) -> "list[pyarrow.RecordBatch]":
            return list(self._batches(_TABLE_BATCH_ROWS, shape, part))

        parts = self._parts()
        if len(parts) == 1:
            batches = read(parts[0])
        else:
            with ThreadPoolExecutor(len(parts), thread_name_prefix="aiochronicle") as threads:
                batches = [batch for found in threads.map(read, parts) for batch in found]
        return Table.from_batches(batches, schema=shape.schema)

    def _parts(self) -> list[Any]:
        """Divide the slice into ranges of about equal size, one for each thread."""
        count = self.count
        threads = min(len(os.sched_getaffinity(0)), _THREADS_MAX, count // _ROWS_PER_THREAD_MIN)
        first = next(iter(self), None) if threads > 1 else None
        if first is None:
            return [self._part]
        # Any record is a good place to cut. Seqs are only the fastest way to find some.
        whole = Span(first.seq, first.seq + count)
        spans = self._recording.spans(self._part) if self._recording.is_java else (whole,)
        found = [
            self._recording.find(
                (lib.AC_BOUND_SEQ, seq_after(spans, count * number // threads)), _NO_BOUND
            )
            for number in range(1, threads)
        ]
        inner = {(cut.first_segment, cut.first_offset) for cut in found}
        part = self._part
        start, end = (part.first_segment, part.first_offset), (part.end_segment, part.end_offset)
        cuts = [start, *sorted(cut for cut in inner if start < cut < end), end]
        return [ffi.new("ac_range_t *", (*begin, *stop)) for begin, stop in pairwise(cuts)]

    def to_numpy(self, layout: Any) -> "list[numpy.ndarray[Any, Any]]":
        """Return the payloads as structured arrays over the mapped segments, one per segment.

        Nothing is copied or read. ``layout`` is a Codec of the format "struct" or a numpy dtype whose size is
        that of every message. InvalidArgument if the messages have different sizes or types. The arrays stay
        valid after the queue is closed. Payloads are not checked (``verify`` does that).

        >>> with Queue(queue) as whole:
        ...     whole.slice().to_numpy("S5")
        [array([b'hello'], dtype='|S5')]
        """
        return self._recording.arrays(self._part, layout)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        codec: "OneType | None" = None,
        on_undecodable: "OnUndecodable" = "raise",
        format: FileFormat = "parquet",  # noqa: A002
        row_group_rows: int = 1 << 18,
        compression: Compression = "zstd",
        progress: Callable[[ExportProgress], object] | None = None,
    ) -> int:
        """Write the slice to a Parquet or Arrow file and return the number of rows.

        ``columns`` and ``codec`` are those of ``to_arrow``. The file appears, or replaces an existing one,
        when it is complete and on disk. After an error (ExportFailed for the file) nothing is left behind.
        ``progress`` is called after each row group or batch. Arrow files can be mapped into memory; their
        compression is "none", "lz4" or "zstd". Blocks: in an event loop use ``asyncio.to_thread``.

        >>> with Queue(queue) as whole:
        ...     whole.slice().export(tmp_path / "hello.parquet")
        1
        """
        positive("row_group_rows", row_group_rows)
        one_of("format", dict.fromkeys(get_args(FileFormat)), format)
        shape = self._shape(columns, codec, on_undecodable)
        batches = self._batches(min(row_group_rows, _TABLE_BATCH_ROWS), shape, self._part)
        file = Path(pathname("path", path))
        if format == "arrow":
            return write_arrow(
                batches,
                shape.schema,
                file,
                rows_total=self.count,
                compression=compression,
                progress=progress,
            )
        return write_parquet(
            batches,
            shape.schema,
            file,
            rows_total=self.count,
            row_group_rows=row_group_rows,
            compression=compression,
            progress=progress,
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from aiochronicle._columns.column_reader import arrow_schema, capsule

        return capsule(arrow_schema(), self.batches(), requested_schema)

    def _repr_html_(self) -> str:
        """Show the number of messages, and the first ones, in a notebook."""
        title = f"Slice of {self._recording.path}"
        try:
            count = self.count
            first = [
                (message.seq, str(message.type_id), message.timestamp_ns, _preview(message))
                for message in islice(self, _PREVIEWED)
            ]
        except ChronicleError as error:
            return titled(repr(self), table([("problem", error)]))
        headings = ("seq", "type_id", "timestamp_ns", "payload")
        left = count - len(first)
        more = f"… and {left:,} more" if left > 0 else ""
        return titled(f"{title}: {count:,} messages", table(first, headings) if first else "", more)

    def __repr__(self) -> str:
        part = self._part
        return (
            f"<Slice of {self._recording.path!r} from segment {part.first_segment}, offset"
            f" {part.first_offset} to segment {part.end_segment}, offset {part.end_offset}>"
        )


def _preview(message: Message) -> str:
    start = bytes(message.view[:_PREVIEWED_BYTES])
    return f"{start!r}{'' if len(start) == len(message) else f' … {len(message):,} bytes'}"


class _PlainColumns:
    """The columns that the engine fills, without decoding payloads."""

    types = None

    def __init__(self, columns: Sequence[str] | None) -> None:
        from aiochronicle._columns.column_reader import arrow_schema

        self.raw = columns
        self.schema = arrow_schema(columns)

    def fit(self, batch: "pyarrow.RecordBatch", place_of: object) -> "pyarrow.RecordBatch":
        return batch


def _bound(name: str, value: object) -> _Bound:
    if value is None:
        return _NO_BOUND
    if isinstance(value, datetime):
        return (lib.AC_BOUND_TIME, unix_ns(value, name))
    if isinstance(value, int) and not isinstance(value, bool):
        return (lib.AC_BOUND_SEQ, integer(name, value, 0))
    raise wrong_type(name, "a seq, an aware datetime or None", value)


def _time_bound(name: str, value_ns: int | None) -> _Bound:
    return _NO_BOUND if value_ns is None else (lib.AC_BOUND_TIME, unix_ns(value_ns, name))


def _parts(part: Slice) -> tuple[Recording, Any]:
    return part._recording, part._part  # pyright: ignore[reportPrivateUsage]


def skipped_in(part: Slice, *, from_oldest: bool) -> int:
    """Return how many damaged places were skipped in a slice; ``from_oldest``: also directly before it."""
    recording, bounds = _parts(part)
    if not from_oldest or recording.is_java:
        return recording.skipped
    oldest = inspect(recording.path).first_segment  # it may be unreadable
    return recording.skipped + int(bounds.first_segment > oldest)


def damage_in(part: Slice) -> VerifyReport:
    """Read a slice once more and return what is damaged."""
    recording, bounds = _parts(part)
    with recording.reading(bounds) as reader:
        lib.ac_reader_report_corrupt(handle_of(reader))
        return check_records(reader, lambda: inspect(recording.path).first_segment)
