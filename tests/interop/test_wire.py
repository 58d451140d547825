"""The wire codec against Java: equal bytes for equal values, and each side reads what the other wrote."""

import datetime as dt
import enum
import itertools
import math
import random
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from aiochronicle.cq4 import (
    Call,
    Fields,
    Float32,
    JavaFloat,
    MethodReader,
    Typed,
    decode,
    decode_as,
    decode_calls,
    encode,
    encode_call,
    encode_calls,
    encode_fields,
    method,
    method_writer,
    to_fields,
)

from .judge import Judge, Value

LONG_MAX = 2**63 - 1


class Side(enum.Enum):
    BUY = "BUY"
    SELL = "SELL"


class Leg(msgspec.Struct):
    name: str | None
    ratio: JavaFloat


class Quote(msgspec.Struct):
    """The Java class judge.Quote, field by field."""

    symbol: str | None = None
    id: int = 0
    price: float = 0.0
    quantity: int = 0
    live: bool = False
    side: Side | None = None
    day: dt.date | None = None
    venues: list[str] = []
    levels: dict[str, float] = {}
    leg: Leg | None = None


FULL = Quote(
    "EURUSD é😀",
    2**62 + 1,
    1.23456789,
    -300,
    True,
    Side.SELL,
    dt.date(2024, 2, 29),
    ["a", "", "x" * 40],
    {"bid": 1.5, "ask": 1e300, "é": -2.0},
    Leg("near", 0.1),
)
QUOTES = [
    FULL,
    Quote(),
    msgspec.structs.replace(FULL, id=LONG_MAX, price=-0.005, leg=Leg(None, 2.5)),
    msgspec.structs.replace(FULL, id=-(2**63), price=1e-9, venues=[], symbol=""),
]


def as_json(quote: Quote) -> dict[str, Any]:
    """Return the quote as the judge reads it, with fractions as texts."""
    fields: dict[str, Any] = msgspec.to_builtins(quote)
    fields["price"] = repr(quote.price)
    fields["levels"] = {name: repr(level) for name, level in quote.levels.items()}
    if quote.leg is not None:
        fields["leg"]["ratio"] = repr(quote.leg.ratio)
    return {name: value for name, value in fields.items() if value is not None}


def integers(rng: random.Random) -> list[int]:
    edges = {
        sign * ((1 << bit) + step) for bit in range(64) for step in (-1, 0, 1) for sign in (1, -1)
    }
    edges |= {rng.randrange(-(2**63), 2**63) >> rng.randrange(64) for _ in range(300)}
    return sorted(number for number in edges if -(2**63) <= number <= LONG_MAX)


def floats(rng: random.Random) -> list[float]:
    edges = [
        math.inf,
        5e-324,
        1.7976931348623157e308,
        3.4028234663852886e38,
        3.5e38,
        1e-45,
        2.0**63,
    ]
    edges += [1e-6, 1e-7, 0.5e-6, 4398046.511103, 4398046.511104, 34359.738367, 34359.738368, 0.0]
    edges += [value + step for value in (2.0**31, 2.0**32, 2.0**24) for step in (-1, 0, 1)]
    edges += [
        round(rng.uniform(-1, 1) * 10 ** rng.randrange(8), rng.randrange(9)) for _ in range(300)
    ]
    edges += [float(rng.randrange(-(2**63), 2**63) >> rng.randrange(64)) for _ in range(100)]
    patterns = (rng.getrandbits(64) for _ in range(200))
    edges += [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in patterns]
    singles = (rng.getrandbits(32) for _ in range(100))
    edges += [struct.unpack("<f", struct.pack("<I", bits))[0] for bits in singles]
    return [signed for value in edges if value == value for signed in (value, -value)] + [math.nan]


def java(number: float) -> str:
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(number), repr(number))


def texts(rng: random.Random) -> list[str]:
    alphabet = "a\0\x7f\x80é߿ࠀ€\uffff😀\U0010ffff"
    lengths = [0, 1, 2, 10, 15, 16, 30, 31, 32, 33, 63, 64, 127, 128, 129, 300, 16383, 16384]
    made = ["".join(rng.choices(alphabet, k=length)) for length in lengths]
    return made + ["a" * length for length in lengths] + ["é" * length for length in lengths]


