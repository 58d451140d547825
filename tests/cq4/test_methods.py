"""Messages as method calls."""

import asyncio
from typing import Any, Protocol, Self

import msgspec
import pytest

from aiochronicle.cq4 import (
    Fields,
    MethodReader,
    Typed,
    decode_calls,
    encode_call,
    method,
    method_writer,
)
from aiochronicle.errors import DecodeError, InvalidArgument


class Quote(msgspec.Struct):
    symbol: str
    levels: dict[str, float]


class Hop:
    """The interface that Listener.to returns."""

    def __init__(self, heard: list[Any], destination: str) -> None:
        self.heard = heard
        self.destination = destination

    def via(self, hop: int) -> Self:
        self.heard.append(("via", hop))
        return self

    def say(self, text: str) -> None:
        self.heard.append((self.destination, text))


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def none(self) -> None:
        self.heard.append(())

    def note(self, text: str | None) -> None:
        self.heard.append(text)

    def quote(self, quote: Quote, urgent: bool = False) -> None:
        self.heard.append((quote, urgent))

    def names(self, names: list[str]) -> None:
        self.heard.append(names)

    def rest(self, *args: Any) -> None:
        self.heard.append(args)

    def untyped(self, value):  # type: ignore[no-untyped-def]
        self.heard.append(value)
        return self.heard

    @method(name="onTrade", id=5)
    def on_trade(self, price: float) -> None:
        self.heard.append(price)

    @staticmethod
    def static(value: int) -> None:
        Listener.last = value

    last = 0

    def to(self, destination: str) -> Hop:
        return Hop(self.heard, destination)

    def _private(self) -> None:
        raise AssertionError

    async def slow(self, value: int) -> None:
        await asyncio.sleep(0)
        self.heard.append(value)


def heard(*payloads: bytes) -> list[Any]:
    listener = Listener()
    reader = MethodReader(listener)
    for payload in payloads:
        assert reader.handle(payload)
    return listener.heard


def test_calls_are_made() -> None:
    quote = Quote("EURUSD", {})
    assert heard(
        encode_call("none"),
        encode_call("note", "hi"),
        encode_call("note", ""),
        encode_call("note", None),
        encode_call("quote", quote),
        encode_call("quote", quote, True),
        encode_call("names", ["a", "b"]),
        encode_call("names", []),
        encode_call("rest", 1, 2),
        encode_call("rest"),
        encode_call("untyped", {"a": 1}),
        encode_call("onTrade", 1),
        encode_call(5, 2.5),
        encode_call("to", "x") + encode_call("via", 3) + encode_call("say", "hi"),
    ) == [
        (),
        "hi",
        "",
        None,
        (quote, False),
        (quote, True),
        ["a", "b"],
        [],
        (1, 2),
        (),
        {"a": 1},
        1.0,
        2.5,
        ("via", 3),
        ("x", "hi"),
    ]
    assert heard(encode_call("static", 7)) == []
    assert Listener.last == 7


@pytest.mark.parametrize(
    "name", ["other", "_private", "__init__", "__class__", "heard", "on_trade", "last", 6]
)
def test_only_public_methods_are_called(name: str | int) -> None:
    assert not MethodReader(Listener()).handle(encode_call(name, "x"))


def test_a_chain_goes_on_only_where_it_was_declared() -> None:
    listener = Listener()
    chain = encode_call("untyped", 1) + encode_call("clear")
    assert not MethodReader(listener).handle(chain)
    assert listener.heard == [1]
    hop = encode_call("to", "x") + encode_call("none")
    assert not MethodReader(listener).handle(hop)


def test_a_protocol_restricts_what_is_called() -> None:
    class Notes(Protocol):
        def note(self, text: str) -> None: ...

    listener = Listener()
    reader = MethodReader(listener, Notes)
    assert reader.handle(encode_call("note", "hi"))
    assert not reader.handle(encode_call("none"))
    assert listener.heard == ["hi"]


def test_methods_of_built_in_bases_are_not_called() -> None:
    class Heard(list[str]):
        def note(self, text: str) -> None:
            self.append(text)

    listener = Heard()
    assert MethodReader(listener).handle(encode_call("note", "hi"))
    assert not MethodReader(listener).handle(encode_call("clear"))
    assert listener == ["hi"]


