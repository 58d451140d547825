"""A user's program for type checkers, which is never run. See tests/test_typing.py."""

import array
import asyncio
import mmap
from typing import Any, assert_type

import msgspec
import pyarrow

from aiochronicle import (
    Bus,
    Causes,
    ChronicleError,
    Codec,
    Delivery,
    FanIn,
    Group,
    GroupInfo,
    Message,
    Queue,
    Reader,
    Registry,
    Replay,
    Request,
    Requester,
    Responder,
    Router,
    TopicGroup,
    TopicReader,
    Writer,
    aopen_group,
    aopen_reader,
    aopen_writer,
    open_group,
    open_reader,
    open_writer,
    replay,
)


class Trade(msgspec.Struct):
    symbol: str
    price: float


class Quote(msgspec.Struct):
    bid: float


def symbol_of(message: Message[Trade]) -> str:
    return message.decode().symbol


def reading() -> None:
    reader = open_reader("q", codec=Trade)
    assert_type(reader, Reader[Trade])
    for message in reader:
        assert_type(message, Message[Trade])
        assert_type(message.decode(), Trade)
        assert_type(message.decode(Quote), Quote)
        assert_type(message.decode(Codec(Quote, "json")), Quote)
    assert_type(reader.read_batch(), list[Message[Trade]])
    assert_type(open_reader("q", codec=Codec(Quote, "struct")), Reader[Quote])
    assert_type(open_reader("q"), Reader[Any])
    with open_reader("q", codec=Trade) as opened:
        assert_type(opened, Reader[Trade])
    assert_type(replay("q", codec=Trade), Replay[Trade])


def columns(reader: Reader[Trade], recording: Queue) -> None:
    assert_type(reader.to_arrow(100), pyarrow.RecordBatch)
    assert_type(recording.slice().to_arrow(), pyarrow.Table)
    for batch in recording.slice().batches():
        assert_type(batch, pyarrow.RecordBatch)
        assert_type(batch.num_rows, int)


def lists_of_codecs() -> None:
    assert_type(open_reader("q", codec=[Trade, Quote]), Reader[Any])
    assert_type(open_reader("q", codec=[Codec(Trade), Codec(Quote, "json")]), Reader[Any])
    assert_type(open_reader("q", codec=(Trade, Codec(Quote, "json"))), Reader[Any])
    assert_type(open_reader("q", codec=Registry({1: Trade})), Reader[Any])
    assert_type(open_writer("q", codec=[Trade, Codec(Quote)]), Writer[Any])
    codecs = [Codec(Trade), Codec(Quote, "json")]
    assert_type(open_reader("q", codec=codecs), Reader[Any])
    types = [Trade, Quote]
    assert_type(open_writer("q", codec=types), Writer[Any])
    open_writer("q").register([Trade, Codec(Quote)])


def writing() -> None:
    writer = open_writer("q", codec=Trade)
    assert_type(writer, Writer[Trade])
    writer.send(Trade("ALFA", 101.5))
    both: Writer[Trade | Quote] = open_writer("q", codec=[Trade, Quote])
    both.send(Quote(1.0))
    trades: Writer[Trade] = both  # a handler of both types accepts a trade
    trades.send(Trade("ALFA", 101.5))
    anything = open_writer("q")
    assert_type(anything, Writer[Any])
    with open_writer("q", codec=Codec(Quote, "struct")) as opened:
        assert_type(opened, Writer[Quote])
    assert_type(writer.last_causes(), Causes)


async def buffers(bus: Bus, message: Message[Trade]) -> None:
    writer = open_writer("q")
    mapped = mmap.mmap(-1, 10)
    for payload in (b"", bytearray(), memoryview(b""), array.array("d"), mapped, message):
        writer.append(payload)
        writer.append_many([payload])
        writer.append_expiring(payload, 1)
        await writer.append_durable(payload)
        bus.append("topic", payload)
        await bus.aappend("topic", payload)
        bus.append_many("topic", [payload])
    writer.append_many([b"", message, array.array("b")])
    with writer.reserve(3) as room:
        assert_type(room, memoryview)


def merging() -> None:
    reader = open_reader("q", codec=Trade)
    for merged in FanIn([reader]):
        assert_type(merged.decode(), Trade)
    assert_type(FanIn(), FanIn[Any])
    both: FanIn[Trade | Quote] = FanIn([reader, open_reader("p", codec=Quote)])
    assert_type(both, FanIn[Trade | Quote])


