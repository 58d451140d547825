"""An append to a Java queue waits for Java's lock and for the clock."""

import asyncio
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiochronicle import Writer, open_reader, open_writer
from aiochronicle.errors import ClosedError, CorruptionError, LockedError, TimestampOrder

KEY = b"chronicle.write.lock"
UNLOCKED = 1 << 63
SECOND_NS = 1_000_000_000


def place_of_lock(table: bytes) -> int:
    """Return the offset of the lock: walk the table store, where a value is the last 8 bytes of a record."""
    at = 0
    while True:
        length = int.from_bytes(table[at : at + 4], "little") & 0x3FFFFFFF
        end = at + 4 + length
        if KEY in table[at:end]:
            return int(end) - 8
        at = end + 3 & ~3


def set_lock(queue: Path, holder: int) -> None:
    path = queue / "metadata.cq4t"
    with path.open("r+b") as file:
        file.seek(place_of_lock(path.read_bytes()))
        file.write(struct.pack("<Q", holder))


@contextmanager
def holder_of(queue: Path) -> Iterator[int]:
    """Start a process, record it as the holder of the lock, and yield its pid."""
    with subprocess.Popen(["sleep", "60"]) as process:
        set_lock(queue, process.pid)
        try:
            yield process.pid
        finally:
            process.kill()
            set_lock(queue, UNLOCKED)


@contextmanager
def alarm(handler: Callable[[], None], seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: handler())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def writer(queue_path: Path) -> Iterator[Writer]:
    with open_writer(queue_path, format="cq4") as opened:
        opened.append(b"first")
        yield opened


def payloads(path: Path) -> list[bytes]:
    with open_reader(path) as reader:
        return [message.payload for message in reader]


