"""Turns MessagePack payloads into Arrow columns in one pass through their bytes (csrc/msgpack.c).

It handles types whose fields are all plain: numbers, strings and bytes without limits, lists and structs of
these, or None. The engine accepts only bytes that msgspec would decode to the same values; msgspec decodes
everything else.

This module needs pyarrow, so other modules import it only when they use it.
"""

from collections.abc import Collection, Iterator
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import inspect as types

from aiochronicle._base.binding import ffi, lib

__all__ = ["PlainMessages"]

# Types without limits, with the engine's kind and the Arrow type of their columns.
_PLAIN: list[tuple[types.Type, int, pa.DataType]] = [
    (types.BoolType(), lib.AC_FIELD_BOOL, pa.bool_()),
    (types.IntType(), lib.AC_FIELD_INT, pa.int64()),
    (types.FloatType(), lib.AC_FIELD_FLOAT, pa.float64()),
    (types.StrType(), lib.AC_FIELD_TEXT, pa.utf8()),
    (types.BytesType(), lib.AC_FIELD_BYTES, pa.binary()),
]


class _PlainField(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    encoded_name: bytes
    kind: int
    column: pa.DataType | None
    may_be_nil: bool = False
    may_be_missing: bool = False
    default: pa.Scalar | None = None  # replaces a missing value
    parts: tuple["_PlainField", ...] = ()  # the items of a list, the fields of a struct
    tag: bytes = b""

    @property
    def bytes_min(self) -> int:
        """Minimum size of a value, which limits how many items a list can have."""
        if self.kind == lib.AC_FIELD_ARRAY:
            return 1 + sum(part.bytes_min for part in self.parts if not part.may_be_missing)
        return 1 + len(self.tag)


class PlainMessages:
    """Splits payloads of one type into columns."""

    def __init__(self, fields: list[_PlainField]) -> None:
        self._fields = fields

    @classmethod
    def of(cls, struct: type[Any], wanted: Collection[str] | None = None) -> Self | None:
        """Return a splitter for a msgspec.Struct type; None if the type has fields that are not plain.

        Fields that are not ``wanted`` are skipped and may have any type.
        """
        info = types.type_info(struct)
        assert isinstance(info, types.StructType)
        fields = None if info.array_like else _fields_of(info, wanted)
        return None if fields is None else cls(fields)

    def columns(self, payloads: pa.Array) -> dict[str, pa.Array] | None:
        """Return the columns by field name; None if msgspec must decode each payload."""
        found = self.columns_and_usual(payloads)
        return None if found is None else found[0]

    def columns_and_usual(
        self, payloads: pa.Array
    ) -> tuple[dict[str, pa.Array], pa.BooleanArray] | None:
        """As ``columns``, and for each payload whether msgspec would encode its fields to the same bytes.

        False means unknown. The type must not have ``omit_defaults``; types built from a schema.json do not.
        """
        rows = len(payloads)
        _, offsets_buffer, data = payloads.buffers()
        if rows == 0 or offsets_buffer is None or data is None:
            return None
        offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)[payloads.offset :][: rows + 1]
        size = int(offsets[-1] - offsets[0])
        outputs = [_ColumnBuffers(field, rows, size) for field in self._fields]
        usual = _zeroed_bits(rows)
        descriptors = ffi.new("ac_field_t[]", len(outputs))
        for descriptor, output in zip(descriptors, outputs, strict=True):
            output.describe_to(descriptor)
        taken = lib.ac_msgpack_columns(
            ffi.cast("uint8_t *", data.address),
            ffi.cast("int32_t *", offsets_buffer.address) + payloads.offset,
            rows,
            descriptors,
            len(outputs),
            ffi.cast("uint8_t *", usual.address),
        )
        if taken < rows:
            return None
        try:
            columns = {
                output.field.name: output.column(kind, descriptor, rows)
                for descriptor, output in zip(descriptors, outputs, strict=True)
                if (kind := output.field.column) is not None
            }
        except pa.ArrowInvalid:  # text that is not UTF-8
            return None
        return columns, pa.Array.from_buffers(pa.bool_(), rows, [None, usual])


