"""Messages of a type as columns."""

import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import aiochronicle
from aiochronicle.codec import I2, U4, U8, Codec, Width
from aiochronicle.spark import bad_records, scan


class Tick(msgspec.Struct):
    symbol: Annotated[str, Width("S8")]
    price: float
    size: U4
    order: U8
    flags: I2
    last: bool
    seq: int  # every frame already has a column of this name


class Leg(msgspec.Struct, rename={"side": "direction"}):
    side: Literal["buy", "sell"]
    quantity: int


class Order(msgspec.Struct):
    id: uuid.UUID
    legs: list[Leg]
    limit: Decimal | None
    sent: datetime
    day: date
    at: time
    patience: timedelta
    tags: dict[str, int]
    note: int | str
    raw: bytes = b""


class Other(msgspec.Struct):
    text: str


ORDER = Order(
    id=uuid.UUID(int=5),
    legs=[Leg("buy", 3), Leg("sell", 4)],
    limit=Decimal("101.25"),
    sent=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    day=date(2026, 1, 2),
    at=time(9, 30),
    patience=timedelta(seconds=1.5),
    tags={"a": 1},
    note="7",
)


def load(spark: SparkSession, path: Path, kind: str, **options: str) -> DataFrame:
    return spark.read.format("chronicle").options(type=kind, **options).load(str(path))


@pytest.fixture
def ticks(root: Path) -> Path:
    """A queue of fixed-layout messages, with messages of another type among them."""
    types: list[Codec] = [Codec(Tick, "struct"), Codec(Other)]
    with aiochronicle.open_writer(root / "ticks", segment_size=1 << 20, codec=types) as writer:
        for number in range(1000):
            writer.send(
                Tick(f"S{number}", number / 4, number, 2**64 - 1, -number, True, number + 1)
            )
            writer.send(Other("between"))
    return root


def test_a_fixed_layout_becomes_columns(spark: SparkSession, ticks: Path) -> None:
    frame = load(spark, ticks, "tick")
    assert frame.columns == [
        *("source", "seq", "timestamp_ns", "timestamp", "type_id", "payload"),
        *("symbol", "price", "size", "order", "flags", "last", "Tick_seq", "_corrupt"),
    ]
    rows = frame.orderBy("seq").drop("timestamp", "timestamp_ns", "payload").collect()
    assert len(rows) == 1000
    assert rows[3] == Row(
        source="ticks",
        seq=6,
        type_id=1,
        symbol="S3",
        price=0.75,
        size=3,
        order=Decimal(2**64 - 1),
        flags=-3,
        last=True,
        Tick_seq=4,
        _corrupt=None,
    )


def test_scan_reads_the_same_columns(spark: SparkSession, ticks: Path) -> None:
    frame = scan(spark, str(ticks), columns=["seq", "price"], type="Tick", minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    rows = sorted(frame.collect())
    assert rows == [Row(seq=2 * number, price=number / 4) for number in range(1000)]


def test_nested_and_optional_fields_keep_their_shape(spark: SparkSession, root: Path) -> None:
    with aiochronicle.open_writer(root / "orders", segment_size=1 << 20, codec=Order) as writer:
        writer.send(ORDER)
        writer.send(msgspec.structs.replace(ORDER, limit=None, note=7, raw=b"\x01", legs=[]))
    first, second = load(spark, root, "Order").orderBy("seq").collect()
    assert first.id == str(ORDER.id)
    assert first.legs == [Row(direction="buy", quantity=3), Row(direction="sell", quantity=4)]
    assert first.limit == Decimal("101.25")
    assert first.sent == ORDER.sent.replace(tzinfo=None)
    assert (first.day, first.at, first.patience) == (ORDER.day, "09:30:00", ORDER.patience)
    assert (first.tags, first.note, first.raw) == ({"a": 1}, '"7"', b"")
    assert (second.limit, second.note, second.raw, second.legs) == (None, "7", b"\x01", [])


def test_what_cannot_be_decoded_is_told_or_fails(spark: SparkSession, root: Path) -> None:
    with aiochronicle.open_writer(root / "orders", segment_size=1 << 20, codec=Order) as writer:
        writer.send(ORDER)
        writer.append(b"nonsense", type_id=1)
        writer.send(ORDER)
    rows = load(spark, root, "Order").orderBy("seq").collect()
    assert [row.day for row in rows] == [ORDER.day, None, ORDER.day]
    assert [row._corrupt is None for row in rows] == [True, False, True]
    assert rows[1]._corrupt.startswith("not a Order: ")
    assert rows[1].payload == b"nonsense"
    strict = load(spark, root, "Order", mode="failfast")
    assert "_corrupt" not in strict.columns
    with pytest.raises(PySparkException, match="orders: message 1: not a Order"):
        strict.collect()


def test_a_fixed_layout_of_the_wrong_size_is_told(spark: SparkSession, ticks: Path) -> None:
    with aiochronicle.open_writer(ticks / "ticks") as writer:
        writer.append(b"short", type_id=1)
    frame = load(spark, ticks, "Tick")
    assert frame.where("_corrupt is not null").select("seq", "_corrupt").collect() == [
        Row(seq=2000, _corrupt="not a Tick: Tick has 39 bytes, the payload has 5")
    ]
    assert frame.where("_corrupt is null").count() == 1000


def test_queues_without_the_type_have_no_rows_and_older_ones_no_values(
    spark: SparkSession, root: Path
) -> None:
    class V1(msgspec.Struct):
        price: float

    class V2(msgspec.Struct):
        price: float
        venue: str = "X"

    messages: dict[str, tuple[Codec, msgspec.Struct]] = {
        "new": (Codec(V2, name="Trade"), V2(1.5)),
        "old": (Codec(V1, name="Trade"), V1(1.5)),
        "others": (Codec(Other), Other("x")),
    }
    for name, (codec, message) in messages.items():
        with aiochronicle.open_writer(root / name, segment_size=1 << 20, codec=codec) as writer:
            writer.send(message)
    rows = load(spark, root, "Trade").orderBy("source").collect()
    assert [(row.source, row.price, row.venue) for row in rows] == [
        ("new", 1.5, "X"),
        ("old", 1.5, None),
    ]


def test_an_unknown_type_is_told(spark: SparkSession, ticks: Path) -> None:
    with pytest.raises(
        PySparkException, match="no queue has a type 'quote'; there are Other, Tick"
    ):
        load(spark, ticks, "quote")


def test_damage_in_messages_of_other_types_is_no_matter(spark: SparkSession, root: Path) -> None:
    codecs: list[Codec] = [Codec(Order), Codec(Other)]
    with aiochronicle.open_writer(root / "mixed", segment_size=1 << 20, codec=codecs) as writer:
        for number in range(300):
            writer.send(ORDER if number % 3 == 0 else Other(f"other {number}" * 9))
    segment = root / "mixed" / "000000000.q"
    content = bytearray(segment.read_bytes())
    content[content.index(b"other 100") + 3] ^= 1
    segment.write_bytes(content)
    assert load(spark, root, "Order").count() == 100
    with pytest.raises(PySparkException, match="payload checksum fails"):
        load(spark, root, "Other").count()
    with pytest.raises(PySparkException, match="payload checksum fails"):
        spark.read.format("chronicle").load(str(root)).count()
    notes = root.parent / "notes"
    tolerant = load(spark, root, "Other", on_corrupt="skip", badRecordsPath=str(notes))
    assert tolerant.count() == 199
    assert [(one.first_seq, one.end_seq) for one in bad_records(notes)] == [(100, 101)]
