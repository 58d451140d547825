"""Messages of a type as Arrow columns: the values that a reader decodes, without creating objects."""

import random
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from pyarrow.parquet import read_table

import aiochronicle
from aiochronicle import Codec, Queue, Registry, Slice
from aiochronicle.codec import F4, I2, U1, U4, U8, Format, Width
from aiochronicle.errors import (
    DecodeError,
    InvalidArgument,
    SchemaMismatch,
    SchemaNotFound,
    UnknownType,
)

SEGMENT = 1 << 16


class Tick(msgspec.Struct):
    symbol: Annotated[str, Width("S8")]
    price: float
    size: U4
    order: U8
    flags: I2
    venue: U1
    spread: F4
    last: bool
    raw: Annotated[bytes, Width("S4")]
    seq: int  # a name that is in use


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Leg(msgspec.Struct, rename={"side": "direction"}):
    side: Side
    quantity: int


class Order(msgspec.Struct, kw_only=True):
    id: uuid.UUID
    legs: list[Leg]
    sides: frozenset[Side]
    codes: frozenset[int]
    limit: Decimal | None
    sent: datetime
    day: date
    at: time
    patience: timedelta
    tags: dict[str, int]
    note: int | str
    anything: Any
    kind: Literal["limit", "market"]
    raw: bytes = b""


class Other(msgspec.Struct):
    text: str


ORDER = Order(
    id=uuid.UUID(int=5),
    legs=[Leg(Side.BUY, 3), Leg(Side.SELL, 4)],
    sides=frozenset([Side.BUY]),
    codes=frozenset([7]),
    limit=Decimal("101.25"),
    sent=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    day=date(2026, 1, 2),
    at=time(9, 30),
    patience=timedelta(seconds=1.5),
    tags={"a": 1},
    note="7",
    anything=[1, {"b": None}],
    kind="limit",
)


def some_ticks(rng: random.Random, count: int, form: Format) -> list[Tick]:
    order_max = 2**64 if form == "struct" else 2**63  # anywhere else it is a plain int
    return [
        Tick(
            symbol=rng.choice(["", "EUR", "zł€", "a\0b", "12345678"]),
            price=rng.uniform(-1e9, 1e9),
            size=rng.randrange(1 << 32),
            order=rng.randrange(order_max),
            flags=rng.randrange(-(1 << 15), 1 << 15),
            venue=rng.randrange(256),
            spread=rng.randrange(1000) / 4,
            last=rng.random() < 0.5,
            raw=rng.choice([b"", b"\xff\0\1", b"abcd"]),
            seq=rng.randrange(1 << 60),
        )
        for _ in range(count)
    ]


def write(path: Path, objects: list[Any], types: list[Any]) -> None:
    with aiochronicle.open_writer(path, segment_size=SEGMENT, codec=types) as writer:
        for obj in objects:
            writer.send(obj)


def rows_of(part: Slice, columns: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = part.to_arrow(columns, **options).to_pylist()
    return rows


@pytest.mark.parametrize("form", ["struct", "msgpack", "json"])
def test_columns_have_what_a_reader_decodes(
    queue_path: Path, rng: random.Random, form: Format
) -> None:
    """Several segments, with messages of another type between them."""
    ticks = some_ticks(rng, 1500, form)
    mixed: list[Any] = [
        obj for tick in ticks for obj in ([tick, Other("x")][: rng.randrange(1, 3)])
    ]
    codec = Codec(Tick, form)
    write(queue_path, mixed, [Other, codec])
    names = {
        field: f"Tick_{field}" if field == "seq" else field for field in Tick.__struct_fields__
    }
    with aiochronicle.open_reader(queue_path, codec=[Other, codec]) as reader:
        decoded = [
            (message.seq, obj) for message in reader if isinstance(obj := message.decode(), Tick)
        ]
    assert [tick for _, tick in decoded] == ticks
    expected = [
        {"seq": seq, **{name: getattr(tick, field) for field, name in names.items()}}
        for seq, tick in decoded
    ]
    with Queue(queue_path) as queue:
        part = queue.slice()
        chosen = ["seq", *names.values()]
        assert rows_of(part, chosen, codec=codec) == expected
        assert rows_of(part, chosen, codec="Tick") == expected
        batches = list(part.batches(100, chosen, codec=codec))
        assert [row for batch in batches for row in batch.to_pylist()] == expected
        assert all(0 < batch.num_rows <= 100 for batch in batches)
        assert rows_of(queue.slice(10, 20), chosen, codec=codec) == [
            row for row in expected if 10 <= row["seq"] < 20
        ]


def test_a_fixed_layout_is_not_decoded_by_row(queue_path: Path) -> None:
    made: list[int] = []

    class Counted(msgspec.Struct):
        number: int
        name: Annotated[str, Width("S8")] = "none"

        def __post_init__(self) -> None:
            made.append(self.number)

    codec = Codec(Counted, "struct")
    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT, codec=codec) as writer:
        writer.append_many([codec.encode(Counted(number)) for number in range(500)], type_id=1)
        made.clear()
    with Queue(queue_path) as queue:
        table = queue.slice().to_arrow(["number", "name"], codec=codec)
        assert table.column("number").to_pylist() == list(range(500))
        assert table.schema.types == [pa.int64(), pa.utf8()]
    assert made == []
    with aiochronicle.open_writer(queue_path) as writer:
        writer.append(codec.encode(Counted(500))[:8], type_id=1)  # before the type had a name
    with Queue(queue_path) as queue:
        assert rows_of(queue.slice(499), ["number", "name"], codec=codec) == [
            {"number": 499, "name": "none"},
            {"number": 500, "name": "none"},
        ]


