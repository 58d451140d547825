# pyright: reportMissingImports=false
"""Queues with the real nautilus_trader: its message bus, its serializer, its catalog."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.nautilus import REASON, has_nautilus

if not has_nautilus():
    pytest.skip(REASON, allow_module_level=True)

from nautilus_trader.common.component import LiveClock, MessageBus
from nautilus_trader.config import MessageBusConfig
from nautilus_trader.model.data import QuoteTick, TradeTick
from nautilus_trader.model.enums import AggressorSide
from nautilus_trader.model.identifiers import InstrumentId, TradeId, TraderId
from nautilus_trader.model.objects import Price, Quantity
from nautilus_trader.persistence.catalog import ParquetDataCatalog
from nautilus_trader.serialization.serializer import MsgSpecSerializer

import aiochronicle
from aiochronicle import Retention, errors, open_reader, open_writer
from aiochronicle.nautilus import (
    BusFeed,
    BusRecorder,
    append_objects,
    read_objects,
    write_catalog,
)

START_NS = 1_700_000_000_000_000_000
VENUES = ("BINANCE", "COINBASE")


def quote(number: int, venue: str = "BINANCE", ts_init: int | None = None) -> Any:
    at_ns = START_NS + number if ts_init is None else ts_init
    return QuoteTick(
        InstrumentId.from_str(f"ETHUSDT.{venue}"),
        Price.from_str(f"{number % 1000}.10"),
        Price.from_str(f"{number % 1000}.20"),
        Quantity.from_int(5),
        Quantity.from_int(6),
        at_ns,
        at_ns,
    )


def trade(number: int) -> Any:
    at_ns = START_NS + number
    return TradeTick(
        InstrumentId.from_str("ETHUSDT.BINANCE"),
        Price.from_str("1.10"),
        Quantity.from_int(5),
        AggressorSide.BUYER,
        TradeId(str(number)),
        at_ns,
        at_ns,
    )


def topic(one: Any) -> str:
    kind = "quotes" if isinstance(one, QuoteTick) else "trades"
    return f"data.{kind}.{one.instrument_id.venue}.{one.instrument_id.symbol}"


def plain(one: Any) -> list[tuple[str, Any]]:
    """Return its values, because comparing two objects of a catalog aborts the process (1.221)."""
    return sorted(QuoteTick.to_dict(one).items())


def make_bus(encoding: Any = msgspec.msgpack, **config: Any) -> Any:
    serializer = MsgSpecSerializer(encoding, timestamps_as_str=True)
    config = MessageBusConfig(**config)
    return MessageBus(TraderId("T-1"), LiveClock(), serializer=serializer, config=config)


@pytest.fixture
def writer(queue_path: Path) -> Iterator[aiochronicle.Writer[Any]]:
    with open_writer(queue_path) as writer:
        yield writer


@pytest.mark.parametrize("encoding", [msgspec.msgpack, msgspec.json])
def test_what_one_bus_publishes_another_gets(
    writer: aiochronicle.Writer[Any], queue_path: Path, encoding: Any
) -> None:
    one, two = make_bus(encoding), make_bus(encoding)
    recorder = BusRecorder(one, writer)
    sent = [quote(1), trade(2), quote(3, "COINBASE")]
    for tick in sent:
        one.publish(topic(tick), tick)
    one.publish("data.raw", b"\xff raw bytes")
    one.publish("events.order.S-1", quote(4))
    one.publish("data.private", object())  # cannot be serialized
    recorder.close()
    one.publish(topic(sent[0]), sent[0])
    got: list[Any] = []
    two.subscribe("*", got.append)
    with open_reader(queue_path) as reader:
        messages = list(reader)
        assert [message.key for message in messages] == [
            *(topic(tick).encode() for tick in sent),
            b"data.raw",
            b"events.order.S-1",
        ]
        feed = BusFeed(two)
        assert [feed.publish(message) for message in messages] == [True, True, True, True, False]
    assert got == [*sent, b"\xff raw bytes"]


def test_what_a_feed_publishes_is_not_recorded_again(
    writer: aiochronicle.Writer[Any], queue_path: Path, tmp_path: Path
) -> None:
    """But messages that handlers publish in response are recorded, even the same object."""
    with open_writer(tmp_path / "from") as other:
        append_objects(other, [quote(1), quote(2)], topic=topic)
    bus = make_bus()
    recorder = BusRecorder(bus, writer)

    def answer(tick: Any) -> None:
        bus.publish("data.answers", trade(int(str(tick.bid_price)[0])))
        bus.publish("data.copies", tick)

    bus.subscribe("data.quotes.*", answer)
    with open_reader(tmp_path / "from") as reader:
        for message in reader:
            assert BusFeed(bus, topics="data.quotes.*", recorder=recorder).publish(message)
    bus.publish("data.quotes.OWN", quote(2))
    with open_reader(queue_path) as reader:
        assert [message.key for message in reader] == [
            b"data.answers",
            b"data.copies",
            b"data.answers",
            b"data.copies",
            b"data.answers",
            b"data.copies",
            b"data.quotes.OWN",
        ]


def test_a_feed_follows_a_queue_in_a_loop(
    writer: aiochronicle.Writer[Any], queue_path: Path
) -> None:
    bus = make_bus()
    got: list[Any] = []
    bus.subscribe("data.*", got.append)

    async def main() -> None:
        async with aiochronicle.aopen_reader(queue_path, "node") as reader:
            task = asyncio.create_task(BusFeed(bus).run(reader))
            for number in range(100):
                append_objects(writer, [quote(number)], topic=topic)
                await asyncio.sleep(0)
            while len(got) < 100:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            reader.commit()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert got == [quote(number) for number in range(100)]


def test_a_recording_has_no_gaps_and_the_node_goes_on(
    writer: aiochronicle.Writer[Any], queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus()
    got: list[Any] = []
    bus.subscribe("data.*", got.append)
    recorder = BusRecorder(bus, writer)
    bus.publish("data.a", quote(1))
    writer.close()
    for number in (2, 3):
        bus.publish("data.a", quote(number))
    assert isinstance(recorder.failure, errors.ClosedError)
    assert recorder.is_closed()
    assert not recorder.is_active()
    assert len(got) == 3
    assert caplog.text.count("not recorded any more") == 1
    with open_reader(queue_path) as reader:
        assert list(read_objects(reader)) == [quote(1)]


def test_types_that_the_configuration_filters_are_not_recorded(
    writer: aiochronicle.Writer[Any], queue_path: Path
) -> None:
    bus = make_bus(types_filter=[QuoteTick])
    BusRecorder(bus, writer)
    bus.publish("data.a", quote(1))
    bus.publish("data.a", trade(2))
    with open_reader(queue_path) as reader:
        assert list(read_objects(reader)) == [trade(2)]


def test_messages_that_are_of_no_bus_are_refused(
    writer: aiochronicle.Writer[Any], queue_path: Path
) -> None:
    writer.append(b"no key")
    writer.append(b"key that is no text", key=b"\xff")
    with open_reader(queue_path) as reader:
        for message in reader:
            with pytest.raises(errors.DecodeError, match="no topic"):
                BusFeed(make_bus()).publish(message)


def test_from_a_queue_to_a_catalog_and_back(
    writer: aiochronicle.Writer[Any], queue_path: Path, tmp_path: Path, rng: random.Random
) -> None:
    """With small files, many equal timestamps, slight disorder, and objects of other types."""
    numbers = sorted(rng.randrange(300) for _ in range(500))
    quotes = [quote(number, rng.choice(VENUES)) for number in numbers]
    shaken = list(quotes)
    for i in range(0, len(shaken) - 1, 2):
        if rng.random() < 0.5:
            shaken[i], shaken[i + 1] = shaken[i + 1], shaken[i]
    bus = make_bus()
    BusRecorder(bus, writer)
    for tick in shaken:
        bus.publish(topic(tick), tick)
        if rng.random() < 0.1:
            bus.publish("data.trades", trade(tick.ts_init - START_NS))
    catalog = ParquetDataCatalog(str(tmp_path / "catalog"))
    with open_reader(queue_path) as reader:
        assert write_catalog(reader, catalog, types=QuoteTick, max_messages=50) == 500
    stored = catalog.quote_ticks()
    assert sorted(map(plain, stored)) == sorted(map(plain, quotes))
    assert catalog.trade_ticks() == []
    with open_writer(tmp_path / "back", retention=Retention()) as back:
        stored.sort(key=lambda tick: tick.ts_init)
        assert append_objects(back, stored, topic=topic) == 500
    with open_reader(tmp_path / "back") as reader:
        messages = list(reader)
    assert [message.timestamp_ns for message in messages] == [tick.ts_init for tick in stored]
    assert [plain(tick) for tick in read_objects(messages)] == [plain(tick) for tick in stored]


def test_what_comes_too_late_for_a_catalog_is_refused_before_it_is_written(
    writer: aiochronicle.Writer[Any], queue_path: Path, tmp_path: Path
) -> None:
    bus = make_bus()
    BusRecorder(bus, writer)
    for number in (1, 2, 3, 4, 1):
        bus.publish("data.a", quote(number))
    catalog = ParquetDataCatalog(str(tmp_path / "catalog"))
    late = pytest.raises(errors.InvalidArgument, match="max_messages=2")
    with open_reader(queue_path) as reader, late:
        write_catalog(reader, catalog, types=QuoteTick, max_messages=2)
    assert [plain(tick) for tick in catalog.quote_ticks()] == [plain(quote(n)) for n in (1, 2, 3)]
