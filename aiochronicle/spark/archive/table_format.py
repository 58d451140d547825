"""The interface of table formats: the changes that an archive makes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from aiochronicle.spark.archive.manifest import ArchivedFile

if TYPE_CHECKING:
    import pyarrow

__all__ = ["TABLES", "Catalog", "Change", "TableFormat", "Tables"]

TableFormat = Literal["parquet", "delta", "iceberg"]
TABLES: tuple[TableFormat, ...] = ("parquet", "delta", "iceberg")
Catalog = Mapping[str, str] | str | None


class Change(msgspec.Struct, frozen=True):
    """The files to add to and remove from a table for one queue; afterwards it has everything before
    ``next_seq``."""

    source: str
    next_seq: int
    added: tuple[ArchivedFile, ...]
    removed: tuple[str, ...]


class Tables(Protocol):
    """The tables of an archive, in one format."""

    def open(self, dataset: str, schema: "pyarrow.Schema") -> Any:
        """Return a table that has at least these columns; create it if it is missing."""
        ...

    def next_seq(self, table: Any, source: str) -> int:
        """Return the seq up to which a table has the messages of a queue."""
        ...

    def files(self, table: Any, source: str) -> set[str]:
        """Return the files of a queue that a table has, relative to the archive."""
        ...

    def commit(self, table: Any, changes: list[Change]) -> None:
        """Change the table, by one commit."""
        ...

    def close(self) -> None:
        """Close everything."""
        ...
