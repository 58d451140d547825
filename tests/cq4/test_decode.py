"""Every wire code is decoded, and invalid data is refused."""

import contextlib
import datetime as dt
import math
import struct
import time
import uuid
import zoneinfo
from typing import Any

import pytest

from aiochronicle.cq4 import (
    Call,
    Fields,
    History,
    Typed,
    decode,
    decode_calls,
    decode_fields,
)
from aiochronicle.errors import DecodeError

PARIS = zoneinfo.ZoneInfo("Europe/Paris")


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ("00", 0),
        ("7f", 127),
        ("a1 ff", 255),
        ("a2 ff ff", 65535),
        ("a3 ff ff ff ff", 2**32 - 1),
        ("a4 80", -128),
        ("a5 00 80", -32768),
        ("a6 00 00 00 80", -(2**31)),
        ("a7 00 00 00 00 00 00 00 80", -(2**63)),
        ("a8 ff", 255),
        ("a9 ff ff", 65535),
        ("af ff ff ff ff ff ff ff ff", -1),
        ("90 00 00 c0 3f", 1.5),
        ("90 00 00 80 53", 1 << 40),
        ("90 00 00 00 5f", 2**63 - 1),
        ("90 00 00 00 df", -(2**63)),
        ("90 00 00 80 7f", math.inf),
        ("91 00 00 00 00 00 00 f8 3f", 1.5),
        ("92 96 01", 1.5),
        ("92 95 81 00", -1.5),
        ("92 80 00", -0.01),
        ("94 01", 0.0001),
        ("96 01", 0.000001),
        ("b0", False),
        ("b1", True),
        ("bb", None),
        ("e0", ""),
        ("e3 6f 6e 65", "one"),
        ("b8 03 6f 6e 65", "one"),
        ("b8 80 00", None),
        ("e6 ed a0 bd ed b8 80", "😀"),
        ("e4 f0 9f 98 80", "😀"),
        ("e3 ed a0 bd", "\ud83d"),
        ("e1 00", "\0"),
        ("e3 c0 80 61", "\0a"),
        ("80 03 8a 01 02", b"\1\2"),
        ("80 01 8a", b""),
        ("81 03 00 8a 01 02", b"\1\2"),
        ("b6 06 62 79 74 65 5b 5d 80 02 8a 01", b"\1"),
        ("82 00 00 00 00", []),
        ("80 00", []),
        ("82 04 00 00 00 a1 01 e1 78", [1, "x"]),
        ("80 05 b9 01 61 a1 01", {"a": 1}),
        ("80 05 bd a1 05 a1 01", {5: 1}),
        ("80 04 c1 61 a1 01", {"a": 1}),
        ("80 04 ba 07 a1 01", {"7": 1}),
        ("80 05 b7 01 e9 a1 01", {"é": 1}),
        ("b2 05 31 32 3a 33 30", dt.time(12, 30)),
        ("b3 0a 32 30 32 34 2d 30 32 2d 32 39", dt.date(2024, 2, 29)),
        ("bc 01 58", Typed("type", "X")),
        ("b6 01 45 e1 42", Typed("E", "B")),
        ("8d" + struct.pack("<qq3q", 3, 2, -1, 5, 9).hex(), [-1, 5]),
        ("a0" + struct.pack("<QQ", 1, 2).hex(), uuid.UUID(int=1 << 64 | 2)),
        ("8f 8f e1 61 8f", "a"),
        ("8e 02 00 00 00 ff ff e1 61", "a"),
        ("be 02 68 69 e1 61", "a"),
        ("e1 61 e1 62", ["a", "b"]),
        ("c2 70 78 92 96 01 c1 61 bb", {"px": 1.5, "a": None}),
        ("8f", {}),
        ("", {}),
    ],
)
def test_every_code(payload: str, value: Any) -> None:
    decoded = decode(hexed(payload))
    assert decoded == value
    assert type(decoded) is type(value) or isinstance(decoded, Fields)
    for other in (bytearray(hexed(payload)), memoryview(hexed(payload))):
        assert decode(other) == value


