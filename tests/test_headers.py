"""Keys and headers of messages: all ways to write and read them, limits, damage."""

import asyncio
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import format as reference

from aiochronicle import (
    Bus,
    FanIn,
    Message,
    Queue,
    Registry,
    Router,
    backup,
    convert,
    cq4,
    list_dead_letters,
    list_recovered,
    open_group,
    open_reader,
    open_writer,
    read_recovered,
    replay,
    restore,
    retry_dead_letters,
    verify,
)
from aiochronicle._hot import split_trailer
from aiochronicle.errors import CorruptionError, InvalidArgument, NotSupported, WrongType

WAIT_S = 30.0

Parts = tuple[bytes, bytes | None, dict[str, bytes]]

SAMPLES: list[Parts] = [
    (b"plain", None, {}),
    (b"keyed", b"k", {}),
    (b"", b"", {}),
    (b"headed", None, {"a": b"1"}),
    (b"x" * 300, b"key", {"b": b"", "é": b"\0\xff", "long": b"v" * 200}),
    (b"", b"only key", {"c": b"d"}),
]


class Quote(msgspec.Struct):
    symbol: str
    price: float


def parts_of(message: Message[Any]) -> Parts:
    return message.payload, message.key, dict(message.headers)


def append_samples(path: Path, **options: Any) -> None:
    with open_writer(path, segment_size=1 << 16, **options) as writer:
        for payload, key, headers in SAMPLES:
            writer.append(payload, key=key, headers=headers)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples"
    append_samples(path)
    return path


def records_of(path: Path) -> list[reference.Record]:
    return [record for _, record in reference.decode_queue(path).records]


def read_all(path: Path, **options: Any) -> list[Parts]:
    with open_reader(path, start="first", **options) as reader:
        return [parts_of(message) for message in reader]


# ---- writing and reading ----


def test_a_message_has_what_it_was_appended_with(samples: Path) -> None:
    assert read_all(samples) == SAMPLES
    assert read_all(samples, verify=False) == SAMPLES


def test_payload_view_and_buffer_are_without_the_headers(samples: Path) -> None:
    with open_reader(samples) as reader:
        for message, (payload, _, _) in zip(reader, SAMPLES, strict=True):
            assert bytes(message.view) == bytes(memoryview(message)) == payload
            assert len(message) == len(payload)
            assert message.view.readonly
            message.view.release()


def test_a_message_without_headers_shares_one_empty_mapping(samples: Path) -> None:
    with open_reader(samples) as reader:
        message = reader.poll()
        assert message is not None
        assert message.headers is message.headers
        assert message.headers == {}
        assert message.key is None
        del message


def test_headers_cannot_be_changed(samples: Path) -> None:
    with open_reader(samples, start=3) as reader:
        headers = reader.read_batch()[0].headers
        assert isinstance(headers, MappingProxyType)
        assert list(headers) == ["a"]
        assert isinstance(headers, Mapping)


def test_the_order_of_headers_stays(queue_path: Path) -> None:
    names = [f"h{i}" for i in range(64)]
    random.Random(1).shuffle(names)
    with open_writer(queue_path) as writer:
        writer.append(b"", headers={name: name.encode() for name in names})
    with open_reader(queue_path) as reader:
        assert list(reader.read_batch()[0].headers) == names