OTHERS: list[tuple[Value, Any]] = [
    (None, None),
    (["flag", True], True),
    (["flag", False], False),
    *((["bytes", data.hex()], data) for data in (b"", b"\0", b"x" * 254, b"x" * 255, b"x" * 65535)),
    (["date", "2024-02-29"], dt.date(2024, 2, 29)),
    (["date", "0001-01-01"], dt.date(1, 1, 1)),
    (["time", "00:00"], dt.time()),
    (["time", "12:30:01"], dt.time(12, 30, 1)),
    (["time", "12:30:00.5"], dt.time(12, 30, 0, 500_000)),
    (["time", "23:59:59.999999"], dt.time(23, 59, 59, 999_999)),
    (["time", "12:30:01.000000001"], Typed("LocalTime", "12:30:01.000000001")),
    (["dateTime", "2024-02-29T12:30"], dt.datetime(2024, 2, 29, 12, 30)),
    (["dateTime", "2024-02-29T00:00:00.001"], dt.datetime(2024, 2, 29, 0, 0, 0, 1000)),
    (["uuid", str(uuid.UUID(int=2**127 + 5))], uuid.UUID(int=2**127 + 5)),
]
ZONED = [
    "2024-02-29T12:30Z",
    "2024-02-29T12:30:01+01:00",
    "2024-02-29T12:30:01.000005-03:30",
    "2024-02-29T12:30:01+01:00:05",
    "2024-02-29T12:30+01:00[Europe/Paris]",
    "2024-10-27T02:30+02:00[Europe/Paris]",
    "2024-10-27T02:30+01:00[Europe/Paris]",
    "2024-02-29T12:30Z[UTC]",
]


def different(pairs: Iterator[tuple[Any, bytes, bytes]]) -> list[str]:
    return [
        f"{value!r}: Java {theirs.hex(' ')}, we {ours.hex(' ')}"
        for value, theirs, ours in pairs
        if theirs != ours
    ]


def test_integers(judge: Judge, rng: random.Random) -> None:
    numbers = integers(rng)
    encoded = judge.encode(["i64", number] for number in numbers)
    ours = [encode(number) for number in numbers]
    assert not different(zip(numbers, encoded, ours, strict=True))
    assert [decode(each) for each in encoded] == numbers
    assert [value for _, value in judge.decode(ours, "i64")] == numbers
    small = [number for number in numbers if -(2**31) <= number < 2**31]
    assert judge.encode(["i32", number] for number in small) == [encode(each) for each in small]


def test_floats(judge: Judge, rng: random.Random) -> None:
    numbers = floats(rng)
    encoded = judge.encode(["f64", java(number)] for number in numbers)
    ours = [encode(number) for number in numbers]
    assert not different(zip(numbers, encoded, ours, strict=True))
    read = [float(decode(each)) for each in encoded]
    assert [each for each in read if each == each] == [each for each in numbers if each == each]
    theirs = [float(value) for _, value in judge.decode(ours, "f64")]
    assert theirs[:-1] == numbers[:-1]
    assert math.isnan(theirs[-1])


def test_floats_of_32_bits(judge: Judge, rng: random.Random) -> None:
    patterns = [struct.pack("<I", rng.getrandbits(32)) for _ in range(200)]
    patterns += [struct.pack("<f", number) for number in floats(rng) if abs(number) < 3.4e38]
    singles = [struct.unpack("<f", bits)[0] for bits in patterns]
    known = [single for single in singles if math.isfinite(single)]
    encoded = judge.encode(["f32", java(single)] for single in known)
    ours = [encode(Float32(single)) for single in known]
    assert not different(zip(known, encoded, ours, strict=True))
    read = [struct.pack("<f", decode(each)) for each in encoded]
    theirs = [struct.pack("<f", float(value)) for _, value in judge.decode(encoded, "f32")]
    assert read == theirs


