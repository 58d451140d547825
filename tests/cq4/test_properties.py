"""Encoded values decode to themselves, and arbitrary bytes raise at worst DecodeError."""

import contextlib
import datetime as dt
import random
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiochronicle.cq4 import (
    Call,
    Fields,
    MethodReader,
    Typed,
    decode,
    decode_as,
    decode_calls,
    decode_fields,
    encode,
    encode_call,
    encode_fields,
)
from aiochronicle.cq4._decoding import Decoder
from aiochronicle.cq4._text import decode_cesu8, encode_cesu8, encode_stop_bit
from aiochronicle.errors import DecodeError

patient = settings(deadline=None)  # the machine may be busy

NAMES = st.text(st.characters(max_codepoint=255), max_size=40)
ZONES = st.timezones() | st.integers(-1439, 1439).map(
    lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    # The one float that does not round-trip: Java writes Long.MAX_VALUE with these bytes.
    | st.floats(allow_nan=False).filter(lambda number: number != 2.0**63)
    | st.text()
    | st.binary()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(NAMES, inner)
        | st.dictionaries(st.integers(-(2**31), 2**31), inner)
        | st.dictionaries(NAMES, inner).map(Fields)
    ),
    max_leaves=15,
)


def plain(value: Any) -> Any:
    """Replace empty maps with empty lists; the wire does not tell them apart."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()} or []
    return [plain(each) for each in value] if isinstance(value, list) else value


@patient
@given(VALUES)
@example(2**63 - 1)
@example(-0.0)
@example(["", [b""], [[]]])
def test_values_come_back(value: Any) -> None:
    assert decode(encode(value)) == plain(value)


@patient
@given(st.dictionaries(NAMES, VALUES))
def test_documents_come_back(fields: dict[str, Any]) -> None:
    decoded = decode_fields(encode_fields(fields))
    assert decoded == {name: plain(value) for name, value in fields.items()}


@patient
@given(st.lists(st.tuples(NAMES, st.lists(VALUES, min_size=2, max_size=4)), min_size=1, max_size=3))
def test_calls_come_back(calls: list[tuple[str, list[Any]]]) -> None:
    payload = b"".join(encode_call(name, *args) for name, args in calls)
    expected = [Call(name, [plain(arg) for arg in args]) for name, args in calls]
    assert decode_calls(payload) == expected


@patient
@given(st.datetimes(timezones=ZONES))
def test_moments_come_back_unless_the_zone_has_no_such_offset(moment: dt.datetime) -> None:
    offset = moment.utcoffset()
    assert offset is not None
    decoded = decode(encode(moment))
    if isinstance(decoded, Typed):  # offset over 18 hours: Java refuses it too
        assert abs(offset) > dt.timedelta(hours=18)
    else:
        assert (decoded.replace(tzinfo=None, fold=0), decoded.utcoffset()) == (
            moment.replace(tzinfo=None, fold=0),
            offset,
        )


@patient
@given(st.text(st.characters(exclude_categories=())))
def test_text_comes_back_but_for_halves_that_were_a_pair_all_along(text: str) -> None:
    assert encode_cesu8(decode_cesu8(encode_cesu8(text))) == encode_cesu8(text)


@patient
@given(st.integers(-(2**63), 2**63 - 1))
def test_stop_bit_numbers_come_back(number: int) -> None:
    encoded = encode_stop_bit(number)
    assert Decoder(encoded).stop_bit(len(encoded)) == number


class Message(msgspec.Struct):
    number: int
    names: dict[str, list[str]] = {}


class Listener:
    def note(self, text: str) -> None: ...
    def message(self, message: Message, other: int = 0) -> None: ...
    def to(self, name: str) -> "Listener":
        return self


def survive(payload: bytes) -> None:
    attempts = (
        decode,
        decode_calls,
        decode_fields,
        lambda bytes_: decode_as(bytes_, Message),
        MethodReader(Listener()).handle,
    )
    for attempt in attempts:
        with contextlib.suppress(DecodeError):
            attempt(payload)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(payload: bytes) -> None:
    survive(payload)


CODES = st.sampled_from([*range(0x80, 0x100), 0, 1, 4])


@settings(max_examples=500, deadline=None)
@given(st.lists(CODES | st.integers(0, 8), max_size=60).map(bytes))
def test_random_codes(payload: bytes) -> None:
    survive(payload)


def test_valid_messages_with_some_bytes_changed(rng: random.Random) -> None:
    message = Fields({"number": 2**40, "names": {"a": ["b", "é😀"]}, "at": dt.datetime.now()})
    valid = [
        encode_fields(message),
        encode_call("message", message, 3),
        encode_call("to", "x") + encode_call("note", "y"),
        encode([1.5, 0.1, 1e300, None, b"bytes", Typed("A", Fields({"b": 1}, type="B"))]),
    ]
    for _ in range(3000):
        payload = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 3)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        survive(bytes(payload[: rng.randint(1, len(payload))]))
