"""Decodes the bytes of a payload to Python objects.

Payloads are untrusted: every length is checked against its block, blocks nest at most MAX_DEPTH deep, and the
caller limits the number of values. An invalid payload raises DecodeError and nothing else.
"""

import struct
import uuid
from collections.abc import Callable
from typing import Any

from aiochronicle.errors import DecodeError

from . import _codes as code
from ._text import decode_cesu8
from ._times import parse_date, parse_datetime, parse_time, parse_zoned
from ._values import Call, Fields, History, Typed, is_list

MAX_DEPTH = 64
MAX_VALUES = 1 << 20
_LONGEST_STOP_BIT = 10
_I64_MAX = (1 << 63) - 1


def decode(payload: bytes | bytearray | memoryview, *, max_values: int = MAX_VALUES) -> Any:
    """Decode a message of a Java program: a value, the fields of a document, or calls of a method writer.

    A document becomes `Fields`, a method call a `Call`, and several calls in one message (a chain) a list
    of calls. Several values without names become a list, an empty message ``Fields()``. Raw bytes may look
    like any of these, so do not decode messages that were written with writeBytes.

    >>> decode(bytes.fromhex("e3 6f 6e 65"))
    'one'
    >>> decode(bytes.fromhex("c2 70 78 92 96 01"))
    Fields({'px': 1.5})
    >>> decode(bytes.fromhex("b9 04 6e 6f 74 65 e2 68 69"))
    Call(name='note', value='hi')
    """
    return decode_any(Decoder(payload, max_values))


def decode_any(decoder: "Decoder") -> Any:
    """Do the same as `decode`."""
    first = decoder.peek(decoder.size)
    start, left = decoder.at, decoder.left
    if first in (code.EVENT_NAME, code.FIELD_NUMBER):
        calls = decoder.calls()
        if first == code.FIELD_NUMBER and decoder.has_field_names:
            decoder.at, decoder.left = start, left
            return decoder.fields(decoder.size, 0)
        if not calls:
            return decoder.found_history
        return calls[0] if len(calls) == 1 else calls
    if first == code.EVENT_OBJECT:
        return decoder.mapping(decoder.size, 0)
    if first < 0 or code.is_name(first):
        return decoder.fields(decoder.size, 0)
    values = decoder.sequence(decoder.size, 0)
    return values[0] if len(values) == 1 else values


def decode_calls(
    payload: bytes | bytearray | memoryview, *, max_values: int = MAX_VALUES
) -> list[Call]:
    """Return the calls of one message; there are several if they were chained.

    If the message has a MessageHistory, it is the ``history`` of each call.

    >>> [call.name for call in decode_calls(bytes.fromhex("b902746fe36f6e65 b903736179e26869"))]
    ['to', 'say']
    """
    return Decoder(payload, max_values).calls()


def decode_fields(
    payload: bytes | bytearray | memoryview, *, max_values: int = MAX_VALUES
) -> Fields:
    """Return the fields of a document, even if its first name is a number.

    >>> decode_fields(bytes.fromhex("ba 07 a1 01"))
    Fields({'7': 1})
    """
    decoder = Decoder(payload, max_values)
    return decoder.fields(decoder.size, 0)