def test_every_way_of_appending(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    key = bytearray(b"key")
    headers: dict[str, bytearray | memoryview] = {"a": memoryview(b"b"), "c": bytearray(b"")}
    expected = (b"key", {"a": b"b", "c": b""})
    with open_writer(path, codec=Quote) as writer:
        cause = (7, 9)
        writer.append(bytearray(b"0"), key=key, headers=headers, type_id=3, cause=cause)
        writer.append_expiring(b"1", 2**62, key=key, headers=headers)
        with writer.reserve(1, key=key, headers=headers, type_id=4) as room:
            assert len(room) == 1
            room[:] = b"2"
        writer.append_many(
            (b"3", bytearray(b"4"), b"5"), keys=iter([key, None, key]), headers=[headers, None, {}]
        )
        writer.send(Quote("X", 1.5), key=key, headers=headers)
        writer.send(Quote("Y", 2.5), key=key, headers=headers, expires_ns=2**62)
        asyncio.run(writer.append_durable(b"8", key=key, headers=headers))
        asyncio.run(writer.append_async(b"9", key=key, headers=headers))
        writer.send_many([Quote("Z", 3.5)], keys=[key], headers=[headers])
    with open_reader(path, codec=Quote) as reader:
        messages = reader.read_batch()
        found = [(message.key, dict(message.headers)) for message in messages]
        assert found == [
            expected,
            expected,
            expected,
            expected,
            (None, {}),
            (b"key", {}),
            *[expected] * 5,
        ]
        assert [message.payload for message in messages[:6]] == [b"%d" % i for i in range(6)]
        assert (messages[0].cause, messages[0].type_id) == (cause, 3)
        assert messages[1].expires_ns == messages[7].expires_ns == 2**62
        assert [message.decode() for message in messages[6:8]] == [Quote("X", 1.5), Quote("Y", 2.5)]


def test_a_batch_is_whole_with_headers_at_the_end_of_a_segment(queue_path: Path) -> None:
    """The trailers count when append_many checks whether the batch still fits."""
    with open_writer(queue_path, segment_size=4096) as writer:
        for _ in range(20):
            writer.append_many([b"x"] * 5, keys=[b"k" * 100] * 5)
    with open_reader(queue_path) as reader:
        assert [(message.payload, message.key) for message in reader] == [(b"x", b"k" * 100)] * 100


def test_none_and_empty_headers_are_none(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        writer.append(b"a", key=None, headers=None)
        writer.append(b"b", headers={})
        writer.append_many([b"c", b"d"], keys=[None, None], headers=[{}, None])
        writer.append_many([b"e"], keys=None, headers=None)
    assert [record.flags & reference.FLAG_TRAILER for record in records_of(queue_path)] == [0] * 5


def test_reading_in_batches_and_committing(samples: Path) -> None:
    """Positions count records with trailers; batch limits count payloads only."""
    with open_reader(samples, "r") as reader:
        assert [parts_of(m) for m in reader.read_batch(max_bytes=10)] == SAMPLES[:3]
        (third,) = reader.read_batch(max_messages=1)
        reader.commit(third)
        assert reader.committed_seq == 4
        del third
    with open_reader(samples, "r") as reader:
        assert [parts_of(message) for message in reader] == SAMPLES[4:]


def test_blocks_have_payloads_without_them(samples: Path) -> None:
    with open_reader(samples) as reader:
        block = reader.read_block()
        assert list(block) == [payload for payload, _, _ in SAMPLES]
        assert list(block.lengths) == [len(payload) for payload, _, _ in SAMPLES]
        del block
        assert reader.poll() is None


def test_live_reading(queue_path: Path) -> None:
    async def follow() -> list[Parts]:
        with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
            found: list[Parts] = []
            for payload, key, headers in SAMPLES:
                waiting = asyncio.ensure_future(reader.next(WAIT_S))
                await asyncio.sleep(0)
                writer.append(payload, key=key, headers=headers)
                found.append(parts_of(await waiting))
            return found

    assert asyncio.run(follow()) == SAMPLES


# ---- arguments ----

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": "text"}, WrongType, "key must be bytes"),
    ({"key": 5}, WrongType, "key must be bytes"),
    ({"key": bytes(65530)}, InvalidArgument, "at most 65535"),
    ({"headers": [("a", b"b")]}, WrongType, "headers must be a mapping"),
    ({"headers": "text"}, WrongType, "headers must be a mapping"),
    ({"headers": {1: b"b"}}, WrongType, "name of a header must be a str"),
    ({"headers": {"": b"b"}}, InvalidArgument, "1 to 255 bytes"),
    ({"headers": {"é" * 128: b"b"}}, InvalidArgument, "1 to 255 bytes"),
    ({"headers": {"\ud800": b"b"}}, InvalidArgument, "UTF-8"),
    ({"headers": {"a": "text"}}, WrongType, "value of a header must be bytes"),
    ({"headers": {"a": None}}, WrongType, "value of a header must be bytes"),
    ({"headers": {f"{i}": b"" for i in range(65)}}, InvalidArgument, "at most 64"),
    ({"key": bytes(40000), "headers": {"a": bytes(40000)}}, InvalidArgument, "not 80001"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED)
def test_wrong_arguments_write_nothing(
    queue_path: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    several: dict[str, Any] = {
        {"key": "keys"}.get(name, name): [None, value] for name, value in arguments.items()
    }
    with open_writer(queue_path) as writer:
        with pytest.raises(error, match=text):
            writer.append(b"x", **arguments)
        with pytest.raises(error, match=text):
            writer.append_expiring(b"x", 2**62, **arguments)
        with pytest.raises(error, match=text):
            writer.reserve(1, **arguments)
        with pytest.raises(error, match=text):
            writer.append_many([b"x", b"y"], **several)
        assert writer.next_seq == 0
        assert writer.append(b"x") == 0


def test_as_many_keys_as_payloads(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        with pytest.raises(
            InvalidArgument, match="keys must be as many as there are payloads, not 1"
        ):
            writer.append_many([b"x", b"y"], keys=[b"k"])
        with pytest.raises(InvalidArgument, match="headers must be as many"):
            writer.append_many([b"x"], headers=[{}, {}])
        with pytest.raises(WrongType, match="keys must be a sequence"):
            writer.append_many([b"x"], keys=b"k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="unexpected keyword"):
            writer.append(b"x", keys=[b"k"])  # type: ignore[call-arg]


def test_the_largest_there_is(queue_path: Path) -> None:
    key = os.urandom(65535 - 4 - 2 - 3 - 255 - 10)
    name, value = "n" * 255, bytes(10)
    with open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"payload", key=key, headers={name: value})
    assert read_all(queue_path) == [(b"payload", key, {name: value})]


def test_a_mapping_that_changes_while_it_is_read(queue_path: Path) -> None:
    class Odd(Mapping[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            return name.encode() * 3

        def __iter__(self) -> Iterator[str]:
            yield "a"
            yield "b"

        def __len__(self) -> int:
            return 99

    class Fails(Odd):
        def __iter__(self) -> Iterator[str]:
            raise ZeroDivisionError

    with open_writer(queue_path) as writer:
        writer.append(b"x", headers=Odd())
        with pytest.raises(ZeroDivisionError):
            writer.append(b"y", headers=Fails())
    assert read_all(queue_path) == [(b"x", None, {"a": b"aaa", "b": b"bbb"})]


def test_headers_of_a_message_can_be_given_on(samples: Path, queue_path: Path) -> None:
    with open_reader(samples) as reader, open_writer(queue_path) as writer:
        for message in reader:
            writer.append(message, key=message.key, headers=message.headers)
    assert read_all(queue_path) == SAMPLES


# ---- the format, checked with the reference ----

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
headers_of = st.dictionaries(names, st.binary(max_size=300), max_size=8)
keys = st.none() | st.binary(max_size=300)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=300), keys, headers_of), min_size=1, max_size=6))
def test_the_reference_reads_what_we_write(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Parts]
) -> None:
    path = tmp_path_factory.mktemp("queue") / "q"
    with open_writer(path, segment_size=1 << 16) as writer:
        for payload, key, headers in messages:
            writer.append(payload, key=key, headers=headers)
    records = records_of(path)
    assert [record.parts for record in records] == [
        reference.Parts(payload, key, headers) for payload, key, headers in messages
    ]
    assert [record.payload for record in records] == [
        payload + reference.encode_trailer(key, headers) for payload, key, headers in messages
    ]
    assert reference.decode_queue(path).remarks == []
    assert read_all(path) == messages


def with_trailer(area: bytes, seq: int = 0) -> bytes:
    return reference.encode_own_record(
        b"", segment_id=0, epoch=1, seq=seq, timestamp_ns=1, type_id=0, trailer=area
    )


def put_first_record(path: Path, record: bytes) -> None:
    """Replace the record of seq 1 and fix its checksums, as if it had been written like that."""
    old = records_of(path)[1]
    assert len(record) == old.end - old.offset
    own = old.own
    assert own is not None
    raw = bytearray(record)
    raw[8:32] = reference.RECORD_HEADER.pack(
        0, 1, bytes(3), 1, old.timestamp_ns, 0, old.flags, 0, bytes(32)
    )[8:32]
    raw[28:32] = zlib.crc32(raw[64 : 64 + old.commit_len - 1]).to_bytes(4, "little")
    raw[52:56] = own.epoch.to_bytes(4, "little")
    raw[60:64] = reference.header_check(0, bytes(raw[:64])).to_bytes(4, "little")
    with (path / "000000000.q").open("r+b") as file:
        file.seek(old.offset)
        file.write(raw)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(min_size=1, max_size=60),
    st.sampled_from(["as it is", "with its size", "mutated"]),
    keys,
    headers_of,
    st.integers(0, 10_000),
)
def test_hostile_trailers_are_read_as_the_reference_does(
    tmp_path_factory: pytest.TempPathFactory,
    noise: bytes,
    how: str,
    key: bytes | None,
    headers: dict[str, bytes],
    place: int,
) -> None:
    """The checksums are correct: both parse the trailer in the same way, or both reject it."""
    area = bytearray(noise)
    if how == "with its size" and len(area) >= 4:
        area[-4:-2] = len(area).to_bytes(2, "little")
    if how == "mutated" and (key is not None or headers):
        area = bytearray(reference.encode_trailer(key, headers))
        area[place % len(area)] ^= 1 << place % 8
    path = tmp_path_factory.mktemp("queue") / "q"
    with open_writer(path, segment_size=1 << 16) as writer:
        writer.append(b"before")
        writer.append(b"", key=bytes(max(len(area) - 6, 0)))
        if len(area) < 6:
            return
        writer.append(b"after")
    put_first_record(path, with_trailer(bytes(area)))
    expected = records_of(path)[1].parts
    assert split_trailer(bytes(area)) == (
        None if expected is None else (expected.payload, expected.key, expected.headers)
    )
    for verified in (True, False):
        with open_reader(path, verify=verified) as reader:
            assert reader.poll() is not None
            if expected is None:
                for _ in range(2):
                    with pytest.raises(CorruptionError, match="key and headers"):
                        reader.poll()
                reader.step_over()
            else:
                message = reader.poll()
                assert message is not None
                assert parts_of(message) == (expected.payload, expected.key, expected.headers)
            last = reader.poll()
            assert last is not None
            assert last.payload == b"after"
            del last
    report = verify(path)
    assert (report.records, report.corrupt) == ((3, 0) if expected else (2, 1))