async def in_a_loop(reader: Reader[Trade], fan_in: FanIn[Trade], router: Router[Trade]) -> None:
    async for message in reader:
        assert_type(message.decode(), Trade)
    async for batch in reader.batches():
        assert_type(batch, list[Message[Trade]])
    async for message in fan_in:
        assert_type(message.decode(), Trade)
    for coroutine in (reader.next(), fan_in.next(), router.next(timeout=1)):
        task = asyncio.create_task(coroutine)  # accepts coroutines only
        assert_type((await task).decode(), Trade)
    async for batch in router.batches():
        assert_type(batch[0].decode(), Trade)
    async with Router("root", name="router", codec=Trade) as opened:
        assert_type(opened, Router[Trade])
    assert_type(Router("root", name="router"), Router[Any])


async def opening() -> None:
    async with aopen_reader("q", codec=Trade) as reader:
        assert_type(reader, Reader[Trade])
    assert_type(await aopen_reader("q", "name", codec=Codec(Quote, "struct")), Reader[Quote])
    assert_type(await aopen_reader("q", codec=[Trade, Quote]), Reader[Any])
    async with aopen_writer("q", codec=Trade, lock_timeout=1) as writer:
        assert_type(writer, Writer[Trade])
    assert_type(await aopen_writer("q"), Writer[Any])


async def latest_per_key(
    reader: Reader[Trade], fan_in: FanIn[Trade], history: Replay[Trade], topic: TopicReader[Trade]
) -> None:
    for source in (reader, fan_in, history, topic):
        async for message in source.conflate(symbol_of):
            assert_type(message.decode(), Trade)
        for message in source.conflate(symbol_of):
            assert_type(message.decode(), Trade)
        assert_type(await source.snapshot(symbol_of), dict[str, Message[Trade]])
        assert_type(source.snapshot_now(symbol_of), dict[str, Message[Trade]])
    latest = reader.conflate(lambda message: message.decode().price)
    polled = latest.poll()
    assert_type(polled, Message[Trade] | None)


def handlers(reader: Reader[Any], fan_in: FanIn[Any]) -> None:
    @reader.on(Trade)
    def take(trade: Trade) -> None:
        print(trade.price)

    @reader.on(Quote)
    async def take_with_message(quote: Quote, message: Message[Any]) -> None:
        print(quote.bid, message.seq)

    @fan_in.on(Message)
    def take_the_rest(message: Message[Any]) -> int:
        return message.seq

    @fan_in.on("price")
    def call_of_java(symbol: str, price: float, *, message: Message[Any]) -> None:
        print(symbol, price, message.seq)

    take(Trade("ALFA", 1.0))
    call_of_java("ALFA", 1.0, message=next(iter(reader)))


async def requests() -> None:
    async with Requester("asked", "answered", "desk", codec=Trade, reply_codec=Quote) as desk:
        assert_type(desk, Requester[Trade, Quote])
        assert_type((await desk.request(Trade("ALFA", 1.0), timeout=1)).decode(), Quote)
        await desk.request(b"bytes")
        await desk.request(array.array("d"))
    assert_type(Requester("asked", "answered", "desk"), Requester[Any, Any])

    async def answer(request: Request[Trade]) -> Quote:
        assert_type(request.decode(), Trade)
        return Quote(request.decode().price)

    async with Responder("asked", "answered", codec=Trade, reply_codec=Quote) as responder:
        await responder.serve(answer)


async def groups() -> None:
    opened = open_group("q", "workers", codec=Trade)
    assert_type(opened, Group[Trade])
    if isinstance(opened, TopicGroup):
        assert_type(opened.problems, dict[str, ChronicleError])
    with TopicGroup("t", "workers", codec=Trade) as topic:
        assert_type(topic, TopicGroup[Trade])
        any_group: Group[Trade] = topic  # a function with a Group parameter accepts both
        assert_type(any_group.poll(), Delivery[Trade] | None)
    with open_group("q", "workers", codec=Trade) as group:
        assert_type(group, Group[Trade])
        assert_type(group.wait(1.0), bool)
        assert_type(group.name, str)
        for delivery in group:
            assert_type(delivery, Delivery[Trade])
            assert_type(delivery.message.decode(), Trade)
    async with aopen_group("q", "workers", codec=Trade) as group:
        task = asyncio.create_task(group.next())
        assert_type((await task).message.decode(), Trade)
        async for delivery in group:
            assert_type(delivery.message.decode(), Trade)
        async for batch in group.batches():
            assert_type(batch, list[Delivery[Trade]])
        assert_type(group.take_batch(), list[Delivery[Trade]])
        assert_type(group.info(), GroupInfo)


async def topics(bus: Bus) -> None:
    assert_type(bus.writer("t", codec=Trade), Writer[Trade])
    assert_type(await bus.awriter("t", codec=Codec(Quote)), Writer[Quote])
    assert_type(bus.reader("t", "name", codec=Trade), Reader[Trade])
    assert_type(bus.reader("t", codec=Trade, shared=True), TopicReader[Trade])
