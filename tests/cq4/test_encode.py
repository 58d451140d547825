"""The bytes written for each value; tests/interop compares them with Java's."""

import collections
import datetime as dt
import enum
import math
import pickle
import uuid
import zoneinfo
from typing import Any

import msgspec
import pytest

from aiochronicle.cq4 import (
    Call,
    Fields,
    Float32,
    History,
    Typed,
    decode,
    encode,
    encode_call,
    encode_calls,
    encode_fields,
    encode_text,
    to_fields,
)
from aiochronicle.errors import EncodeError


class Side(enum.Enum):
    BUY = "BUY"


class Level(enum.IntEnum):
    TOP = 300


class Leg(msgspec.Struct):
    name: str


class Quote(msgspec.Struct, rename="camel"):
    symbol_name: str
    leg: Leg


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        ("", "e0"),
        ("x" * 31, "ff" + "78" * 31),
        ("x" * 32, "b820" + "78" * 32),
        ("é" * 16, "b820" + "c3a9" * 16),
        ("x" * 300, "b8ac02" + "78" * 300),
        ("\ud83d", "e3eda0bd"),
        (True, "b1"),
        (255, "a1ff"),
        (256, "a50001"),
        (-1, "a4ff"),
        (2**63 - 1, "900000005f"),
        (2**63 - 2, "a7feffffffffffff7f"),
        (1.0, "a101"),
        (-0.0, "a100"),
        (math.nan, "900000c07f"),
        (Float32("nan"), "900000c07f"),
        (Float32("-inf"), "90000080ff"),
        (dt.date(2024, 2, 29), "b30a323032342d30322d3239"),
        (0.1, "920a"),
        (70000.0, "9000b88847"),
        (b"", "80018a"),
        (b"x" * 255, "8100018a" + "78" * 255),
        (bytearray(b"x"), "80028a78"),
        (memoryview(b"x"), "80028a78"),
        ((1, 2), "8204000000a101a102"),
        (collections.OrderedDict(a=1), "8205000000b90161a101"),
        ({5: 1}, "8205000000bda105a101"),
        ({"7": 1}, "8205000000b90137a101"),
        (Fields({"7": 1}), "8204000000ba07a101"),
        (Fields({"007": 1}), "8206000000c3303037a101"),
        (Fields({"é": 1}, type="A"), "b601418204000000c1e9a101"),
        (Side.BUY, "e3425559"),
        (Level.TOP, "a52c01"),
        (Typed("type", "X"), "bc0158"),
        (Typed("LocalTime", "12:30:01.123456789"), "b21231323a33303a30312e313233343536373839"),
        (dt.time(12, 30), "b20531323a3330"),
        (uuid.UUID(int=1 << 64 | 2), "a0" + "01" + "00" * 7 + "02" + "00" * 7),
        (Leg("l"), "8207000000c46e616d65e16c"),
    ],
)
def test_values(value: Any, payload: str) -> None:
    assert encode(value).hex() == payload


def test_documents() -> None:
    quote = Quote("EURUSD", Leg("l"))
    assert encode_fields(quote) == encode_fields({"symbolName": "EURUSD", "leg": Leg("l")})
    assert to_fields(quote) == {"symbolName": "EURUSD", "leg": Leg("l")}
    assert encode_fields({}) == b"\x8f"
    assert decode(encode_fields({})) == {}
    assert encode_text("one") == encode("one")


def test_calls() -> None:
    assert encode_call("none").hex() == "b9046e6f6e65e0"
    assert encode_call(5, 9).hex() == "ba05a109"
    assert encode_call("two", "a", 7).hex() == "b90374776f8204000000e161a107"
    assert encode(Call("two", ["a", 7])) == encode_call("two", "a", 7)
    assert encode_calls([Call("to", "a"), Call("b", 1)]) == encode_call("to", "a") + encode_call(
        "b", 1
    )


def test_histories_come_back() -> None:
    history = History(((3, 1 << 40), (-1, -1)), (5, 6, 7))
    chain = [Call("to", "x", history), Call("say", "hi", history)]
    assert decode(encode_calls(chain)) == chain
    with pytest.raises(EncodeError, match="too large"):
        encode(Call("a", 1, History((), tuple(range(256)))))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63, "does not fit into 64 bits"),
        (-(2**63) - 1, "does not fit into 64 bits"),
        (object(), "object has no encoding in Java's wire format"),
        ({1, 2}, "set has no encoding"),
        (Fields({"€": 1}), "not Latin-1"),
        ({"€": 1}, "not Latin-1"),
        (Fields({1: 1}), "must be a str"),
        (dt.time(1, tzinfo=dt.UTC), "time zone"),
        ([Call("a", 1)], "a call must be a message"),
        (
            dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
            "fractions of a second",
        ),
    ],
)
def test_what_cannot_be_written(value: Any, text: str) -> None:
    with pytest.raises(EncodeError, match=text):
        encode(value)


def test_depth_is_limited() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(EncodeError, match="more than 64 deep"):
        encode(value)


def test_a_datetime_of_a_zone_comes_back() -> None:
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    for fold in (0, 1):
        moment = dt.datetime(2024, 10, 27, 2, 30, tzinfo=paris, fold=fold)
        back = decode(encode(moment))
        assert (back, back.fold, back.tzinfo) == (moment, fold, paris)


def test_fields_can_be_pickled_and_shown() -> None:
    fields = Fields({"a": 1}, type="A")
    again = pickle.loads(pickle.dumps(fields))  # noqa: S301
    assert (again, again.type) == (fields, "A")
    assert repr(fields) == "Fields({'a': 1}, type='A')"