@pytest.mark.parametrize(
    ("code", "text", "value"),
    [
        (0xB2, "12:30:01.5", dt.time(12, 30, 1, 500_000)),
        (0xB2, "12:30:01.123456789", Typed("LocalTime", "12:30:01.123456789")),
        (0xB2, "nonsense", Typed("LocalTime", "nonsense")),
        (0xB2, "25:00", Typed("LocalTime", "25:00")),
        (0xB3, "+12024-02-29", Typed("LocalDate", "+12024-02-29")),
        (0xB3, "2023-02-29", Typed("LocalDate", "2023-02-29")),
        (0xB4, "2024-02-29T12:30", dt.datetime(2024, 2, 29, 12, 30)),
        (0xB5, "2024-02-29T12:30Z", dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)),
        (
            0xB5,
            "2024-02-29T12:30:01-03:30",
            dt.datetime(
                2024, 2, 29, 12, 30, 1, tzinfo=dt.timezone(-dt.timedelta(hours=3, minutes=30))
            ),
        ),
        (
            0xB5,
            "2024-10-27T02:30+01:00[Europe/Paris]",
            dt.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=1),
        ),
        (
            0xB5,
            "2024-02-29T12:30+05:00[Europe/Paris]",
            Typed("ZonedDateTime", "2024-02-29T12:30+05:00[Europe/Paris]"),
        ),
        (
            0xB5,
            "2024-02-29T12:30Z[../../etc/passwd]",
            Typed("ZonedDateTime", "2024-02-29T12:30Z[../../etc/passwd]"),
        ),
    ],
)
def test_dates_and_times(code: int, text: str, value: Any) -> None:
    decoded = decode(bytes([code, len(text)]) + text.encode())
    assert decoded == value
    if isinstance(value, dt.datetime):
        assert (decoded.tzinfo, decoded.fold) == (value.tzinfo, value.fold)


def test_nan() -> None:
    assert math.isnan(decode(hexed("90 00 00 c0 7f")))


def test_fields_keep_their_type() -> None:
    decoded = decode(hexed("b6 03 41 2e 42 80 04 c1 61 a1 01"))
    assert isinstance(decoded, Fields)
    assert (decoded, decoded.type) == ({"a": 1}, "A.B")


def test_calls() -> None:
    assert decode(hexed("b9 04 6e 6f 74 65 e2 68 69")) == Call("note", "hi")
    assert decode(hexed("ba 05 a1 09")) == Call(5, 9)
    assert decode(hexed("b9 02 74 6f e1 61 b9 03 73 61 79 e1 62")) == [
        Call("to", "a"),
        Call("say", "b"),
    ]
    assert decode(hexed("ba 05 a1 09 ba 06 b1")) == [Call(5, 9), Call(6, True)]
    assert decode(hexed("ba 05 a1 09 c1 61 b1")) == {"5": 9, "a": True}
    assert decode_calls(hexed("c4 6e 6f 74 65 e2 68 69")) == [Call("note", "hi")]
    assert decode_fields(hexed("ba 05 a1 09")) == {"5": 9}


def test_arguments_of_calls() -> None:
    assert Call("none", "").args == ()
    assert Call("none", "").args_for(0) == ()
    assert Call("text", "").args_for(1) == ("",)
    assert Call("two", ["a", 1]).args == Call("two", ["a", 1]).args_for(2) == ("a", 1)
    assert Call("null", None).args == (None,)
    with pytest.raises(ValueError, match="the call has 2 arguments, but the method takes 3"):
        Call("two", ["a", 1]).args_for(3)


