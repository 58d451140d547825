"""Encodes Python objects to the bytes that Java's BINARY_LIGHT wire writes for the same values.

Like Java it writes every number in its smallest form: 1.0 and 1 have the same bytes, 1.5 is 150 hundredths.
Java uses fixed forms in one case only, for numbers whose declared type is Object.
"""

import datetime as dt
import enum
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, get_args

import msgspec

from aiochronicle.errors import EncodeError

from . import _codes as code
from ._numbers import encode_double, encode_integer, encode_single
from ._text import encode_cesu8, encode_stop_bit
from ._times import format_datetime, format_time
from ._values import Call, Fields, Float32, History, JavaFloat, Typed, is_list

MAX_DEPTH = 64
_TEXTS = {
    "type": code.TYPE_LITERAL,
    "LocalTime": code.TIME,
    "LocalDate": code.DATE,
    "LocalDateTime": code.DATE_TIME,
    "ZonedDateTime": code.ZONED_DATE_TIME,
}


def encode(value: Any) -> bytes:
    """Encode one value, as a message or a part of one.

    It accepts None, bool, int, float, `Float32`, str, bytes, date, time, datetime, UUID, the value of an
    Enum, lists and tuples, mappings (a Java Map), `Fields` and msgspec.Struct (a Java object), `Typed` and
    `Call`.

    >>> [encode(value).hex() for value in ("one", 300, 1.5, None, [1, "x"])]
    ['e36f6e65', 'a52c01', '929601', 'bb', '8204000000a101e178']
    """
    out = bytearray()
    _write(out, value, 0)
    return bytes(out)


def encode_message(obj: Any) -> bytes:
    """Return the message that ``Writer.send`` appends to a Java queue; `decode` returns the object again.

    A msgspec.Struct, or `Fields` without a type, becomes a document with these fields, as Java writes an
    object with ``writeDocument``. A list of `Call` becomes a chain of calls. Anything else becomes one
    value: see `encode`.

    >>> [encode_message(obj).hex() for obj in ("one", Fields({"px": 1.5}), Call("note", "hi"))]
    ['e36f6e65', 'c27078929601', 'b9046e6f7465e26869']
    """
    if isinstance(obj, msgspec.Struct) and not isinstance(obj, Call | Typed):
        return encode_fields(obj)
    if isinstance(obj, Fields) and obj.type is None:
        return encode_fields(obj)
    if is_list(obj) and obj and all(isinstance(each, Call) for each in obj):
        return encode_calls(obj)
    return encode(obj)


def encode_text(text: str) -> bytes:
    """Return the message that Java's ``writeText`` appends and ``readText`` reads.

    >>> encode_text("one").hex()
    'e36f6e65'
    """
    return encode(str(text))


def encode_fields(fields: Mapping[str, Any] | msgspec.Struct) -> bytes:
    """Return a document, the message that Java's ``writeDocument`` appends.

    >>> encode_fields({"px": 1.5}).hex()
    'c27078929601'
    """
    out = bytearray()
    _write_fields(out, to_fields(fields) if isinstance(fields, msgspec.Struct) else fields, 0)
    return bytes(out) or bytes([code.PADDING])


def encode_call(name: str | int, *args: Any) -> bytes:
    """Return the message that a MethodWriter appends for this call; a number is a method's id.

    A chain of calls is one message with the calls in order.

    >>> encode_call("note", "hi").hex()
    'b9046e6f7465e26869'
    >>> chain = encode_call("to", "one") + encode_call("say", "hi")
    """
    out = bytearray()
    if isinstance(name, int):
        out.append(code.FIELD_NUMBER)
        out += encode_stop_bit(name)
    else:
        _write_event(out, name)
    _write(out, args[0] if len(args) == 1 else list(args) if args else "", 0)
    return bytes(out)


def encode_calls(calls: Iterable[Call]) -> bytes:
    """Return one message with these calls, with the history of the first; `decode_calls` reverses it.

    >>> encode_calls([Call("to", "one"), Call("say", "hi")]).hex(" ")
    'b9 02 74 6f e3 6f 6e 65 b9 03 73 61 79 e2 68 69'
    """
    given = list(calls)
    out = bytearray()
    if given and given[0].history is not None:
        _write_history(out, given[0].history)
    for call in given:
        out += encode_call(call.name, call.value)
    return bytes(out)