def test_a_program_that_does_not_know_the_flag_reads_the_record(samples: Path) -> None:
    """The reader of docs/guide/format.md, which ignores flags."""
    text = Path("docs/guide/format.md").read_text(encoding="utf-8")
    code = next(part for part in text.split("```python\n")[1:] if "def read_queue" in part)
    scope: dict[str, Any] = {}
    exec(code.split("```")[0], scope)
    found = [payload for *_, payload in scope["read_queue"](samples)]
    assert found == [
        payload + reference.encode_trailer(key, headers) for payload, key, headers in SAMPLES
    ]


def test_damage_in_a_key_is_damage(samples: Path) -> None:
    record = records_of(samples)[1]
    with (samples / "000000000.q").open("r+b") as file:
        file.seek(record.offset + 64 + len(b"keyed") + 2)
        file.write(b"X")
    with open_reader(samples) as reader:
        assert reader.poll() is not None
        with pytest.raises(CorruptionError, match="checksum"):
            reader.poll()
    assert read_all(samples, on_corrupt="skip") == [SAMPLES[0], *SAMPLES[2:]]
    with open_reader(samples, verify=False) as reader:
        assert [message.key for message in reader][:2] == [None, b"X"]


def test_headers_that_were_written_over_after_reading(samples: Path) -> None:
    record = records_of(samples)[4]
    with open_reader(samples) as reader:
        message = reader.read_batch()[4]
        with (samples / "000000000.q").open("r+b") as file:
            file.seek(record.offset + 64 + 300)
            file.write(b"\xff" * (record.commit_len - 1 - 300))
        with pytest.raises(CorruptionError, match="overwritten"):
            _ = message.key
        with pytest.raises(CorruptionError, match="overwritten"):
            _ = message.headers
        assert message.payload == b"x" * 300
        del message


