"""Errors that a type checker must find: one in each line marked as wrong, and no others."""

import asyncio

import msgspec

from aiochronicle import (
    Bus,
    Conflation,
    FanIn,
    Group,
    Message,
    Queue,
    Reader,
    Requester,
    TopicGroup,
    Writer,
    open_group,
    open_writer,
)


class Trade(msgspec.Struct):
    price: float


class Quote(msgspec.Struct):
    bid: float


def writing(writer: Writer[Trade], quotes: Writer[Quote], bus: Bus) -> None:
    writer.send(Quote(1.0))  # wrong: another type
    writer.send(b"bytes")  # wrong: bytes are appended
    writer.append("text")  # wrong: no buffer
    writer.append_many(["text"])  # wrong: no buffers
    writer.append(b"", 7)  # wrong: keyword only
    bus.append("topic", "text")  # wrong: no buffer
    open_writer("q", codec=Trade).send(Quote(1.0))  # wrong: another type
    both: Writer[Trade | Quote] = quotes  # wrong: it accepts quotes only
    both.send(Quote(1.0))


def handlers(reader: Reader[Trade]) -> None:
    @reader.on(Trade)  # wrong: it accepts another type
    def take(quote: Quote) -> None:
        print(quote.bid)

    @reader.on(Trade)  # wrong: handlers get at most two arguments
    def three(trade: Trade, message: Message[Trade], more: int) -> None:
        print(trade, message, more)

    @reader.on(Trade)
    def take_trade(trade: Trade) -> float:
        return trade.bid  # wrong: a trade has none


def conflating(reader: Reader[Trade], fan_in: FanIn[Trade]) -> None:
    reader.conflate(lambda message: message.decode().bid)  # wrong: a trade has none
    other: Conflation[str, Quote] = fan_in.conflate(lambda m: m.source)  # wrong: they are trades
    print(other)
    snapshot = reader.snapshot_now(lambda message: message.type_id)
    print(snapshot["text"])  # wrong: keys are numbers


async def requests(desk: Requester[Trade, Quote], fan_in: FanIn[Trade]) -> None:
    await desk.request(Quote(1.0))  # wrong: its requests are trades
    answer = await desk.request(Trade(1.0))
    print(answer.decode().price)  # wrong: the answer is a quote
    task = asyncio.create_task(fan_in.next())
    print((await task).decode().bid)  # wrong: a trade has none


def groups(topic: TopicGroup[Trade]) -> None:
    group = open_group("q", "workers", codec=Trade)
    print(group.problems)  # wrong: one of a queue has none
    quotes: Group[Quote] = group  # wrong: they are trades
    print(quotes)
    Group[Trade]()  # wrong: open_group makes one
    other: Group[Quote] = topic  # wrong: they are trades
    print(other)
    for delivery in group:
        print(delivery.message.decode().bid)  # wrong: a trade has none
    open_group("q", "workers", order="time")  # wrong: any, or key
    open_group("q", "workers", order="key", key="symbol")  # wrong: a function


def columns(recording: Queue) -> None:
    print(recording.slice().to_arrow().rows)  # wrong: they are num_rows
