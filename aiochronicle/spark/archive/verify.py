"""Reads files of an archive back, to use their rows and to prove that they equal the queue's messages.

For a row group, the number of rows is verified and, for each column, the checksum that records in queues
have. That costs a tenth of the digest in the manifest. As each column has its own checksum, a row that is
missing, changed or moved shows in most of them. A verified file stays valid as long as its bytes are the
same; before it is used again, only these are checked.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from aiochronicle._base.binding import ffi, lib
from aiochronicle._columns.column_reader import arrow_schema
from aiochronicle.digest import StreamDigest, parts_of_binary
from aiochronicle.errors import CorruptionError
from aiochronicle.spark.archive.datasets import COLUMNS, typed_of
from aiochronicle.spark.archive.files import regular
from aiochronicle.spark.archive.manifest import ArchivedFile
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.arrow import Batch, Column, pa
from aiochronicle.spark.sink.runs import HEADERS, checksum

if TYPE_CHECKING:
    from pyarrow import parquet

__all__ = [
    "COLUMNS",
    "Proof",
    "check_file",
    "prove",
    "read_back",
    "read_fields",
    "read_listed",
    "read_whole",
    "verify",
]

BATCH_ROWS = 1 << 16

RESTORE = (
    "Restore the file from a backup. If the queue still has its messages, it can be archived again, into"
    " another directory."
)
_AGAIN = (
    "The file was not kept, and archive and queue are as they were. Check disk and memory, then run the"
    " job again."
)


class Proof(msgspec.Struct, frozen=True):
    """The expected content of a row group."""

    first_seq: int
    rows: int
    checksums: dict[str, tuple[int, ...]]  # of each column


def read_listed(
    archive: Store | Path, source: str, file: ArchivedFile, columns: Sequence[str] = COLUMNS
) -> Iterator[Batch]:
    """Yield the messages of a listed file; CorruptionError before the first if it has changed."""
    with open_store(archive).opened(file.path, RESTORE) as opened:
        _check(opened, source, file)
        yield from _rows(opened, columns)


def read_fields(
    archive: Store, source: str, file: ArchivedFile, columns: Sequence[str]
) -> Iterator[Batch]:
    """As read_listed, but with the columns of the file; missing ones are left out.

    ``payload`` is that of each message, even where the file has only its fields.
    """
    with archive.opened(file.path, RESTORE) as opened:
        _check(opened, source, file)
        with _parquet(opened, RESTORE) as parquet:
            typed = typed_of(parquet.schema_arrow) if "payload" in columns else None
            there = [name for name in columns if name in parquet.schema_arrow.names]
            needed = list(dict.fromkeys([*there, "seq", "timestamp_ns"]))
            batches = parquet.iter_batches(
                batch_size=BATCH_ROWS, columns=needed if typed is None else None
            )
            for batch in _in_order(batches, opened, RESTORE):
                if typed is None:
                    yield batch
                else:
                    payloads = typed.restored(batch).column("payload")
                    place = batch.schema.get_field_index("payload")
                    yield batch.set_column(place, "payload", payloads)


def read_whole(archive: Store, source: str, file: ArchivedFile) -> Iterator[Batch]:
    """As read_listed, but with the rows as stored in the file."""
    with archive.opened(file.path, RESTORE) as opened:
        _check(opened, source, file)
        with _parquet(opened, RESTORE) as parquet:
            schema = parquet.schema_arrow
            for batch in _in_order(parquet.iter_batches(batch_size=BATCH_ROWS), opened, RESTORE):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def check_file(archive: Store | Path, source: str, file: ArchivedFile) -> None:
    """Raise CorruptionError if a file of the archive differs from the one that was verified."""
    with open_store(archive).opened(file.path, RESTORE) as opened:
        _check(opened, source, file)


def _check(path: Path, source: str, file: ArchivedFile) -> None:
    if file.checksum is not None:
        is_same = checksum(path) == file.checksum
    else:
        digest = StreamDigest([source])
        for batch in _rows(path):
            digest.add_batch(batch)
        is_same = digest.hexdigest() == file.digest
    if not is_same:
        raise CorruptionError(
            f"has changed since it was verified: {path.stat().st_size} bytes now, {file.bytes} then,"
            f" with seqs {file.first_seq} to {file.end_seq - 1} of {source}",
            path=str(path),
            advice=RESTORE,
        )


def read_back(path: Path, columns: Sequence[str] = COLUMNS) -> Iterator[Batch]:
    """Yield the messages of a file; CorruptionError if they cannot be read, or not in order."""
    with regular(path, RESTORE) as opened:
        yield from _rows(opened, columns)


def _rows(path: Path, columns: Sequence[str] = COLUMNS) -> Iterator[Batch]:
    with _parquet(path, RESTORE) as file:
        if "payload" in columns and (typed := typed_of(file.schema_arrow)) is not None:
            for batch in _in_order(file.iter_batches(batch_size=BATCH_ROWS), path, RESTORE):
                yield typed.restored(batch).select(columns)
            return
        there = [name for name in columns if name in file.schema_arrow.names]
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=there)
        for batch in _in_order(batches, path, RESTORE):
            yield batch if len(there) == len(columns) else _with_headers(batch, columns)


def _with_headers(batch: Batch, columns: Sequence[str]) -> Batch:
    """Add the columns of keys and headers to rows of an older file."""
    schema = arrow_schema(columns)
    rows = batch.num_rows
    absent = {
        "key": pa.nulls(rows, pa.binary()),
        "headers": pa.MapArray.from_arrays(pa.array([0] * (rows + 1), pa.int32()), [], []).cast(
            schema.field("headers").type if "headers" in columns else HEADERS
        ),
    }
    arrays = [
        batch.column(name).cast(schema.field(name).type)
        if name in batch.schema.names
        else absent[name]
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def prove(batch: Batch) -> Proof:
    """Return the expected content for one of a file's row groups."""
    return Proof(
        batch.column("seq")[0].as_py(),
        batch.num_rows,
        {name: _checksums(batch.column(name)) for name in batch.schema.names},
    )


