"""Describes the encoding of types, as data.

``describe`` turns a msgspec.Struct type into a Record. ``build`` turns a Record into a type, so that payloads
can be decoded without the class. ``differences`` lists why one type cannot replace another.

A Record describes the bytes, not the Python classes: a set, a frozenset and ``tuple[X, ...]`` are lists, an
Enum is one of its values. Limits set with msgspec.Meta are not part of it.
"""

import keyword
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias, Union

import msgspec
from msgspec import inspect as types

from aiochronicle.codec import Codec, Format, Width
from aiochronicle.errors import InvalidArgument

__all__ = ["Field", "Record", "Type", "build", "describe", "differences"]


class _Description(
    msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True
):
    pass


class List(_Description, frozen=True, tag="list"):
    """Any number of items of one type."""

    of: "Type"

    def __str__(self) -> str:
        return f"list[{self.of}]"


class Tuple(_Description, frozen=True, tag="tuple"):
    """Items of these types."""

    of: "tuple[Type, ...]"

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.of))}]"


class Map(_Description, frozen=True, tag="dict"):
    """Keys and values."""

    key: "Type"
    value: "Type"

    def __str__(self) -> str:
        return f"dict[{self.key}, {self.value}]"


class OneOf(_Description, frozen=True, tag="one of"):
    """One of these values: a Literal or an Enum."""

    values: tuple[str | int | None, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"


class Alternatives(_Description, frozen=True, tag="union"):
    """One of these types."""

    of: "tuple[Type, ...]"

    def __str__(self) -> str:
        return " | ".join(map(str, self.of))


class Record(_Description, frozen=True, tag="struct"):
    """A msgspec.Struct."""

    name: str
    fields: "tuple[Field, ...]"
    array_like: bool = False
    tag_field: str | None = None
    tag: str | int | None = None

    def __str__(self) -> str:
        return self.name


Scalar: TypeAlias = Literal[
    "any",
    "null",
    "bool",
    "int",
    "float",
    "str",
    "bytes",
    "datetime",
    "date",
    "time",
    "timedelta",
    "uuid",
    "decimal",
]
Type: TypeAlias = "Scalar | List | Tuple | Map | OneOf | Alternatives | Record"


class Field(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One field of a Record.

    ``width`` is its typestr in the "struct" format. A field that is not required has a ``default``, unless
    only its class can create the default.
    """

    name: str
    type: Type
    encoded_name: str | None = None
    width: str | None = None
    required: bool = True
    default: Any = msgspec.UNSET


_SCALARS: dict[type[types.Type], Scalar] = {
    types.AnyType: "any",
    types.NoneType: "null",
    types.BoolType: "bool",
    types.IntType: "int",
    types.FloatType: "float",
    types.StrType: "str",
    types.BytesType: "bytes",
    types.ByteArrayType: "bytes",
    types.MemoryViewType: "bytes",
    types.DateTimeType: "datetime",
    types.DateType: "date",
    types.TimeType: "time",
    types.TimeDeltaType: "timedelta",
    types.UUIDType: "uuid",
    types.DecimalType: "decimal",
}


def describe(codec: Codec[Any]) -> Record:
    """Describe the type of a codec; InvalidArgument if a part of it cannot be described."""
    info = types.type_info(codec.type)
    assert isinstance(info, types.StructType)
    widths = {}
    if codec.format == "struct":
        widths = {field.name: field.typestr for field in codec.layout}
    record = _describe_struct(info, widths, ())
    return msgspec.structs.replace(record, name=codec.name)


def _describe_struct(
    info: types.StructType, widths: dict[str, str], outer: tuple[type, ...]
) -> Record:
    if info.cls in outer:
        raise InvalidArgument(f"{info.cls.__name__} contains itself, which no schema can describe")
    outer = (*outer, info.cls)
    fields = tuple(
        Field(
            name=field.name,
            type=_describe(field.type, f"{info.cls.__name__}.{field.name}", outer),
            encoded_name=field.encode_name if field.encode_name != field.name else None,
            width=widths.get(field.name),
            required=field.required,
            default=_default(field),
        )
        for field in info.fields
    )
    return Record(
        name=info.cls.__name__,
        fields=fields,
        array_like=info.array_like,
        tag_field=info.tag_field,
        tag=info.tag,
    )


def _describe(info: types.Type, where: str, outer: tuple[type, ...]) -> Type:
    def inner(part: types.Type) -> Type:
        return _describe(part, where, outer)

    def each(parts: Iterable[types.Type]) -> tuple[Type, ...]:
        return tuple(inner(part) for part in parts)

    match info:
        case types.Metadata():
            return inner(info.type)
        case types.StructType():
            return _describe_struct(info, {}, outer)
        case types.CollectionType():
            return List(of=inner(info.item_type))
        case types.TupleType():
            return Tuple(of=each(info.item_types))
        case types.DictType():
            return Map(key=inner(info.key_type), value=inner(info.value_type))
        case types.UnionType():
            return Alternatives(of=tuple(sorted(each(info.types), key=_union_order)))
        case types.LiteralType():
            return OneOf(values=_in_order(info.values))
        case types.EnumType():
            return OneOf(values=_in_order(member.value for member in info.cls))
        case _ if type(info) in _SCALARS:
            return _SCALARS[type(info)]
        case _:
            kind = type(info).__name__.removesuffix("Type")
            raise InvalidArgument(f"{where} has a type that no schema can describe: {kind}")


def _union_order(part: Type) -> tuple[bool, bytes]:
    return part == "null", msgspec.json.encode(part)


def _in_order(values: Any) -> tuple[str | int | None, ...]:
    return tuple(sorted(values, key=lambda value: (type(value).__name__, value)))


def _default(field: types.Field) -> Any:
    if field.default is not msgspec.NODEFAULT:
        # Sorted, because the order of a set differs from process to process.
        return _plain(msgspec.to_builtins(field.default, str_keys=True, order="deterministic"))
    if field.default_factory in (list, tuple, set, frozenset):
        return []
    if field.default_factory is dict:
        return {}
    return msgspec.UNSET


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it: infinities and NaN become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    match value:
        case [*items]:
            return [_plain(item) for item in items]
        case {**entries}:
            return {key: _plain(item) for key, item in entries.items()}
        case _:
            return value


def build(record: Record, form: Format) -> Codec[Any]:
    """Build a codec from a description; ValueError or TypeError if no type can match it.

    A default that only the original class can create becomes None.
    """
    return Codec(_build_struct(record), form, name=record.name)


def _build_struct(record: Record) -> type[msgspec.Struct]:
    for name in (record.name, *(field.name for field in record.fields)):
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
            raise ValueError(f"{name!r} cannot be the name of a type or field")
    rename = {f.name: f.encoded_name for f in record.fields if f.encoded_name is not None}
    return msgspec.defstruct(
        record.name,
        [_build_field(field) for field in record.fields],
        kw_only=True,
        rename=rename or None,
        array_like=record.array_like,
        tag_field=record.tag_field,
        tag=record.tag,
        module=__name__,
    )


def _build_field(field: Field) -> Any:
    python: Any = _build(field.type)
    if field.width is not None:
        python = Annotated[python, Width(field.width)] if field.type != "bool" else python
    if field.required or (field.width and field.default is msgspec.UNSET):
        return field.name, python  # a fixed layout has no room for None
    if field.default is msgspec.UNSET:
        return field.name, python | None, None
    default = _convert(field.default, python)
    if isinstance(default, bool | int | float | str | bytes | None):
        return field.name, python, default
    return (
        field.name,
        python,
        msgspec.field(default_factory=lambda: _convert(field.default, python)),
    )


def _convert(plain: Any, python: Any) -> Any:
    try:
        return msgspec.convert(plain, python, str_keys=True)
    except msgspec.ValidationError:  # perhaps an infinity or NaN
        return msgspec.convert(plain, python, str_keys=True, strict=False)


def _build(described: Type) -> Any:
    match described:
        case Record():
            return _build_struct(described)
        case List(of):
            return list[_build(of)]  # type: ignore[misc]
        case Tuple(of):
            return tuple[tuple(map(_build, of))]  # type: ignore[misc]
        case Map(key, value):
            return dict[_build(key), _build(value)]  # type: ignore[misc]
        case OneOf(values):
            return Literal[values]
        case Alternatives(of):
            return Union[tuple(map(_build, of))]  # noqa: UP007
        case str():
            return _python_types()[described]


def _python_types() -> dict[Scalar, Any]:
    import datetime
    import decimal
    import uuid

    return {
        "any": Any,
        "null": None,
        "bool": bool,
        "int": int,
        "float": float,
        "str": str,
        "bytes": bytes,
        "datetime": datetime.datetime,
        "date": datetime.date,
        "time": datetime.time,
        "timedelta": datetime.timedelta,
        "uuid": uuid.UUID,
        "decimal": decimal.Decimal,
    }


def differences(old: Record, new: Record, *, ordered: bool) -> list[str]:
    """Return why ``new`` cannot read what was written as ``old``; an empty list if it can.

    ``ordered`` means that fields are identified by their places, not by their names.
    """
    return list(_record_differences("", old, new, ordered))


def _record_differences(prefix: str, old: Record, new: Record, ordered: bool) -> Iterator[str]:
    for option in ("array_like", "tag_field", "tag"):
        before, now = getattr(old, option), getattr(new, option)
        if before != now:
            yield f"{prefix}{option}: was {before!r}, is {now!r}"
    before = {field.name: (place, field) for place, field in enumerate(old.fields)}
    after = {field.name: (place, field) for place, field in enumerate(new.fields)}
    ordered = ordered or old.array_like
    for name, (place, field) in before.items():
        if name not in after:
            yield f"{prefix}{name}: was {_show(field)}, is gone"
            continue
        now_place, now_field = after[name]
        yield from _field_differences(prefix + name, field, now_field, ordered)
        if ordered and place != now_place:
            yield f"{prefix}{name}: was field {place + 1}, is field {now_place + 1}"
    for name, (_, field) in after.items():
        if name not in before and field.required:
            yield f"{prefix}{name}: is new, {_show(field)} without a default"


def _field_differences(where: str, old: Field, new: Field, ordered: bool) -> Iterator[str]:
    changes = list(_type_differences(where, old.type, new.type, ordered))
    yield from changes
    rest_old = (old.width, old.encoded_name, old.required, old.default)
    rest_new = (new.width, new.encoded_name, new.required, new.default)
    if not changes and rest_old != rest_new:
        yield f"{where}: was {_show(old)}, is {_show(new)}"


def _type_differences(where: str, old: Type, new: Type, ordered: bool) -> Iterator[str]:
    match old, new:
        case Record(), Record():
            yield from _record_differences(f"{where}.", old, new, ordered)
        case List(), List():
            yield from _type_differences(f"{where}[]", old.of, new.of, ordered)
        case (Tuple(before), Tuple(now)) | (Alternatives(before), Alternatives(now)) if len(
            before
        ) == len(now):
            for old_part, new_part in zip(before, now, strict=True):
                yield from _type_differences(where, old_part, new_part, ordered)
        case Map(), Map():
            yield from _type_differences(f"{where}{{key}}", old.key, new.key, ordered)
            yield from _type_differences(f"{where}{{}}", old.value, new.value, ordered)
        case _ if old != new:
            yield f"{where}: was {old}, is {new}"
        case _:
            pass


def _show(field: Field) -> str:
    text = str(field.type)
    if field.width is not None:
        text += f" as {field.width}"
    if field.encoded_name is not None:
        text += f" encoded as {field.encoded_name!r}"
    if field.default is not msgspec.UNSET:
        text += f" = {field.default!r}"
    elif not field.required:
        text += " = ..."
    return text