def test_a_lock_that_is_not_given_back_names_its_holder(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4", lock_timeout=0.1) as writer:
        writer.append(b"first")
        with holder_of(queue_path) as pid:
            started = time.monotonic()
            with pytest.raises(LockedError, match=rf"\b{pid}\b"):
                writer.append(b"never")
            assert 0.1 <= time.monotonic() - started < 5
            with pytest.raises(LockedError):
                writer.append_many([b"never", b"never"])
        writer.append(b"second")
    assert payloads(queue_path) == [b"first", b"second"]


def test_without_waiting_for_the_lock(queue_path: Path) -> None:
    with (
        open_writer(queue_path, format="cq4", lock_timeout=0) as writer,
        holder_of(queue_path),
        pytest.raises(LockedError),
    ):
        writer.append(b"never")


def test_the_lock_of_a_dead_process_is_freed(writer: Writer, queue_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    set_lock(queue_path, process.pid)
    started = time.monotonic()
    writer.append(b"second")
    assert time.monotonic() - started < 5
    assert payloads(queue_path) == [b"first", b"second"]


def test_other_threads_run_while_an_append_waits(writer: Writer, queue_path: Path) -> None:
    with holder_of(queue_path):
        appending = threading.Thread(target=writer.append, args=(b"second",))
        appending.start()
        ticks = 0
        ends = time.monotonic() + 0.1
        while time.monotonic() < ends:
            ticks += 1
        assert appending.is_alive()
        assert ticks > 1000
    appending.join(30)
    assert payloads(queue_path) == [b"first", b"second"]


class Alarm(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("method", ["append_async", "append_durable"])
async def test_a_task_waits_for_the_lock_and_not_the_loop(
    writer: Writer, queue_path: Path, method: str
) -> None:
    append = getattr(writer, method)
    assert await append(b"second") == writer.next_seq - 1
    with holder_of(queue_path):
        waiting = asyncio.create_task(append(b"third"))
        turns, deadline = 0, time.monotonic() + 10
        while turns < 20 and time.monotonic() < deadline:  # a blocked loop takes one turn
            await asyncio.sleep(0.01)
            turns += 1
        assert turns == 20
        assert not waiting.done()
    assert await waiting == writer.next_seq - 1
    assert payloads(queue_path) == [b"first", b"second", b"third"]


async def test_a_task_that_waited_for_the_lock_in_vain(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4", lock_timeout=0.1) as writer:
        writer.append(b"first")
        with holder_of(queue_path) as pid, pytest.raises(LockedError, match=rf"\b{pid}\b"):
            await writer.append_async(b"never")
        assert await writer.append_async(b"second") == writer.next_seq - 1
    assert payloads(queue_path) == [b"first", b"second"]


@pytest.mark.parametrize("many", [False, True])
def test_a_signal_ends_the_wait(writer: Writer, queue_path: Path, many: bool) -> None:
    def ring() -> None:
        raise Alarm

    started = time.monotonic()
    with holder_of(queue_path), alarm(ring, 0.05), pytest.raises(Alarm):
        if many:
            writer.append_many([b"never", b"never"])
        else:
            writer.append(b"never")
    assert time.monotonic() - started < 5
    writer.append(b"second")
    assert payloads(queue_path) == [b"first", b"second"]


def test_a_handler_that_returns_does_not_end_the_wait(writer: Writer, queue_path: Path) -> None:
    with holder_of(queue_path), alarm(lambda: set_lock(queue_path, UNLOCKED), 0.05):
        writer.append(b"second")
    assert payloads(queue_path) == [b"first", b"second"]


def test_a_handler_may_close_the_writer(writer: Writer, queue_path: Path) -> None:
    started = time.monotonic()
    with holder_of(queue_path), alarm(writer.close, 0.05), pytest.raises(ClosedError):
        writer.append(b"never")
    assert time.monotonic() - started < 5
    assert writer.closed
    assert payloads(queue_path) == [b"first"]


def test_closing_in_another_thread_ends_the_wait(writer: Writer, queue_path: Path) -> None:
    told: list[BaseException] = []

    def append() -> None:
        try:
            writer.append(b"never")
        except ClosedError as error:
            told.append(error)

    with holder_of(queue_path):
        appending = threading.Thread(target=append)
        appending.start()
        time.sleep(0.05)
        started = time.monotonic()
        writer.close()
        appending.join(30)
        assert time.monotonic() - started < 5
    assert len(told) == 1
    assert payloads(queue_path) == [b"first"]


def test_a_forked_child_of_a_waiting_parent(writer: Writer, queue_path: Path) -> None:
    """A signal handler forks; the child does not continue the parent's wait for the lock."""
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())
        if children[-1]:
            set_lock(queue_path, UNLOCKED)

    with holder_of(queue_path), alarm(fork, 0.05):
        try:
            writer.append(b"second")
        except ClosedError:
            os._exit(0 if children == [0] else 1)
        except BaseException:  # noqa: BLE001
            os._exit(2)
        if children == [0]:
            os._exit(3)
    assert os.waitpid(children[0], 0)[1] == 0
    assert payloads(queue_path) == [b"first", b"second"]


# clocks


def test_a_clock_that_stands_behind_is_told(queue_path: Path) -> None:
    with (
        open_writer(
            queue_path, format="cq4", roll_cycle="TEST_SECONDLY", clock=lambda: 100 * SECOND_NS
        ) as behind,
        open_writer(queue_path, clock=lambda: 102 * SECOND_NS) as ahead,
    ):
        behind.append(b"1")
        ahead.append(b"2")
        for call in (lambda: behind.append(b"x"), lambda: behind.append_many([b"x", b"y"])):
            started = time.monotonic()
            with pytest.raises(
                TimestampOrder, match=r"cycle 100.*wait for it\. Nothing was appended\.$"
            ):
                call()
            assert time.monotonic() - started < 5
    assert payloads(queue_path) == [b"1", b"2"]


@pytest.mark.parametrize("many", [False, True])
def test_a_clock_that_is_a_little_behind_is_waited_for(queue_path: Path, many: bool) -> None:
    start_ns = time.monotonic_ns()

    def clock() -> int:
        """Start half a second before the next cycle and advance."""
        return 100 * SECOND_NS + SECOND_NS // 2 + time.monotonic_ns() - start_ns

    with (
        open_writer(queue_path, format="cq4", roll_cycle="TEST_SECONDLY", clock=clock) as behind,
        open_writer(queue_path, clock=lambda: 101 * SECOND_NS) as ahead,
    ):
        behind.append(b"1")
        ahead.append(b"2")
        if many:
            assert [*behind.append_many([b"3", b"4"])] == [(101 << 32) + 1, (101 << 32) + 2]
        else:
            assert behind.append(b"3") == (101 << 32) + 1


def test_a_new_name_waits_for_seconds_only_and_one_that_is_there_not_at_all(
    writer: Writer, queue_path: Path
) -> None:
    open_reader(queue_path, "known").close()
    with holder_of(queue_path) as pid:
        started = time.monotonic()
        open_reader(queue_path, "known").close()
        assert time.monotonic() - started < 4
        started = time.monotonic()
        with pytest.raises(LockedError, match=rf"tailer new.*\b{pid}\b"):
            open_reader(queue_path, "new")
        assert 4 < time.monotonic() - started < 14
    open_reader(queue_path, "new").close()
    assert writer.append(b"second")


def test_a_table_store_that_was_cut_is_damage(writer: Writer, queue_path: Path) -> None:
    os.truncate(queue_path / "metadata.cq4t", 300)
    with pytest.raises(CorruptionError, match=r"metadata\.cq4t.*was cut.*Restore metadata\.cq4t"):
        writer.append(b"second")
    os.truncate(queue_path / "metadata.cq4t", 200)  # within the header's page, before the keys
    with pytest.raises(CorruptionError, match=r"metadata\.cq4t.*was cut.*Restore metadata\.cq4t"):
        open_writer(queue_path)
