"""Messages that fail too often move to another queue exactly once and can be retried or dropped."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Group,
    TopicGroup,
    Writer,
    drop_dead_letters,
    errors,
    inspect_group,
    list_dead_letters,
    open_group,
    retry_dead_letters,
)
from aiochronicle._core import dead_letters

AnyGroup = Group[Any] | TopicGroup[Any]


@pytest.fixture
def writer(queue_path: Path) -> Iterator[Writer]:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        yield writer


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    return tmp_path / "dead"


def join(queue: Path, dead: Path, **options: Any) -> AnyGroup:
    return open_group(queue, "w", max_deliver=2, dead_letter=dead, retry_s=0.001, **options)


def fail(group: AnyGroup, error: str = "bad order") -> None:
    """Nack every message until all are moved."""

    def attempt() -> bool:
        for delivery in group:
            try:
                with delivery:
                    raise RuntimeError(error)
            except RuntimeError:
                pass
        return group.info().pending == 0

    eventually(attempt)


def test_a_message_that_fails_too_often_is_moved_with_its_history(
    writer: Writer, queue_path: Path, dead: Path
) -> None:
    writer.append(b"one", type_id=7)
    writer.append(b"two")
    with join(queue_path, dead) as group:
        fail(group)
    (first, second) = list_dead_letters(dead)
    assert first[0] == 0
    assert second[0] == 1
    letter = first[1]
    assert (letter.payload, letter.type_id, letter.seq, letter.attempts) == (b"one", 7, 0, 2)
    assert letter.error == "RuntimeError: bad order"
    assert (letter.queue, letter.group) == (str(queue_path), "w")
    assert letter.queue_id == aiochronicle.inspect(queue_path).queue_id
    with aiochronicle.open_reader(dead) as reader:
        message = reader.poll()
        assert message is not None
        assert message.cause == (letter.queue_id, 0)


def test_what_a_handler_raised_cannot_write_to_the_terminal(
    writer: Writer, queue_path: Path, dead: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.append(b"one")
    with join(queue_path, dead) as group:
        fail(group, "no account \x1b[31m\nroot: all is well")
    assert "no account \\x1b[31m\\nroot: all is well" in caplog.text
    assert "\x1b[31m\nroot" not in caplog.text


def test_dead_letters_are_dropped_and_retried(writer: Writer, queue_path: Path, dead: Path) -> None:
    for i in range(4):
        writer.append(b"%d" % i, type_id=i)
    with join(queue_path, dead) as group:
        fail(group)
    assert drop_dead_letters(dead, {1}) == [1]
    assert [seq for seq, _ in list_dead_letters(dead)] == [0, 2, 3]
    with pytest.raises(errors.LockedError):
        retry_dead_letters(dead)
    assert [seq for seq, _ in list_dead_letters(dead)] == [0, 2, 3]
    writer.close()
    assert retry_dead_letters(dead, {2}) == [2]
    with join(queue_path, dead) as group:
        (again,) = group.take_batch()
        assert (again.message.payload, again.message.type_id, again.seq) == (b"2", 2, 4)
        again.ack()
    assert [seq for seq, _ in list_dead_letters(dead)] == [0, 3]
    assert drop_dead_letters(dead) == [0, 3]
    assert list_dead_letters(dead) == []


def test_somebody_who_looks_at_dead_letters_hides_none(
    writer: Writer, queue_path: Path, dead: Path
) -> None:
    """Two processes that handle dead letters at the same time wait for each other, up to a limit."""
    for i in range(3):
        writer.append(b"%d" % i)
    with join(queue_path, dead) as group:
        fail(group)
    looking = dead_letters._open_dead(dead)
    held = looking.take_batch(2)
    assert len(held) == 2
    timer = threading.Timer(0.2, looking.close)
    timer.start()
    assert drop_dead_letters(dead, {0, 2}) == [0, 2]
    timer.join()
    assert [seq for seq, _ in list_dead_letters(dead)] == [1]


def test_a_dead_letter_is_there_once_though_its_mover_died(
    writer: Writer, queue_path: Path, dead: Path
) -> None:
    """The mover appends the letter and is killed before it acknowledges the message."""
    writer.append(b"poison")
    program = f"""
