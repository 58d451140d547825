"""send and decode through a queue: the decoder of each message, and errors without one."""

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiochronicle import Codec, FanIn, Message, Reader, Registry, inspect, open_reader, open_writer
from aiochronicle.errors import (
    DecodeError,
    EncodeError,
    SchemaMismatch,
    TimestampOrder,
    UnknownType,
)


class Trade(msgspec.Struct):
    price: float
    size: int


class Quote(msgspec.Struct):
    bid: float
    ask: float


def numbered_types(count: int) -> list[type[msgspec.Struct]]:
    return [msgspec.defstruct(f"Type{number}", [("value", int)]) for number in range(count)]


def test_send_takes_the_keywords_of_append(queue_path: Path) -> None:
    with (
        open_writer(queue_path, codec=Trade) as writer,
        open_reader(queue_path, codec=Trade) as reader,
    ):
        assert writer.send(Trade(1.0, 2), timestamp_ns=1000, cause=(77, 5)) == 0
        message = reader.poll()
        assert message is not None
        assert (message.timestamp_ns, message.cause, message.type_id) == (1000, (77, 5), 1)
        assert message.decode() == Trade(1.0, 2)
        with pytest.raises(TimestampOrder):
            writer.send(Trade(1.0, 2), timestamp_ns=999)


def test_send_refuses_other_types(queue_path: Path) -> None:
    with open_writer(queue_path, codec=Trade) as writer:
        with pytest.raises(EncodeError, match="Quote is not a type of the writer, which has Trade"):
            writer.send(Quote(1.0, 2.0))  # type: ignore[arg-type]
        assert writer.next_seq == 0
    with open_writer(queue_path) as writer, pytest.raises(EncodeError, match="has no codec"):
        writer.send(Trade(1.0, 2))
    assert inspect(queue_path).next_seq == 0


def test_decode_as_another_type(queue_path: Path) -> None:
    class Price(msgspec.Struct):
        price: float

    with open_writer(queue_path, codec=Codec(Trade, "json")) as writer:
        writer.send(Trade(1.5, 2))
        writer.append(msgspec.msgpack.encode(Quote(1.0, 2.0)))
    with (
        open_reader(queue_path) as plain,
        open_reader(queue_path, codec=Codec(Trade, "json")) as typed,
    ):
        first, second = plain
        assert first.decode(Codec(Price, "json")) == Price(1.5)
        assert second.decode(Quote) == second.decode(type=Quote) == Quote(1.0, 2.0)
        with pytest.raises(DecodeError, match="message 0: type_id 1 cannot be decoded"):
            first.decode(Price)  # JSON taken for msgpack
        typed_first = next(iter(typed))
        assert typed_first.decode(Price) == Price(1.5)  # in the format of its type
        assert typed_first.decode(Trade) == typed_first.decode() == Trade(1.5, 2)
        for arguments, keywords in (
            ((Trade, Trade), {}),
            ((), {"kind": Trade}),
            ((Trade,), {"type": 1}),
        ):
            with pytest.raises(TypeError, match="decode takes one argument"):
                first.decode(*arguments, **keywords)


def test_an_undecodable_payload_says_where_it_is_and_holds_up_nothing(queue_path: Path) -> None:
    with open_writer(queue_path, codec=Trade, segment_size=4096) as writer:
        for number in range(100):
            if number % 2:
                writer.append(b"\xc1 nonsense", type_id=1)
            else:
                writer.send(Trade(1.0, number))
    good: list[int] = []
    errors: list[DecodeError] = []
    with open_reader(queue_path, codec=Trade) as reader:
        for message in reader:
            try:
                good.append(message.decode().size)
            except DecodeError as error:
                errors.append(error)
                segment, offset = message.position
                assert error.path == str(queue_path / f"{segment:09d}.q")  # noqa: PT017
                assert (error.seq, error.offset) == (message.seq, offset)  # noqa: PT017
    assert good == list(range(0, 100, 2))
    assert [error.seq for error in errors] == list(range(1, 100, 2))
    first = errors[0]
    assert Path(str(first.path)).read_bytes()[first.offset or 0 :][64:].startswith(b"\xc1 nonsense")
    assert isinstance(first.__cause__, msgspec.DecodeError)
    assert "message 1: type_id 1 cannot be decoded: MessagePack data is malformed" in str(first)


def test_interrupts_are_not_taken_for_bad_payloads(queue_path: Path) -> None:
    class Stop(msgspec.Struct):
        value: int

        def __post_init__(self) -> None:
            raise KeyboardInterrupt

    with open_writer(queue_path) as writer:
        writer.append(b"\x81\xa5value\x01")
    with open_reader(queue_path, codec=Stop) as reader:
        message = reader.poll()
        assert message is not None
        with pytest.raises(KeyboardInterrupt):
            message.decode()


def test_unknown_types_are_told_from_bad_payloads(queue_path: Path) -> None:
    with open_writer(queue_path, codec=[Trade, Quote]) as writer:
        writer.send(Quote(1.0, 2.0))
        writer.append(b"raw", type_id=900)
    with open_reader(queue_path, codec=Trade) as reader:
        for message, type_id in zip(reader, (2, 900), strict=True):
            with pytest.raises(UnknownType, match=f"type_id {type_id} is not in Registry"):
                message.decode()
    with open_reader(queue_path) as reader:
        message = next(iter(reader))
        with pytest.raises(
            UnknownType, match=r"no codec: open it with codec=, or use message\.decode"
        ):
            message.decode()


