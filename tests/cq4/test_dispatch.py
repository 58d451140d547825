"""Calls of Java methods as handlers of a reader or a fan-in: reader.on(name), and MethodReader."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiochronicle import FanIn, Message, Reader, Writer, cq4, open_reader, open_writer
from aiochronicle.errors import DecodeError, InvalidArgument


class Quote(msgspec.Struct):
    symbol: str
    price: float


@pytest.fixture
def writer(queue_path: Path) -> Iterator[Writer]:
    with open_writer(queue_path, format="cq4") as opened:
        yield opened


@pytest.fixture
def reader(writer: Writer, queue_path: Path) -> Iterator[Reader[Any]]:
    with open_reader(queue_path, "dispatching") as opened:
        yield opened


def test_handlers_by_name(writer: Writer, reader: Reader[Any]) -> None:
    heard: list[Any] = []

    @reader.on("price")
    def price(symbol: str, price: float) -> None:
        heard.append((symbol, price))

    @reader.on("quote")
    def quote(quote: Quote, *, message: Message) -> None:
        heard.append((quote, message.seq))

    @reader.on("note")
    def note(text: str = "nothing") -> None:
        heard.append(text)

    writer.method("price", "EURUSD", 1)
    index = writer.method("quote", Quote("EURUSD", 1.25))
    writer.method("note")
    writer.method("unheard of", 5)
    assert reader.dispatch_now() == 4
    assert heard == [("EURUSD", 1.0), (Quote("EURUSD", 1.25), index), "nothing"]
    assert isinstance(heard[0][1], float)


def test_what_is_no_call_goes_to_its_own_handler(writer: Writer, reader: Reader[Any]) -> None:
    heard: list[Any] = []
    reader.on("price")(lambda *args: heard.append(args))
    reader.on(Message)(lambda message: heard.append(message.decode()))
    writer.send("text")
    writer.send(Quote("EURUSD", 1.25))
    writer.method("other", 1)
    writer.method("price", 1, 2)
    assert reader.dispatch_now() == 4
    assert heard == [
        "text",
        {"symbol": "EURUSD", "price": 1.25},
        cq4.Call("other", 1),
        (1, 2),
    ]


def test_a_name_has_one_handler(reader: Reader[Any]) -> None:
    reader.on("price")(lambda: None)
    with pytest.raises(InvalidArgument, match="calls of price already have a handler"):
        reader.on("price")(lambda: None)


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def price(self, symbol: str, price: float) -> None:
        self.heard.append((symbol, price))

    @cq4.method(name="onQuote", id=7)
    def on_quote(self, quote: Quote, *, message: Message[Any]) -> None:
        self.heard.append((quote, message.seq))


def test_methods_of_an_object(writer: Writer, reader: Reader[Any]) -> None:
    listener, second = Listener(), Listener()
    others: list[Any] = []
    reader.on("note")(others.append)
    reader.on_calls(cq4.MethodReader(listener))
    reader.on_calls(cq4.MethodReader(second))
    writer.method("price", "EURUSD", 1.25)
    first = writer.method("onQuote", Quote("a", 1))
    writer.method(7, Quote("b", 2))
    writer.method("note", "hi")
    assert reader.dispatch_now() == 4
    assert listener.heard == [
        ("EURUSD", 1.25),
        (Quote("a", 1.0), first),
        (Quote("b", 2.0), first + 1),
    ]
    assert second.heard == [], "the first one took them"
    assert others == ["hi"]


async def test_asynchronous_handlers(writer: Writer, reader: Reader[Any]) -> None:
    heard: list[Any] = []

    @reader.on("price")
    async def price(symbol: str, price: float) -> None:
        await asyncio.sleep(0)
        heard.append((symbol, price))

    @reader.on("stop")
    def stop() -> None:
        reader.close()

    with pytest.raises(InvalidArgument, match="await dispatch"):
        reader.dispatch_now()
    dispatching = asyncio.create_task(reader.dispatch())
    for number in range(3):
        writer.method("price", "EURUSD", number)
        await asyncio.sleep(0.005)
    writer.method("stop")
    assert await asyncio.wait_for(dispatching, 30) == 4
    assert heard == [("EURUSD", 0.0), ("EURUSD", 1.0), ("EURUSD", 2.0)]


def test_a_payload_that_does_not_fit(writer: Writer, reader: Reader[Any]) -> None:
    heard: list[Any] = []
    reader.on("price")(lambda symbol, price: heard.append((symbol, price)))
    broken = writer.method("price", "EURUSD")
    garbage = writer.append(cq4.encode_call("price", 1, 2)[:-1])
    writer.method("price", 1, 2)
    with pytest.raises(DecodeError, match="has 1 arguments, but the method takes 2") as caught:
        reader.dispatch_now()
    assert caught.value.seq == broken
    assert reader.failed_message is not None
    troubles: list[tuple[int, int | None]] = []
    reader.seek_first()
    taken = reader.dispatch_now(
        on_error=lambda error, message: troubles.append((message.seq, error.seq))
    )
    assert taken == 3
    assert troubles == [(broken, broken), (garbage, garbage)]
    assert heard == [(1, 2)]


def test_what_a_handler_raises_comes_out(writer: Writer, reader: Reader[Any]) -> None:
    def fail(number: int) -> None:
        raise DecodeError("the handler's own")

    reader.on("price")(fail)
    writer.method("price", 1)
    with pytest.raises(DecodeError, match="the handler's own"):
        reader.dispatch_now(on_error=lambda error, message: pytest.fail("not the payload's"))
    assert reader.failed_message is not None
    assert reader.dispatch_now(failed="skip") == 0


def test_a_fan_in_of_both_kinds(tmp_path: Path) -> None:
    heard: list[Any] = []
    with (
        open_writer(tmp_path / "java", format="cq4") as java,
        open_writer(tmp_path / "native", segment_size=1 << 16, codec=Quote) as native,
    ):
        java.method("price", "EURUSD", 1.25)
        native.send(Quote("GBPUSD", 1.5))
        native.append(cq4.encode_call("price", "no call", 0), type_id=1)
    with (
        open_reader(tmp_path / "java") as java_reader,
        open_reader(tmp_path / "native", codec=Quote) as native_reader,
        FanIn([java_reader, native_reader]) as everything,
    ):
        everything.on("price")(lambda symbol, price: heard.append((symbol, price)))
        everything.on(Quote)(heard.append)
        troubles: list[Any] = []
        everything.dispatch_now(on_error=lambda error, message: troubles.append(message.source))
    assert heard == [("EURUSD", 1.25), Quote("GBPUSD", 1.5)]
    assert troubles == ["native"], "a payload of a native queue is no call, whatever it looks like"
