"""Converts decoded objects to the types of a program, with msgspec."""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from aiochronicle.errors import DecodeError

from . import _codes as code
from ._decoding import MAX_VALUES, Decoder, decode_any
from ._values import Fields, Typed, is_dict, is_list

T = TypeVar("T")

_SEQUENCES = (
    inspect.ListType,
    inspect.VarTupleType,
    inspect.TupleType,
    inspect.SetType,
    inspect.FrozenSetType,
)
_MAPPINGS = (inspect.DictType, inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


def decode_as(
    payload: bytes | bytearray | memoryview,
    type: type[T],  # noqa: A002
    *,
    max_values: int = MAX_VALUES,
) -> T:
    """Decode a document to a msgspec.Struct with the field names of the Java object, or a value to any type.

    Fields that the type does not have are ignored. Fields that the document does not have must have defaults.

    >>> import msgspec
    >>> class Quote(msgspec.Struct):
    ...     symbol: str
    ...     price: float
    >>> decode_as(encode_fields(Quote("EURUSD", 1.25)), Quote)
    Quote(symbol='EURUSD', price=1.25)
    """
    decoder = Decoder(payload, max_values, whole_floats=True)
    first = decoder.peek(decoder.size)
    wants_fields = isinstance(type_info(type), _MAPPINGS)
    is_document = first < 0 or first not in _BLOCKS
    value = decoder.fields(decoder.size, 0) if wants_fields and is_document else decode_any(decoder)
    converted: T = convert(value, type, decoder.has_empty_blocks)
    return converted


_BLOCKS = (code.LENGTH_8, code.LENGTH_16, code.LENGTH_32, code.TYPE_PREFIX)


def type_info(wanted: Any) -> inspect.Type:
    """Return msgspec's description of a type, from a cache."""
    return _type_info(wanted)


@lru_cache(maxsize=1024)
def _type_info(wanted: Any) -> inspect.Type:
    return inspect.type_info(wanted)


_OWN = (Fields, Typed)


def convert(value: Any, wanted: Any, has_empty_blocks: bool) -> Any:
    """Convert a decoded value to the wanted type; DecodeError if it does not match."""
    if wanted in _OWN and isinstance(value, wanted):
        return value
    if has_empty_blocks:
        value = _with_empty_maps(value, type_info(wanted))
    try:
        return msgspec.convert(_untype(value), wanted)
    except msgspec.ValidationError as error:
        raise DecodeError(f"the payload does not match {_name(wanted)}: {error}") from None


def _name(wanted: Any) -> str:
    return wanted.__qualname__ if isinstance(wanted, type) else str(wanted)


def _untype(value: Any) -> Any:
    """Remove the Java types, because the wanted type replaces them."""
    if isinstance(value, Typed):
        return _untype(value.value)
    if is_list(value):
        return [_untype(element) for element in value]
    if is_dict(value):
        return {key: _untype(element) for key, element in value.items()}
    return value


def _with_empty_maps(value: Any, info: inspect.Type) -> Any:
    """Replace empty lists by empty maps where the wanted type is a map and not a list."""
    if isinstance(info, inspect.Metadata):
        info = info.type
    choices = info.types if isinstance(info, inspect.UnionType) else (info,)
    kinds = _SEQUENCES if is_list(value) else _MAPPINGS
    chosen = next((choice for choice in choices if isinstance(choice, kinds)), None)
    if value == [] and chosen is None and any(isinstance(each, _MAPPINGS) for each in choices):
        return {}
    if is_list(value):
        return [_with_empty_maps(element, _element(chosen, at)) for at, element in enumerate(value)]
    if is_dict(value):
        changed = {key: _with_empty_maps(each, _member(chosen, key)) for key, each in value.items()}
        return Fields(changed, type=value.type) if isinstance(value, Fields) else changed
    return value


def _element(info: inspect.Type | None, at: int) -> inspect.Type:
    if isinstance(info, inspect.TupleType):
        return info.item_types[at] if at < len(info.item_types) else inspect.AnyType()
    found = getattr(info, "item_type", None)
    return found if isinstance(found, inspect.Type) else inspect.AnyType()


def _member(info: inspect.Type | None, key: Any) -> inspect.Type:
    if isinstance(info, inspect.DictType):
        return info.value_type
    for field in getattr(info, "fields", ()):
        if field.encode_name == key:
            found = field.type
            return found if isinstance(found, inspect.Type) else inspect.AnyType()
    return inspect.AnyType()