def _fields_of(
    info: types.StructType, wanted: Collection[str] | None = None
) -> list[_PlainField] | None:
    """Return the tag and the fields of a struct; None if a wanted field is not plain."""
    if info.forbid_unknown_fields or hasattr(info.cls, "__post_init__"):
        return None
    fields: list[_PlainField] = []
    if info.tag is not None:
        if not isinstance(info.tag, str):
            return None
        tag_name = (info.tag_field or "").encode()
        tag = info.tag.encode()
        kind = lib.AC_FIELD_TAG
        fields.append(_PlainField(name="", encoded_name=tag_name, kind=kind, column=None, tag=tag))
    for field in info.fields:
        is_wanted = wanted is None or field.name in wanted
        fields += _plain_field(field) if is_wanted else [_skipped_field(field)]
    tags = 0 if info.tag is None else 1
    is_whole = len(fields) == len(info.fields) + tags and len(fields) <= lib.AC_FIELDS_MAX
    return fields if is_whole else None


def _skipped_field(field: types.Field) -> _PlainField:
    return _PlainField(
        name=field.name,
        encoded_name=field.encode_name.encode(),
        kind=lib.AC_FIELD_SKIPPED,
        column=None,
        may_be_missing=True,
    )


def _plain_field(field: types.Field) -> Iterator[_PlainField]:
    """Yield the field if it is plain."""
    value = _plain_value(field.type, field.name, field.encode_name)
    has_default = field.default is not msgspec.NODEFAULT  # not from a factory, and not UNSET
    if value is None or has_default is field.required:
        return
    default = field.default if has_default else None
    # The engine writes null for a missing value, which could then be mistaken for a nil in the payload.
    is_ambiguous = value.may_be_nil and default is not None
    try:
        scalar = None if default is None or is_ambiguous else pa.scalar(default, value.column)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return
    yield msgspec.structs.replace(
        value, may_be_missing=not field.required and not is_ambiguous, default=scalar
    )


def _plain_value(info: types.Type, name: str, encoded_name: str) -> _PlainField | None:
    """Return the description of a value of this type; None if it is not plain."""
    kind, may_be_nil = _unwrap(info), False
    if isinstance(kind, types.UnionType):
        others = [_unwrap(part) for part in kind.types if not isinstance(part, types.NoneType)]
        may_be_nil = len(others) < len(kind.types)
        kind = others[0] if len(others) == 1 else kind
    parts: tuple[_PlainField, ...] = ()
    found = next(((number, column) for plain, number, column in _PLAIN if kind == plain), None)
    if isinstance(kind, types.ListType | types.VarTupleType) and _has_no_limits(kind):
        item = _plain_value(kind.item_type, "item", "item")
        if item is not None and item.column is not None:
            parts, found = (item,), (lib.AC_FIELD_LIST, pa.list_(item.column))
    elif isinstance(kind, types.StructType):
        fields = _fields_of(kind)
        if fields:
            columns = [
                (part.encoded_name.decode(), part.column)
                for part in fields
                if part.column is not None
            ]
            number = lib.AC_FIELD_ARRAY if kind.array_like else lib.AC_FIELD_MAP
            parts, found = tuple(fields), (number, pa.struct(columns))
    if found is None:
        return None
    return _PlainField(
        name=name,
        encoded_name=encoded_name.encode(),
        kind=found[0],
        column=found[1],
        may_be_nil=may_be_nil,
        parts=parts,
    )


def _has_no_limits(info: types.ListType | types.VarTupleType) -> bool:
    return info.min_length is None and info.max_length is None


def _unwrap(info: types.Type) -> types.Type:
    return _unwrap(info.type) if isinstance(info, types.Metadata) else info