def test_history_is_kept_apart() -> None:
    compact = b"\x86\x01" + struct.pack("<iqBqq", 7, 1 << 40, 2, 11, 12)
    history = History(((7, 1 << 40),), (11, 12))
    for name in (hexed("ba 80 00"), b"\xb9\x07history"):
        for tail in (b"", bytes(8)):  # Java 5.26 leaves eight bytes after it
            block = compact + tail
            payload = name + bytes([0x80, len(block)]) + block + hexed("b9 01 61 b1")
            assert decode(payload) == Call("a", True, history)
            assert decode(payload[:-4]) == history
            assert decode_calls(payload[:-4]) == []
    sources = hexed("c7") + b"sources" + hexed("80 0b a1 07 af 00 00 00 00 00 01 00 00")
    timings = hexed("c7") + b"timings" + hexed("80 04 a1 0b a1 0c")
    fields = sources + timings
    payload = hexed("ba 80 00 80") + bytes([len(fields)]) + fields + hexed("b9 01 61 b1")
    assert decode(payload) == Call("a", True, history)


def test_a_call_named_history_that_has_none() -> None:
    assert decode(b"\xb9\x07history\xb1") == Call("history", True)


@pytest.mark.parametrize(
    ("payload", "offset"),
    [
        ("83", 0),
        ("87 00", 0),
        ("9a 01", 0),
        ("aa", 0),
        ("bf 01 61", 0),
        ("8a", 0),
        ("e2 61", 1),
        ("b8 05 61", 2),
        ("b8 ff ff ff ff ff ff ff ff ff ff 01", 1),
        ("b8 82 80 00", 1),
        ("b8 81 00", 1),
        ("e1 ff", 1),
        ("a7 00", 1),
        ("82 05 00 00 00 a1", 0),
        ("80 02 a1", 0),
        ("80 03 80 05 a1", 2),
        ("80 02 a2 01 b1 b1", 3),
        ("80 02 e2 61 62 b1", 3),
        ("80 02 c1 61 a1 01", 4),
        ("8e ff ff ff ff", 0),
        ("c1 61", 2),
        ("c1 61 a1 01 a1 01", 4),
        ("b9 80 00 a1 01", 0),
        ("b6 01 41", 3),
        ("80 06 bd 80 01 8f a1 01", 2),
        ("8d" + struct.pack("<qq", 1 << 60, 0).hex(), 1),
        ("8d" + struct.pack("<qq", 1, 2).hex(), 1),
        ("80 03 86 ff 00", 4),
    ],
)
def test_damage_is_a_decode_error_that_says_where(payload: str, offset: int) -> None:
    with pytest.raises(DecodeError, match=f"at byte {offset} of the payload") as raised:
        decode(hexed(payload))
    assert raised.value.offset == offset


def nested(levels: int) -> bytes:
    payload = b"\xbb"
    for _ in range(levels):
        payload = b"\x82" + struct.pack("<I", len(payload)) + payload
    return payload


def test_depth_is_limited() -> None:
    assert decode(nested(50)) is not None
    with pytest.raises(DecodeError, match="more than 64 deep"):
        decode(nested(65))
    with pytest.raises(DecodeError, match="more than 64 deep"):
        decode(b"\xb6\x01a" * 100_000 + b"\xbb")
    with pytest.raises(DecodeError, match="more than 64 deep"):
        decode(nested(10_000))


def test_the_number_of_values_is_limited() -> None:
    with pytest.raises(DecodeError, match="max_values"):
        decode(b"\xbb" * ((1 << 20) + 1))
    assert decode(b"\xbb" * 10, max_values=10) == [None] * 10
    with pytest.raises(DecodeError, match="max_values"):
        decode(b"\xbb" * 11, max_values=10)
    with pytest.raises(DecodeError, match="max_values"):
        decode(b"\x8d" + struct.pack("<qq11q", 11, 11, *range(11)), max_values=10)


@pytest.mark.parametrize("unit", ["8f", "8e 00 00 00 00", "be 00", "80 00", "c0 bb", "b9 00 bb"])
def test_hostile_megabytes_take_no_longer_than_others(unit: str) -> None:
    started = time.process_time()
    with contextlib.suppress(DecodeError):
        decode(hexed(unit) * (1 << 18))
    assert time.process_time() - started < 20
