"""Java objects as msgspec structs."""

import datetime as dt
import enum
import struct
from typing import Any

import msgspec
import pytest

from aiochronicle.cq4 import Fields, Float32, JavaFloat, Typed, decode_as, encode, encode_fields
from aiochronicle.errors import DecodeError, EncodeError


class Side(enum.Enum):
    BUY = "BUY"
    SELL = "SELL"


class Leg(msgspec.Struct):
    name: str | None
    ratio: float = 1.0


class Quote(msgspec.Struct):
    symbol: str | None
    id: int
    price: float
    quantity: int
    live: bool
    side: Side | None
    day: dt.date | None
    venues: list[str]
    levels: dict[str, float]
    leg: Leg | None = None


QUOTE = Quote(
    "EURUSD",
    2**63 - 1,
    1.25,
    300,
    True,
    Side.SELL,
    dt.date(2024, 2, 29),
    ["a"],
    {"x": 2.0},
    Leg("l"),
)


def test_a_struct_comes_back() -> None:
    assert decode_as(encode_fields(QUOTE), Quote) == QUOTE
    assert decode_as(encode(QUOTE), Quote) == QUOTE
    assert decode_as(encode([QUOTE, QUOTE]), list[Quote]) == [QUOTE, QUOTE]


def test_empty_maps_and_lists_look_the_same_but_come_back() -> None:
    empty = msgspec.structs.replace(QUOTE, venues=[], levels={}, leg=None)
    assert decode_as(encode_fields(empty), Quote) == empty

    class Nested(msgspec.Struct):
        maps: list[dict[str, int]]
        lists: dict[str, list[int]]
        either: dict[str, int] | None
        pair: tuple[dict[str, int], list[int]]
        anything: Any = None

    nested = Nested([{}, {"a": 1}], {"a": [], "b": [1]}, {}, ({}, []), [])
    assert decode_as(encode_fields(nested), Nested) == nested


def test_numbers_of_other_forms_are_taken_as_integers() -> None:
    for number in (5.0, 2.0**40, 2.0**63):
        payload = b"\xc2id\x91" + struct.pack("<d", number)

        class Id(msgspec.Struct):
            id: int

        assert decode_as(payload, Id) == Id(min(int(number), 2**63 - 1))


def test_types_that_java_wrote_are_no_hindrance() -> None:
    fields = Fields({"name": Typed("java.lang.String", "x"), "ratio": 2}, type="market.Leg")
    assert decode_as(encode(fields), Leg) == Leg("x", 2.0)


def test_floats_of_32_bits() -> None:
    class Ratio(msgspec.Struct):
        ratio: JavaFloat
        other: JavaFloat | None = None
        double: float = 2.5

    assert encode(Float32(2.5)).hex() == "9000002040"
    ratio = Ratio(2.5, 2.5)
    assert encode_fields(ratio) == encode_fields(
        {"ratio": Float32(2.5), "other": Float32(2.5), "double": 2.5}
    )
    assert decode_as(encode_fields(ratio), Ratio) == ratio
    with pytest.raises(EncodeError, match="32 bits"):
        encode(Float32(1e300))


def test_what_does_not_fit_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"the payload does not match Leg: .* at `\$\.name`"):
        decode_as(encode_fields({"name": 5}), Leg)
    with pytest.raises(DecodeError, match="missing required field"):
        decode_as(b"\x8f", Leg)
    with pytest.raises(DecodeError, match="instead of a name"):
        decode_as(encode("text"), Leg)


def test_unknown_fields_are_ignored() -> None:
    assert decode_as(encode_fields({"name": "x", "other": [1]}), Leg) == Leg("x")