def test_texts(judge: Judge, rng: random.Random) -> None:
    given = texts(rng)
    encoded = judge.encode(["text", text] for text in given)
    ours = [encode(text) for text in given]
    assert not different(zip(given, encoded, ours, strict=True))
    assert [decode(each) for each in encoded] == given
    assert [value for _, value in judge.decode(ours, "text")] == given


def test_other_values(judge: Judge) -> None:
    encoded = judge.encode(value for value, _ in OTHERS)
    ours = [encode(value) for _, value in OTHERS]
    assert not different(zip((value for value, _ in OTHERS), encoded, ours, strict=True))
    assert [decode(each) for each in encoded] == [value for _, value in OTHERS]
    assert judge.decode(ours) == judge.decode(encoded)


def test_moments_with_a_zone(judge: Judge) -> None:
    encoded = judge.encode(["zoned", text] for text in ZONED)
    moments = [decode(each) for each in encoded]
    assert all(isinstance(moment, dt.datetime) for moment in moments)
    assert [encode(moment) for moment in moments] == encoded


def test_names_of_fields(judge: Judge, tmp_path: Path) -> None:
    lengths = [0, 1, 30, 31, 32, 33, 127, 128, 300]
    names = ["a" * length for length in lengths] + ["é" * length for length in lengths[1:]]
    names += ["0", "7", "12", "2147483647", "2147483648", "12ab", "-1", "9" * 31, "9" * 32]
    with judge.open(tmp_path / "queue", roll_cycle="TEST4_DAILY") as queue:
        for name in names:
            queue.append_fields([(name, ["i32", 1])])
        written = [message.payload for message in queue.read_all()]
    ours = [encode_fields({name: 1}) for name in names]
    assert not different(zip(names, written, ours, strict=True))


# Calls that both Java's method writer and ours make: method, Java's arguments, our arguments.
CALLS: list[tuple[str | int, str, Sequence[Value], Sequence[Any]]] = [
    ("none", "none", [], []),
    ("text", "text", [["text", "hello"]], ["hello"]),
    ("text", "text", [["text", ""]], [""]),
    ("text", "text", [None], [None]),
    ("flag", "flag", [["flag", True]], [True]),
    ("character", "character", [["character", "é"]], ["é"]),
    ("i8", "i8", [["i8", -3]], [-3]),
    ("i16", "i16", [["i16", 300]], [300]),
    ("i32", "i32", [["i32", -70000]], [-70000]),
    ("i64", "i64", [["i64", LONG_MAX]], [LONG_MAX]),
    ("f32", "f32", [["f32", "1.1"]], [1.1]),
    ("f64", "f64", [["f64", "1.1"]], [1.1]),
    ("boxedLong", "boxedLong", [["i64", 5]], [5]),
    ("boxedLong", "boxedLong", [None], [None]),
    ("boxedDouble", "boxedDouble", [["f64", "2.5"]], [2.5]),
    ("bytes", "bytes", [["bytes", "010203"]], [b"\1\2\3"]),
    ("date", "date", [["date", "2024-02-29"]], [dt.date(2024, 2, 29)]),
    ("time", "time", [["time", "12:30"]], [dt.time(12, 30)]),
    (
        "dateTime",
        "dateTime",
        [["dateTime", "2024-02-29T12:30"]],
        [dt.datetime(2024, 2, 29, 12, 30)],
    ),
    ("uuid", "uuid", [["uuid", str(uuid.UUID(int=7))]], [uuid.UUID(int=7)]),
    ("side", "side", [["side", "SELL"]], [Side.SELL]),
    ("any", "any", [["text", "x"]], ["x"]),
    ("any", "any", [["side", "BUY"]], [Typed("judge.Side", "BUY")]),
    ("any", "any", [["bytes", "01"]], [Typed("byte[]", b"\1")]),
    ("list", "list", [["list", []]], [[]]),
    ("list", "list", [["list", [["text", "a"], None]]], [["a", None]]),
    ("map", "map", [["map", []]], [{}]),
    ("map", "map", [["map", [["a", ["text", "b"]], ["é", None]]]], [{"a": "b", "é": None}]),
    ("two", "two", [["text", "a"], ["i64", 7]], ["a", 7]),
    ("two", "two", [None, ["i64", 7]], [None, 7]),
    (5, "numbered", [["i64", 9]], [9]),
    *(("quote", "quote", [["quote", as_json(quote)]], [quote]) for quote in QUOTES),
    ("quote", "quote", [None], [None]),
    (
        "marshallable",
        "marshallable",
        [["quote", as_json(FULL)]],
        [to_fields(FULL, type="judge.Quote")],
    ),
    (
        "five",
        "five",
        [["text", "a"], ["i32", 7], ["f64", "0.1"], ["flag", False], ["quote", as_json(FULL)]],
        ["a", 7, 0.1, False, FULL],
    ),
]


