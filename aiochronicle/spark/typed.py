"""Messages of one type as columns, decoded inside the task that reads them.

A fixed layout is a table already: its columns are cut out of the payloads without looking at a row.
Other formats are decoded by msgspec, message by message.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyspark.sql.types import StringType, StructField

from aiochronicle._description import Field
from aiochronicle.errors import DecodeError, SchemaMismatch, SchemaNotFound, UnknownType
from aiochronicle.registry import RegisteredType, Registry
from aiochronicle.spark.arrow import Column, pa
from aiochronicle.spark.queues import Source
from aiochronicle.spark.sparktypes import Handling, handling, spark_field

__all__ = ["CORRUPT", "TypedDecoder", "find_type", "typed_fields"]

CORRUPT = StructField("_corrupt", StringType(), True)

_AS_THEY_ARE = (bytes, datetime, date, timedelta, Decimal)  # Arrow takes them


def find_type(source: Source, name: str) -> RegisteredType | None:
    """Look a type up in the queue's schema.json; its case does not matter. None if it is not there."""
    registry = _registry(source)
    if registry is None:
        return None
    exact = [entry for entry in registry if entry.name == name]
    return next(iter(exact or [e for e in registry if e.name.lower() == name.lower()]), None)


def typed_fields(
    sources: Mapping[str, Source], name: str, taken: Sequence[str]
) -> dict[str, StructField]:
    """Return the columns of a type by the names of its fields, whatever queue has them.

    A field whose name is ``taken`` by a column that every frame has gets the type's in front.
    """
    columns: dict[str, StructField] = {}
    for source in sources.values():
        entry = find_type(source, name)
        for field in () if entry is None else entry.fields:
            column = spark_field(field)
            if field.name in taken:
                column = StructField(f"{name}_{field.name}", column.dataType, True)
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
            {entry.name for source in sources.values() for entry in _registry(source) or ()}
        )
        raise UnknownType(
            f"no queue has a type {name!r}; there are {', '.join(known_names) or 'none'}"
        )
    return columns


def _registry(source: Source) -> Registry | None:
    for place in (source.live, source.archive):
        if place is not None and Path(place).is_dir():
            try:
                return Registry.load(place)
            except SchemaNotFound:
                continue
    return None


class TypedDecoder:
    """Turns payloads of one type into columns: by field name, as Arrow types."""

    def __init__(
        self, entry: RegisteredType, wanted: Mapping[str, Any], *, permissive: bool
    ) -> None:
        self.type_id = entry.type_id
        self._codec = entry.codec
        self._wanted = dict(wanted)
        self._permissive = permissive
        self._fields = [field for field in entry.fields if field.name in self._wanted]
        self._parts: Callable[[Any], Any] = (
            attrgetter(*(field.name for field in self._fields)) if self._fields else tuple
        )

    def decode(
        self, payloads: Column, seqs: Column, place: str
    ) -> tuple[dict[str, Column], Column | None]:
        """Return the columns, and what is wrong with each row; None if nothing is with any."""
        troubles: list[str | None] = []
        columns = self._cut_out(payloads) if self._codec.format == "struct" else None
        if columns is None:
            columns, troubles = self._decode_each(payloads)
        for row, trouble in enumerate(troubles):
            if trouble is not None and not self._permissive:
                raise DecodeError(trouble, path=place, seq=seqs[row].as_py())
        for name in self._wanted.keys() - columns.keys():  # fields that this queue does not have
            columns[name] = pa.nulls(len(payloads), self._wanted[name])
        return columns, pa.array(troubles, pa.utf8()) if any(troubles) else None

    def _cut_out(self, payloads: Column) -> dict[str, Column] | None:
        """See the payloads as one array of records; None if they are not all of that size."""
        rows = len(payloads)
        if rows == 0:
            return {name: pa.nulls(0, kind) for name, kind in self._wanted.items()}
        _, offsets_buffer, data = payloads.buffers()
        assert offsets_buffer is not None
        offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset :][: rows + 1]
        if data is None or not (np.diff(offsets) == self._codec.itemsize).all():
            return None
        records = np.frombuffer(data, self._codec.dtype, count=rows, offset=int(offsets[0]))
        try:
            return {
                field.name: _cast(pa.array(records[field.name]), self._wanted[field.name])
                for field in self._fields
            }
        except pa.ArrowInvalid:  # text that is not UTF-8: find out whose
            return None

    def _decode_each(self, payloads: Column) -> tuple[dict[str, Column], list[str | None]]:
        troubles: list[str | None] = [None] * len(payloads)
        rows: list[Any] = []
        nothing = (None,) * len(self._fields) if len(self._fields) != 1 else None
        decode, parts = self._codec.decoder, self._parts
        for number, payload in enumerate(payloads.to_pylist()):
            try:
                rows.append(parts(decode(payload)))
            except Exception as error:  # noqa: BLE001 - whatever the type's own checks raise
                rows.append(nothing)
                troubles[number] = f"not a {self._codec.name}: {error}"
        single = len(self._fields) == 1
        values = [rows] if single else [list(column) for column in zip(*rows, strict=True)]
        return {
            field.name: _to_arrow(field, column, self._wanted[field.name], troubles)
            for field, column in zip(self._fields, values, strict=False)
        }, troubles


def _cast(column: Any, wanted: Any) -> Column:
    return column if column.type == wanted else column.cast(wanted)


def _to_arrow(field: Field, values: list[Any], wanted: Any, troubles: list[str | None]) -> Column:
    match handling(field):
        case Handling.JSON:
            values = [None if v is None else msgspec.json.encode(v).decode() for v in values]
        case Handling.UNFOLD:
            values = [msgspec.to_builtins(v, builtin_types=_AS_THEY_ARE) for v in values]
        case Handling.NOTHING:
            pass
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, OverflowError, TypeError):
        kept: list[Any] = []
        for number, value in enumerate(values):
            try:
                pa.scalar(value, wanted)
                kept.append(value)
            except (pa.ArrowException, OverflowError, TypeError) as error:
                kept.append(None)
                troubles[number] = f"{field.name} is {value!r}, which does not fit: {error}"
        return pa.array(kept, wanted)
