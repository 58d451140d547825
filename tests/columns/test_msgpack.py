"""The engine's MessagePack decoder gives the same result as msgspec, or gives up."""

import math
import random
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from helpers.shapes import plain

from aiochronicle._columns.msgpack import PlainMessages


class Plain(msgspec.Struct, kw_only=True, rename={"size": "s"}):
    symbol: str
    price: float
    size: int
    live: bool
    raw: bytes
    limit: float | None
    note: str | None = None
    venue: str = "XETR"
    lots: int = 1
    spread: float | None = 0.25  # here a missing field differs from None


class Level(msgspec.Struct, array_like=True):
    price: float
    size: float = 1.5
    note: str | None = None


class Fill(msgspec.Struct, array_like=True, tag="F"):
    lots: list[int]
    last: Level | None


class Leg(msgspec.Struct, rename={"side": "s"}):
    side: str
    done: bool = False


class Book(msgspec.Struct, tag="book", tag_field="e"):
    symbol: str
    bids: list[Level]
    asks: list[Level | None] | None
    legs: tuple[Leg, ...]
    fills: list[Fill]
    best: Level
    ladder: list[list[float]]


def read(payloads: list[bytes], struct: type[Any] = Plain) -> list[dict[str, Any]] | None:
    messages = PlainMessages.of(struct)
    assert messages is not None
    # As part of a longer column, whose other rows must not be affected.
    column = pa.array([b"\xc1", *payloads, b"\xc1"], pa.binary()).slice(1, len(payloads))
    columns = messages.columns(column)
    if columns is None:
        return None
    for array in columns.values():
        array.validate(full=True)
    table: pa.Table = pa.table(columns)
    return table.to_pylist()


def expected(payloads: list[bytes], struct: type[Any] = Plain) -> list[dict[str, Any]] | None:
    try:
        objects = [msgspec.msgpack.decode(payload, type=struct) for payload in payloads]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [msgspec.structs.asdict(obj) for obj in objects]


def same(rows: Any) -> Any:
    """Return rows that can be compared: NaN equals NaN."""
    return rows and [
        {name: "nan" if value != value else value for name, value in row.items()} for row in rows
    ]


