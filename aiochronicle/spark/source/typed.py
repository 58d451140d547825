"""Messages of a type as columns of a frame: the type, and its queues.

Payloads become columns in the same way with and without Spark (aiochronicle._columns.typed); here, only
requested fields are decoded.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
from pyspark.sql.types import StringType, StructField

from aiochronicle._base.printable import printable
from aiochronicle._columns import typed as typed_columns
from aiochronicle._typed.description import build
from aiochronicle._typed.registry import RegisteredType, Registry, registry_of_content
from aiochronicle.errors import (
    DecodeError,
    QueueGone,
    QueueNotFound,
    SchemaMismatch,
    SchemaNotFound,
    UnknownType,
)
from aiochronicle.spark.arrow import Batch, Column, pa, pc
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.spark_types import spark_field

__all__ = [
    "CORRUPT",
    "TypedDecoder",
    "WireDecoder",
    "find_type",
    "has_wire_fields",
    "registry_of_source",
    "rows_of_types",
    "typed_fields",
]

CORRUPT = StructField(typed_columns.CORRUPT, StringType(), True)


def find_type(source: Source, name: str) -> RegisteredType | None:
    """Look up a type in the queue's schema.json, ignoring case. None if it is missing."""
    registry = registry_of_source(source)
    if registry is None:
        return None
    exact = [entry for entry in registry if entry.name == name]
    return next(iter(exact or [e for e in registry if e.name.lower() == name.lower()]), None)


def typed_fields(
    sources: Mapping[str, Source], name: str, taken: Sequence[str]
) -> dict[str, StructField]:
    """Return the columns of a type by the names of its fields, from all queues.

    A field whose name is ``taken`` by a column that every frame has gets the type's in front.
    """
    columns: dict[str, StructField] = {}
    for source in sources.values():
        entry = find_type(source, name)
        fields = () if entry is None else entry.fields
        names = typed_columns.column_names(fields, name if entry is None else entry.name, taken)
        for field in fields:
            column = StructField(names[field.name], spark_field(field).dataType, True)
            known = columns.setdefault(field.name, column)
            if known.dataType != column.dataType:
                raise SchemaMismatch(
                    f"{name} is not the same type in all queues",
                    [
                        f"{field.name}: {known.dataType.simpleString()} elsewhere,"
                        f" {column.dataType.simpleString()} here"
                    ],
                    path=source.place,
                )
    if not columns:
        known_names = sorted(
            {
                entry.name
                for source in sources.values()
                for entry in registry_of_source(source) or ()
            }
        )
        if not known_names:
            places = ", ".join(printable(source.place) for source in sources.values())
            raise UnknownType(
                f"no queue has a type {name!r}, nor any other: there is no schema.json in {places}."
                " A writer that is opened with a codec leaves one; to an archive it can be copied"
            )
        raise UnknownType(
            f"no queue has a type {name!r}; there are {', '.join(map(printable, known_names))}"
        )
    return columns


def registry_of_source(source: Source) -> Registry | None:
    """Return the types of a queue; None if it has no schema.json."""
    for directory in (source.live_directory, source.archive_directory):
        # Reading the queue reports missing messages.
        with contextlib.suppress(SchemaNotFound, QueueNotFound, QueueGone):
            if directory is not None:
                return directory.registry()
    with contextlib.suppress(SchemaNotFound):
        return None if source.schema is None else registry_of_content(source.schema, source.place)
    return None


def rows_of_types(batch: Batch, types: Collection[int]) -> Batch:
    """Return the rows of a batch that are messages of some types."""
    wanted = pa.array(sorted(types), pa.int32())
    of_types = pc.is_in(batch.column("type_id"), wanted)
    return batch if of_types.true_count == batch.num_rows else batch.filter(of_types)


def has_wire_fields(options: ReadOptions, sources: Mapping[str, Source]) -> bool:
    """Return whether a frame may have columns that are in no schema: fields of a Java queue's messages."""
    return options.type is None and any(source.is_java for source in sources.values())


class WireDecoder:
    """Turns payloads of a Java queue into columns; undecodable ones are reported, or an error."""

    types = None  # its messages have none

    def __init__(self, wanted: Mapping[str, pa.DataType], *, permissive: bool) -> None:
        from aiochronicle.cq4.columns import WireColumns  # not needed without a Java queue

        self._columns = WireColumns(wanted)
        self._is_permissive = permissive

    def decode_rows(self, rows: Batch, place: str) -> tuple[dict[str, Column], Column | None]:
        """Return the columns, and what is wrong with each row; None if nothing is with any."""
        columns, troubles = self._columns.decode(rows.column("payload"))
        if troubles is not None and not self._is_permissive:
            raise _undecodable(rows, troubles, place)
        return columns, troubles


def _undecodable(rows: Batch, troubles: Column, place: str) -> DecodeError:
    seq, trouble = typed_columns.first_trouble(rows, troubles)
    return DecodeError(trouble, path=place, seq=seq)


class TypedDecoder(typed_columns.TypedDecoder):
    """Turns payloads of one type into columns; undecodable ones are reported, or an error."""

    def __init__(
        self, entry: RegisteredType, wanted: Mapping[str, pa.DataType], *, permissive: bool
    ) -> None:
        super().__init__(_narrow(entry, wanted), wanted, whole=entry.codec.type)
        self._is_permissive = permissive

    def decode_rows(self, rows: Batch, place: str) -> tuple[dict[str, Column], Column | None]:
        """Return the columns, and what is wrong with each row; None if nothing is with any."""
        columns, troubles = self.decode(rows.column("payload"))
        if troubles is not None and not self._is_permissive:
            raise _undecodable(rows, troubles, place)
        return columns, troubles


def _narrow(entry: RegisteredType, names: Collection[str]) -> RegisteredType:
    """Return the type with no other fields than these: msgspec skips those it does not know."""
    if entry.format == "struct" or entry.record.array_like:
        return entry
    fields = tuple(field for field in entry.fields if field.name in names)
    record = msgspec.structs.replace(entry.record, fields=fields)
    return RegisteredType(entry.type_id, build(record, entry.format), record)
