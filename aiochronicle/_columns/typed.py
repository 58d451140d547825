"""Turns payloads of one type into Arrow columns, one for each field.

A fixed layout is already a table: its columns are copied out of the payloads without decoding single rows.
The engine decodes MessagePack of plain fields. msgspec decodes everything else, and every payload with
unusual content, message by message. A value without a counterpart in Arrow (a union of several types, an item
of any type) becomes JSON text.

This module needs pyarrow, so other modules import it only when they use it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from aiochronicle._base.arguments import one_of
from aiochronicle._columns.column_reader import arrow_schema
from aiochronicle._columns.columns import (
    COLUMNS,
    ON_REQUEST,
    check_columns,
    without_shadowed,
)
from aiochronicle._columns.msgpack import PlainMessages
from aiochronicle._layout import schema_path
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
from aiochronicle._typed.registry import (
    RegisteredType,
    Registry,
    TypeOrCodec,
    registry_of,
)
from aiochronicle._typed.schema_check import reader_types
from aiochronicle._typed.schema_file import read_schema
from aiochronicle.errors import DecodeError, InvalidArgument, UnknownType

__all__ = [
    "CORRUPT",
    "OnUndecodable",
    "OneType",
    "TypedColumns",
    "TypedDecoder",
    "arrow_type",
    "column_names",
    "first_trouble",
]

Column: TypeAlias = pa.Array
Batch: TypeAlias = pa.RecordBatch
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Troubles: TypeAlias = dict[int, str]  # by row: what is wrong with it

OneType: TypeAlias = TypeOrCodec | Registry | str
OnUndecodable: TypeAlias = Literal["raise", "null"]

CORRUPT = "_corrupt"  # the column that says what is wrong with a row

_FIXED = {
    "b1": pa.bool_(),
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "u1": pa.uint8(),
    "u2": pa.uint16(),
    "u4": pa.uint32(),
    "u8": pa.uint64(),
    "f4": pa.float32(),
    "f8": pa.float64(),
}

_SCALARS = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.utf8(),
    "bytes": pa.binary(),
    "datetime": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "timedelta": pa.duration("us"),
    "decimal": pa.decimal128(38, 18),
}


class _Handling(Enum):
    """How decoded values are converted for Arrow."""

    UNFOLD = "structs to dicts, sets to lists, members of an Enum to their values, others unchanged"
    JSON = "to JSON text"


def arrow_type(field: Field) -> pa.DataType:
    """Return the type of a field's column."""
    if field.width is not None and field.width.lstrip("<|") in _FIXED:
        return _FIXED[field.width.lstrip("<|")]
    return _counterpart(field.type)[0]


_TEXT = (pa.utf8(), _Handling.JSON)


def _counterpart(described: Type) -> tuple[pa.DataType, _Handling]:
    match described:
        case Record(fields=fields):
            parts = [_counterpart(field.type) for field in fields]
            if any(how is _Handling.JSON for _, how in parts):
                return _TEXT  # a field has no counterpart, so the struct has none
            columns = [
                (field.encoded_name or field.name, kind)
                for field, (kind, _) in zip(fields, parts, strict=True)
            ]
            return pa.struct(columns), _Handling.UNFOLD
        case List(of):
            kind, how = _counterpart(of)
            return _TEXT if how is _Handling.JSON else (pa.list_(kind), _Handling.UNFOLD)
        case Map(key="str", value=value):
            kind, how = _counterpart(value)
            return _TEXT if how is _Handling.JSON else (pa.map_(pa.utf8(), kind), _Handling.UNFOLD)
        case OneOf(values):
            kinds = {type(value) for value in values if value is not None}
            if len(kinds) != 1:
                return _TEXT
            return (pa.int64() if kinds == {int} else pa.utf8()), _Handling.UNFOLD
        case Alternatives(of):
            others: list[Type] = [part for part in of if part != "null"]
            return _counterpart(others[0]) if len(others) == 1 else _TEXT
        case "time" | "uuid":
            return pa.utf8(), _Handling.UNFOLD
        case Tuple() | Map() | "any" | "null":
            return _TEXT
        case scalar:
            return _SCALARS[scalar], _Handling.UNFOLD


def column_names(fields: Sequence[Field], type_name: str, taken: Collection[str]) -> dict[str, str]:
    """Return the column name of each field: the field's, with the type's name as a prefix if it is taken."""
    return {
        field.name: f"{type_name}_{field.name}" if field.name in taken else field.name
        for field in fields
    }


