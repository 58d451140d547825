"""MessagePack payloads as Arrow columns, by one walk through their bytes (csrc/msgpack.c).

That is for types whose fields are all plain: numbers, texts and bytes without limits of their own, or
None. The walk takes what msgspec would read as the same values and nothing else, so where it gives up,
msgspec has the word.

This module needs pyarrow: it is imported when it is used.
"""

from collections.abc import Iterator
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow
from msgspec import inspect as types

from aiochronicle._binding import ffi, lib

__all__ = ["PlainMessages"]

pa: Any = pyarrow  # without types, of which its stubs have too few to help

# Fields without limits, what they are to the engine, and their columns.
_PLAIN: list[tuple[types.Type, int, Any]] = [
    (types.BoolType(), lib.AC_FIELD_BOOL, pa.bool_()),
    (types.IntType(), lib.AC_FIELD_INT, pa.int64()),
    (types.FloatType(), lib.AC_FIELD_FLOAT, pa.float64()),
    (types.StrType(), lib.AC_FIELD_TEXT, pa.utf8()),
    (types.BytesType(), lib.AC_FIELD_BYTES, pa.binary()),
]


class _Plain(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    encoded_name: bytes
    kind: int
    column: Any
    may_be_nil: bool
    may_be_missing: bool
    default: Any = None  # the scalar that takes the place of what is missing


class PlainMessages:
    """Takes payloads of one type apart."""

    def __init__(self, fields: list[_Plain]) -> None:
        self._fields = fields

    @classmethod
    def of(cls, struct: type[Any]) -> Self | None:
        """Return it for a msgspec.Struct type; None if messages of the type are not that plain."""
        info = types.type_info(struct)
        assert isinstance(info, types.StructType)
        is_plain = not (info.array_like or info.forbid_unknown_fields or info.tag is not None)
        if not is_plain or hasattr(struct, "__post_init__"):
            return None
        fields = [plain for field in info.fields for plain in _plain(field)]
        if len(fields) < len(info.fields) or len(fields) > lib.AC_FIELDS_MAX:
            return None
        return cls(fields)

    def columns(self, payloads: Any) -> dict[str, Any] | None:
        """Return the columns by the names of the fields; None if msgspec has to look at each payload."""
        rows = len(payloads)
        _, offsets_buffer, data = payloads.buffers()
        if rows == 0 or data is None:
            return None
        offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset :][: rows + 1]
        size = int(offsets[-1] - offsets[0])
        rooms = [_Room(field, rows, size) for field in self._fields]
        given = ffi.new("ac_field_t[]", len(rooms))
        for place, room in zip(given, rooms, strict=True):
            room.offer(place)
        taken = lib.ac_msgpack_columns(
            ffi.cast("uint8_t *", data.address),
            ffi.cast("int32_t *", offsets_buffer.address) + payloads.offset,
            rows,
            given,
            len(rooms),
        )
        if taken < rows:
            return None
        try:
            return {
                room.field.name: room.column(place.nulls)
                for place, room in zip(given, rooms, strict=True)
            }
        except pa.ArrowInvalid:  # text that is not UTF-8
            return None


def _plain(field: types.Field) -> Iterator[_Plain]:
    """Yield the field if it is plain."""
    kind, may_be_nil = _unwrapped(field.type), False
    if isinstance(kind, types.UnionType):
        others = [_unwrapped(part) for part in kind.types if not isinstance(part, types.NoneType)]
        may_be_nil = len(others) < len(kind.types)
        kind = others[0] if len(others) == 1 else kind
    found = next(((number, column) for plain, number, column in _PLAIN if kind == plain), None)
    has_default = field.default is not msgspec.NODEFAULT  # or is made by a function, or UNSET
    if found is None or has_default is field.required:
        return
    number, column = found
    default = field.default if has_default else None
    # The walk leaves null for what is missing, which could be mistaken for a nil that was sent.
    is_ambiguous = may_be_nil and default is not None
    try:
        scalar = None if default is None or is_ambiguous else pa.scalar(default, column)
    except (pa.ArrowException, OverflowError, TypeError):
        return
    yield _Plain(
        name=field.name,
        encoded_name=field.encode_name.encode(),
        kind=number,
        column=column,
        may_be_nil=may_be_nil,
        may_be_missing=not field.required and not is_ambiguous,
        default=scalar,
    )


def _unwrapped(info: types.Type) -> types.Type:
    return _unwrapped(info.type) if isinstance(info, types.Metadata) else info


class _Room:
    """The buffers of one column, while it is being filled."""

    def __init__(self, field: _Plain, rows: int, payload_bytes: int) -> None:
        self.field = field
        self._rows = rows
        self._valid = _zeroed_bits(rows)
        self._name = ffi.new("char[]", field.encoded_name)
        self._offsets: Any = None
        if pa.types.is_boolean(field.column):
            self._values = _zeroed_bits(rows)
        elif pa.types.is_primitive(field.column):
            self._values = pa.allocate_buffer(8 * rows)
        else:
            self._offsets = pa.allocate_buffer(4 * (rows + 1))
            self._values = pa.allocate_buffer(payload_bytes, resizable=True)

    def offer(self, place: Any) -> None:
        """Tell the engine about it."""
        place.name = self._name
        place.name_length = len(self.field.encoded_name)
        place.kind = self.field.kind
        place.may_be_nil = self.field.may_be_nil
        place.may_be_missing = self.field.may_be_missing
        place.valid = ffi.cast("uint8_t *", self._valid.address)
        place.values = ffi.cast("void *", self._values.address)
        if self._offsets is not None:
            place.offsets = ffi.cast("int32_t *", self._offsets.address)

    def column(self, nulls: int) -> Any:
        """Return the column; pyarrow.ArrowInvalid if it should be text and is not."""
        valid = self._valid if nulls else None
        if self._offsets is None:
            buffers = [valid, self._values]
            made = pa.Array.from_buffers(self.field.column, self._rows, buffers, nulls)
        else:
            used = int(np.frombuffer(self._offsets, np.int32)[self._rows])
            self._values.resize(used, shrink_to_fit=True)
            buffers = [valid, self._offsets, self._values]
            made = pa.Array.from_buffers(pa.binary(), self._rows, buffers, nulls)
            made = made.cast(self.field.column)
        return made if self.field.default is None else made.fill_null(self.field.default)


def _zeroed_bits(count: int) -> Any:
    return pa.py_buffer(bytearray((count + 7) // 8))
