"""Parquet files."""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import IO, Self

from .lib import NativeFile, RecordBatch, Schema, Table

class FileMetaData:
    @property
    def num_rows(self) -> int: ...
    @property
    def num_row_groups(self) -> int: ...
    def row_group(self, i: int) -> RowGroupMetaData: ...

class RowGroupMetaData:
    @property
    def num_rows(self) -> int: ...
    def column(self, i: int) -> ColumnChunkMetaData: ...

class ColumnChunkMetaData:
    @property
    def compression(self) -> str: ...

class ParquetFile:
    def __init__(self, source: str | PathLike[str] | IO[bytes] | NativeFile) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    @property
    def metadata(self) -> FileMetaData: ...
    @property
    def num_row_groups(self) -> int: ...
    @property
    def schema_arrow(self) -> Schema: ...
    def close(self) -> None: ...
    def iter_batches(
        self, batch_size: int = 65536, *, columns: Sequence[str] | None = None
    ) -> Iterator[RecordBatch]: ...
    def read(self, columns: Sequence[str] | None = None) -> Table: ...
    def read_row_group(
        self, i: int, columns: Sequence[str] | None = None, use_threads: bool = True
    ) -> Table: ...

class ParquetWriter:
    def __init__(
        self,
        where: str | PathLike[str] | IO[bytes] | NativeFile,
        schema: Schema,
        *,
        compression: str = "snappy",
        write_statistics: bool | Sequence[str] = True,
        use_dictionary: bool | Sequence[str] = True,
        column_encoding: Mapping[str, str] | None = None,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = None) -> None: ...

def read_table(
    source: str | PathLike[str] | IO[bytes] | NativeFile,
    *,
    columns: Sequence[str] | None = None,
    partitioning: str | None = "hive",
) -> Table: ...