class TypedDecoder:
    """Turns payloads of one type into columns, by field name, of the wanted Arrow types.

    ``type_ids`` are those of its messages. ``decode`` decodes payloads in another format than the type's own,
    as in a Java queue. ``whole`` is the complete type if ``entry`` lacks fields that are not wanted.
    """

    def __init__(
        self,
        entry: RegisteredType,
        wanted: Mapping[str, pa.DataType],
        *,
        type_ids: Collection[int] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        whole: type[Any] | None = None,
    ) -> None:
        self.types = frozenset(type_ids or [entry.type_id])
        self._codec = entry.codec
        self._decode_one: Callable[[bytes], Any] = entry.codec.decoder if decode is None else decode
        self._wanted = dict(wanted)
        self._fields = [field for field in entry.fields if field.name in self._wanted]
        self._nothing = SimpleNamespace(**dict.fromkeys(field.name for field in self._fields))
        self._decode_all: Callable[[Column], dict[str, Column] | None] | None = None
        self._plain: PlainMessages | None = None
        if decode is not None:
            return
        if self._codec.format == "struct":
            self._decode_all = self._cut_out
        elif self._codec.format == "msgpack":
            plain = None if whole is None else PlainMessages.of(whole, self._wanted)
            self._plain = plain or PlainMessages.of(self._codec.type)
            if self._plain is not None:
                self._decode_all = partial(self._split_payloads, self._plain)

    def decode(self, payloads: Column) -> tuple[dict[str, Column], Column | None]:
        """Return the columns, and a column with what is wrong with each row; None if all rows are fine."""
        columns = None if self._decode_all is None else self._decode_all(payloads)
        return self._complete(columns, payloads)

    def decode_usual(
        self, payloads: Column
    ) -> tuple[dict[str, Column], Column | None, pa.BooleanArray]:
        """As ``decode``, and for each payload whether its fields surely encode to the same bytes."""
        if self._plain is None:
            return *self.decode(payloads), pa.repeat(False, len(payloads))
        found = self._plain.columns_and_usual(payloads)
        if found is None:
            return *self._complete(None, payloads), pa.repeat(False, len(payloads))
        columns, usual = found
        return *self._complete(self._cast_fields(columns), payloads), usual

    def _complete(
        self, columns: dict[str, Column] | None, payloads: Column
    ) -> tuple[dict[str, Column], Column | None]:
        troubles: Troubles = {}
        if columns is None:
            columns, troubles = self._decode_each(payloads)
        for name in self._wanted.keys() - columns.keys():  # fields that this queue does not have
            columns[name] = pa.nulls(len(payloads), self._wanted[name])
        if not troubles:
            return columns, None
        return columns, pa.array([troubles.get(row) for row in range(len(payloads))], pa.utf8())

    def _cut_out(self, payloads: Column) -> dict[str, Column] | None:
        """Return columns cut out of the payloads; None if not all payloads have the size of the layout."""
        rows = len(payloads)
        if rows == 0:
            return {name: pa.nulls(0, kind) for name, kind in self._wanted.items()}
        _, offsets_buffer, data = payloads.buffers()
        assert offsets_buffer is not None
        offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)[payloads.offset :][: rows + 1]
        if data is None or not (np.diff(offsets) == self._codec.itemsize).all():
            return None
        records = np.frombuffer(
            memoryview(data), self._codec.dtype, count=rows, offset=int(offsets[0])
        )
        try:
            return {
                field.name: _as_wanted(records[field.name], self._wanted[field.name])
                for field in self._fields
            }
        except pa.ArrowInvalid:  # some text is not UTF-8: decode row by row to find it
            return None

    def _split_payloads(self, plain: PlainMessages, payloads: Column) -> dict[str, Column] | None:
        """Have the engine split the payloads; None if it cannot split all of them."""
        found = plain.columns(payloads)
        return None if found is None else self._cast_fields(found)

    def _cast_fields(self, found: dict[str, Column]) -> dict[str, Column]:
        return {
            field.name: _cast(found[field.name], self._wanted[field.name]) for field in self._fields
        }

    def _decode_each(self, payloads: Column) -> tuple[dict[str, Column], Troubles]:
        troubles: Troubles = {}
        encoded: list[bytes] = payloads.to_pylist()
        try:
            decoded = list(map(self._decode_one, encoded))
        except Exception:  # noqa: BLE001 - the type's own checks may raise anything: find the row
            decoded = [self._try(row, payload, troubles) for row, payload in enumerate(encoded)]
        columns: dict[str, Column] = {}
        for field in self._fields:
            values = list(map(attrgetter(field.name), decoded))
            columns[field.name] = _to_arrow(field, values, self._wanted[field.name], troubles)
        return columns, troubles

    def _try(self, row: int, payload: bytes, troubles: Troubles) -> Any:
        """Return the decoded payload, or an object whose fields are all None."""
        try:
            return self._decode_one(payload)
        except Exception as error:  # noqa: BLE001 - as above
            troubles[row] = f"not a {self._codec.name}: {error}"
            return self._nothing


