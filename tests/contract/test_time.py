"""Timestamps: from the clock, from the caller, and from faulty clocks."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiochronicle import Writer
from aiochronicle.errors import InvalidArgument, MessageTooLarge, TimestampOrder
from contract.backend import SMALL_SEGMENT, Backend


def timestamps(backend: Backend, path: Path) -> list[int]:
    with backend.open_reader(path) as reader:
        return [message.timestamp_ns for message in reader]


def ticking(values: list[int]) -> Callable[[], int]:
    """Return a clock that gives these values in turn."""
    remaining: Iterator[int] = iter(values)
    return lambda: next(remaining)


def reserve_at(writer: Writer, timestamp_ns: int) -> None:
    with writer.reserve(1, timestamp_ns=timestamp_ns) as room:
        room[:] = b"x"


@pytest.mark.needs("timestamps")
def test_the_clock_is_unix_time_and_never_decreases(backend: Backend, queue_path: Path) -> None:
    before = time.time_ns()
    backend.fill(queue_path, 1000)
    found = timestamps(backend, queue_path)
    assert before <= found[0]
    assert found[-1] <= time.time_ns()
    assert found == sorted(found)


@pytest.mark.needs("timestamps")
def test_timestamps_of_the_caller(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"a", timestamp_ns=0)
        writer.append(b"b", timestamp_ns=5)
        writer.append(b"c", timestamp_ns=5)
        writer.append_many([b"d", b"e"], timestamps_ns=[5, 9])
        with writer.reserve(1, timestamp_ns=10) as room:
            room[:] = b"f"
    assert timestamps(backend, queue_path) == [0, 5, 5, 5, 9, 10]


@pytest.mark.needs("timestamps")
def test_timestamp_going_back_is_refused(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"a", timestamp_ns=100)
        for call in (
            lambda: writer.append(b"b", timestamp_ns=99),
            lambda: writer.append_many([b"b", b"c"], timestamps_ns=[99, 100]),
            lambda: writer.append_many([b"b", b"c"], timestamps_ns=[101, 100]),
            lambda: writer.heartbeat(99),
        ):
            with pytest.raises(TimestampOrder):
                call()
        assert writer.append(b"d", timestamp_ns=100) == 1
    assert timestamps(backend, queue_path) == [100, 100]


@pytest.mark.needs("timestamps")
def test_timestamps_go_on_after_reopening(backend: Backend, queue_path: Path) -> None:
    future = time.time_ns() + 3600 * 10**9
    with backend.open_writer(queue_path) as writer:
        writer.append(b"a", timestamp_ns=future)
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(TimestampOrder):
            writer.append(b"b", timestamp_ns=future - 1)
        writer.append(b"c")
    assert timestamps(backend, queue_path) == [future, future]


@pytest.mark.needs("timestamps")
def test_injected_clock(backend: Backend, queue_path: Path) -> None:
    clock = ticking([10, 20, 30, 40])
    with backend.open_writer(queue_path, clock=clock) as writer:
        writer.append(b"a")
        writer.append_many([b"b", b"c"])  # one clock reading for the batch
        writer.append(b"d", timestamp_ns=25)
        with writer.reserve(1):
            pass
        writer.append(b"e")
    assert timestamps(backend, queue_path) == [10, 20, 20, 25, 30, 40]


@pytest.mark.needs("timestamps")
def test_clock_that_steps_back_is_held(backend: Backend, queue_path: Path) -> None:
    clock = ticking([100, 50, 99, 101, 20, 7])
    with backend.open_writer(queue_path, clock=clock) as writer:
        for _ in range(4):
            writer.append(b"x")
        writer.append_many([b"x", b"x"])
        writer.heartbeat()
        assert writer.statistics().clock_steps == 4
        assert writer.statistics().last_timestamp_ns == 101
    assert timestamps(backend, queue_path) == [100, 100, 100, 101, 101, 101]


@pytest.mark.needs("timestamps", "segments")
def test_a_held_clock_is_counted_once_per_append(backend: Backend, queue_path: Path) -> None:
    """It is counted once even on the slow path: at the end of a segment, or in the next one."""
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        writer.append(b"from the future", timestamp_ns=1 << 61)
        for _ in range(100):
            writer.append(b"x")
        assert writer.statistics().rolls == 3
        assert writer.statistics().clock_steps == 100
        with pytest.raises(MessageTooLarge):
            writer.append(bytes(SMALL_SEGMENT))
        assert writer.statistics().clock_steps == 101, "the clock was held, for nothing"


@pytest.mark.needs("timestamps")
@pytest.mark.parametrize("reading", [-1, 1 << 63, 1.5, "now", None])
def test_clock_that_is_none(backend: Backend, queue_path: Path, reading: object) -> None:
    readings = iter([reading, 17])
    with backend.open_writer(queue_path, clock=lambda: next(readings)) as writer:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            writer.append(b"bad")
        assert writer.append(b"good") == 0
    assert timestamps(backend, queue_path) == [17]


@pytest.mark.needs("timestamps")
def test_clock_that_raises(backend: Backend, queue_path: Path) -> None:
    def broken() -> int:
        raise LookupError("no time")

    with backend.open_writer(queue_path, clock=broken) as writer:
        with pytest.raises(LookupError):
            writer.append(b"x")
        with pytest.raises(LookupError):
            writer.append_many([b"x"])
        with pytest.raises(LookupError), writer.reserve(1):
            pass
        assert writer.append(b"y", timestamp_ns=3) == 0
    assert timestamps(backend, queue_path) == [3]


@pytest.mark.needs("timestamps")
def test_clock_that_appends_to_the_same_writer(backend: Backend, queue_path: Path) -> None:
    """A clock is Python code and may do anything, including using the room that the append had found."""
    nested = 0

    def clock() -> int:
        nonlocal nested
        nested += 1
        writer.append(b"n", timestamp_ns=nested)
        return nested

    with backend.open_writer(queue_path, clock=clock, segment_size=4096) as writer:
        for _ in range(60):
            writer.append(b"x")
    assert timestamps(backend, queue_path) == [n for n in range(1, 61) for _ in "nx"]


def test_clock_has_to_be_callable(backend: Backend, queue_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        backend.open_writer(queue_path, clock=12345)


@pytest.mark.needs("timestamps")
def test_heartbeat_promises_nothing_older(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"a", timestamp_ns=10)
        writer.heartbeat(20)
        with pytest.raises(TimestampOrder):
            writer.append(b"b", timestamp_ns=19)
        writer.append(b"c", timestamp_ns=20)
    assert timestamps(backend, queue_path) == [10, 20]


@pytest.mark.needs("timestamps")
def test_timestamp_too_far_ahead_is_refused_if_asked_for(
    backend: Backend, queue_path: Path
) -> None:
    far = [2 * time.time_ns()]
    with backend.open_writer(queue_path, max_ahead_s=60, clock=lambda: far[0]) as writer:
        for call in (
            lambda: writer.append(b"x", timestamp_ns=far[0]),
            lambda: writer.append_many([b"x", b"y"], timestamps_ns=[1, far[0]]),
            lambda: reserve_at(writer, far[0]),
            lambda: writer.heartbeat(far[0]),
            lambda: writer.append(b"x"),
        ):
            with pytest.raises(TimestampOrder, match=r"ahead of the clock.*allows 60.*max_ahead_s"):
                call()
        assert writer.next_seq == 0
        writer.append(b"x", timestamp_ns=time.time_ns() + 30_000_000_000)
        far[0] = time.time_ns()
        writer.append(b"x")
    found = timestamps(backend, queue_path)
    assert found[0] == found[1], "which holds the clock"
