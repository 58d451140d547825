"""The queue's schema.json: writing, checking, updating; its contents are never trusted unchecked."""

import os
import stat
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from aiochronicle import Codec, Registry, open_reader, open_writer
from aiochronicle.codec import I4
from aiochronicle.errors import (
    InvalidArgument,
    SchemaError,
    SchemaMismatch,
    SchemaNotFound,
    UnsupportedVersion,
)


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Leg(msgspec.Struct, frozen=True):
    symbol: str
    ratio: int = 1


class Order(msgspec.Struct):
    """A type with every kind of field that a schema can describe."""

    id: UUID
    side: Side
    at: datetime
    price: Decimal
    legs: list[Leg]
    day: date = date(2020, 1, 2)
    open_time: time = time(9, 30)
    lifetime: timedelta = timedelta(seconds=5)
    tags: dict[str, int] = {}
    extra: dict[int, float] = {}
    blob: bytes = b"\x00\xff"
    first: Leg = Leg("A", 2)
    pair: tuple[int, str] = (1, "x")
    seen: frozenset[str] = frozenset({"a"})
    kind: Literal["limit", 7] = "limit"
    limit: float = float("nan")
    worst: float | None = float("-inf")
    note: str | None = None
    anything: Any = None
    codes: tuple[int, ...] = (1, 2)
    client: str = msgspec.field(name="clientId", default="house")


ORDER = Order(
    id=UUID(int=5),
    side=Side.SELL,
    at=datetime(2024, 5, 6, tzinfo=UTC),
    price=Decimal("1.50"),
    legs=[Leg("B"), Leg("C", 3)],
    limit=2.0,
    extra={4: 0.5},
)


class Trade(msgspec.Struct):
    price: float
    size: int


class Quote(msgspec.Struct):
    bid: float


def trade_with(*fields: Any, **options: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Trade", fields, **options)


def write(path: Path, codec: Any, *objects: msgspec.Struct) -> None:
    with open_writer(path, codec=codec, segment_size=1 << 20) as writer:
        for obj in objects:
            writer.send(obj)


def decoded(path: Path, codec: Any) -> list[Any]:
    with open_reader(path, codec=codec) as reader:
        return [message.decode() for message in reader]


def test_types_keep_their_ids_whatever_the_order(queue_path: Path) -> None:
    write(queue_path, [Trade, Quote], Trade(1.0, 2), Quote(3.0))
    write(queue_path, [Quote], Quote(4.0))
    write(queue_path, [Order, Quote, Trade], ORDER, Trade(5.0, 6))
    registry = Registry.load(queue_path)
    assert {entry.name: entry.type_id for entry in registry} == {"Trade": 1, "Quote": 2, "Order": 3}
    assert decoded(queue_path, [Quote, Order, Trade]) == [
        Trade(1.0, 2),
        Quote(3.0),
        Quote(4.0),
        ORDER,
        Trade(5.0, 6),
    ]


@pytest.mark.parametrize("form", ["msgpack", "json"])
def test_a_schema_is_enough_to_decode(queue_path: Path, form: Any) -> None:
    """Classes created from the file alone encode decoded payloads to the same bytes."""
    codec = Codec(Order, form)
    write(queue_path, codec, ORDER)
    loaded = Registry.load(queue_path / "schema.json").named("Order")
    assert (loaded.type_id, loaded.format, loaded.name) == (1, form, "Order")
    assert loaded.fields == Registry([codec]).named("Order").fields
    assert loaded.fingerprint == Registry([codec]).named("Order").fingerprint
    with open_reader(queue_path, codec=Registry.load(queue_path)) as reader:
        message = reader.poll()
        assert message is not None
        order = message.decode()
        assert type(order).__name__ == "Order"
        assert order.side == "sell"
        assert order.legs[1].ratio == 3
        assert order.client == "house"
        assert loaded.codec.encode(message.decode(loaded.codec)) == message.payload


def test_defaults_are_those_of_the_class(queue_path: Path) -> None:
    write(queue_path, Order)
    made = (
        Registry.load(queue_path)
        .named("Order")
        .codec.type(id=UUID(int=5), side="sell", at=ORDER.at, price=ORDER.price, legs=[])
    )
    ours = msgspec.structs.replace(ORDER, legs=[], limit=float("nan"), extra={})
    assert msgspec.json.encode(made) == msgspec.json.encode(ours)
    assert made.limit != made.limit
    assert made.worst == float("-inf")


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    program = """
import msgspec
from aiochronicle import Registry
class Odd(msgspec.Struct):
    seen: frozenset[str] = frozenset({"a", "b", "c", "d", "e"})
    either: int | str | None = None
print(Registry([Odd])[1].fingerprint)
"""
    fingerprints = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": str(seed)}
        )
        for seed in range(4)
    }
    assert len(fingerprints) == 1