def test_arguments_that_do_not_fit() -> None:
    reader = MethodReader(Listener())
    with pytest.raises(DecodeError, match="the payload does not match Quote"):
        reader.handle(encode_call("quote", "text"))
    with pytest.raises(DecodeError, match="has 3 arguments, but the method takes 1 to 2"):
        reader.handle(encode_call("quote", 1, 2, 3))
    with pytest.raises(DecodeError, match="at byte 0"):
        reader.handle(b"\xe3one")
    assert not reader.handle(b"\x8f")


def test_annotations_of_this_package_take_what_was_decoded() -> None:
    class Raw:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def fields(self, fields: Fields) -> None:
            self.heard.append(fields)

        def typed(self, value: Typed) -> None:
            self.heard.append(value)

        def anything(self, value: object) -> None:
            self.heard.append(value)

    raw = Raw()
    reader = MethodReader(raw)
    fields, typed = Fields({"a": Typed("B", "c")}, type="A"), Typed("A", "b")
    for call in (("fields", fields), ("typed", typed), ("anything", typed)):
        assert reader.handle(encode_call(*call))
    assert raw.heard == [fields, typed, typed]
    assert raw.heard[0].type == "A"
    with pytest.raises(DecodeError, match="the payload does not match Fields"):
        reader.handle(encode_call("fields", "text"))


def test_a_method_that_returns_a_plain_value_ends_its_message() -> None:
    class Counts:
        def count(self, text: str) -> int:
            return len(text)

    sent: list[bytes] = []
    method_writer(Counts, sent.append).count("x")
    assert sent == [encode_call("count", "x")]
    assert MethodReader(Counts()).handle(sent[0] + sent[0])


async def test_a_writer_with_asynchronous_methods() -> None:
    class Slow:
        async def slow(self, value: int) -> None: ...

        async def to(self, name: str) -> "Slow":
            return self

    sent: list[bytes] = []

    async def send(message: bytes) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    for give in (send, sent.append):
        writer = method_writer(Slow, give)
        await writer.slow(1)
        await (await writer.to("x")).slow(2)
    assert sent == 2 * [encode_call("slow", 1), encode_call("to", "x") + encode_call("slow", 2)]


def test_an_unknown_annotation_is_refused_at_once() -> None:
    class Wrong:
        def note(self, text: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(InvalidArgument, match=r"Wrong\.note cannot be determined"):
        MethodReader(Wrong())


async def test_asynchronous_methods() -> None:
    listener = Listener()
    reader = MethodReader(listener)
    assert await reader.ahandle(encode_call("slow", 1))
    assert await reader.ahandle(encode_call("note", "hi"))
    assert not await reader.ahandle(encode_call("other"))
    assert listener.heard == [1, "hi"]
    with pytest.raises(InvalidArgument, match="await ahandle"):
        reader.handle(encode_call("slow", 1))


def test_a_writer_encodes_calls() -> None:
    sent: list[bytes] = []
    writer = method_writer(Listener, sent.append)
    quote = Quote("EURUSD", {"x": 1.5})
    writer.none()
    writer.note(text="hi")
    writer.quote(quote)
    writer.on_trade(1.5)
    writer.to("x").via(3).say("hi")
    assert sent == [
        encode_call("none"),
        encode_call("note", "hi"),
        encode_call("quote", quote, False),
        encode_call(5, 1.5),
        encode_call("to", "x") + encode_call("via", 3) + encode_call("say", "hi"),
    ]
    with pytest.raises(TypeError, match="missing a required argument"):
        writer.note()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(AttributeError):
        writer._private()


def test_a_writer_of_a_protocol() -> None:
    class Notes(Protocol):
        def note(self, text: str) -> None: ...

    sent: list[bytes] = []
    writer = method_writer(Notes, sent.append)  # type: ignore[type-abstract]
    writer.note("hi")
    assert [call.args for call in decode_calls(sent[0])] == [("hi",)]


def test_a_writer_and_a_reader_agree() -> None:
    listener = Listener()
    writer = method_writer(Listener, MethodReader(listener).handle)
    writer.note("hi")
    writer.to("x").say("ho")
    assert listener.heard == ["hi", ("x", "ho")]
