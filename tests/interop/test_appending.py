"""Java reads what we append; we respect its locks, its clock and its names."""

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiochronicle import open_reader, open_writer
from aiochronicle.errors import ChronicleError, LockedError, MessageTooLarge

from .judge import JavaThrew, Judge, JudgeQueue, pattern
from .ours import Ours, OursFailed, digest
from .test_wire import CALLS

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LARGEST = 16 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def ours() -> Iterator[Ours]:
    with Ours() as process:
        yield process


def payloads(queue: JudgeQueue) -> list[bytes]:
    return [message.payload for message in queue.read_all()]


# --- documents ---------------------------------------------------------------------------------


def test_a_queue_of_ours_is_one_of_javas(judge: Judge, path: Path) -> None:
    with open_writer(path, format="cq4", roll_cycle="TEST4_DAILY") as writer:
        indexes = [writer.append(b"ours %d" % number) for number in range(200)]
        with judge.open(path) as queue:
            assert queue.info().roll_cycle == "TEST4_DAILY"
            theirs = queue.append_bytes(b"theirs")
            assert theirs == [indexes[-1] + 1]
            assert writer.append(b"last") == indexes[-1] + 2
            read = queue.read_all()
            assert [message.index for message in read] == [*indexes, *theirs, theirs[0] + 1]
            assert [message.payload for message in read[-2:]] == [b"theirs", b"last"]
            with queue.tailer(start="end", backward=True) as tailer:
                assert tailer.read() == read[::-1]


