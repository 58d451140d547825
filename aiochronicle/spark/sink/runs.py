"""The output of a sink's task: sorted runs, in Arrow files.

Rows that arrive in order, as those of a queue do, go directly into one run. Others are collected up to a
limit of memory, and sorted. A run is in order of queue, time, source and seq; each of its record batches
belongs to one queue. Runs are read once and deleted, so they are compressed lightly: page cache and disk
would cost more.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeAlias

import msgspec
import numpy as np
from pyspark.sql.types import DateType, IntegralType, StructType, TimestampNTZType, TimestampType

from aiochronicle._base.binding import ffi, lib
from aiochronicle.errors import DiskFull, InvalidArgument
from aiochronicle.spark.arrow import Batch, Table, pa, pc
from aiochronicle.spark.carried import Array, area_bytes, check_headers
from aiochronicle.spark.private_files import Location
from aiochronicle.spark.sink.append import RECORD_UNIT_BYTES
from aiochronicle.spark.sink.delta_encoding import encode_deltas

__all__ = [
    "ACCEPTED",
    "BATCH_BYTES",
    "BATCH_ROWS",
    "CAUSE",
    "ORDER",
    "Run",
    "check_columns",
    "checksum",
    "stage",
    "stage_into",
]

PIECE_BYTES = 4 << 20  # processed together, while they are in the processor's caches
SORTED_BYTES = 64 << 20
CHECKED_BYTES = 1 << 20
BATCH_ROWS = 8192
BATCH_BYTES = 1 << 20  # the merge holds a batch of each run
TIMESTAMP_NS_MAX = 2**63 - 2  # as for a writer's append

ACCEPTED = (
    "source",
    "seq",
    "timestamp_ns",
    "timestamp",
    "type_id",
    "payload",
    "cause",
    "key",
    "headers",
)
WHOLE = ("timestamp_ns", "seq", "type_id")  # a double would be near the time that was meant
MOMENTS = (TimestampType, TimestampNTZType, DateType)  # in a text there may be anything
ORDER = ["timestamp_ns", "source", "seq"]  # within a queue
DELTA_ENCODED = ("timestamp_ns", "seq")

CAUSE = pa.struct([("queue_id", pa.int64()), ("seq", pa.int64())])
HEADERS = pa.map_(pa.utf8(), pa.binary())
_ROWS = pa.schema(
    [
        ("timestamp_ns", pa.int64()),
        ("source", pa.utf8()),
        ("seq", pa.int64()),
        ("type_id", pa.int32()),
        ("payload", pa.binary()),
        ("cause", CAUSE),
        ("key", pa.binary()),
        ("headers", HEADERS),
    ]
)
WRITTEN: tuple[str, ...] = tuple(_ROWS.names)

_Key: TypeAlias = tuple[str, int, str, int]  # queue, time, source and seq of a row


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run for one queue."""

    queue: str
    batches: list[int]
    rows: int
    first_ns: int
    payload_bytes_max: int
    record_bytes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One file, and the queue of each of its batches; the column for causes is optional.

    Older journals have no ``checksum``, and their runs no ``deltas``.
    """

    path: str
    shares: list[Share]
    caused: bool = True
    headed: bool = False  # with columns for key and headers, both
    checksum: int | None = None
    deltas: tuple[str, ...] = ()  # columns in which there are differences


def check_columns(schema: StructType, queue: str | None) -> None:
    """Raise InvalidArgument unless a frame has exactly the columns of messages."""
    names = schema.fieldNames()
    if unknown := [name for name in names if name not in ACCEPTED]:
        raise InvalidArgument(
            f"column {unknown[0]!r} is no part of a message: select some of {', '.join(ACCEPTED)}"
        )
    if "payload" not in names:
        raise InvalidArgument("there is no column payload to write")
    if "timestamp_ns" not in names and "timestamp" not in names:
        raise InvalidArgument("there is no column timestamp_ns (or timestamp) to write with")
    for field in schema:
        if field.name in WHOLE and not isinstance(field.dataType, IntegralType):
            raise InvalidArgument(
                f"column {field.name} is of type {field.dataType.simpleString()}, and has to be of whole"
                " numbers: make it one where it comes from, or cast it to long"
            )
    if "timestamp_ns" not in names and not isinstance(schema["timestamp"].dataType, MOMENTS):
        raise InvalidArgument(
            f"column timestamp is of type {schema['timestamp'].dataType.simpleString()}: make it a"
            " timestamp, by to_timestamp say, or give timestamp_ns"
        )
    if queue is None and "source" not in names:
        raise InvalidArgument("into which queue? Give option queue, or a column source")


def stage(batches: Iterable[Batch], directory: Location, queue: str | None) -> list[Run]:
    """Write the rows of a task into runs, each synced to disk.

    All are for one ``queue``, or each for the queue with the name of its source.
    """
    directory.make().close()
    return stage_into(batches, directory, queue)


def stage_into(batches: Iterable[Batch], directory: Location, queue: str | None) -> list[Run]:
    """As stage, but fail if the directory is missing: the write was given up."""
    try:
        return list(_runs(_in_pieces(batches), directory, queue))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            path = str(directory.path)
            raise DiskFull("cannot stage the rows", path=path, errno=error.errno) from error
        raise


def _in_pieces(batches: Iterable[Batch]) -> Iterator[Table]:
    """Yield larger batches: Spark's batches are small, and each call of Arrow costs time."""
    kept: list[Batch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(_without_spare_time(batch))
            size_bytes += kept[-1].get_total_buffer_size()  # nbytes would take 10 us to be exact
        if size_bytes >= PIECE_BYTES:
            yield pa.Table.from_batches(kept).combine_chunks()
            kept, size_bytes = [], 0
    if kept:
        yield pa.Table.from_batches(kept).combine_chunks()


def _without_spare_time(batch: Batch) -> Batch:
    """Leave out the time in microseconds, which is not needed if there are nanoseconds, without a copy."""
    names = batch.schema.names
    both = "timestamp" in names and "timestamp_ns" in names
    return batch.drop_columns(["timestamp"]) if both else batch


def _runs(pieces: Iterable[Table], directory: Location, queue: str | None) -> Iterator[Run]:
    in_order: _RunFile | None = None
    others: list[Table] = []
    others_bytes = 0
    with contextlib.ExitStack() as opened:
        for piece in pieces:
            rows = _as_rows(piece, queue)
            ends = _ends(rows, queue)
            if ends is not None and (in_order is None or in_order.last <= ends[0]):
                if in_order is None:
                    in_order = opened.enter_context(_RunFile(directory, rows, ends[0]))
                in_order.write(ends[0][0], rows)
                in_order.last = ends[1]
                continue
            others.append(rows)
            others_bytes += rows.nbytes
            if others_bytes >= SORTED_BYTES:
                yield _write_sorted(others, directory, queue)
                others, others_bytes = [], 0
        if others:
            yield _write_sorted(others, directory, queue)
        if in_order is not None:
            yield in_order.end()


def _write_sorted(pieces: list[Table], directory: Location, queue: str | None) -> Run:
    order = ORDER if queue is not None else ["source", *ORDER]
    rows = pa.concat_tables(pieces).sort_by([(name, "ascending") for name in order])
    rows = rows.combine_chunks()
    with _RunFile(directory, rows) as file:
        for name, first, end in _spans(rows, queue):
            file.write(name, rows.slice(first, end - first))
        return file.end()


def _spans(rows: Table, queue: str | None) -> Iterator[tuple[str, int, int]]:
    """Yield each queue's name and the places of its rows."""
    if queue is not None:
        yield queue, 0, rows.num_rows
        return
    first = 0
    sources = rows.column("source")
    for end in pc.run_end_encode(sources.combine_chunks()).run_ends.to_pylist():
        yield sources[first].as_py(), first, end
        first = end


def _ends(rows: Table, queue: str | None) -> tuple[_Key, _Key] | None:
    """Return the first and the last row if all rows are consecutive messages of one source, else None."""
    sources = rows.column("source")
    is_one = pc.all(pc.equal(sources, sources[0]), skip_nulls=False).as_py()
    if not is_one or rows.column("seq").null_count:
        return None
    seqs, times_ns = (rows.column(name).to_numpy() for name in ("seq", "timestamp_ns"))
    later, same = times_ns[1:] > times_ns[:-1], times_ns[1:] == times_ns[:-1]
    if not (later | (same & (seqs[1:] >= seqs[:-1]))).all():
        return None
    source = sources[0].as_py()
    name = source if queue is None else queue
    first, last = ((name, int(times_ns[at]), source, int(seqs[at])) for at in (0, -1))
    return first, last


class _RunFile:
    """A run that is being written."""

    def __init__(self, directory: Location, like: Table, last: _Key = ("", 0, "", 0)) -> None:
        self.last = last
        name = f"{uuid.uuid4().hex}.arrow"
        self._path = directory.path / name
        self._caused = "cause" in like.schema.names
        self._headed = "headers" in like.schema.names
        self._shares: dict[str, Share] = {}
        self._batches = 0
        with directory.open() as there:
            self._file = there.create(name)
        # There is a task for each processor already.
        lightly = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        self._writer = pa.ipc.new_file(self._file, like.schema, options=lightly)

    def write(self, queue: str, rows: Table) -> None:
        """Add rows of one queue, which sort after all rows added before."""
        sizes = area_bytes(rows)
        first = self._batches
        for batch in _batches(rows, sizes):
            self._writer.write_batch(encode_deltas(batch, DELTA_ENCODED))
            self._batches += 1
        more = Share(
            queue=queue,
            batches=list(range(first, self._batches)),
            rows=rows.num_rows,
            first_ns=rows.column("timestamp_ns")[0].as_py(),
            payload_bytes_max=int(sizes.max()),
            record_bytes=_record_bytes(sizes),
        )
        there = self._shares.get(queue)
        self._shares[queue] = more if there is None else _join(there, more)

    def end(self) -> Run:
        """Wait until all of it is on disk."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        return Run(
            path=str(self._path),
            shares=list(self._shares.values()),
            caused=self._caused,
            headed=self._headed,
            checksum=checksum(Path(f"/proc/self/fd/{self._file.fileno()}")),
            deltas=DELTA_ENCODED,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def checksum(path: Path) -> int:
    """Return the checksum of the checksums of the pieces of a run."""
    piece, found = bytearray(CHECKED_BYTES), bytearray()
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            found += lib.ac_checksum(ffi.from_buffer("uint8_t[]", piece), size).to_bytes(4)
    return int(lib.ac_checksum(ffi.from_buffer("uint8_t[]", found), len(found)))


def _join(share: Share, more: Share) -> Share:
    share.batches.extend(more.batches)
    return msgspec.structs.replace(
        share,
        rows=share.rows + more.rows,
        payload_bytes_max=max(share.payload_bytes_max, more.payload_bytes_max),
        record_bytes=share.record_bytes + more.record_bytes,
    )


def _batches(rows: Table, sizes: Array) -> Iterator[Batch]:
    """Divide rows into batches within these limits of rows and bytes, of at least one row."""
    ends_bytes = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < rows.num_rows:
        before = int(ends_bytes[first - 1]) if first else 0
        fit = int(np.searchsorted(ends_bytes, before + BATCH_BYTES, side="right"))
        count = max(min(fit - first, BATCH_ROWS), 1)
        yield from rows.slice(first, count).to_batches()
        first += count


def _record_bytes(sizes: Array) -> int:
    """Return the space that areas of these sizes take in segments, with headers and padding."""
    units = (sizes + 2 * RECORD_UNIT_BYTES - 1) // RECORD_UNIT_BYTES
    return int(units.sum()) * RECORD_UNIT_BYTES


def _first_without(rows: Table, name: str, given: Collection[str]) -> str:
    """Describe the first row that lacks a value by its other values."""
    at = pc.index(pc.is_null(rows.column(name)), True).as_py()
    known = {"timestamp_ns": rows.column("timestamp_ns")[at].as_py()}
    for other in ("source", "seq", "type_id"):
        if other in given:
            known[other] = rows.column(other)[at].as_py()
    known.pop(name, None)
    said = [f"{other} {value}" for other, value in known.items() if value is not None]
    return ", ".join(said) or "it has nothing else"


def _as_rows(given: Table, queue: str | None) -> Table:
    """Convert rows of a frame to the columns of a run."""
    names = set(given.schema.names)
    count = given.num_rows

    def column(name: str, default: object, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
        return given.column(name) if name in names else pa.repeat(pa.scalar(default, kind), count)

    if "timestamp_ns" in names:
        time_ns = given.column("timestamp_ns")
    else:
        microseconds = given.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        time_ns = pc.multiply_checked(microseconds, 1000)
    made = {
        "timestamp_ns": time_ns,
        "source": column("source", "", pa.utf8()),
        "seq": column("seq", 0, pa.int64()),
        "type_id": column("type_id", 0, pa.int32()),
        "payload": given.column("payload"),
    }
    if "cause" in names:
        made["cause"] = given.column("cause")
    if "key" in names or "headers" in names:
        made["key"] = column("key", None, pa.binary())
        made["headers"] = column("headers", None, HEADERS)
    fields = [field for field in _ROWS if field.name in made]
    arrays = [pc.cast(made[field.name], field.type) for field in fields]
    rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    needed = ["timestamp_ns", "type_id", "payload"] + (["source"] if queue is None else [])
    for name in needed:
        if rows.column(name).null_count:
            raise InvalidArgument(f"a row has no {name}: {_first_without(rows, name, names)}")
    if "headers" in made:
        check_headers(rows)
    times_ns = pc.min_max(rows.column("timestamp_ns"))
    if times_ns["min"].as_py() < 0:
        raise InvalidArgument("a row has a timestamp before 1970")
    if times_ns["max"].as_py() > TIMESTAMP_NS_MAX:
        raise InvalidArgument("a row has timestamp_ns 2**63 - 1, the end of time: must be less")
    types = pc.min_max(rows.column("type_id"))
    for type_id in (types["min"].as_py(), types["max"].as_py()):
        if not 0 <= type_id <= lib.AC_TYPE_MAX:
            raise InvalidArgument(f"a row has type_id {type_id}: must be 0 to {lib.AC_TYPE_MAX}")
    return rows