def test_calls_have_the_bytes_of_javas_and_are_heard_by_java(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "theirs") as queue:
        queue.append_calls(*([(method, args)] for _, method, args, _ in CALLS))
        theirs = [message.payload for message in queue.read_all()]
        with queue.tailer() as tailer:
            expected = tailer.read_calls()
    ours = [encode_call(name, *args) for name, _, _, args in CALLS]
    assert not different(zip((call[:3] for call in CALLS), theirs, ours, strict=True))
    with judge.open(tmp_path / "ours") as queue:
        queue.append_bytes(*ours)
        with queue.tailer() as tailer:
            assert tailer.read_calls() == expected
    assert [method for method, _ in expected] == [method for _, method, _, _ in CALLS]


def test_chained_calls(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "queue") as queue:
        queue.append_calls(
            [("to", [["text", "x"]]), ("via", [["i64", 3]]), ("say", [["text", "hi"]])]
        )
        [message] = queue.read_all()
    assert decode_calls(message.payload) == [Call("to", "x"), Call("via", 3), Call("say", "hi")]
    assert encode_calls(decode_calls(message.payload)) == message.payload


class To:
    """The Java interface judge.Calls.To."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def via(self, hop: int) -> Self:
        self.heard.append(("via", hop))
        return self

    def say(self, text: str) -> None:
        self.heard.append(("say", text))


class Calls:
    """Some methods of the Java interface judge.Calls."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def none(self) -> None:
        self.heard.append("none")

    def quote(self, quote: Quote) -> None:
        self.heard.append(quote)

    def five(self, text: str, number: int, price: float, flag: bool, quote: Quote) -> None:
        self.heard.append((text, number, price, flag, quote))

    @method(name="dateTime")
    def date_time(self, moment: dt.datetime) -> None:
        self.heard.append(moment)

    @method(id=5)
    def numbered(self, number: int) -> None:
        self.heard.append(number)

    def to(self, destination: str) -> To:
        self.heard.append(("to", destination))
        return To(self.heard)


def say_all(calls: Calls) -> None:
    calls.none()
    for quote in QUOTES:
        calls.quote(quote)
    calls.five("a", 7, 0.1, False, FULL)
    calls.date_time(dt.datetime(2024, 2, 29, 12, 30))
    calls.numbered(9)
    calls.to("x").via(3).say("hi")


def test_our_writer_calls_java_and_java_calls_us(judge: Judge, tmp_path: Path) -> None:
    """Calls survive the path: our method writer, Java's reader, Java's writer, our method reader."""
    sent: list[bytes] = []
    say_all(method_writer(Calls, sent.append))
    with judge.open(tmp_path / "ours") as ours, judge.open(tmp_path / "theirs") as theirs:
        ours.append_bytes(*sent)
        with ours.tailer() as tailer:
            assert tailer.forward(theirs) == len(sent)
        written = [message.payload for message in theirs.read_all()]
    assert not different(zip(range(len(sent)), written, sent, strict=True))
    expected, calls = Calls(), Calls()
    say_all(expected)
    reader = MethodReader(calls)
    assert all(reader.handle(payload) for payload in written)
    assert calls.heard == expected.heard