def _as_wanted(values: Array, wanted: pa.DataType) -> Column:
    if pa.types.is_dictionary(wanted) and values.dtype.kind == "S":
        return _encode(values, wanted)
    return _cast(_column_of(values), wanted)


def _cast(column: Column, wanted: pa.DataType) -> Column:
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(wanted):
        return column.cast(wanted.value_type).dictionary_encode()
    return column.cast(wanted)


def _encode(texts: Array, wanted: pa.DictionaryType) -> Column:
    """Return texts of a fixed width as a dictionary; each different text is decoded once."""
    content = pa.py_buffer(np.ascontiguousarray(texts))
    fixed = pa.Array.from_buffers(pa.binary(texts.itemsize), len(texts), [None, content])
    found = fixed.dictionary_encode()
    stored = found.dictionary.buffers()[1]
    assert stored is not None
    different = np.frombuffer(memoryview(stored), texts.dtype, len(found.dictionary))
    names = _column_of(different).cast(wanted.value_type)
    return pa.DictionaryArray.from_arrays(found.indices, names)


def _column_of(values: Array) -> Column:
    """Return an array of numbers or strings as a column.

    Arrow cuts strings at their first zero byte, but only the zero bytes at the end are padding.
    """
    column = pa.array(values)
    if values.dtype.kind != "S":
        return column
    rows, width = len(values), values.dtype.itemsize
    lengths = np.char.str_len(values)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    found = column.buffers()[1]
    assert found is not None
    if np.array_equal(np.frombuffer(memoryview(found), np.int32, rows + 1), offsets):
        return column
    content = np.frombuffer(values.tobytes(), np.uint8).reshape(rows, width)
    kept = content[np.arange(width) < lengths[:, None]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def first_trouble(rows: Batch, troubles: Column) -> tuple[int, str]:
    """Return the seq of the first row that could not be decoded, and why."""
    row = troubles.is_valid().index(True).as_py()
    return rows.column("seq")[row].as_py(), troubles[row].as_py()


Unfolding: TypeAlias = Callable[[Any], Any]


def _unfolding(described: Type) -> Unfolding | None:
    """Return the function that converts values of a type for Arrow; None if Arrow accepts them unchanged.

    A struct becomes a dict, however it is encoded.
    """
    match described:
        case Record(fields=fields):
            parts = [(f.encoded_name or f.name, f.name, _field_unfolding(f)) for f in fields]
            return lambda value: {
                column: getattr(value, name) if of is None else of(getattr(value, name))
                for column, name, of in parts
            }
        case List(of):
            item = _or_none(of)
            return list if item is None else partial(_unfold_items, item)
        case Map(value=of):
            item = _or_none(of)
            return None if item is None else partial(_unfold_values, item)
        case OneOf():
            return lambda value: value.value if isinstance(value, Enum) else value
        case Alternatives(of):
            return next((_unfolding(part) for part in of if part != "null"), None)
        case "time" | "uuid":
            return str
        case "bytes":
            return bytes
        case _:
            return None


def _unfold_items(item: Unfolding, value: Any) -> list[Any]:
    return [item(each) for each in value]


def _unfold_values(item: Unfolding, value: dict[str, Any]) -> dict[str, Any]:
    return {key: item(each) for key, each in value.items()}


def _or_none(described: Type) -> Unfolding | None:
    unfold = _unfolding(described)
    return None if unfold is None else lambda value: None if value is None else unfold(value)


def _field_unfolding(field: Field) -> Unfolding | None:
    """Return the conversion for a field; one that is not required may be UNSET, which becomes null."""
    unfold = _or_none(field.type)
    if field.required:
        return unfold
    return lambda value: (
        None if value is msgspec.UNSET else value if unfold is None else unfold(value)
    )


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _unfold_each(
    field: Field, unfold: Unfolding, values: list[Any], troubles: Troubles
) -> list[Any]:
    unfolded: list[Any] = []
    for number, value in enumerate(values):
        try:
            is_missing = value is None or value is msgspec.UNSET
            unfolded.append(None if is_missing else unfold(value))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:  # JSON has no such keys
            unfolded.append(None)
            troubles[number] = f"{field.name} is {value!r}, which no column can hold: {error}"
    return unfolded


def _to_arrow(field: Field, values: list[Any], wanted: pa.DataType, troubles: Troubles) -> Column:
    is_json = _counterpart(field.type)[1] is _Handling.JSON
    unfold = _to_json if is_json else _field_unfolding(field)
    if unfold is not None:
        values = _unfold_each(field, unfold, values, troubles)
    try:
        return _cast(pa.array(values, arrow_type(field)), wanted)
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


class TypedColumns:
    """Converts batches of messages to the columns of one type.

    ``raw`` are the columns to read for that, from messages with these type_ids, ``types``.
    """

    def __init__(
        self,
        directory: str,
        codec: OneType,
        columns: Sequence[str] | None,
        on_undecodable: OnUndecodable,
        *,
        is_java: bool = False,
    ) -> None:
        entry, type_ids = (
            _find_java_type(directory, codec) if is_java else _find_type(directory, codec)
        )
        fields = [field.name for field in entry.fields]
        on_request = without_shadowed(ON_REQUEST, fields)
        plain = (*COLUMNS, *on_request)
        self._columns = column_names(entry.fields, entry.name, (*plain, CORRUPT))
        self._is_permissive = one_of(
            "on_undecodable", {"raise": False, "null": True}, on_undecodable
        )
        usual = [name for name in COLUMNS if name != "payload"] + [*self._columns.values()]
        chosen = check_columns(
            columns,
            usual=[*usual, CORRUPT] if self._is_permissive else usual,
            on_request=("payload", *on_request),
        )
        self._raw = [name for name in chosen if name in plain]
        self.raw = list(dict.fromkeys([*self._raw, "seq", "payload"]))
        types = {self._columns[field.name]: arrow_type(field) for field in entry.fields}
        raw_schema = arrow_schema(self.raw)
        known = {name: raw_schema.field(name) for name in self.raw}
        known |= {name: pa.field(name, kind) for name, kind in types.items()}
        known[CORRUPT] = pa.field(CORRUPT, pa.utf8())
        self.schema = pa.schema([known[name] for name in chosen])
        wanted = {field: types[name] for field, name in self._columns.items() if name in chosen}
        decode = _java_decoder(entry) if is_java else None
        self._decoder = TypedDecoder(entry, wanted, type_ids=type_ids, decode=decode)
        self.types = self._decoder.types

    def fit(self, batch: Batch, place_of: Callable[[int], dict[str, Any]]) -> Batch:
        """Return a batch of the type's messages with the columns of the schema.

        ``place_of`` returns where the message with a seq is, for the error if it cannot be decoded.
        """
        decoded, troubles = self._decoder.decode(batch.column("payload"))
        if troubles is not None and not self._is_permissive:
            seq, trouble = first_trouble(batch, troubles)
            raise DecodeError(trouble, seq=seq, **place_of(seq))
        arrays = {name: batch.column(name) for name in self._raw}
        arrays |= {self._columns[field]: column for field, column in decoded.items()}
        arrays[CORRUPT] = pa.nulls(batch.num_rows, pa.utf8()) if troubles is None else troubles
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self.schema.names], schema=self.schema
        )


