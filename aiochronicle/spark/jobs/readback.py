"""Files of an archive, read back: to use their rows, and to prove that they are the queue's.

What is proven of a row group is its number of rows and, column by column, the checksum that records
in queues have. It costs a tenth of the digest that the ledger keeps, and as each column has its own,
a row that is missing, changed or in another place shows in most of them. What was proven once holds for
as long as the bytes of the file are the same; so before a file is used again, only these are looked at.
"""

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aiochronicle._binding import ffi, lib
from aiochronicle._smallfile import open_regular
from aiochronicle.digest import StreamDigest, parts_of_binary
from aiochronicle.errors import CorruptionError
from aiochronicle.spark.arrow import Batch, Column, pa
from aiochronicle.spark.found import naming
from aiochronicle.spark.jobs.ledger import ArchivedFile
from aiochronicle.spark.runs import checksum

__all__ = ["COLUMNS", "Proof", "check_file", "prove", "read_back", "read_listed", "verify"]

COLUMNS = ("seq", "timestamp_ns", "timestamp", "type_id", "payload", "cause")
BATCH_ROWS = 1 << 16

RESTORE = (
    "Restore the file from a backup. If the queue still has its messages, it can be archived anew, into"
    " another directory."
)
_AGAIN = (
    "The file was not kept, and archive and queue are as they were. Check disk and memory, then run the"
    " job again."
)


class Proof(msgspec.Struct, frozen=True):
    """What a row group must have."""

    first_seq: int
    rows: int
    checksums: dict[str, tuple[int, ...]]  # of each column


def read_listed(
    archive: Path, source: str, file: ArchivedFile, columns: Sequence[str] = COLUMNS
) -> Iterator[Batch]:
    """Yield the rows of a file that a ledger lists; CorruptionError before the first if it has changed."""
    with _regular(archive / file.path, RESTORE) as opened:
        _check(opened, source, file)
        yield from _rows(opened, columns)


def check_file(archive: Path, source: str, file: ArchivedFile) -> None:
    """Raise CorruptionError if a file of the archive is not the one that was verified."""
    with _regular(archive / file.path, RESTORE) as opened:
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
    """Yield the rows of a file; CorruptionError if they cannot be read, or not in order."""
    with _regular(path, RESTORE) as opened:
        yield from _rows(opened, columns)


def _rows(path: Path, columns: Sequence[str] = COLUMNS) -> Iterator[Batch]:
    with _parquet(path, RESTORE) as file:
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns))
        yield from _in_order(batches, path, RESTORE)


def prove(batch: Batch) -> Proof:
    """Return what a file must have, if this is one of its row groups."""
    return Proof(
        batch.column("seq")[0].as_py(),
        batch.num_rows,
        {name: _checksums(batch.column(name)) for name in batch.schema.names},
    )


def verify(proofs: Sequence[Proof], path: Path) -> None:
    """Raise CorruptionError if the file has other row groups than these, or in another order."""
    with _regular(path, _AGAIN) as opened, _parquet(opened, _AGAIN) as file:
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


def _groups(file: Any) -> Iterator[Batch]:
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
                f"rows behind seq {last_seq} are not in order", path=str(path), advice=advice
            )
        last_seq, last_ns = int(seq[-1]), int(times_ns[-1])
        yield batch


@contextmanager
def _regular(path: Path, advice: str) -> Generator[Path]:
    """Open a file once; give a path to that very file, which is a regular one and no link."""
    try:
        opened = open_regular(str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptionError("is gone", path=str(path), advice=advice) from error
    except ValueError as error:
        raise CorruptionError(str(error), path=str(path), advice=advice) from error
    try:
        pinned = f"/proc/self/fd/{opened}"
        with naming(pinned, str(path)):
            yield Path(pinned)
    finally:
        os.close(opened)


@contextmanager
def _parquet(path: Path, advice: str) -> Generator[Any]:
    """Give a file to read; CorruptionError with this advice if it is not Parquet."""
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
    if pa.types.is_struct(column.type):
        if column.null_count == len(column):
            return ()
        fields = [field.fill_null(0) for field in column.flatten()]
        present = column.is_valid().cast(pa.uint8())
        return tuple(_checksum(_values(part)) for part in (present, *fields))
    if pa.types.is_binary(column.type):
        offsets, content = parts_of_binary(column)
        first, end = int(offsets[0]), int(offsets[-1])
        return (_checksum(offsets - first), _checksum(content[first:end]))
    return (_checksum(_values(column)),)


def _values(column: Column) -> memoryview:
    """Return the bytes of the values of a fixed width."""
    width = column.type.bit_width // 8
    first = column.offset * width
    return memoryview(column.buffers()[1])[first : first + len(column) * width]


def _checksum(content: Any) -> int:
    view: Any = ffi.from_buffer("uint8_t[]", content)
    return int(lib.ac_checksum(view, len(view)))