def test_a_default_that_only_the_class_knows_is_none(queue_path: Path) -> None:
    counter = iter(range(100))
    odd = trade_with(
        ("price", float), ("number", int, msgspec.field(default_factory=counter.__next__))
    )
    write(queue_path, odd)
    made = Registry.load(queue_path).named("Trade")
    assert made.codec.decode(msgspec.msgpack.encode({"price": 1.0})).number is None
    write(queue_path, odd)  # still the same type


def test_fixed_layouts_are_rebuilt_with_their_widths(queue_path: Path) -> None:
    class Bar(msgspec.Struct):
        open: bool
        lots: I4
        price: float = 1.5

    codec = Codec(Bar, "struct")
    write(queue_path, codec, Bar(True, 4))
    loaded = Registry.load(queue_path).named("Bar").codec
    assert loaded.layout == codec.layout
    assert loaded.dtype == codec.dtype
    assert [loaded.encode(bar) for bar in decoded(queue_path, loaded)] == [
        codec.encode(Bar(True, 4))
    ]


def test_the_same_type_again_leaves_the_file_alone(queue_path: Path) -> None:
    write(queue_path, Order)
    before = (queue_path / "schema.json").stat()
    write(queue_path, Order, ORDER)
    after = (queue_path / "schema.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_the_file_has_the_mode_of_the_queue(queue_path: Path) -> None:
    open_writer(queue_path, codec=Trade, mode=0o640).close()
    assert stat.S_IMODE((queue_path / "schema.json").stat().st_mode) == 0o640
    assert not list(queue_path.glob("*.tmp"))


def test_added_fields_with_defaults_are_fine(queue_path: Path) -> None:
    write(queue_path, Trade, Trade(1.0, 2))
    wider = trade_with(("price", float), ("venue", str, "XETR"), ("size", int), kw_only=True)
    assert decoded(queue_path, wider) == [wider(price=1.0, venue="XETR", size=2)]
    assert len(Registry.load(queue_path).named("Trade").fields) == 2, "a reader must not write"
    write(queue_path, wider, wider(price=3.0, venue="XLON", size=4))
    assert [field.name for field in Registry.load(queue_path)[1].fields] == [
        "price",
        "venue",
        "size",
    ]
    assert [trade.venue for trade in decoded(queue_path, wider)] == ["XETR", "XLON"]
    # A reader that has not been upgraded keeps working; a writer of the old schema is refused.
    assert decoded(queue_path, Trade) == [Trade(1.0, 2), Trade(3.0, 4)]
    with pytest.raises(SchemaMismatch, match="venue: was str = 'XETR', is gone"):
        open_writer(queue_path, codec=Trade)


def test_fields_are_added_to_nested_types_too(queue_path: Path) -> None:
    class Basket(msgspec.Struct):
        legs: list[Leg]

    write(queue_path, Basket, Basket([Leg("A")]))
    wide_leg = msgspec.defstruct("Leg", [("symbol", str), ("ratio", int, 1), ("venue", str, "X")])
    wide = msgspec.defstruct("Basket", [("legs", list[wide_leg])])  # type: ignore[valid-type]
    write(queue_path, wide)
    assert decoded(queue_path, wide)[0].legs[0].venue == "X"
    odd_leg = msgspec.defstruct("Leg", [("symbol", int), ("ratio", int, 1), ("venue", str, "X")])
    odd = msgspec.defstruct("Basket", [("legs", list[odd_leg])])  # type: ignore[valid-type]
    with pytest.raises(SchemaMismatch) as raised:
        open_writer(queue_path, codec=odd)
    assert raised.value.differences == ("legs[].symbol: was str, is int",)


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        (trade_with(("price", float)), ["size: was int, is gone"]),
        (trade_with(("price", str), ("size", int)), ["price: was float, is str"]),
        (
            trade_with(("price", float), ("size", int), ("venue", str)),
            ["venue: is new, str without a default"],
        ),
        (
            trade_with(("price", float | None), ("lots", int), ("size", str)),
            [
                "price: was float, is float | null",
                "size: was int, is str",
                "lots: is new, int without a default",
            ],
        ),
        (trade_with(("price", float), ("size", int, 1)), ["size: was int, is int = 1"]),
        (
            trade_with(("price", float), ("size", int), rename="camel", array_like=True),
            ["array_like: was False, is True"],
        ),
        (
            trade_with(("price", float), ("size", int), rename={"size": "qty"}),
            ["size: was int, is int encoded as 'qty'"],
        ),
        (
            trade_with(("price", float), ("size", int), tag=True),
            ["tag_field: was None, is 'type'", "tag: was None, is 'Trade'"],
        ),
        (Codec(Trade, "json"), ["format: was 'msgpack', is 'json'"]),
    ],
)
def test_any_other_change_is_refused_field_by_field(
    queue_path: Path, changed: Any, differences: list[str]
) -> None:
    write(queue_path, Trade, Trade(1.0, 2))
    before = (queue_path / "schema.json").read_bytes()
    for opening in (open_writer, open_reader):
        with pytest.raises(SchemaMismatch) as raised:
            opening(queue_path, codec=changed)
        assert list(raised.value.differences) == differences
        assert all(line in str(raised.value) for line in differences)
        assert raised.value.path == str(queue_path / "schema.json")
    assert (queue_path / "schema.json").read_bytes() == before
    write(queue_path, Trade, Trade(1.0, 2))  # the refused writer holds no lock