def _find_type(directory: str, codec: OneType) -> tuple[RegisteredType, Collection[int]]:
    """Return a type as stored in the queue, and the type_ids of its messages."""
    if isinstance(codec, str):
        registry = Registry.load(directory)
        names = [entry.name for entry in registry]
        if codec not in names:
            raise UnknownType(
                f"the queue has no type {codec!r}; it has {', '.join(names) or 'none'}",
                path=directory,
            )
        entry = registry.named(codec)
        return entry, [entry.type_id]
    registry = _registry_of_one(codec)
    known = reader_types(registry, directory)
    # Without a schema, messages of type_id 0 can only be of this type.
    type_ids = {*known} if read_schema(schema_path(directory)) else {*known, 0}
    return next(iter(known.values())), type_ids


def _find_java_type(directory: str, codec: OneType) -> tuple[RegisteredType, Collection[int]]:
    """Return the type to which messages of a Java queue are decoded; the queue stores none."""
    if isinstance(codec, str):
        raise UnknownType(
            f"a Java queue has no schema.json that defines {codec!r}: give the type itself, a"
            " msgspec.Struct with the fields of the Java object",
            path=directory,
        )
    return next(iter(_registry_of_one(codec))), [0]


def _registry_of_one(codec: TypeOrCodec | Registry) -> Registry:
    registry = registry_of(codec)
    if len(registry) != 1:
        raise InvalidArgument(
            f"a table has messages of one type, but codec has several: {registry!r}"
        )
    return registry


def _java_decoder(entry: RegisteredType) -> Callable[[bytes], Any]:
    from aiochronicle import cq4

    return partial(cq4.decode_as, type=entry.codec.type)