def some_message(rng: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {
        "symbol": rng.choice(
            ["", "EUR", "zł€", "a\0b", "x" * rng.choice([31, 32, 255, 256, 70000])]
        ),
        "price": rng.choice([0.0, -1.5, math.inf, math.nan, 7, -(2**63), 2**53 + 1]),
        "s": rng.choice([0, 127, 128, -32, -33, 2**31, -(2**31), 2**63 - 1, -(2**63)]),
        "live": rng.random() < 0.5,
        "raw": rng.choice([b"", b"\xff\0", bytes(300)]),
        "limit": rng.choice([None, 2.5]),
    }
    others = {
        "note": rng.choice([None, "é"]),
        "venue": "XNYS",
        "lots": rng.randrange(-300, 300),
        "unknown": rng.choice([1, "x", [1, {"a": [None]}], {"b": {}}, b"", 1.5]),
    }
    message |= {name: value for name, value in others.items() if rng.random() < 0.5}
    names = list(message)
    if rng.random() < 0.3:
        rng.shuffle(names)
    return {name: message[name] for name in names}


def test_messages_of_a_type_are_read_as_msgspec_does(rng: random.Random) -> None:
    for _ in range(100):
        messages = [some_message(rng) for _ in range(rng.choice([1, 7, 8, 9, 64, 100]))]
        complete = [{"spread": rng.choice([None, 0.5]), **message} for message in messages]
        payloads = [msgspec.msgpack.encode(message) for message in complete]
        assert same(read(payloads)) == same(expected(payloads))


def test_whatever_is_read_is_what_msgspec_reads(rng: random.Random) -> None:
    """Bytes are changed, cut, and moved between messages. The decoder may give up; it is never wrong."""
    read_count = 0
    for _ in range(5000):
        messages = [{"spread": 1.0, **some_message(rng)} for _ in range(2)]
        payloads = [bytearray(msgspec.msgpack.encode(message)) for message in messages]
        if len(payloads[0]) > 1000:
            continue
        match rng.randrange(4):
            case 0:
                payloads[0][rng.randrange(len(payloads[0]))] = rng.randrange(256)
            case 1:
                moved = rng.randrange(len(payloads[1]))
                payloads[0] += payloads[1][:moved]
                del payloads[1][:moved]
            case 2:
                del payloads[1][rng.randrange(len(payloads[1])) :]
            case _:
                place = rng.randrange(len(payloads[0]))
                payloads[0][place:place] = rng.randbytes(rng.randrange(1, 4))
        changed = [bytes(payload) for payload in payloads]
        found = read(changed)
        if found is not None:
            read_count += 1
            assert same(found) == same(expected(changed)), changed
    assert read_count > 100


def pack(*entries: tuple[bytes, bytes]) -> bytes:
    return bytes([0x80 | len(entries)]) + b"".join(name + value for name, value in entries)


class One(msgspec.Struct):
    x: int


X = b"\xa1x"


@pytest.mark.parametrize(
    "payloads",
    [
        [b""],
        [b"\x91\x01"],  # not a map
        [pack((X, b"\x01")) + b"\xc0"],  # something follows
        [pack((X, b"\x01")) + b"\x81", X + b"\x02"],  # two that are good only when put together
        [pack((X, b"\x01"), (X, b"\x02"))],  # twice
        [pack((b"\x01", b"\x01"))],  # a name that is a number
        [pack((X, b"\xcb" + bytes(8)))],  # a float, which msgspec accepts if it is integral
        [pack((X, b"\xcf" + b"\xff" * 8))],  # more than a column can hold
        [pack((X, b"\xc0"))],
        [pack((b"\xa1y", b"\x01"))],  # missing
        [pack((X, b"\x01"), (b"\xa1y", b"\x91" * 5000 + b"\xc0"))],
    ],
)
def test_everything_else_is_left_to_msgspec(payloads: list[bytes]) -> None:
    assert read([pack((X, b"\x01"))], One) == [{"x": 1}]
    assert read([pack((X, b"\x01")), *payloads], One) is None


def test_text_that_is_none_is_left_to_msgspec() -> None:
    class Text(msgspec.Struct):
        x: str

    good, bad = pack((X, b"\xa2\xc3\xa9")), pack((X, b"\xa2\xe9\xa9"))
    assert read([good], Text) == [{"x": "é"}]
    assert read([good, bad], Text) is None


class Checked(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        raise ValueError("never")


@pytest.mark.parametrize(
    "struct",
    [
        Checked,
        msgspec.defstruct("Positive", [("x", Annotated[int, msgspec.Meta(gt=0)])]),
        msgspec.defstruct("Short", [("x", Annotated[str, msgspec.Meta(max_length=3)])]),
        msgspec.defstruct("Either", [("x", int | str)]),
        msgspec.defstruct("Set", [("x", set[int])]),
        msgspec.defstruct("Dict", [("x", dict[str, int])]),
        msgspec.defstruct("Bounded", [("x", Annotated[list[int], msgspec.Meta(max_length=3)])]),
        msgspec.defstruct("Inner", [("x", list[Checked])]),
        msgspec.defstruct("Anything", [("x", Any)]),
        msgspec.defstruct("Made", [("x", str, msgspec.field(default_factory=str))]),
        msgspec.defstruct("Unset", [("x", int | msgspec.UnsetType, msgspec.UNSET)]),
        msgspec.defstruct("Large", [("x", int, 2**64)]),
        msgspec.defstruct("Array", [("x", int)], array_like=True),
        msgspec.defstruct("Tagged", [("x", int)], tag=5),
        msgspec.defstruct("Strict", [("x", int)], forbid_unknown_fields=True),
        msgspec.defstruct("Wide", [(f"x{number}", int) for number in range(65)]),
    ],
    ids=lambda struct: struct.__name__,
)
def test_types_that_are_not_plain_are_left_to_msgspec(struct: type[msgspec.Struct]) -> None:
    assert PlainMessages.of(struct) is None


def test_a_type_of_as_many_fields_as_there_may_be() -> None:
    names = [f"x{number}" for number in range(64)]
    wide = msgspec.defstruct("Wide", [(name, int) for name in names])
    row = {name: number for number, name in enumerate(names)}
    assert read([msgspec.msgpack.encode(row)], wide) == [row]


def some_level(rng: random.Random) -> list[Any]:
    return [rng.uniform(-9, 9), rng.randrange(5), rng.choice([None, "n"]), "more"][
        : rng.randrange(1, 5)
    ]


def some_book(rng: random.Random) -> dict[str, Any]:
    def several(make: Any) -> list[Any]:
        return [make(rng) for _ in range(rng.choice((0, 1, 2, 3, 20)))]

    book = {
        "symbol": rng.choice(["", "EUR", "x" * 40]),
        "bids": several(some_level),
        "asks": rng.choice([None, [None, [1.5]], several(some_level)]),
        "legs": several(lambda rng: rng.choice([{"s": "buy"}, {"done": True, "s": "", "x": [1]}])),
        "fills": several(lambda rng: ["F", [1] * rng.randrange(4), rng.choice([None, [2.5]])]),
        "best": some_level(rng),
        "ladder": several(lambda rng: [rng.random()] * rng.randrange(3)),
        "unknown": several(some_level),
    }
    entries = [("e", "book"), *book.items()]
    if rng.random() < 0.3:
        rng.shuffle(entries)
    return dict(entries)


def books_of(payloads: list[bytes]) -> list[dict[str, Any]] | None:
    try:
        books = [msgspec.msgpack.decode(payload, type=Book) for payload in payloads]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [{name: plain(getattr(book, name)) for name in Book.__struct_fields__} for book in books]


def test_lists_and_structs_inside_are_read_as_msgspec_does(rng: random.Random) -> None:
    payloads = [msgspec.msgpack.encode(some_book(rng)) for _ in range(300)]
    assert read(payloads, Book) == books_of(payloads) is not None


def test_whatever_is_read_of_lists_and_structs_is_what_msgspec_reads(rng: random.Random) -> None:
    """Bytes are changed, removed and added. The decoder may give up; it is never wrong."""
    read_ones = 0
    for _ in range(3000):
        payload = bytearray(msgspec.msgpack.encode(some_book(rng)))
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(payload))
            change = rng.randrange(3)
            if change == 0:
                payload[place] = rng.choice((rng.randrange(256), 0xC0, 0x90, 0x80, 0xDD))
            elif change == 1:
                del payload[place]
            else:
                payload.insert(place, rng.randrange(256))
        found = read([bytes(payload)], Book)
        if found is not None:
            read_ones += 1
            assert repr(found) == repr(books_of([bytes(payload)]))
    assert read_ones > 500


def usual(payloads: list[bytes], struct: type[Any] = Plain) -> list[bool] | None:
    messages = PlainMessages.of(struct)
    assert messages is not None
    found = messages.columns_and_usual(pa.array(payloads, pa.binary()))
    return None if found is None else found[1].to_pylist()


def other_forms(value: bytes) -> list[bytes]:
    """Return longer encodings of a small number or short text that MessagePack also allows."""
    if value[0] < 0x80:
        return [b"\xcc" + value, b"\xcd\0" + value, b"\xd0" + value, b"\xd3" + bytes(7) + value]
    if 0xA0 <= value[0] < 0xC0:
        length = bytes([value[0] & 31])
        return [b"\xd9" + length + value[1:], b"\xda\0" + length + value[1:]]
    return [value]


def test_messages_that_msgspec_has_encoded_are_usual(rng: random.Random) -> None:
    whole = [0, 31, 127, 128, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1]
    whole += [-number - less for number in whole for less in (0, 1)]
    sizes = [0, 31, 32, 255, 256, 2**16 - 1, 2**16]
    objects = [
        Plain(
            symbol="x" * rng.choice(sizes),
            price=rng.choice([0.0, -1.5, 7.0, math.inf]),
            size=number,
            live=rng.random() < 0.5,
            raw=bytes(rng.choice(sizes)),
            limit=rng.choice([None, 2.5]),
            lots=rng.choice(whole),
        )
        for number in whole
    ]
    payloads = [msgspec.msgpack.encode(one) for one in objects]
    assert usual(payloads) == [True] * len(payloads)
    levels = [Level(1.5, 2.5, None)] * rng.choice([0, 15, 16, 70_000])
    book = Book("X", levels, None, (Leg("a"),), [Fill([1, 2], None)], Level(1.0), [[], [1.5] * 20])
    assert usual([msgspec.msgpack.encode(book)], Book) == [True]


def test_usual_messages_are_what_msgspec_encodes(rng: random.Random) -> None:
    """Fields are missing, added or reordered; integers replace floats; encodings are longer than
    necessary."""
    seen = {True: 0, False: 0}
    for _ in range(300):
        messages = [{"spread": 1.5, **some_message(rng)} for _ in range(8)]
        payloads: list[bytes] = []
        for message in messages:
            names = list(message)
            if rng.random() < 0.5:  # all of them, in order
                plain_fields = msgspec.structs.fields(Plain)
                names = [field.encode_name for field in plain_fields]
                message |= {"note": None, "venue": "XETR", "lots": 1} | message
                if rng.random() < 0.3:
                    names[rng.randrange(len(names))] = "unknown"
                    message["unknown"] = 1
            parts = [
                msgspec.msgpack.encode(part) for name in names for part in (name, message.get(name))
            ]
            if rng.random() < 0.4:
                place = rng.randrange(len(parts))
                parts[place] = rng.choice(other_forms(parts[place]))
            payloads.append(bytes([0x80 | len(names)]) + b"".join(parts))
        found = usual(payloads)
        for payload, is_usual in zip(payloads, found or [], strict=False):
            same = msgspec.msgpack.encode(msgspec.msgpack.decode(payload, type=Plain)) == payload
            assert same or not is_usual, payload
            seen[is_usual] += 1
    assert min(seen.values()) > 100


def test_fields_that_are_not_wanted_are_skipped(rng: random.Random) -> None:
    messages = PlainMessages.of(Plain, ["price", "limit"])
    assert messages is not None
    rows = [{"spread": 1.0, **some_message(rng)} for _ in range(50)]
    for row in rows:
        row["symbol"] = rng.choice([None, 5, [1, {"a": b"b"}], "text"])
        del row["live"]
    columns = messages.columns(pa.array([msgspec.msgpack.encode(row) for row in rows], pa.binary()))
    assert columns is not None
    table: pa.Table = pa.table(columns)
    assert same(table.to_pylist()) == same(
        [{"price": float(row["price"]), "limit": row["limit"]} for row in rows]
    )
    cut = msgspec.msgpack.encode(rows[0])[:-1]
    assert messages.columns(pa.array([cut], pa.binary())) is None
    assert PlainMessages.of(Plain, []) is not None