def to_fields(message: msgspec.Struct, *, type: str | None = None) -> Fields:  # noqa: A002
    """Return the fields of a Struct under their encoded names, in order; ``type`` is the Java class.

    Java needs the class if an argument or field is declared as an interface, a base class or Object.

    >>> class Quote(msgspec.Struct):
    ...     symbol: str
    ...     price: float
    >>> to_fields(Quote("EURUSD", 1.25), type="market.Quote")
    Fields({'symbol': 'EURUSD', 'price': 1.25}, type='market.Quote')
    """
    fields = Fields(type=type)
    for name, encoded, is_single in _names(message.__class__):
        value = getattr(message, name)
        fields[encoded] = Float32(value) if is_single and isinstance(value, float) else value
    return fields


@lru_cache(maxsize=1024)
def _names(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.encode_name, _is_single(field.type)) for field in fields)


def _is_single(annotation: Any) -> bool:
    """Return whether an annotation is JavaFloat or an optional JavaFloat."""
    return annotation == JavaFloat or JavaFloat in get_args(annotation)


def _write(out: bytearray, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    write = _WRITERS.get(value.__class__)
    if write is None:
        write = next((write for kind, write in _KINDS if isinstance(value, kind)), None)
    if write is None:
        raise EncodeError(
            f"{type(value).__qualname__} has no encoding in Java's wire format: give a str or Fields"
        )
    write(out, value, depth)


def _write_null(out: bytearray, value: None, depth: int) -> None:
    out.append(code.NULL)


def _write_bool(out: bytearray, value: bool, depth: int) -> None:
    out.append(code.TRUE if value else code.FALSE)


def _write_int(out: bytearray, value: int, depth: int) -> None:
    out += encode_integer(value)


def _write_float(out: bytearray, value: float, depth: int) -> None:
    out += encode_double(value)


def _write_single(out: bytearray, value: Float32, depth: int) -> None:
    out += encode_single(value)


def _write_text(out: bytearray, value: str, depth: int) -> None:
    encoded = encode_cesu8(value)
    if len(encoded) < code.SHORT_LENGTHS:
        out.append(code.TEXT_0 + len(encoded))
        out += encoded
    else:
        _write_long(out, code.TEXT, encoded)


def _write_long(out: bytearray, number: int, encoded: bytes) -> None:
    out.append(number)
    out += encode_stop_bit(len(encoded))
    out += encoded


def _write_bytes(out: bytearray, value: bytes | bytearray | memoryview, depth: int) -> None:
    content = bytes(value)
    length = len(content) + 1
    if length < 1 << 8:
        out += struct.pack("<BB", code.LENGTH_8, length)
    elif length < 1 << 16:
        out += struct.pack("<BH", code.LENGTH_16, length)
    else:
        out += struct.pack("<BI", code.LENGTH_32, length)
    out.append(code.U8_ARRAY)
    out += content


def _write_moment(out: bytearray, value: dt.datetime, depth: int) -> None:
    try:
        text = format_datetime(value)
    except ValueError as error:
        raise EncodeError(f"{value!r}: {error}") from None
    number = code.DATE_TIME if value.utcoffset() is None else code.ZONED_DATE_TIME
    _write_long(out, number, text.encode())


def _write_date(out: bytearray, value: dt.date, depth: int) -> None:
    _write_long(out, code.DATE, value.isoformat().encode())


def _write_time(out: bytearray, value: dt.time, depth: int) -> None:
    if value.tzinfo is not None:
        raise EncodeError(
            f"{value!r} has a time zone, which Java's LocalTime cannot store: remove tzinfo"
        )
    _write_long(out, code.TIME, format_time(value).encode())


def _write_uuid(out: bytearray, value: uuid.UUID, depth: int) -> None:
    out.append(code.UUID)
    out += struct.pack("<QQ", value.int >> 64, value.int & (1 << 64) - 1)


def _write_enum(out: bytearray, value: enum.Enum, depth: int) -> None:
    _write(out, value.value, depth + 1)


def _write_typed(out: bytearray, value: Typed, depth: int) -> None:
    number = _TEXTS.get(value.type)
    if number is not None and isinstance(value.value, str):
        _write_long(out, number, encode_cesu8(value.value))
        return
    _write_long(out, code.TYPE_PREFIX, encode_cesu8(value.type))
    _write(out, value.value, depth + 1)


def _write_call(out: bytearray, value: Call, depth: int) -> None:
    if depth:
        raise EncodeError("a call must be a message, not a value inside one")
    out += encode_calls([value])


def _write_history(out: bytearray, history: History) -> None:
    """Write a history like Java: a numbered event with a block of 16-bit length."""
    out.append(code.FIELD_NUMBER)
    out += encode_stop_bit(code.HISTORY_ID)
    try:
        sources = len(history.sources)
        ids = struct.pack(f"<B{sources}i", sources, *(source for source, _ in history.sources))
        indexes = struct.pack(f"<{sources}q", *(index for _, index in history.sources))
        timings = len(history.timings)
        times = struct.pack(f"<B{timings}q", timings, *history.timings)
    except struct.error as error:
        raise EncodeError(f"the history is too large for Java's format: {error}") from None
    out += struct.pack("<BHB", code.LENGTH_16, 1 + len(ids + indexes + times), code.HISTORY)
    out += ids + indexes + times


def _write_block(out: bytearray, write: Callable[..., None], value: Any, depth: int) -> None:
    out.append(code.LENGTH_32)
    start = len(out)
    out += b"\0\0\0\0"
    write(out, value, depth)
    struct.pack_into("<I", out, start, len(out) - start - 4)


def _write_sequence(out: bytearray, value: Iterable[Any], depth: int) -> None:
    for element in value:
        _write(out, element, depth + 1)


def _write_list(out: bytearray, value: Iterable[Any], depth: int) -> None:
    _write_block(out, _write_sequence, value, depth)


def _write_object(out: bytearray, value: Fields, depth: int) -> None:
    if value.type is not None:
        _write_long(out, code.TYPE_PREFIX, encode_cesu8(value.type))
    _write_block(out, _write_fields, value, depth)


def _write_struct(out: bytearray, value: msgspec.Struct, depth: int) -> None:
    _write_object(out, to_fields(value), depth)


def _write_map(out: bytearray, value: Mapping[Any, Any], depth: int) -> None:
    _write_block(out, _write_pairs, value, depth)


def _write_pairs(out: bytearray, value: Mapping[Any, Any], depth: int) -> None:
    for key, element in value.items():
        if isinstance(key, str):
            _write_event(out, key)
        else:
            out.append(code.EVENT_OBJECT)
            _write(out, key, depth + 1)
        _write(out, element, depth + 1)


def _write_fields(out: bytearray, value: Mapping[str, Any], depth: int) -> None:
    for name, element in value.items():
        _write_name(out, name)
        _write(out, element, depth + 1)


def _write_event(out: bytearray, name: str) -> None:
    _write_long(out, code.EVENT_NAME, _latin1(name))


def _write_name(out: bytearray, name: str) -> None:
    encoded = _latin1(name)
    if len(encoded) >= code.SHORT_LENGTHS:
        _write_long(out, code.FIELD_NAME, encoded)
    elif encoded.isdigit() and int(encoded) < 1 << 31 and (encoded[0] != 0x30 or encoded == b"0"):
        # Java does this for "007" as well, and then reads "7".
        out.append(code.FIELD_NUMBER)
        out += encode_stop_bit(int(encoded))
    else:
        out.append(code.FIELD_NAME_0 + len(encoded))
        out += encoded


def _latin1(name: object) -> bytes:
    if not isinstance(name, str):
        raise EncodeError(f"the name {name!r} must be a str")
    try:
        return name.encode("latin-1")
    except UnicodeEncodeError:
        raise EncodeError(f"the name {name!r} has characters that are not Latin-1") from None


_WRITERS: dict[type, Callable[[bytearray, Any, int], None]] = {
    type(None): _write_null,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_text,
    bytes: _write_bytes,
    list: _write_list,
    dict: _write_map,
    Fields: _write_object,
    Call: _write_call,
    Typed: _write_typed,
    Float32: _write_single,
}

# Also for subclasses. The order matters: an Enum may also be a str or an int, and a datetime is a date.
_KINDS: tuple[tuple[Any, Callable[[bytearray, Any, int], None]], ...] = (
    (enum.Enum, _write_enum),
    (msgspec.Struct, _write_struct),
    (Fields, _write_object),
    (Mapping, _write_map),
    ((list, tuple), _write_list),
    ((bytes, bytearray, memoryview), _write_bytes),
    (str, _write_text),
    (int, _write_int),
    (Float32, _write_single),
    (float, _write_float),
    (dt.datetime, _write_moment),
    (dt.date, _write_date),
    (dt.time, _write_time),
    (uuid.UUID, _write_uuid),
)