def test_messages_without_a_type_are_of_the_only_type(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        writer.append(msgspec.msgpack.encode(Trade(1.0, 2)))
    with open_reader(queue_path, codec=Trade) as reader:
        assert [message.decode() for message in reader] == [Trade(1.0, 2)]
    with open_reader(queue_path, codec=[Trade, Quote]) as reader:
        message = next(iter(reader))
        with pytest.raises(UnknownType):
            message.decode()


def test_more_types_than_a_segment_remembers(queue_path: Path) -> None:
    types = numbered_types(40)
    with open_writer(queue_path, codec=types, segment_size=4096) as writer:
        for number in range(400):
            writer.send(types[number % 40](number))
    with open_reader(queue_path, codec=types) as reader:
        for number, message in enumerate(reader):
            obj = message.decode()
            assert (type(obj), obj.value) == (types[number % 40], number)


def test_types_that_a_writer_adds_are_found_by_its_readers(queue_path: Path) -> None:
    with (
        open_writer(queue_path, codec=[Trade]) as writer,
        open_reader(queue_path, codec=[Quote, Trade]) as reader,
    ):
        writer.send(Trade(1.0, 2))
        writer.register(Quote)
        writer.send(Quote(3.0, 4.0))
        assert [message.decode() for message in reader] == [Trade(1.0, 2), Quote(3.0, 4.0)]


def test_a_reader_that_waits_for_its_queue_takes_the_ids_of_the_writer(queue_path: Path) -> None:
    with open_reader(queue_path, codec=[Quote, Trade], wait_for_queue=True) as reader:
        assert reader.poll() is None
        with open_writer(queue_path, codec=Registry({40: Trade, 41: Quote})) as writer:
            writer.send(Trade(1.0, 2))
            writer.send(Quote(3.0, 4.0))
        assert reader.wait(10)
        assert [message.decode() for message in reader] == [Trade(1.0, 2), Quote(3.0, 4.0)]


def test_a_reader_that_waits_for_its_queue_still_checks_the_schema(queue_path: Path) -> None:
    other = msgspec.defstruct("Trade", [("price", str)])
    with open_reader(queue_path, codec=other, wait_for_queue=True) as reader:
        with open_writer(queue_path, codec=Trade) as writer:
            writer.send(Trade(1.0, 2))
        assert reader.wait(10)
        message = reader.poll()
        assert message is not None
        for _ in range(2):
            with pytest.raises(SchemaMismatch, match="price: was float, is str"):
                message.decode()


def test_messages_of_a_fan_in_decode_with_the_codec_of_their_source(tmp_path: Path) -> None:
    with open_writer(tmp_path / "trades", codec=Trade) as writer:
        writer.send(Trade(1.0, 2), timestamp_ns=10)
        writer.send(Trade(5.0, 6), timestamp_ns=30)
    with open_writer(tmp_path / "quotes", codec=Codec(Quote, "struct")) as writer:
        writer.send(Quote(3.0, 4.0), timestamp_ns=20)
    with open_writer(tmp_path / "raw") as writer:
        writer.append(b"raw", timestamp_ns=40)
    with (
        open_reader(tmp_path / "trades", codec=Trade) as trades,
        open_reader(tmp_path / "quotes", codec=Codec(Quote, "struct")) as quotes,
        open_reader(tmp_path / "raw") as raw,
        FanIn([trades, quotes, raw]) as fan_in,
    ):
        messages = fan_in.read_batch()
        assert [message.decode() for message in messages[:3]] == [
            Trade(1.0, 2),
            Quote(3.0, 4.0),
            Trade(5.0, 6),
        ]
        with pytest.raises(UnknownType):
            messages[3].decode()


def test_a_message_decodes_after_its_reader_is_gone(queue_path: Path) -> None:
    with open_writer(queue_path, codec=Trade) as writer:
        writer.send(Trade(1.0, 2))
    with open_reader(queue_path, codec=Trade) as reader:
        message = reader.poll()
    del reader
    gc.collect()
    assert message is not None
    assert message.decode() == Trade(1.0, 2)


def test_decoding_neither_leaks_nor_holds_on_to_anything(queue_path: Path) -> None:
    with open_writer(queue_path, codec=Trade, segment_size=4096) as writer:
        for number in range(200):
            writer.send(Trade(1.0, number))

    def once() -> "weakref.ref[Any]":
        codec = Codec(Trade)
        with open_reader(queue_path, codec=codec) as reader:
            for message in reader:
                message.decode()
                with pytest.raises(DecodeError):
                    message.decode(Codec(Quote))
        return weakref.ref(codec)

    codec = once()
    gc.collect()
    assert codec() is None
    before = sys.getallocatedblocks()
    for _ in range(3):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


def test_types_are_generic_at_run_time() -> None:
    argument = f"[{Trade.__module__}.Trade]"
    assert str(Message[Trade]) == f"aiochronicle.Message{argument}"
    assert str(Reader[Trade]) == f"aiochronicle._core.reader.Reader{argument}"
    assert str(Codec[Trade]) == f"aiochronicle.codec.Codec{argument}"