def test_empty_documents_are_javas(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_writer(path) as writer:
        queue.append_empty()
        writer.append(b"")
        queue.append_empty()
        assert payloads(queue) == [b"\x8f"] * 3
    with open_reader(path) as reader:
        assert [bytes(message.payload) for message in reader] == [b"\x8f"] * 3


def test_metadata_documents_are_stepped_over(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY") as queue, open_writer(path) as writer:
        for number in range(20):
            queue.append_metadata(b"meta %d" % number)
            writer.append(b"%d" % number)
        assert payloads(queue) == [b"%d" % number for number in range(20)]
        with queue.tailer() as tailer:
            assert tailer.seek(queue.info().last_index) == [True]


def test_the_largest_message_and_one_byte_more(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_writer(path) as writer:
        for seed in range(5):
            payload = pattern(LARGEST, seed)
            writer.append(payload) if seed % 2 else queue.append_pattern(LARGEST, seed)
        with pytest.raises(MessageTooLarge):
            writer.append(bytes(LARGEST + 1))
        writer.append(b"after")
        expected = [hashlib.sha256(pattern(LARGEST, seed)).hexdigest() for seed in range(5)]
        assert [message.sha256 for message in queue.read_all()][:5] == expected
        assert queue.info().entry_count == 6


def test_calls_with_every_kind_of_argument(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "theirs") as queue:
        queue.append_calls(*([(method, args)] for _, method, args, _ in CALLS))
        theirs = payloads(queue)
        with queue.tailer() as tailer:
            expected = tailer.read_calls()
    with open_writer(tmp_path / "ours", format="cq4") as writer:
        for name, _, _, args in CALLS:
            writer.method(name, *args)
    with judge.open(tmp_path / "ours") as queue:
        assert payloads(queue) == theirs
        with queue.tailer() as tailer:
            assert tailer.read_calls() == expected


def test_a_cycle_that_is_full(judge: Judge, ours: Ours, path: Path) -> None:
    """Java stores one message more than it can index, then throws; we store none."""
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS) as queue:
        ours.open(path, time_ms=NOON_MS)
        ours.append(*(b"%d" % number for number in range(64)))
        with pytest.raises(OursFailed, match=r"QueueFull: .*index.*next cycle begins"):
            ours.append(b"one too many")
        ours.set_time(NOON_MS + DAY_MS)
        ours.append(b"the next day")
        assert payloads(queue) == [*(b"%d" % number for number in range(64)), b"the next day"]


# --- locks -------------------------------------------------------------------------------------


def test_a_jvm_that_writes_is_waited_for(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_writer(path, lock_timeout=0.5) as writer:
        queue.hold_lock(b"half")
        started = time.monotonic()
        with pytest.raises(LockedError) as caught:
            writer.append(b"never")
        assert 0.4 < time.monotonic() - started < 5
        assert caught.value.pid == judge.pid
        assert f"by pid {judge.pid} (" in str(caught.value)
        assert "lock_timeout" in str(caught.value)
        queue.release_lock(rollback=False)
        writer.append(b"then")
        assert payloads(queue) == [b"half", b"then"]


def test_a_message_taken_back_is_overwritten(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_writer(path) as writer:
        queue.hold_lock(b"a long message that will never be there")
        queue.release_lock(rollback=True)
        writer.append(b"short")
        queue.append_bytes(b"next")
        assert payloads(queue) == [b"short", b"next"]


def test_the_lock_of_a_killed_jvm_is_freed_at_once(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY") as queue, Judge() as victim:
        queue.append_bytes(b"before")
        with open_writer(path) as writer:
            victim.open(path).hold_lock(b"half of a message")
            victim.kill()
            started = time.monotonic()
            writer.append(b"after")
            assert time.monotonic() - started < 2
        assert payloads(queue) == [b"before", b"after"]


def test_a_zombie_that_holds_the_lock(judge: Judge, path: Path) -> None:
    """A zombie is still in /proc, so Java and we count it as alive until it is reaped."""
    with judge.open(path, roll_cycle="TEST_DAILY", timeout_ms=200) as queue, Judge() as victim:
        queue.append_bytes(b"before")
        with open_writer(path, lock_timeout=0.3) as writer:
            victim.open(path).hold_lock(b"half of a message")
            os.kill(victim.pid, signal.SIGKILL)
            os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
            with pytest.raises(JavaThrew, match="UnrecoverableTimeoutException"):
                queue.append_bytes(b"never")
            with pytest.raises(LockedError):
                writer.append(b"never")
            victim.kill()
            writer.append(b"after")
        assert payloads(queue) == [b"before", b"after"]


def test_java_goes_on_beside_ours_that_are_killed(judge: Judge, path: Path) -> None:
    """At full speed our writers mostly hold the lock; a JVM frees it after its timeout, 0.6 s here."""
    with judge.open(path, roll_cycle="TEST_SECONDLY", timeout_ms=400) as queue, Ours() as server:
        queue.append_bytes(b"beside:0")
        for number in range(1, 10):
            pid = server.fork(path, f"victim{number}")
            time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            server.reap(pid)
            queue.append_bytes(b"beside:%d" % number)
        found, counts = digest(path)
        assert counts["beside"] == 10
        with queue.tailer() as tailer:
            assert tailer.digest() == found


def test_the_append_lock_is_respected(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_writer(path, lock_timeout=0.3) as writer:
        writer.append(b"before")
        queue.hold_append_lock()
        with pytest.raises(ChronicleError, match="append"):
            writer.append(b"never")
        queue.hold_append_lock(False)
        writer.append(b"after")
        assert payloads(queue) == [b"before", b"after"]


# --- clocks ------------------------------------------------------------------------------------


def test_a_clock_that_steps_back(judge: Judge, ours: Ours, path: Path) -> None:
    """We create no cycle before the newest one, because Java's tailers would stop there."""
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS) as queue:
        queue.append_bytes(b"today")
        ours.open(path, time_ms=NOON_MS, lock_timeout=0.2)
        ours.append(b"today too")
        ours.set_time(NOON_MS - DAY_MS)
        with contextlib.suppress(OursFailed):
            ours.append(b"yesterday")
        files = queue.info().files
        assert files == ["20231114T1.cq4"]
        ours.set_time(NOON_MS)
        ours.append(b"again")
        queue.append_bytes(b"theirs")
        read = payloads(queue)
        assert [each for each in read if each != b"yesterday"] == [
            b"today",
            b"today too",
            b"again",
            b"theirs",
        ]


def test_a_jvm_whose_clock_is_behind(judge: Judge, ours: Ours, path: Path) -> None:
    """We have rolled, but the JVM is still on yesterday's cycle; it must not lose acknowledged messages."""
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS) as queue:
        queue.append_bytes(b"1")
        ours.open(path, time_ms=NOON_MS + DAY_MS)
        ours.append(b"2")
        accepted = []
        with contextlib.suppress(JavaThrew):
            queue.append_bytes(b"3")
            accepted = [b"3"]
        queue.set_time(NOON_MS + DAY_MS)
        queue.append_bytes(b"4")
        ours.append(b"5")
        assert payloads(queue) == [b"1", b"2", *accepted, b"4", b"5"]
    with open_reader(path) as reader:
        assert [bytes(message.payload) for message in reader] == [b"1", b"2", *accepted, b"4", b"5"]


def erase_end_mark(path: Path) -> None:
    with path.open("r+b") as file:
        at = file.read(1 << 20).rindex(b"\0\0\0\xc0")
        file.seek(at)
        file.write(bytes(8))


def test_missing_end_marks_are_written(judge: Judge, ours: Ours, path: Path) -> None:
    """A Java tailer does not leave a file without an end mark; opening our writer adds the mark."""
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS) as queue:
        queue.append_bytes(b"1")
        with Judge() as ahead:
            later = ahead.open(path, time_ms=NOON_MS + DAY_MS)
            later.append_bytes(b"2")
            ahead.kill()
        erase_end_mark(path / "20231114T1.cq4")
    with judge.open(path, time_ms=NOON_MS + DAY_MS) as queue, queue.tailer() as tailer:
        assert [message.payload for message in tailer.read()] == [b"1"]
        ours.open(path, time_ms=NOON_MS + DAY_MS)
        ours.append(b"3")
        assert [message.payload for message in tailer.read(wait_s=0.5)] == [b"2", b"3"]


def test_a_file_that_was_linked_and_not_listed_holds_up_no_tailer(
    judge: Judge, ours: Ours, path: Path
) -> None:
    """One of our writers was killed between the two steps, and a running JVM has rolled past the file.

    2026.4 writes an end mark into the empty file. 5.26 does not, and Java's tailers stop there until an
    appender is created. Opening our writer adds the mark.
    """
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS, timeout_ms=400) as queue:
        queue.append_bytes(b"1")
        with Ours(preload="die_after_link") as victim:
            victim.open(path, time_ms=NOON_MS + DAY_MS)
            with pytest.raises(OursFailed, match="status -9"):
                victim.append(b"never")
        residue = path / "20231115T1.cq4"
        assert residue.exists()
        queue.set_time(NOON_MS + 2 * DAY_MS)
        queue.append_bytes(b"2")  # frees the dead writer's lock first
        if judge.version.startswith("2026"):
            with queue.tailer() as tailer:
                assert [message.payload for message in tailer.read()] == [b"1", b"2"]
            erase_end_mark(residue)
        with queue.tailer() as tailer:
            assert [message.payload for message in tailer.read()] == [b"1"]
            with open_reader(path) as reader:
                assert [bytes(message.payload) for message in reader] in ([b"1"], [b"1", b"2"])
            ours.open(path, time_ms=NOON_MS + 2 * DAY_MS)
            ours.append(b"3")
            assert [message.payload for message in tailer.read(wait_s=0.5)] == [b"2", b"3"]
    with open_reader(path) as reader:
        assert [bytes(message.payload) for message in reader] == [b"1", b"2", b"3"]