def test_places_matter_where_names_do_not(queue_path: Path) -> None:
    fixed = Codec(Trade, "struct")
    write(queue_path, fixed, Trade(1.0, 2))
    swapped = Codec(trade_with(("size", int), ("price", float)), "struct")
    with pytest.raises(SchemaMismatch, match="price: was field 1, is field 2"):
        open_reader(queue_path, codec=swapped)
    inserted = trade_with(("price", float), ("new", int, 0), ("size", int, 0))
    with pytest.raises(SchemaMismatch, match="size: was field 2, is field 3"):
        open_writer(queue_path, codec=Codec(inserted, "struct"))
    longer = Codec(trade_with(("price", float), ("size", int), ("new", I4, 9)), "struct")
    write(queue_path, longer, longer.type(3.0, 4, 5))
    assert [trade.new for trade in decoded(queue_path, longer)] == [9, 5]
    with pytest.raises(SchemaMismatch, match="new: was int as <i4 = 9, is gone"):
        open_reader(queue_path, codec=fixed)


def test_order_does_not_matter_where_names_do(queue_path: Path) -> None:
    write(queue_path, Trade, Trade(1.0, 2))
    swapped = trade_with(("size", int), ("price", float))
    write(queue_path, swapped, swapped(3, 4.0))
    assert [trade.price for trade in decoded(queue_path, swapped)] == [1.0, 4.0]


def test_ids_given_are_ids_kept(queue_path: Path) -> None:
    write(queue_path, Registry({7: Trade, 3: Quote}), Trade(1.0, 2), Quote(3.0))
    with open_reader(queue_path) as reader:
        assert [message.type_id for message in reader] == [7, 3]
    assert decoded(queue_path, [Trade, Quote]) == [Trade(1.0, 2), Quote(3.0)]
    with pytest.raises(SchemaMismatch, match="type_id: was 7, is 8"):
        open_reader(queue_path, codec=Registry({8: Trade}))
    with pytest.raises(SchemaMismatch, match="type_id 7: was Trade, is Order"):
        open_writer(queue_path, codec=Registry({7: Order}))


def test_a_reader_of_other_types_is_told_what_is_there(queue_path: Path) -> None:
    write(queue_path, Trade, Trade(1.0, 2))
    with pytest.raises(SchemaMismatch, match="the queue has no type Quote") as raised:
        open_reader(queue_path, codec=Quote)
    assert raised.value.differences == ("type_id 1: Trade",)
    told, difference, advice = str(raised.value).splitlines()
    assert told.endswith("the queue has no type Quote; it has:")
    assert difference == "  type_id 1: Trade"
    assert "Registry.load" in advice


def test_a_class_may_change_its_name(queue_path: Path) -> None:
    class TradeV2(msgspec.Struct):
        price: float
        size: int
        venue: str = ""

    write(queue_path, Trade, Trade(1.0, 2))
    assert decoded(queue_path, Codec(TradeV2, name="Trade")) == [TradeV2(1.0, 2, "")]


def test_registry_refuses_what_cannot_be_told_apart() -> None:
    with pytest.raises(InvalidArgument, match="Trade occurs twice"):
        Registry([Trade, Codec(Trade, "json")])
    with pytest.raises(InvalidArgument, match="type_id must be an int from 0 to 65534, not 65535"):
        Registry({65535: Trade})  # which is padding
    with pytest.raises(InvalidArgument, match=r"Odd\.when has a type .*: Custom"):
        Registry([msgspec.defstruct("Odd", [("when", complex)])])


class Node(msgspec.Struct):
    below: "list[Node]"


def test_a_type_that_contains_itself_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Node contains itself"):
        Registry([Node])


VALID = (
    b'{"version":1,"types":[{"type_id":1,"name":"Trade","format":"msgpack","fingerprint":"%s",'
    b'"fields":[%s]}]}'
)


