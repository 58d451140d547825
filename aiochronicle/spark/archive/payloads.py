"""Payloads, encoded again from the columns of a type by the type's codec.

An archive stores fields, and payloads only where encoding the fields would not give the same bytes: another
program may have written its JSON with spaces, or a field that the type does not have. This is verified:
``are_same`` checks each row when it is archived.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from aiochronicle._typed.description import (
    Alternatives,
    Field,
    List,
    Map,
    OneOf,
    Record,
    Tuple,
    Type,
)
from aiochronicle._typed.registry import RegisteredType
from aiochronicle.spark.arrow import Batch, Column, pa, pc

__all__ = ["PayloadMaker"]

_Fold = Callable[[Any], Any] | None

_EXACT = ("bool", "int", "float", "str", "bytes")  # columns hold these unchanged


class PayloadMaker:
    """Encodes payloads of one type; ``columns`` are the names of its fields' columns."""

    def __init__(self, entry: RegisteredType, columns: dict[str, str]) -> None:
        self._codec = entry.codec
        self._fields = [(field, columns[field.name]) for field in entry.fields]
        self._folds = [_fold(field.type) for field in entry.fields]
        self._record = entry.record
        self._is_exact = all(_is_exact(field.type) for field in entry.fields)

    def make(self, batch: Batch) -> Column:
        """Return the payload of each row, encoded from its fields; null if they cannot be encoded."""
        if self._codec.format == "struct":
            return self._laid_out(batch)
        encoded: list[bytes | None] = []
        for value in self._values(batch):
            try:
                encoded.append(self._codec.encoder(msgspec.convert(value, self._codec.type)))
            except Exception:  # noqa: BLE001 - whatever the type's own checks raise
                encoded.append(None)
        return pa.array(encoded, pa.binary())

    def are_same(self, batch: Batch, payloads: Column) -> pa.BooleanArray:
        """Return for each row whether encoding its fields gives its payload."""
        if self._codec.format == "struct" or not self._is_exact:
            made = self.make(batch)
            return pc.equal(made, payloads).fill_null(False)
        # The columns hold the same values as the objects, which saves the conversion to Arrow and back.
        given: list[bytes] = payloads.to_pylist()
        decode, encode = self._codec.decoder, self._codec.encoder
        again = map(encode, map(decode, given))
        return pa.array(list(map(operator.eq, again, given)), pa.bool_())

    def _laid_out(self, batch: Batch) -> Column:
        rows = batch.num_rows
        records = np.zeros(rows, self._codec.dtype)
        for (field, column), place in zip(self._fields, self._codec.layout, strict=True):
            found = batch.column(column) if column in batch.schema.names else None
            if found is None:
                continue
            if place.typestr.startswith("|S"):
                records[field.name] = np.array(found.cast(pa.binary()).to_pylist(), object)
            else:
                values = found.fill_null(False if place.typestr == "|b1" else 0)
                records[field.name] = values.to_numpy(zero_copy_only=False)
        size = self._codec.itemsize
        offsets = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int32))
        content = pa.py_buffer(records.tobytes())
        return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content])

    def _values(self, batch: Batch) -> list[Any]:
        """Return each row as msgspec converts it: a dict by encoded names, or a list."""
        columns: list[list[Any]] = []
        for (_, column), fold in zip(self._fields, self._folds, strict=True):
            if column not in batch.schema.names:
                columns.append([msgspec.UNSET] * batch.num_rows)
                continue
            values = batch.column(column).to_pylist(maps_as_pydicts="lossy")
            columns.append(values if fold is None else [_or_none(fold, one) for one in values])
        together = _together(self._record)
        return [together(values) for values in zip(*columns, strict=True)]


def _or_none(fold: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else fold(value)


def _together(record: Record) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function that turns the values of a record's fields into what msgspec converts to the
    struct."""
    tag = [] if record.tag is None else [record.tag]
    if record.array_like:
        return lambda values: [*tag, *values]
    names = [field.encoded_name or field.name for field in record.fields]
    before = {} if record.tag is None else {record.tag_field or "type": record.tag}

    def entries(values: tuple[Any, ...]) -> dict[str, Any]:
        return before | {
            name: value
            for name, value in zip(names, values, strict=True)
            if value is not msgspec.UNSET
        }

    return entries


def _fold(described: Type) -> _Fold:
    """Return a function that reverses the unfolding of a type (_columns/typed.py); None if it is not
    needed."""
    match described:
        case Record(fields=fields):
            return _fold_record(described, fields)
        case List(of):
            item = _fold(of)
            return None if item is None else partial(_fold_items, item)
        case Map(key="str", value=of):
            item = _fold(of)
            if item is None:
                return dict
            return partial(_fold_values, item)
        case Alternatives(of):
            others: list[Type] = [part for part in of if part != "null"]
            return _fold(others[0]) if len(others) == 1 else msgspec.json.decode
        case OneOf(values):
            kinds = {type(value) for value in values if value is not None}
            return None if len(kinds) == 1 else msgspec.json.decode
        case Tuple() | Map() | "any" | "null":
            return msgspec.json.decode
        case _:
            return None


def _fold_items(item: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [_or_none(item, one) for one in values]


def _fold_values(item: Callable[[Any], Any], entries: Any) -> dict[str, Any]:
    return {key: _or_none(item, value) for key, value in dict(entries).items()}


def _fold_record(record: Record, fields: tuple[Field, ...]) -> Callable[[Any], Any]:
    names = [field.encoded_name or field.name for field in fields]
    folds = [_fold(field.type) for field in fields]
    together = _together(record)

    def fold(value: dict[str, Any]) -> Any:
        return together(
            tuple(
                value[name] if of is None else _or_none(of, value[name])
                for name, of in zip(names, folds, strict=True)
            )
        )

    return fold


def _is_exact(described: Type) -> bool:
    """Return whether a column represents different values of a type differently."""
    match described:
        case Record(fields=fields):
            return all(_is_exact(field.type) for field in fields)
        case List(of):
            return _is_exact(of)
        case Map(key="str", value=of):
            return _is_exact(of)
        case Alternatives(of):
            others: list[Type] = [part for part in of if part != "null"]
            return len(others) == 1 and _is_exact(others[0])
        case OneOf(values):
            return len({type(value) for value in values if value is not None}) == 1
        case scalar:
            return scalar in _EXACT