class Decoder:
    """A position in the payload. Every method takes the end of the current block, which it must not pass.

    With ``whole_floats``, whole numbers become int in any encoding, as a field of type int requires.
    ``has_empty_blocks`` means that an empty list may have been an empty map: they have the same bytes.
    """

    def __init__(
        self,
        payload: bytes | bytearray | memoryview,
        max_values: int = MAX_VALUES,
        *,
        whole_floats: bool = False,
    ) -> None:
        self.data = bytes(payload)
        self.size = len(self.data)
        self.at = 0
        self.left = max_values
        self.whole_floats = whole_floats
        self.has_empty_blocks = False
        self.has_field_names = False
        self.found_history: History | None = None

    def error(self, what: str, at: int | None = None) -> DecodeError:
        where = self.at if at is None else at
        return DecodeError(f"{what} at byte {where} of the payload", offset=where)

    def peek(self, end: int) -> int:
        """Return the next code after padding and comments; -1 at the end."""
        while self.at < end:
            found = self.data[self.at]
            if found == code.PADDING:
                self.at += 1
            elif found == code.PADDING_32:
                start = self.at
                self.at += 1
                self.skip(self.unsigned(4, end), end, start)
            elif found == code.COMMENT:
                self.at += 1
                self.text(end)
            else:
                return found
        return -1

    def skip(self, count: int, end: int, start: int) -> None:
        if count > end - self.at:
            raise self.error(f"{count} bytes should follow, but {end - self.at} are left", start)
        self.at += count

    def take(self, count: int, end: int) -> bytes:
        start = self.at
        self.skip(count, end, start)
        return self.data[start : self.at]

    def unsigned(self, width: int, end: int) -> int:
        return int.from_bytes(self.take(width, end), "little")

    def signed(self, width: int, end: int) -> int:
        return int.from_bytes(self.take(width, end), "little", signed=True)

    def stop_bit(self, end: int) -> int:
        start = self.at
        number = 0
        for position in range(_LONGEST_STOP_BIT):
            byte = self.take(1, end)[0]
            number |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                negative = byte == 0 and position > 0
                if number > _I64_MAX:
                    break
                return ~number if negative else number
        raise self.error("a stop-bit number is too long", start)

    def length(self, end: int) -> int | None:
        """Return a length; None if Java reads it as null."""
        start = self.at
        number = self.stop_bit(end)
        if number < -1:
            raise self.error(f"the length {number} is negative", start)
        return None if number == -1 else number

    def text(self, end: int) -> str | None:
        length = self.length(end)
        return None if length is None else self.text_of(length, end)

    def text_of(self, length: int, end: int) -> str:
        start = self.at
        encoded = self.take(length, end)
        try:
            return decode_cesu8(encoded)
        except UnicodeDecodeError as error:
            raise self.error("a text is neither CESU-8 nor UTF-8", start + error.start) from None

    def name(self, found: int, end: int) -> str | int:
        """Return a name, or the number of a field or method that has a number instead."""
        start = self.at
        self.at += 1
        if found == code.FIELD_NUMBER:
            return self.stop_bit(end)
        if found in (code.FIELD_NAME, code.EVENT_NAME):
            length = self.length(end)
            if length is None:
                raise self.error("a name is null", start)
        elif code.FIELD_NAME_0 <= found < code.TEXT_0:
            length = found - code.FIELD_NAME_0
        else:
            raise self.error(f"code {found:02x} instead of a name", start)
        return self.take(length, end).decode("latin-1")

    def calls(self) -> list[Call]:
        """Decode the rest as names and values."""
        found: list[Call] = []
        while (first := self.peek(self.size)) >= 0:
            name = self.name(first, self.size)
            self.has_field_names |= first == code.FIELD_NAME or first >= code.FIELD_NAME_0
            value = self.value(self.size, 1)
            if name in ("history", code.HISTORY_ID) and (read := _history(value)) is not None:
                self.found_history = read
            else:
                found.append(Call(name, value))
        if self.found_history is None:
            return found
        return [Call(call.name, call.value, self.found_history) for call in found]

    def fields(self, end: int, depth: int) -> Fields:
        fields = Fields()
        while (found := self.peek(end)) >= 0:
            name = self.name(found, end)
            fields[str(name)] = self.value(end, depth + 1)
        return fields

    def mapping(self, end: int, depth: int) -> dict[Any, Any]:
        """Decode a Java Map, whose keys are event names or objects."""
        mapping: dict[Any, Any] = {}
        while (found := self.peek(end)) >= 0:
            start = self.at
            if found == code.EVENT_OBJECT:
                self.at += 1
                key = self.value(end, depth + 1)
            else:
                key = str(self.name(found, end))
            value = self.value(end, depth + 1)
            try:
                mapping[key] = value
            except TypeError:
                raise self.error("a list or map is the key of a map", start) from None
        return mapping

    def sequence(self, end: int, depth: int) -> list[Any]:
        values: list[Any] = []
        while self.peek(end) >= 0:
            values.append(self.value(end, depth + 1))
        return values

    def value(self, end: int, depth: int) -> Any:
        found = self.peek(end)
        if found < 0:
            raise self.error("a value is missing")
        if depth > MAX_DEPTH:
            raise self.error(f"blocks are nested more than {MAX_DEPTH} deep")
        self.left -= 1
        if self.left < 0:
            raise self.error("there are more values than max_values allows")
        if found >= code.TEXT_0:
            self.at += 1
            return self.text_of(found - code.TEXT_0, end)
        if found < code.LENGTH_8:
            self.at += 1
            return found
        if found <= code.LENGTH_32:
            return self.block(end, depth)
        if found == code.TYPE_PREFIX:
            return self.typed(end, depth)
        read = _SCALARS.get(found)
        if read is None:
            raise self.error(f"code {found:02x} instead of a value")
        self.at += 1
        return read(self, end)

    def block(self, end: int, depth: int) -> Any:
        start = self.at
        width = 1 << self.data[start] - code.LENGTH_8
        self.at += 1
        length = self.unsigned(width, end)
        begin = self.at
        self.skip(length, end, start)
        self.at, end = begin, begin + length
        found = self.peek(end)
        if found < 0:
            self.has_empty_blocks = True
            return []
        if found == code.U8_ARRAY:
            self.at += 1
            return self.take(end - self.at, end)
        if found == code.HISTORY:
            self.at += 1
            history = self.history(end)
            self.at = end  # Java 5.26 wrote more than it used
            return history
        if found in (code.EVENT_NAME, code.EVENT_OBJECT):
            return self.mapping(end, depth)
        return self.fields(end, depth) if code.is_name(found) else self.sequence(end, depth)

    def typed(self, end: int, depth: int) -> Any:
        self.at += 1
        name = self.text(end)
        value = self.value(end, depth + 1)
        if name is None or (name == "byte[]" and isinstance(value, bytes)):
            return value
        if isinstance(value, Fields) and value.type is None:
            value.type = name
            return value
        return Typed(name, value)

    def history(self, end: int) -> History:
        count = self.unsigned(1, end)
        ids = [self.signed(4, end) for _ in range(count)]
        indexes = [self.signed(8, end) for _ in range(count)]
        timings = tuple(self.signed(8, end) for _ in range(self.unsigned(1, end)))
        return History(tuple(zip(ids, indexes, strict=True)), timings)

    def float_32(self, end: int) -> float | int:
        """Decode a float. Java writes a long this way if that is exact, and also the largest long."""
        number: float = struct.unpack("<f", self.take(4, end))[0]
        return _whole(number)

    def float_64(self, end: int) -> float | int:
        number: float = struct.unpack("<d", self.take(8, end))[0]
        return _whole(number) if self.whole_floats else number

    def uuid(self, end: int) -> uuid.UUID:
        high, low = self.unsigned(8, end), self.unsigned(8, end)
        return uuid.UUID(int=high << 64 | low)

    def i64_array(self, end: int) -> list[int]:
        start = self.at
        capacity, used = self.unsigned(8, end), self.unsigned(8, end)
        if used > capacity:
            raise self.error(f"{used} of {capacity} elements are used", start)
        if used > self.left:
            raise self.error("there are more values than max_values allows", start)
        self.left -= used
        begin = self.at
        self.skip(8 * capacity, end, start)
        return list(struct.unpack_from(f"<{used}q", self.data, begin))

    def moment(self, end: int, name: str, parse: Callable[[str], Any]) -> Any:
        text = self.text(end)
        if text is None:
            return None
        parsed = parse(text)
        return Typed(name, text) if parsed is None else parsed

    def type_literal(self, end: int) -> Typed | None:
        name = self.text(end)
        return None if name is None else Typed("type", name)