def verify(proofs: Sequence[Proof], path: Path) -> None:
    """Raise CorruptionError if the file has other row groups than these, or in another order."""
    with regular(path, _AGAIN) as opened, _parquet(opened, _AGAIN) as file:
        if file.num_row_groups != len(proofs):
            raise CorruptionError(
                f"has {file.num_row_groups} row groups, where {len(proofs)} were written",
                path=str(path),
                advice=_AGAIN,
            )
        for written, group in zip(proofs, _in_order(_groups(file), path, _AGAIN), strict=True):
            if prove(group) != written:
                raise CorruptionError(
                    f"from seq {written.first_seq} on it is not what was written",
                    path=str(path),
                    advice=_AGAIN,
                )


def _groups(file: "parquet.ParquetFile") -> Iterator[Batch]:
    for number in range(file.num_row_groups):
        # Not by threads: the other processors have tasks of their own.
        table = file.read_row_group(number, use_threads=False)
        yield from table.combine_chunks().to_batches()


def _in_order(batches: Iterable[Batch], path: Path, advice: str) -> Iterator[Batch]:
    last_seq, last_ns = -1, -1
    for batch in batches:
        seq, times_ns = batch.column("seq").to_numpy(), batch.column("timestamp_ns").to_numpy()
        ordered = (np.diff(seq) > 0).all() and (np.diff(times_ns) >= 0).all()
        if not ordered or seq[0] <= last_seq or times_ns[0] < last_ns:
            raise CorruptionError(
                f"rows after seq {last_seq} are not in order", path=str(path), advice=advice
            )
        last_seq, last_ns = int(seq[-1]), int(times_ns[-1])
        yield batch


@contextmanager
def _parquet(path: Path, advice: str) -> Generator["parquet.ParquetFile"]:
    """Open a file for reading; CorruptionError with this advice if it is not Parquet."""
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the system's, not Arrow's
            raise
        what = " ".join(str(error).split())  # which may be lines
        raise CorruptionError(f"is damaged: {what}", path=str(path), advice=advice) from error


def _checksums(column: Column) -> tuple[int, ...]:
    """Return the checksums of the values, of which a null has none."""
    kind = column.type
    if column.null_count == len(column):
        return (len(column),)
    if column.null_count:
        valid = _checksum(_values(column.is_valid().cast(pa.uint8())))
        return (valid, *_checksums(column.drop_null()))
    if isinstance(column, pa.StructArray):
        return tuple(number for part in column.flatten() for number in _checksums(part))
    if isinstance(column, pa.ListArray):  # or its subclass MapArray
        offsets = column.offsets.to_numpy()
        first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
        parts = (column.keys, column.items) if isinstance(column, pa.MapArray) else (column.values,)
        of_parts = [number for part in parts for number in _checksums(part.slice(first, count))]
        return (_checksum(offsets - first), *of_parts)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        offsets, content = parts_of_binary(column)
        first, end = int(offsets[0]), int(offsets[-1])
        return (_checksum(offsets - first), _checksum(content[first:end]))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    return (_checksum(_values(column)),)


def _values(column: Column) -> memoryview:
    """Return the bytes of the values of a fixed width."""
    width = column.type.bit_width // 8
    first = column.offset * width
    content = column.buffers()[1]
    assert content is not None
    return memoryview(content)[first : first + len(column) * width]


def _checksum(content: Any) -> int:
    view: Any = ffi.from_buffer("uint8_t[]", content)
    return int(lib.ac_checksum(view, len(view)))