class _ColumnBuffers:
    """The buffers of one column while the engine fills them, with space for ``rows`` rows."""

    def __init__(self, field: _PlainField, rows: int, payload_bytes: int) -> None:
        self.field = field
        self._rows_max = rows
        self._valid = _zeroed_bits(rows)
        self._name = ffi.new("char[]", field.encoded_name)
        self._tag = ffi.new("char[]", field.tag)
        self._offsets: pa.Buffer | None = None
        self._values: pa.Buffer | None = None
        self._places = ffi.new("ac_field_t[]", len(field.parts)) if field.parts else ffi.NULL
        part_rows = rows
        if field.kind == lib.AC_FIELD_LIST:
            part_rows = payload_bytes // field.parts[0].bytes_min + 1
            self._offsets = pa.allocate_buffer(4 * (rows + 1))
        self._parts = [_ColumnBuffers(part, part_rows, payload_bytes) for part in field.parts]
        if field.parts or field.column is None:
            return
        if pa.types.is_boolean(field.column):
            self._values = _zeroed_bits(rows)
        elif pa.types.is_primitive(field.column):
            self._values = pa.allocate_buffer(8 * rows, resizable=True)
        else:
            self._offsets = pa.allocate_buffer(4 * (rows + 1))
            self._values = pa.allocate_buffer(payload_bytes, resizable=True)

    def describe_to(self, place: Any) -> None:
        """Fill in the engine's description of this column."""
        place.name = self._name
        place.name_length = len(self.field.encoded_name)
        place.kind = self.field.kind
        place.may_be_nil = self.field.may_be_nil
        place.may_be_missing = self.field.may_be_missing
        place.items_max = self._rows_max
        place.parts = self._places
        place.part_count = len(self._parts)
        for number, part in enumerate(self._parts):
            part.describe_to(self._places[number])
        if self.field.kind == lib.AC_FIELD_TAG:
            place.values = ffi.cast("void *", self._tag)
            place.items_max = len(self.field.tag)
        if self.field.column is None:
            return
        place.valid = ffi.cast("uint8_t *", self._valid.address)
        if self._values is not None:
            place.values = ffi.cast("void *", self._values.address)
        if self._offsets is not None:
            place.offsets = ffi.cast("int32_t *", self._offsets.address)

    def column(self, kind: pa.DataType, place: Any, rows: int) -> pa.Array:
        """Return the column with this many rows; pyarrow.ArrowInvalid if a string is not UTF-8."""
        valid = self._valid if place.nulls else None
        build = self._build_nested if self._parts else self._build_flat
        column = build(kind, valid, place, rows)
        return column if self.field.default is None else column.fill_null(self.field.default)

    def _build_nested(
        self, kind: pa.DataType, valid: pa.Buffer | None, place: Any, rows: int
    ) -> pa.Array:
        is_list = self.field.kind == lib.AC_FIELD_LIST
        parts = [
            part.column(column, self._places[number], self._places[0].items if is_list else rows)
            for number, part in enumerate(self._parts)
            if (column := part.field.column) is not None
        ]
        buffers = [valid, self._offsets] if is_list else [valid]
        return pa.Array.from_buffers(kind, rows, buffers, place.nulls, children=parts)

    def _build_flat(
        self, kind: pa.DataType, valid: pa.Buffer | None, place: Any, rows: int
    ) -> pa.Array:
        if self._offsets is None:
            if rows < self._rows_max and isinstance(self._values, pa.ResizableBuffer):
                self._values.resize(8 * rows, shrink_to_fit=True)
            return pa.Array.from_buffers(kind, rows, [valid, self._values], place.nulls)
        used = int(np.frombuffer(memoryview(self._offsets), np.int32)[rows])
        assert isinstance(self._values, pa.ResizableBuffer)
        self._values.resize(used, shrink_to_fit=True)
        buffers = [valid, self._offsets, self._values]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, place.nulls).cast(kind)


def _zeroed_bits(count: int) -> pa.Buffer:
    return pa.py_buffer(bytearray((count + 7) // 8))