# ---- passed on by other features ----


def test_fan_in(samples: Path, tmp_path: Path) -> None:
    append_samples(tmp_path / "other")
    with (
        open_reader(samples) as one,
        open_reader(tmp_path / "other") as two,
        FanIn([one, two]) as both,
    ):
        found = sorted(map(parts_of, both.read_batch(5)), key=repr)
        found += [parts_of(message) for message in both]
    assert sorted(found, key=repr) == sorted(SAMPLES * 2, key=repr)


def test_router(tmp_path: Path) -> None:
    async def route() -> list[Parts]:
        found: list[Parts] = []
        async with Router(tmp_path, name="r") as router, asyncio.timeout(WAIT_S):
            async for message in router:
                found.append(parts_of(message))
                if len(found) == len(SAMPLES):
                    return found
        raise AssertionError

    append_samples(tmp_path / "queue", ready=True)
    assert asyncio.run(route()) == SAMPLES


def test_conflation_by_key(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        for i in range(10):
            writer.append(b"%d" % i, key=b"%d" % (i % 3), headers={"n": b"%d" % i})
    with open_reader(queue_path) as reader:
        latest = reader.snapshot_now(lambda message: message.key)
        assert {key: (m.payload, m.headers["n"]) for key, m in latest.items()} == {
            b"0": (b"9", b"9"),
            b"1": (b"7", b"7"),
            b"2": (b"8", b"8"),
        }
        latest.clear()


def test_replay_into(samples: Path, tmp_path: Path) -> None:
    with replay(samples) as history:
        history.into_now(tmp_path / "copies")
    assert read_all(tmp_path / "copies" / "samples") == SAMPLES
    with open_writer(tmp_path / "one") as writer, replay(samples) as history:
        history.into_now(writer, cause="message")
    assert read_all(tmp_path / "one") == SAMPLES


def test_group_in_the_order_of_keys(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        for i in range(6):
            writer.append(b"%d" % i, key=b"ab"[i % 2 : i % 2 + 1], headers={"h": b"%d" % i})
    with open_group(queue_path, "g", order="key", key=lambda message: message.key) as group:
        first = group.take_batch(10)
        assert [(d.message.key, d.message.headers["h"]) for d in first] == [
            (b"a", b"0"),
            (b"b", b"1"),
        ]
        for delivery in first:
            delivery.ack()
        assert [delivery.message.payload for delivery in group.take_batch(10)] == [b"2", b"3"]


def test_dead_letters_keep_them(queue_path: Path, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    with open_writer(queue_path) as writer:
        writer.append(b"x", key=b"k", headers={"h": b"v"}, type_id=5)
    with open_group(queue_path, "g", max_deliver=1, dead_letter=dead, retry_s=0) as group:
        (delivery,) = group.take_batch()
        delivery.nack(error="no")
        del delivery
    ((seq, letter),) = list_dead_letters(dead)
    assert letter.payload == b"x"
    with open_reader(dead) as reader:
        (moved,) = reader
        assert (moved.key, moved.headers) == (b"k", {"h": b"v"})
        del moved
    assert retry_dead_letters(dead) == [seq]
    assert read_all(queue_path) == [(b"x", b"k", {"h": b"v"})] * 2


def test_bus(tmp_path: Path) -> None:
    async def append(bus: Bus) -> None:
        await bus.aappend("t", b"1", key=b"k", headers={"a": b"b"})

    with Bus(tmp_path) as bus:
        bus.append("t", b"0", key=b"k", headers={"a": b"b"})
        asyncio.run(append(bus))
        bus.append_many("t", [b"2"], keys=[b"k"], headers=[{"a": b"b"}])
        bus.send("t", Quote("X", 1.5), key=b"k", headers={"a": b"b"})
        assert [parts_of(m)[1:] for m in bus.read_batch("t", "r")] == [(b"k", {"a": b"b"})] * 4


def test_shared_topics(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        with bus.writer("t", shared=True) as writer:
            writer.append(b"x", key=b"k", headers={"a": b"b"})
        with bus.reader("t", "r", shared=True) as reader:
            assert [parts_of(message) for message in reader] == [(b"x", b"k", {"a": b"b"})]


def test_backup_and_restore(samples: Path, tmp_path: Path) -> None:
    backup(samples, tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "restored")
    assert read_all(tmp_path / "restored") == SAMPLES


def test_a_java_queue_has_no_place_for_them(samples: Path, tmp_path: Path) -> None:
    report = convert(samples, tmp_path / "java")
    assert any("keys and headers" in line for line in report.not_carried)
    assert any("empty payloads" in line for line in report.not_carried)
    found = read_all(tmp_path / "java")
    assert [parts[1:] for parts in found] == [(None, {})] * len(SAMPLES)
    assert [found[0][0], found[1][0], found[4][0]] == [b"plain", b"keyed", b"x" * 300]
    with open_writer(tmp_path / "java") as writer:
        with pytest.raises(NotSupported, match="key and headers"):
            writer.append(b"x", key=b"k")
        with pytest.raises(NotSupported, match="key and headers"):
            writer.append_many([b"x"], headers=[{"a": b""}])
        writer.append(b"x", key=None, headers={})


def test_a_java_queue_has_them_in_fields(tmp_path: Path, rng: random.Random) -> None:
    """Even payloads that look like these fields come back unchanged."""
    begin = cq4.encode_fields({"aiochronicle": 1})
    cases = [
        *SAMPLES,
        (begin, None, {}),
        (begin + rng.randbytes(20), None, {}),
        (cq4.encode_fields({"aiochronicle": 1, "payload": b"x"}), None, {}),
        (cq4.encode_fields({"aiochronicle": 1, "payload": b"x"}), b"k", {"aiochronicle": b""}),
        *(
            (
                rng.randbytes(rng.randint(1, 300)),
                rng.choice((None, rng.randbytes(rng.randint(0, 300)))),
                {f"h{i}": rng.randbytes(i) for i in range(rng.randint(0, 64))},
            )
            for _ in range(50)
        ),
    ]
    cases += [(b"", None, {}), (b"\x8f", None, {})]
    with open_writer(tmp_path / "native") as writer:
        for payload, key, headers in cases:
            writer.append(payload, key=key, headers=headers)
    report = convert(tmp_path / "native", tmp_path / "java", headers="field")
    assert not any("headers" in line or "empty" in line for line in report.not_carried)
    for payload, _, headers in read_all(tmp_path / "java"):
        assert not headers
        if not payload.startswith(begin):
            assert any(payload == case[0] for case in cases)
    convert(tmp_path / "java", tmp_path / "back", headers="field")
    assert read_all(tmp_path / "back") == cases


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": "text"},
        {"key": b"k"},
        {"payload": b"", "more": 1},
        {"payload": b"", "headers": ["a"]},
        {"payload": b"", "headers": ["a", b"", "a", b""]},
        {"payload": b"", "headers": [b"a", b""]},
        {"payload": b"", "headers": [part for i in range(65) for part in (f"{i}", b"")]},
    ],
)
def test_a_java_document_of_another_program_stays_as_it_is(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    document = cq4.encode_fields({"aiochronicle": 1, **fields})
    with open_writer(tmp_path / "java", format="cq4") as writer:
        writer.append(document)
    convert(tmp_path / "java", tmp_path / "native", headers="field")
    assert read_all(tmp_path / "native") == [(document, None, {})]
    with pytest.raises(InvalidArgument, match="headers"):
        convert(tmp_path / "java", tmp_path / "other", headers="maps")  # type: ignore[arg-type]


def test_a_killed_writer_loses_none(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from aiochronicle import open_writer
writer = open_writer(sys.argv[1], segment_size=1 << 16)
for i in range(500):
    writer.append(b"p%d" % i, key=b"k%d" % i, headers={"h": b"%d" % i})
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "queue"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=WAIT_S * 2)
    with open_writer(path, verify=True) as writer:
        assert writer.next_seq == 500
        assert writer.recovery.corrupt_records == 0
    assert read_all(path) == [(b"p%d" % i, b"k%d" % i, {"h": b"%d" % i}) for i in range(500)]


def test_what_was_set_aside_has_them(samples: Path) -> None:
    aside = samples / "recovered"
    aside.mkdir()
    (aside / "000000000-1.q").write_bytes((samples / "000000000.q").read_bytes())
    (part,) = list_recovered(samples)
    found = [(m.payload, m.key, m.headers) for m in read_recovered(samples, part.name)]
    assert found == SAMPLES


# ---- columns ----


def test_arrow_columns(samples: Path) -> None:
    with open_reader(samples) as reader:
        batch = reader.to_arrow(columns=["seq", "payload", "key", "headers"])
    batch.validate(full=True)
    assert [
        (row["payload"], row["key"], dict(row["headers"])) for row in batch.to_pylist()
    ] == SAMPLES
    assert str(batch.schema.field("headers").type) == "map<string, binary>"
    with open_reader(samples) as reader:
        usual = reader.to_arrow()
    assert usual.column("payload").to_pylist() == [payload for payload, _, _ in SAMPLES]
    assert "key" not in usual.schema.names


def test_arrow_columns_that_grow(queue_path: Path) -> None:
    messages: list[Parts] = [
        (b"p" * (i % 50), bytes([i]) * (i * 20), {"h": b"v" * i} if i % 2 else {})
        for i in range(200)
    ]
    with open_writer(queue_path) as writer:
        for payload, key, headers in messages:
            writer.append(payload, key=key, headers=headers)
    with Queue(queue_path) as whole:
        for columns in (["key", "headers"], ["payload", "key", "headers"]):
            for rows in (7, 1000):
                found = [
                    (row["key"], dict(row["headers"]))
                    for batch in whole.slice().batches(rows, columns=columns)
                    for row in batch.to_pylist()
                ]
                assert found == [(key, headers) for _, key, headers in messages]


def test_parquet(samples: Path, tmp_path: Path) -> None:
    columns = ["seq", "payload", "key", "headers"]
    with Queue(samples) as whole:
        whole.slice().export(tmp_path / "all.parquet", columns=columns)
        whole.slice().export(tmp_path / "all.arrow", columns=columns, format="arrow")
    rows = pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [(row["payload"], row["key"], dict(row["headers"])) for row in rows] == SAMPLES


def test_columns_of_a_type_with_a_field_called_key(queue_path: Path) -> None:
    class Keyed(msgspec.Struct):
        key: str
        price: float

    with open_writer(queue_path, codec=Registry({1: Keyed, 2: Quote})) as writer:
        writer.send(Keyed("field", 1.5), key=b"k", headers={"h": b"v"})
        writer.send(Quote("X", 2.5), key=b"k", headers={"h": b"v"})
    with Queue(queue_path) as whole:
        rows = whole.slice().to_arrow(codec=Keyed).to_pylist()
        assert (rows[0]["key"], rows[0]["price"]) == ("field", 1.5)
        rows = whole.slice().to_arrow(["key", "headers"], codec=Keyed).to_pylist()
        assert rows == [{"key": "field", "headers": [("h", b"v")]}]
        rows = whole.slice().to_arrow(["key", "price"], codec=Quote).to_pylist()
        assert rows == [{"key": b"k", "price": 2.5}]


def test_arrays_refuse_headers(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        writer.append(bytes(8))
        writer.append(b"", key=bytes(2))
    with Queue(queue_path) as whole, pytest.raises(InvalidArgument, match="not all of one type"):
        whole.slice().to_numpy("u1")
