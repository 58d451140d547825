"""Arrow files."""

from os import PathLike
from types import TracebackType
from typing import IO, Literal, Self

from .lib import NativeFile, RecordBatch, Schema, Table

class IpcReadOptions:
    def __init__(
        self, *, included_fields: list[int] | None = None, use_threads: bool = True
    ) -> None: ...

class IpcWriteOptions:
    def __init__(
        self, *, compression: Literal["lz4", "zstd"] | None = None, use_threads: bool = True
    ) -> None: ...

class RecordBatchFileReader:
    @property
    def schema(self) -> Schema: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def get_batch(self, i: int) -> RecordBatch: ...
    def read_all(self) -> Table: ...

class RecordBatchFileWriter:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...

def new_file(
    sink: str | PathLike[str] | IO[bytes] | NativeFile,
    schema: Schema,
    *,
    options: IpcWriteOptions | None = None,
) -> RecordBatchFileWriter: ...
def open_file(
    source: str | PathLike[str] | IO[bytes] | NativeFile, *, options: IpcReadOptions | None = None
) -> RecordBatchFileReader: ...