import os, signal, aiochronicle
from aiochronicle._core import dead_letter_mover
dead_letter_mover._acknowledge = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
dead = {str(dead)!r}
group = aiochronicle.open_group({str(queue_path)!r}, "w", max_deliver=2, dead_letter=dead, retry_s=0.001)
while True:
    group.wait(10)
    for delivery in group:
        delivery.nack()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert inspect_group(queue_path, "w").pending == 1
    with join(queue_path, dead) as group:
        eventually(lambda: group.poll() is None and group.info().pending == 0)
    assert [letter.payload for _, letter in list_dead_letters(dead)] == [b"poison"]


def test_groups_that_share_a_dead_letter_queue_have_letters_of_their_own(
    writer: Writer, queue_path: Path, dead: Path
) -> None:
    """A letter of one group is not mistaken for one that another group's dead mover wrote."""
    writer.append(b"poison")
    options: dict[str, Any] = {"max_deliver": 1, "dead_letter": dead, "retry_s": 0.001}
    with open_group(queue_path, "one", **options) as group:
        fail(group)
    with open_group(queue_path, "two", **options) as group:
        assert group.poll() is not None  # claimed and abandoned: one attempt more than allowed
        eventually(lambda: group.poll() is None and group.info().pending == 0)
    assert [letter.group for _, letter in list_dead_letters(dead)] == ["one", "two"]


def test_a_dead_letter_queue_that_cannot_be_opened_loses_nothing(
    writer: Writer, queue_path: Path, dead: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.append(b"poison")
    with join(queue_path, dead) as group:
        dead.write_text("no directory")
        for _ in range(2):
            assert group.wait(10)
            for delivery in group:
                delivery.nack(error="no such account")
        eventually(lambda: "cannot be moved" in caplog.text)
        assert group.info().pending == 1
        dead.unlink()
        eventually(lambda: group.poll() is None and group.info().pending == 0)
    assert [letter.error for _, letter in list_dead_letters(dead)] == ["no such account"]


def test_the_queue_itself_is_no_place_for_dead_letters(
    writer: Writer, queue_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(queue_path)
    for place in (queue_path, os.path.relpath(queue_path), tmp_path / "link"):
        with pytest.raises(errors.InvalidArgument, match="the queue itself"):
            open_group(queue_path, "w", max_deliver=2, dead_letter=place)


def test_places_that_can_be_no_queue_are_refused(
    writer: Writer, queue_path: Path, tmp_path: Path
) -> None:
    """The refusal comes at once, not when the first message fails."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "not" / "there", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.InvalidArgument, match="cannot be a queue"):
            open_group(queue_path, "w", max_deliver=2, dead_letter=place)
    aiochronicle.open_writer(tmp_path / "topic", shared=True).close()
    with pytest.raises(errors.NotAQueue, match="many writers"):
        open_group(queue_path, "w", max_deliver=2, dead_letter=tmp_path / "topic")
    assert aiochronicle.list_groups(queue_path) == []


def test_in_a_loop(writer: Writer, queue_path: Path, dead: Path) -> None:
    for i in range(50):
        writer.append(b"%d" % i)

    async def main() -> int:
        done = 0
        async with aiochronicle.aopen_group(
            queue_path, "w", max_deliver=3, dead_letter=dead, retry_s=0.001
        ) as group:
            while group.info().pending:
                try:
                    delivery = await group.next(timeout=0.05)
                except TimeoutError:
                    continue
                try:
                    async with delivery:
                        if delivery.seq % 10 == 0:
                            raise ValueError(delivery.seq)
                        done += 1
                except ValueError:
                    pass
        return done

    assert asyncio.run(main()) == 45
    assert sorted(letter.seq for _, letter in list_dead_letters(dead)) == [0, 10, 20, 30, 40]
