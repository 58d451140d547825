"""Errors about Java queues name the problem and the place and give fitting advice."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiochronicle import FanIn, Queue, cq4, open_reader, open_writer
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    DecodeError,
    InvalidArgument,
    NotSupported,
    QueueNotFound,
    TimestampUnknown,
    WrongType,
)

from .test_waiting_to_append import set_lock

LEAVE_OUT = "Omit it"


class Quote(msgspec.Struct):
    price: float


def text_of(kind: type[ChronicleError], action: Callable[[], Any]) -> str:
    with pytest.raises(kind) as failed:
        action()
    return str(failed.value)


def test_a_message_without_its_time_is_named(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        index = writer.send(cq4.Fields({"no": 1}))
        last = writer.send(cq4.Fields({"größe": 7}))
    with open_reader(queue_path, timestamp="größe") as reader:
        said = text_of(TimestampUnknown, reader.poll)
        assert f"message {index:#x}: its timestamp field 'größe' is missing. step_over()" in said
        with FanIn([reader]) as fan_in:
            source = next(iter(fan_in.sources()))
            assert text_of(TimestampUnknown, fan_in.poll) == said
            fan_in.detach(source)
            reader.step_over()
            fan_in.attach(reader)
            message = fan_in.poll()
            assert message is not None
            assert (message.seq, message.timestamp_ns) == (last, 7)
    with open_reader(queue_path, timestamp=lambda _: 1 // 0) as reader:
        said = text_of(TimestampUnknown, reader.poll)
    assert f"message {index:#x}: the timestamp function failed" in said
    with open_reader(queue_path, timestamp="größe") as reader:
        said = text_of(TimestampUnknown, lambda: reader.seek_time(5))
    assert f"message {index:#x}:" in said


def test_only_an_argument_can_be_left_out(tmp_path: Path) -> None:
    java, native = tmp_path / "java", tmp_path / "native"
    with open_writer(native) as writer:
        writer.append(b"x")
    said = text_of(NotSupported, lambda: open_reader(native, timestamp="at"))
    assert LEAVE_OUT not in said
    with open_writer(java, format="cq4") as writer:
        writer.append(b"x")
        assert LEAVE_OUT in text_of(NotSupported, lambda: writer.append(b"x", type_id=1))
        assert LEAVE_OUT not in text_of(NotSupported, writer.reader_lag)
    assert LEAVE_OUT in text_of(NotSupported, lambda: open_writer(java, capacity=1 << 20))
    with Queue(java) as queue:
        assert LEAVE_OUT not in text_of(NotSupported, lambda: queue.slice().to_numpy("S1"))


def test_roll_cycles_that_there_are_not(tmp_path: Path) -> None:
    with open_writer(tmp_path / "there", format="cq4"):
        pass
    for name in ("there", "new"):
        begin = partial(open_writer, tmp_path / name, format="cq4")
        said = text_of(InvalidArgument, partial(begin, roll_cycle="FAST_DALY"))
        assert "'FAST_DALY' is unknown: give one of FIVE_MINUTELY, " in said
        assert "FAST_DAILY" in said
        said = text_of(InvalidArgument, partial(begin, roll_cycle="WEEKLY"))
        assert "Java itself cannot reopen" in said
    assert not (tmp_path / "new").exists()


def test_a_payload_that_is_something_else(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        index = writer.send("text")
    with open_reader(queue_path, codec=Quote) as reader:
        said = text_of(DecodeError, next(iter(reader)).decode)
    assert f": message {index:#x}: " in said
    assert "type_id" not in said


@pytest.mark.parametrize("given", ["yes", 0.2, 1, None])
def test_wait_for_queue_is_a_bool(queue_path: Path, given: Any) -> None:
    said = text_of(WrongType, lambda: open_reader(queue_path, wait_for_queue=given))
    assert said == f"wait_for_queue must be a bool, not {given!r}"


def test_directories_that_are_no_queues(tmp_path: Path) -> None:
    said = text_of(QueueNotFound, lambda: open_reader(tmp_path))
    assert "neither control.meta nor metadata.cq4t" in said


def test_nobody_can_skip_a_damaged_table(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        writer.append(b"x")
    table = queue_path / "metadata.cq4t"
    table.write_bytes(table.read_bytes()[:4] + b"\xff" * 60 + table.read_bytes()[64:])
    said = text_of(CorruptionError, lambda: open_reader(queue_path))
    assert "on_corrupt" not in said
    assert "metadata.cq4t from a backup" in said


def test_a_lock_with_our_own_pid(queue_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_writer(queue_path, format="cq4", lock_timeout=0.1) as writer:
        set_lock(queue_path, os.getpid())
        with caplog.at_level(logging.WARNING):
            writer.append(b"x")
    assert f"the pid of this process, {os.getpid()}, and no thread here holds it" in caplog.text


def test_what_calls_and_their_writers_look_like(queue_path: Path) -> None:
    class Notes:
        def note(self, text: str) -> None: ...

    assert repr(cq4.Call("note", "hi")) == "Call(name='note', value='hi')"
    with open_writer(queue_path, format="cq4") as writer:
        assert repr(cq4.method_writer(Notes, writer)) == f"<NotesWriter to {writer!r}>"
