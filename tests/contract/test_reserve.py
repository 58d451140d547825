"""Writing in place: commit, exceptions, and memory that outlives its reservation."""

from pathlib import Path

import pytest

from aiochronicle.errors import (
    ClosedError,
    InvalidArgument,
    MessageTooLarge,
    ReservationOpen,
    TimestampOrder,
)
from contract.backend import SMALL_SEGMENT, Backend

pytestmark = pytest.mark.needs("reserve")


def fill_and_fail(room: memoryview, kept: list[memoryview] | None = None) -> None:
    room[:] = b"x" * len(room)
    if kept is not None:
        kept.append(room[8:16])
    raise KeyError("changed my mind")


def test_reserved_bytes_become_a_message(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"first")
        reservation = writer.reserve(5, type_id=9, timestamp_ns=1 << 61)
        with reservation as room:
            assert reservation.seq is None
            assert (len(room), room.readonly) == (5, False)
            room[:] = b"place"
        assert reservation.seq == 1
        assert writer.append(b"last", timestamp_ns=1 << 61) == 2
    with backend.open_reader(queue_path) as reader:
        messages = list(reader)
    assert [message.payload for message in messages] == [b"first", b"place", b"last"]
    assert (messages[1].type_id, messages[1].timestamp_ns) == (9, 1 << 61)


@pytest.mark.needs("cause")
def test_reserved_bytes_have_their_cause(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "in", 3)
    with backend.open_reader(tmp_path / "in") as reader:
        *_, order = reader
    with backend.open_writer(tmp_path / "out") as writer:
        with pytest.raises(KeyError), writer.reserve(5, cause=(77, 88)) as room:
            fill_and_fail(room)
        with writer.reserve(5, cause=order) as room:
            room[:] = b"place"
        assert writer.last_cause(order) == order.seq
        assert writer.last_cause(77) is None
        with writer.reserve(1) as room:
            room[:] = b"x"
    with backend.open_reader(tmp_path / "out") as reader:
        assert [message.cause for message in reader] == [(order.queue_id, order.seq), None]


def test_untouched_room_is_zero(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        with writer.reserve(10):
            pass
        with writer.reserve(0):
            pass
    assert backend.payloads(queue_path) == [bytes(10), b""]


def test_exception_means_nothing_was_written(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(ZeroDivisionError), writer.reserve(100) as room:
            room[:] = b"%d" % (1 // 0)
        with pytest.raises(KeyError), writer.reserve(100) as room:
            fill_and_fail(room)
        with writer.reserve(50) as room:
            assert bytes(room) == bytes(50), "left over from the one before"
        assert writer.append(b"next") == 1
    assert backend.payloads(queue_path) == [bytes(50), b"next"]


def test_reservations_across_segments(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for number in range(100):
            with writer.reserve(3) as room:
                room[:] = b"%03d" % number
    assert backend.payloads(queue_path) == [b"%03d" % number for number in range(100)]


def test_nothing_else_while_a_reservation_is_open(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        with writer.reserve(1) as room:
            with pytest.raises(ReservationOpen):
                writer.append(b"x")
            with pytest.raises(ReservationOpen):
                writer.append_many([b"x"])
            with pytest.raises(ReservationOpen), writer.reserve(1):
                pass
            room[:] = b"r"
        writer.append(b"x")
    assert backend.payloads(queue_path) == [b"r", b"x"]


def test_reservation_is_entered_once(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        reservation = writer.reserve(1)
        with reservation as room:
            room[:] = b"r"
        with pytest.raises(RuntimeError), reservation:
            pass
    assert backend.payloads(queue_path) == [b"r"]


def test_room_is_released_with_the_block(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        with writer.reserve(1) as room:
            room[:] = b"r"
        with pytest.raises(ValueError, match="released"):
            room[0] = 1


def test_memory_that_outlives_the_block_cannot_harm(backend: Backend, queue_path: Path) -> None:
    """References to the reserved bytes cannot change a later message."""
    kept: list[memoryview] = []
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(BufferError), writer.reserve(64) as room:
            kept.append(room[8:16])
        assert writer.append(b"message" * 9) == 0
        kept[0][:] = b"scribble"
    kept[0][:] = b"scribble"  # the memory must still be mapped
    kept[0].release()
    assert backend.payloads(queue_path) == [b"message" * 9]


def test_memory_kept_by_a_failing_block(backend: Backend, queue_path: Path) -> None:
    kept: list[memoryview] = []
    with backend.open_writer(queue_path) as writer:
        # The block's own exception takes precedence.
        with pytest.raises(KeyError), writer.reserve(64) as room:
            fill_and_fail(room, kept)
        assert writer.append(b"message" * 9) == 0
        kept[0][:] = b"scribble"
    kept[0].release()
    assert backend.payloads(queue_path) == [b"message" * 9]


def test_reservation_that_is_forgotten(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        reservation = writer.reserve(10)
        room = reservation.__enter__()
        room[:] = b"x" * 10
        del room, reservation
        assert writer.append(b"next") == 0
    assert backend.payloads(queue_path) == [b"next"]


def test_writer_closed_inside_the_block(backend: Backend, queue_path: Path) -> None:
    writer = backend.open_writer(queue_path)

    def close_and_write(room: memoryview) -> None:
        writer.close()
        room[:] = b"x" * 10

    with pytest.raises(ClosedError), writer.reserve(10) as room:
        close_and_write(room)
    assert backend.payloads(queue_path) == []


def test_reserving_what_cannot_be(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        with pytest.raises(ValueError, match="-1"):
            writer.reserve(-1)
        with pytest.raises(MessageTooLarge), writer.reserve(SMALL_SEGMENT):
            pass
        with pytest.raises((OverflowError, InvalidArgument)), writer.reserve(1 << 62):
            pass
        writer.append(b"x", timestamp_ns=1 << 61)
        with pytest.raises(TimestampOrder), writer.reserve(1, timestamp_ns=1):
            pass
        writer.append(b"y", timestamp_ns=1 << 61)
    assert backend.payloads(queue_path) == [b"x", b"y"]