def test_every_kind_of_field_has_a_column(queue_path: Path) -> None:
    write(queue_path, [ORDER], [Order])
    expected: dict[str, Any] = {
        "id": str(ORDER.id),
        "legs": [{"direction": "buy", "quantity": 3}, {"direction": "sell", "quantity": 4}],
        "sides": ["buy"],
        "codes": [7],
        "limit": ORDER.limit,
        "sent": ORDER.sent,
        "day": ORDER.day,
        "at": "09:30:00",
        "patience": ORDER.patience,
        "tags": [("a", 1)],
        "note": '"7"',
        "anything": '[1,{"b":null}]',
        "kind": "limit",
        "raw": b"",
    }
    with Queue(queue_path) as queue:
        part = queue.slice()
        assert rows_of(part, list(expected), codec=Order) == [expected]
        assert rows_of(part, list(expected), codec="Order") == [expected]
        assert part.to_arrow(codec=Order).column_names == [
            *("source", "seq", "timestamp_ns", "timestamp", "type_id"),
            *expected,
        ]
        with_payload = part.to_arrow(["payload", "cause", "kind"], codec=Order)
        assert with_payload.column("payload")[0].as_py() == msgspec.msgpack.encode(ORDER)


@pytest.mark.parametrize("form", ["struct", "json"])
def test_what_cannot_be_decoded_is_raised_with_its_place_or_told(
    queue_path: Path, rng: random.Random, form: Format
) -> None:
    codec = Codec(Tick, form)
    ticks = some_ticks(rng, 400, form)
    bad = sorted(rng.sample(range(400), 5))
    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT, codec=codec) as writer:
        for number, tick in enumerate(ticks):
            payload = codec.encode(tick)
            if number in bad:  # too short, or text that is not UTF-8
                payload = payload[:-3] if number == bad[0] else b"\xff" + payload[1:]
            writer.append(payload, type_id=1)
    with aiochronicle.open_reader(queue_path) as reader:
        places = [message.position for message in reader]
    with Queue(queue_path) as queue:
        part = queue.slice()
        for read in (part.to_arrow, lambda **options: list(part.batches(**options))):
            with pytest.raises(DecodeError, match="not a Tick") as caught:
                read(codec=codec)
            segment, offset = places[bad[0]]
            assert (caught.value.seq, caught.value.offset) == (bad[0], offset)
            assert caught.value.path == f"{queue_path}/{segment:09d}.q"
        with pytest.raises(DecodeError):
            part.export(queue_path / "no.parquet", codec=codec)
        assert not list(queue_path.glob("*no.parquet*"))
        rows = rows_of(part, codec=codec, on_undecodable="null")
        assert [row["seq"] for row in rows if row["_corrupt"] is not None] == bad
        assert [row["price"] is None for row in rows] == [seq in bad for seq in range(400)]
        assert all("not a Tick" in rows[seq]["_corrupt"] for seq in bad)
        fine = rows_of(
            queue.slice(0, bad[0]), ["price", "_corrupt"], codec=codec, on_undecodable="null"
        )
        assert fine == [{"price": tick.price, "_corrupt": None} for tick in ticks[: bad[0]]]


def test_messages_of_no_type_are_of_the_only_one_there_is(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT) as writer:
        for type_id in (0, 1, 7):
            writer.append(msgspec.msgpack.encode(Other(str(type_id))), type_id=type_id)
    with Queue(queue_path) as queue:
        part = queue.slice()
        assert rows_of(part, ["text"], codec=Other) == [{"text": "0"}, {"text": "1"}]
        seventh = Registry({7: Other})
        assert rows_of(part, ["text"], codec=seventh) == [{"text": "0"}, {"text": "7"}]
        with pytest.raises(SchemaNotFound):
            part.to_arrow(codec="Other")


def test_wrong_types_and_columns_are_told(queue_path: Path) -> None:
    class Changed(msgspec.Struct):
        text: int

    write(queue_path, [Other("x")], [Other])
    with Queue(queue_path) as queue:
        part = queue.slice()
        with pytest.raises(UnknownType, match="no type 'Nothing'; it has Other"):
            part.to_arrow(codec="Nothing")
        with pytest.raises(SchemaMismatch, match="text: was str, is int"):
            part.batches(codec=Codec(Changed, name="Other"))
        with pytest.raises(SchemaMismatch, match="format"):
            part.to_arrow(codec=Codec(Other, "json"))
        with pytest.raises(InvalidArgument, match="one type"):
            part.to_arrow(codec=Registry([Other, Tick]))
        with pytest.raises(InvalidArgument, match=r"no column 'price'.* text, payload"):
            part.to_arrow(["price"], codec=Other)
        with pytest.raises(InvalidArgument, match="on_undecodable"):
            part.to_arrow(codec=Other, on_undecodable="skip")  # type: ignore[arg-type]
        assert queue.slice(1).to_arrow(codec=Other).num_rows == 0
        assert queue.slice(1).to_arrow(codec=Other).column("text").type == pa.utf8()


def test_an_export_has_the_fields_as_columns(queue_path: Path, tmp_path: Path) -> None:
    write(queue_path, [Other(str(number % 3)) for number in range(1000)], [Other])
    target = tmp_path / "others.parquet"
    with Queue(queue_path) as queue:
        assert queue.slice().export(target, columns=["seq", "text"], codec=Other) == 1000
        table = queue.slice().to_arrow(codec="Other")
    exported = read_table(target)
    assert exported.column_names == ["seq", "text"]
    assert exported.column("text").to_pylist() == table.column("text").to_pylist()