def test_the_history_of_a_message(judge: Judge, tmp_path: Path) -> None:
    with (
        judge.open(tmp_path / "first", source_id=3) as first,
        judge.open(tmp_path / "second", source_id=7) as second,
    ):
        [index] = first.append_calls([("two", [["text", "a"], ["i64", 7]])])
        with first.tailer() as tailer:
            assert tailer.forward(second) == 1
        [message] = second.read_all()
    [call] = decode_calls(message.payload)
    assert (call.name, call.args) == ("two", ("a", 7))
    assert call.history is not None
    assert call.history.sources == ((3, index),)
    assert len(call.history.timings) >= 2
    assert list(call.history.timings) == sorted(call.history.timings)
    if judge.version.startswith("2026"):  # others wrote it by name or with junk bytes
        assert encode(call) == message.payload


def test_a_java_object_and_a_struct_are_the_same_document(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "queue") as queue:
        for quote in QUOTES:
            queue.append_quote(**as_json(quote))
        written = [message.payload for message in queue.read_all()]
    ours = [encode_fields(quote) for quote in QUOTES]
    assert not different(zip(QUOTES, written, ours, strict=True))
    read = [decode_as(payload, Quote) for payload in written]
    assert [encode_fields(quote) for quote in read] == written
    assert [quote.id for quote in read] == [quote.id for quote in QUOTES]
    assert judge.decode(ours, "quote") == judge.decode(written, "quote")


def test_objects_of_any_class_are_decoded(judge: Judge, tmp_path: Path) -> None:
    """Java writes numbers in Object fields in fixed widths; we read them all and write the smallest."""
    given: list[tuple[Value, Any]] = [
        (["i8", 1], 1),
        (["i16", 1], 1),
        (["i32", 1], 1),
        (["i64", 1], 1),
        (["f32", "1.5"], 1.5),
        (["f64", "1.5"], 1.5),
        (["store", "01"], b"\1"),
        (["side", "BUY"], Typed("judge.Side", "BUY")),
        (["bytes", "01"], b"\1"),
        (["list", [["i32", 1], ["list", [["i64", 2]]], None]], [1, [2], None]),
        (["map", [["a", ["i32", 1]], [["i64", 5], ["text", "b"]]]], {"a": 1, 5: "b"}),
        (["quote", {}], to_fields(Quote())),
    ]
    with judge.open(tmp_path / "queue") as queue:
        queue.append_calls(*([("any", [value])] for value, _ in given))
        calls = [decode(message.payload) for message in queue.read_all()]
    expected = [value for _, value in given]
    expected[-1] = {**expected[-1], "levels": []}  # an empty map looks like an empty list
    assert [call.value for call in calls] == expected
    assert isinstance(calls[-1].value, Fields)
    assert calls[-1].value.type == "judge.Quote"


def test_java_reads_any_of_our_objects(judge: Judge) -> None:
    made = [[1, "a", None, [2.5]], {"a": 1, "b": {"c": True}}, b"\1", "x" * 100]
    assert judge.decode(encode(value) for value in made) == [
        ["ArrayList", [["Integer", 1], ["String", "a"], None, ["ArrayList", [["Double", "2.5"]]]]],
        [
            "LinkedHashMap",
            [["a", ["Integer", 1]], ["b", ["LinkedHashMap", [["c", ["Boolean", True]]]]]],
        ],
        ["NativeBytesStore", "01"],
        ["String", "x" * 100],
    ]


def test_java_reads_maps_with_keys_of_any_kind(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "queue") as queue:
        queue.append_bytes(encode_call("map", {5: "x", "a": 1, dt.date(2024, 2, 29): None}))
        with queue.tailer() as tailer:
            [(_, [[_, pairs]])] = tailer.read_calls()
    assert pairs == [["5", ["String", "x"]], ["a", ["Integer", 1]], ["2024-02-29", None]]


def test_fields_as_java_prints_them(judge: Judge) -> None:
    [[_, text]] = judge.decode([encode_fields({"px": 1.5, "name": "e", "12": [1, 2]})], "fields")
    assert text == 'px: 1.5\nname: e\n"12": [\n  1,\n  2\n]\n'


@pytest.mark.parametrize("length", [127, 128, 16383, 16384, 2**21])
def test_lengths_around_the_borders_of_stop_bit_numbers(judge: Judge, length: int) -> None:
    text = "".join(itertools.islice(itertools.cycle("abcdefg"), length))
    [theirs] = judge.encode([["text", text]])
    assert theirs == encode(text)
    assert decode(theirs) == text
