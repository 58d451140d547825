"""Writes files of a dataset row group by row group, and verifies them before they become part of an
archive."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from pyarrow import parquet

from aiochronicle._columns.export import Compression, parquet_encodings, replacing
from aiochronicle.digest import StreamDigest
from aiochronicle.spark.archive.datasets import fingerprint_of
from aiochronicle.spark.archive.files import Target
from aiochronicle.spark.archive.manifest import ArchivedFile
from aiochronicle.spark.archive.names import RAW, escape
from aiochronicle.spark.archive.store import Store
from aiochronicle.spark.archive.verify import Proof, prove, verify
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.sink.runs import checksum

__all__ = ["COMPRESSION", "DAY_NS", "FileWriter", "directory_names"]

DAY_NS = 86_400 * 10**9
GROUP_ROWS = 1 << 17
GROUP_BYTES = 128 << 20
COMPRESSION: Compression = "zstd"


def directory_names(day: int, source: str) -> tuple[str, ...]:
    """Return the directory of the files of a day and queue below that of a dataset, name by name."""
    return (f"date={np.datetime64(day, 'D')}", f"source={escape(source)}")


class FileWriter:
    """Writes one file: rows of one dataset of one queue and day.

    As a context manager it discards the file after an error. ``close`` verifies it.
    """

    def __init__(
        self,
        store: Store,
        source: str,
        names: tuple[str, ...],
        dataset: str,
        run: str,
        *,
        mode: int,
        named: bool = False,
    ) -> None:
        self._store, self._source, self._names, self._dataset = store, source, names, dataset
        self._run = run
        self._mode = mode
        self._named = named  # the file has a column with the name of the queue
        self._digest = StreamDigest([source])
        self._proofs: list[Proof] = []
        self._waiting: list[Batch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._open: ExitStack | None = None
        self._writer: parquet.ParquetWriter | None = None
        self._target: Target | None = None
        self._first: tuple[int, int] | None = None
        self._last = (-1, -1)
        self._rows = self._kept = 0
        self._checksum: int | None = None
        self._fingerprint: str | None = None
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, trace)

    def add(self, rows: Batch, messages: Batch) -> None:
        """Add rows, and the messages that they represent."""
        self._digest.add_batch(messages)
        seq, times = rows.column("seq"), rows.column("timestamp_ns")
        if self._first is None:
            self._first = (seq[0].as_py(), times[0].as_py())
        self._last = (seq[-1].as_py(), times[-1].as_py())
        self._rows += rows.num_rows
        payloads = rows.column("payload")
        self._kept += len(payloads) - payloads.null_count
        if self._named:
            name = pa.repeat(pa.scalar(self._source, pa.utf8()), rows.num_rows)
            rows = rows.append_column(pa.field("source", pa.utf8(), nullable=False), name)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> ArchivedFile:
        """Write the rest, verify the file, make it part of the archive, and return its description."""
        self._write_group()
        assert self._open is not None
        assert self._first is not None
        self._open.close()
        self._open = None
        return ArchivedFile(
            path="/".join((*self._names, self._name())),
            first_seq=self._first[0],
            end_seq=self._last[0] + 1,
            rows=self._rows,
            bytes=self._size,
            digest=self._digest.hexdigest(),
            checksum=self._checksum,
            type=None if self._dataset == RAW else self._dataset,
            fingerprint=self._fingerprint,
            kept=self._kept,
            first_ns=self._first[1],
            last_ns=self._last[1],
        )

    def _name(self) -> str:
        assert self._first is not None
        return f"{self._first[0]:019d}-{self._run}.parquet"

    def _write_group(self) -> None:
        if not self._waiting:
            return
        group = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._open is None:
            self._start(group.schema)
        (rows,) = group.to_batches()
        self._proofs.append(prove(rows))
        assert self._writer is not None
        self._writer.write_table(group, row_group_size=group.num_rows)

    def _start(self, schema: pa.Schema) -> None:
        self._fingerprint = fingerprint_of(schema)
        opening = ExitStack()
        with opening:
            self._target = opening.enter_context(
                self._store.new_file(self._names, self._name(), self._mode)
            )
            file = opening.enter_context(replacing(self._target.path, self._verify, self._mode))
            self._writer = opening.enter_context(
                parquet.ParquetWriter(
                    file, schema, compression=COMPRESSION, **parquet_encodings(schema)
                )
            )
            self._open = opening.pop_all()

    def _verify(self, part: Path) -> None:
        self._checksum = checksum(part)  # first: so these are the bytes that are verified
        verify(self._proofs, part)
        self._size = part.stat().st_size
