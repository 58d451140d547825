"""Capacity limits how far a writer may run ahead of its slowest reader."""

import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import Capacity, Roll, Writer
from aiochronicle.errors import CapacityTimeout, ClosedError, InvalidArgument, QueueFull
from contract.backend import SMALL_SEGMENT, Backend

pytestmark = pytest.mark.needs("capacity")

RECORD = 128
"""What a message of 64 bytes takes."""


def test_full_queue_refuses_and_loses_nothing(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(queue_path, capacity=10 * RECORD) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        for number in range(10):
            assert writer.append(bytes(64)) == number
        with pytest.raises(QueueFull) as caught:
            writer.append(bytes(64))
        assert str(queue_path) in str(caught.value)
        with pytest.raises(QueueFull):
            writer.append_many([bytes(64)])
        with pytest.raises(QueueFull), writer.reserve(64):
            pass
        assert reader.lag.messages == 10
        reader.read_batch(3)
        with pytest.raises(QueueFull):
            writer.append(bytes(64))
        reader.commit()
        for number in range(10, 13):
            assert writer.append(bytes(64)) == number
        with pytest.raises(QueueFull):
            writer.append(bytes(64))
        assert [message.seq for message in reader] == list(range(3, 13))


def fill(writer: Writer) -> None:
    for _ in range(1000):
        writer.append(bytes(64))


def test_capacity_across_segments(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(
            queue_path, capacity=3 * SMALL_SEGMENT, segment_size=SMALL_SEGMENT
        ) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        for _ in range(5):
            with pytest.raises(QueueFull):
                fill(writer)
            lag, live = writer.reader_lag()
            assert live == 1
            assert 2 * SMALL_SEGMENT < lag <= 3 * SMALL_SEGMENT
            assert len(list(reader)) > 40
            reader.commit()
            assert writer.reader_lag() == (0, 1)


def test_what_a_roll_leaves_unused_does_not_count(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(queue_path, capacity=10 * RECORD, roll=Roll(messages=3)) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        for _ in range(3):
            for _ in range(10):
                writer.append(bytes(64))
            with pytest.raises(QueueFull):
                writer.append(bytes(64))
            assert writer.reader_lag() == (10 * RECORD, 1)
            assert reader.lag.bytes == 10 * RECORD
            assert len(list(reader)) == 10
            reader.commit()
            assert writer.reader_lag() == (0, 1)


class Alarm(Exception):
    """Raised by the handler of a signal."""


def test_a_signal_ends_the_wait_and_nothing_is_appended(backend: Backend, queue_path: Path) -> None:
    def ring(_signal: int, _frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with (
            backend.open_writer(queue_path, capacity=Capacity(RECORD, policy="block")) as writer,
            backend.open_reader(queue_path, "slow") as reader,
        ):
            writer.append(bytes(64))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Alarm):
                writer.append(bytes(64))
            assert len(list(reader)) == 1
            reader.commit()
            assert writer.append(bytes(64)) == 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_capacity_without_readers_is_no_limit(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, capacity=5 * RECORD) as writer:
        for _ in range(100):
            writer.append(bytes(64))
        assert writer.reader_lag() == (0, 0)


def test_blocked_writer_goes_on_when_there_is_room(backend: Backend, queue_path: Path) -> None:
    capacity = Capacity(5 * RECORD, policy="block")
    with (
        backend.open_writer(queue_path, capacity=capacity) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        for _ in range(5):
            writer.append(bytes(64))

        def append() -> None:
            writer.append(b"late")

        thread = threading.Thread(target=append)
        thread.start()
        eventually(lambda: writer.statistics().capacity_waits > 0)
        assert reader.lag.messages == 5
        reader.read_batch(1)
        reader.commit()
        thread.join(30)
        assert not thread.is_alive()
        assert [message.payload for message in reader][-1] == b"late"


def test_closing_ends_the_wait_for_room(backend: Backend, queue_path: Path) -> None:
    told: list[type[Exception]] = []
    with (
        backend.open_writer(queue_path, capacity=Capacity(5 * RECORD, policy="block")) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):

        def append() -> None:
            try:
                fill(writer)
            except ClosedError as error:
                told.append(type(error))

        threads = [threading.Thread(target=append, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: writer.statistics().capacity_waits > 0)
        closing = threading.Thread(target=writer.close, daemon=True)
        closing.start()
        for thread in (*threads, closing):
            thread.join(10)
            assert not thread.is_alive()
        assert told == [ClosedError] * 3
        assert [message.seq for message in reader] == list(range(5))


def test_blocked_writer_gives_up_in_time(backend: Backend, queue_path: Path) -> None:
    capacity = Capacity(5 * RECORD, policy="block", timeout_s=0.05)
    with (
        backend.open_writer(queue_path, capacity=capacity) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        for _ in range(5):
            writer.append(bytes(64))
        started = time.monotonic()
        with pytest.raises(CapacityTimeout) as caught:
            writer.append(bytes(64))
        assert time.monotonic() - started >= 0.05
        assert isinstance(caught.value, TimeoutError)
        assert len(list(reader)) == 5
        reader.commit()
        assert writer.append(bytes(64)) == 5


def test_message_beyond_the_whole_capacity(backend: Backend, queue_path: Path) -> None:
    """It is refused at once, because waiting could never make enough room."""
    with (
        backend.open_writer(queue_path, capacity=Capacity(5 * RECORD, policy="block")) as writer,
        backend.open_reader(queue_path, "slow") as reader,
    ):
        with pytest.raises(InvalidArgument):
            writer.append(bytes(1000))
        writer.append(bytes(64))
        assert len(list(reader)) == 1


@pytest.mark.parametrize(
    "capacity",
    [
        0,
        -1,
        Capacity(0),
        Capacity(100, policy="drop"),  # type: ignore[arg-type]
        Capacity(100, "block", timeout_s=0),
    ],
    ids=str,
)
def test_capacity_is_checked(backend: Backend, queue_path: Path, capacity: object) -> None:
    with pytest.raises(InvalidArgument):
        backend.open_writer(queue_path, capacity=capacity)