def refused(
    queue_path: Path, content: bytes, text: str, error: type[Exception] = SchemaError
) -> None:
    (queue_path / "schema.json").write_bytes(content)
    for attempt in (
        lambda: Registry.load(queue_path),
        lambda: open_reader(queue_path, codec=Trade),
        lambda: open_writer(queue_path, codec=Trade),
    ):
        with pytest.raises(error, match=text) as raised:
            attempt()
        assert raised.value.path == str(queue_path / "schema.json")  # type: ignore[attr-defined]
    assert (queue_path / "schema.json").read_bytes() == content


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "Input data was truncated"),
        (b"\xff\xfe{}", "malformed"),
        (b"[1]", "Expected `object`"),
        (b'{"version":1}', "missing required field `types`"),
        (b'{"version":1,"types":[],"more":1}', "unknown field `more`"),
        (VALID % (b"00", b'{"name":"a","type":"int"}'), "the fingerprint of Trade does not match"),
        (VALID % (b"00", b'{"name":"a","type":"os.system"}'), "Invalid enum value 'os.system'"),
        (VALID.replace(b":1,", b":70000,", 2).replace(b"70000", b"1", 1) % (b"", b""), "<= 65534"),
        (b'{"version":1,"types":' + b"[" * 50_000, "."),
        (b" " * ((1 << 20) + 1), "larger than 1048576 bytes"),
    ],
    ids=range(10),
)
def test_a_damaged_schema_is_refused(queue: Path, content: bytes, text: str) -> None:
    refused(queue, content, text)


def test_a_newer_schema_is_refused(queue: Path) -> None:
    refused(queue, b'{"version":2,"anything":[]}', "version 2", UnsupportedVersion)


def test_deep_nesting_is_refused(queue: Path) -> None:
    deep = b'{"name":"a","type":' + b'{"kind":"list","of":' * 5_000 + b'"int"' + b"}" * 5_000 + b"}"
    refused(queue, VALID % (b"00", deep), "nested more than 256 levels deep")


@pytest.mark.parametrize("name", ["__init__", "class", "a b", "", "__class__"])
def test_names_from_the_file_become_no_attributes(queue_path: Path, name: str) -> None:
    """A file with a correct fingerprint but invalid field names is refused."""
    write(queue_path, Trade)
    file = queue_path / "schema.json"
    schema = msgspec.json.decode(file.read_bytes())
    schema["types"][0]["fields"][0]["name"] = name
    schema["types"][0]["fingerprint"] = fingerprint_of(schema["types"][0])
    file.write_bytes(msgspec.json.encode(schema))
    with pytest.raises(SchemaError, match="cannot be the name"):
        Registry.load(queue_path)


def fingerprint_of(stored: dict[str, Any]) -> str:
    from aiochronicle._typed.description import Record
    from aiochronicle._typed.schema_file import fingerprint

    record = msgspec.convert(
        {"kind": "struct", "name": "Trade", "fields": stored["fields"]}, Record
    )
    return fingerprint(stored["format"], record)


def test_a_writer_makes_no_schema_that_is_too_deep_to_be_read(queue_path: Path) -> None:
    deep: Any = int
    for _ in range(300):
        deep = list[deep]
    too_deep = msgspec.defstruct("TooDeep", [("field", deep)])
    with pytest.raises(InvalidArgument, match="the schema is nested more than 256 levels deep"):
        open_writer(queue_path, codec=too_deep)
    assert not (queue_path / "schema.json").exists()


def test_links_and_pipes_are_not_opened(queue: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", Trade)
    (queue / "schema.json").symlink_to(tmp_path / "other" / "schema.json")
    with pytest.raises(SchemaError, match="cannot be opened"):
        open_reader(queue, codec=Trade)
    (queue / "schema.json").unlink()
    os.mkfifo(queue / "schema.json")
    with pytest.raises(SchemaError, match="not a regular file"):
        open_reader(queue, codec=Trade)


def test_no_schema_is_said(queue: Path) -> None:
    with pytest.raises(SchemaNotFound, match=r"open_writer\(path, codec="):
        Registry.load(queue)


def test_a_writer_killed_while_it_publishes_leaves_the_old_schema_or_the_new(
    queue_path: Path,
) -> None:
    """Killed sooner or later, it always leaves a complete file, and the next writer continues."""
    write(queue_path, Trade)
    program = """
import sys, msgspec
from aiochronicle import open_writer
class Trade(msgspec.Struct):
    price: float
    size: int
with open_writer(sys.argv[1], codec=Trade) as writer:
    print("open", flush=True)
    for number in range(100_000):
        writer.register(msgspec.defstruct(f"Type{number}", [("a", int)]))
"""
    seen = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(queue_path)], stdout=subprocess.PIPE
        ) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            while len(Registry.load(queue_path)) < seen + 5:
                pass
            victim.kill()
        seen = len(Registry.load(queue_path))
    write(queue_path, Trade, Trade(1.0, 2))
    assert decoded(queue_path, Trade) == [Trade(1.0, 2)]
    assert not list(queue_path.glob("*.tmp"))