def _whole(number: float) -> float | int:
    if abs(number) <= 1 << 63 and number.is_integer():
        return min(int(number), _I64_MAX)
    return number


def _history(value: Any) -> History | None:
    """Return a MessageHistory in either of its forms, or None if the value is something else."""
    if isinstance(value, History):
        return value
    if not isinstance(value, Fields) or set(value) != {"sources", "timings"}:
        return None
    sources, timings = value["sources"], value["timings"]
    if not is_list(sources) or not is_list(timings) or len(sources) % 2:
        return None
    if not all(isinstance(number, int) for number in (*sources, *timings)):
        return None
    return History(tuple(zip(sources[::2], sources[1::2], strict=True)), tuple(timings))


_SCALARS: dict[int, Callable[[Decoder, int], Any]] = {
    code.I64_ARRAY: Decoder.i64_array,
    code.FLOAT_32: Decoder.float_32,
    code.FLOAT_64: Decoder.float_64,
    code.FLOAT_STOP_2: lambda at, end: at.stop_bit(end) / 1e2,
    code.FLOAT_STOP_4: lambda at, end: at.stop_bit(end) / 1e4,
    code.FLOAT_STOP_6: lambda at, end: at.stop_bit(end) / 1e6,
    code.UUID: Decoder.uuid,
    code.UINT_8: lambda at, end: at.unsigned(1, end),
    code.UINT_16: lambda at, end: at.unsigned(2, end),
    code.UINT_32: lambda at, end: at.unsigned(4, end),
    code.INT_8: lambda at, end: at.signed(1, end),
    code.INT_16: lambda at, end: at.signed(2, end),
    code.INT_32: lambda at, end: at.signed(4, end),
    code.INT_64: lambda at, end: at.signed(8, end),
    code.SET_LOW_INT_8: lambda at, end: at.unsigned(1, end),
    code.SET_LOW_INT_16: lambda at, end: at.unsigned(2, end),
    code.INT_64_HEX: lambda at, end: at.signed(8, end),
    code.FALSE: lambda at, end: False,
    code.TRUE: lambda at, end: True,
    code.NULL: lambda at, end: None,
    code.TIME: lambda at, end: at.moment(end, "LocalTime", parse_time),
    code.DATE: lambda at, end: at.moment(end, "LocalDate", parse_date),
    code.DATE_TIME: lambda at, end: at.moment(end, "LocalDateTime", parse_datetime),
    code.ZONED_DATE_TIME: lambda at, end: at.moment(end, "ZonedDateTime", parse_zoned),
    code.TEXT: Decoder.text,
    code.TYPE_LITERAL: Decoder.type_literal,
}
