"""Messages and unreferenced payload bytes are recycled; no caller may ever notice."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiochronicle import Reader, open_reader, open_writer

COUNT = 500


def payload_of(number: int) -> bytes:
    """Return a payload. Lengths repeat, so that recycled bytes sometimes fit and sometimes do not."""
    return b"%d:" % number + bytes([number % 251]) * (number // 7 % 5 * 30)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with open_writer(tmp_path / "queue") as writer:
        writer.append_many([payload_of(number) for number in range(COUNT)])
    with open_reader(tmp_path / "queue") as reader:
        yield reader


def test_payloads_that_are_dropped_at_once_are_right(reader: Reader) -> None:
    number = -1
    for number, message in enumerate(reader):
        assert message.payload == payload_of(number)
    assert number == COUNT - 1


def test_held_payload_outlives_its_message_unchanged(reader: Reader) -> None:
    held = [message.payload for message in reader if message.seq % 3 == 0]
    assert held == [payload_of(number) for number in range(0, COUNT, 3)]


def test_held_view_is_not_touched_by_later_messages(reader: Reader) -> None:
    views = [memoryview(message.payload) for message in reader]
    assert [bytes(view) for view in views] == [payload_of(number) for number in range(COUNT)]


def test_hash_belongs_to_the_contents(reader: Reader) -> None:
    for number, message in enumerate(reader):
        assert hash(message.payload) == hash(payload_of(number))


def test_payload_of_one_message_is_one_object(reader: Reader) -> None:
    message = reader.poll()
    assert message is not None
    assert message.payload is message.payload
    assert getattr(message, "pay" + "load") is message.payload


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without an interpreter lock nothing is recycled",
)
def test_recycled_payload_is_really_met(reader: Reader) -> None:
    """The tests above are meaningful only if payloads are recycled."""
    addresses = [id(message.payload) for message in reader]
    assert len(set(addresses)) < COUNT // 2


def test_shared_short_payloads_stay_what_they_are(tmp_path: Path) -> None:
    payloads = [b"", b"a", b"b", b"", b"cc", b"dd", b"a"] * 20
    with open_writer(tmp_path / "short") as writer:
        writer.append_many(payloads)
    with open_reader(tmp_path / "short") as reader:
        for expected, message in zip(payloads, reader, strict=True):
            assert message.payload == expected
    assert [bytes([code]) for code in b"abcd"] == [b"a", b"b", b"c", b"d"]
    assert len(b"".join([])) == 0


def test_public_classes_own_their_methods(tmp_path: Path, reader: Reader) -> None:
    with open_writer(tmp_path / "own") as writer:
        append: Any = type(writer).append
        assert append.__objclass__ is type(writer)
        with pytest.raises(TypeError):
            append(reader, b"")
    poll: Any = type(reader).poll
    assert poll.__objclass__ is type(reader)
