"""Rolling, retention and archiving."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import Retention, Roll, Writer
from aiochronicle.errors import InvalidArgument, PositionLost
from contract.backend import SMALL_SEGMENT, Backend

pytestmark = pytest.mark.needs("segments", "roll", "retention")


def segment_of_each(backend: Backend, path: Path) -> list[int]:
    with backend.open_reader(path) as reader:
        return [message.position[0] for message in reader]


def seqs(backend: Backend, path: Path) -> list[int]:
    with backend.open_reader(path) as reader:
        return [message.seq for message in reader]


# rolling


def test_roll_by_messages(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, roll=Roll(messages=4)) as writer:
        for _ in range(10):
            writer.append(b"x")
        assert writer.statistics().rolls == 2
    assert segment_of_each(backend, queue_path) == [0] * 4 + [1] * 4 + [2] * 2


def test_roll_by_messages_goes_on_after_reopening(backend: Backend, queue_path: Path) -> None:
    for _ in range(5):
        with backend.open_writer(queue_path, roll=Roll(messages=4)) as writer:
            writer.append(b"x")
            writer.append(b"x")
    assert segment_of_each(backend, queue_path) == [0] * 4 + [1] * 4 + [2] * 2


def test_roll_by_bytes(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, roll=Roll(bytes=1000)) as writer:
        for _ in range(20):
            writer.append(bytes(64))  # takes 128 bytes
        assert writer.position.segment == 2
    assert segment_of_each(backend, queue_path) == [0] * 7 + [1] * 7 + [2] * 6


def test_payload_beyond_the_roll_limit_gets_its_own_segment(
    backend: Backend, queue_path: Path
) -> None:
    with backend.open_writer(queue_path, roll=Roll(bytes=200)) as writer:
        for size in (10, 5000, 10):
            writer.append(bytes(size))
    assert segment_of_each(backend, queue_path) == [0, 1, 2]


def test_roll_by_time(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, roll=Roll(seconds=10)) as writer:
        for second in (0, 5, 9.9, 10, 19.9, 20, 45, 50, 55):
            writer.append(b"x", timestamp_ns=1000 * 10**9 + round(second * 10**9))
    assert segment_of_each(backend, queue_path) == [0, 0, 0, 1, 1, 2, 3, 3, 4]


def test_roll_by_time_goes_on_after_reopening(backend: Backend, queue_path: Path) -> None:
    for second in (0, 5, 12, 20, 23):
        with backend.open_writer(queue_path, roll=Roll(seconds=10)) as writer:
            writer.append(b"x", timestamp_ns=(1000 + second) * 10**9)
    assert segment_of_each(backend, queue_path) == [0, 0, 1, 1, 2]


def test_roll_by_time_counts_from_a_reserved_message(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, roll=Roll(seconds=10)) as writer:
        with writer.reserve(1, timestamp_ns=1000 * 10**9):
            pass
        for second in (3, 9, 10):
            writer.append(b"x", timestamp_ns=(1000 + second) * 10**9)
    assert segment_of_each(backend, queue_path) == [0, 0, 0, 1]


def test_roll_by_whichever_comes_first(backend: Backend, queue_path: Path) -> None:
    roll = Roll(messages=3, seconds=10, bytes=1000)
    with backend.open_writer(queue_path, roll=roll) as writer:
        writer.append(b"x", timestamp_ns=0)
        writer.append(b"x", timestamp_ns=11 * 10**9)  # time
        writer.append(b"x", timestamp_ns=12 * 10**9)
        writer.append(b"x", timestamp_ns=13 * 10**9)
        writer.append(b"x", timestamp_ns=14 * 10**9)  # messages
        writer.append(bytes(900), timestamp_ns=14 * 10**9)  # bytes
    assert segment_of_each(backend, queue_path) == [0, 1, 1, 1, 2, 3]


def test_reader_follows_over_rolls(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(queue_path, roll=Roll(messages=2)) as writer,
        backend.open_reader(queue_path) as reader,
    ):
        for seq in range(50):
            writer.append(b"%d" % seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq
            assert reader.poll() is None


@pytest.mark.parametrize(
    "options",
    [
        {"roll": Roll(bytes=0)},
        {"roll": Roll(messages=-1)},
        {"roll": Roll(seconds=0)},
        {"roll": Roll(seconds=float("nan"))},
        {"retention": Retention(max_bytes=0)},
        {"retention": Retention(max_age_s=-1)},
        {"retention": Retention(wait_for="not/a/name")},
        {"segment_size": 4000},
        {"segment_size": 64},
        {"segment_size": -1},
        {"segment_size": 1 << 40},
        {"capacity": 0},
        {"flush": "later"},
    ],
    ids=str,
)
def test_options_of_a_writer_are_checked(
    backend: Backend, queue_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument):
        backend.open_writer(queue_path, **options)
    assert not queue_path.exists()


# retention


@contextmanager
def sealed(backend: Backend, path: Path, retention: Retention) -> Iterator[Writer]:
    """Yield a writer with ten segments of two messages each, all sealed but the last."""
    with backend.open_writer(
        path, roll=Roll(messages=2), segment_size=SMALL_SEGMENT, retention=retention
    ) as writer:
        for number in range(20):
            writer.append(b"%d" % number)
        eventually(lambda: writer.statistics().seals == writer.statistics().rolls)
        yield writer


QUIET = 3600.0
"""Check interval of a retention that is only to happen when a test asks for it."""


def test_nothing_goes_without_readers(backend: Backend, queue_path: Path) -> None:
    with sealed(backend, queue_path, Retention(check_interval_s=QUIET)) as writer:
        writer.retain_now()
        assert writer.statistics().segments_deleted == 0
    assert seqs(backend, queue_path) == list(range(20))


def test_who_went_back_behind_its_commit_is_told_what_went(
    backend: Backend, queue_path: Path
) -> None:
    with (
        sealed(backend, queue_path, Retention(check_interval_s=QUIET)) as writer,
        backend.open_reader(queue_path, "back") as back,
    ):
        back.seek_last()
        back.commit()
        back.seek(0)
        writer.retain_now()
        assert seqs(backend, queue_path) == [18, 19]
        assert [message.seq for message in back.read_batch(2)] == [0, 1], "it has these mapped"
        with pytest.raises(PositionLost):
            back.poll()
        back.seek_first()
        assert [message.seq for message in back] == [18, 19]


def test_segments_go_when_every_reader_is_past_them(backend: Backend, queue_path: Path) -> None:
    with (
        sealed(backend, queue_path, Retention(check_interval_s=QUIET)) as writer,
        backend.open_reader(queue_path, "slow") as slow,
        backend.open_reader(queue_path, "fast") as fast,
    ):
        for _ in fast:
            pass
        fast.commit()
        writer.retain_now()
        assert seqs(backend, queue_path)[0] == 0, "the slow one still needs it"
        slow.read_batch(7)
        writer.retain_now()
        assert seqs(backend, queue_path)[0] == 0, "read, but not committed"
        slow.commit()
        writer.retain_now()
        assert seqs(backend, queue_path) == list(range(6, 20))
        assert writer.statistics().segments_deleted == 3
        assert [message.seq for message in slow] == list(range(7, 20))
        slow.commit()
        writer.retain_now()
        assert seqs(backend, queue_path) == [18, 19], "the active segment stays"
        assert not list(queue_path.glob("000000001.*"))
        assert writer.append(b"next") == 20


def test_reader_that_died_is_forgotten_after_its_time(backend: Backend, queue_path: Path) -> None:
    retention = Retention(check_interval_s=QUIET, reader_ttl_s=0.05)
    with backend.open_writer(queue_path, roll=Roll(messages=2)) as writer:
        writer.append(b"x")
    with backend.open_reader(queue_path, "dead") as reader:
        reader.poll()
        reader.commit()
    closed_at = time.monotonic()
    with sealed(backend, queue_path, retention) as writer:
        eventually(lambda: time.monotonic() - closed_at > 0.05)
        writer.retain_now()
        assert writer.statistics().segments_deleted > 0
    with pytest.raises(PositionLost) as caught:
        backend.open_reader(queue_path, "dead")
    assert caught.value.wanted == (0, 64 + 128)
    assert caught.value.nearest[0] > 0
    with backend.open_reader(queue_path, "dead", start="first") as reader:
        message = reader.poll()
        assert message is not None
        assert message.position[0] == caught.value.nearest[0]


def test_reader_that_is_waited_for_need_not_live(backend: Backend, queue_path: Path) -> None:
    retention = Retention(
        check_interval_s=QUIET, reader_ttl_s=0.05, max_reader_lag=1, max_bytes=1, wait_for="archive"
    )
    with sealed(backend, queue_path, retention) as writer:
        writer.retain_now()
        assert seqs(backend, queue_path)[0] == 0, "it has never been there"
        with backend.open_reader(queue_path, "archive") as reader:
            reader.read_batch(5)
            reader.commit()
        closed_at = time.monotonic()
        eventually(lambda: time.monotonic() - closed_at > 0.05)
        writer.retain_now()
        assert seqs(backend, queue_path) == list(range(4, 20))
        with backend.open_reader(queue_path, "archive") as reader:
            reader.seek(20)
            reader.commit()
        writer.retain_now()
        assert seqs(backend, queue_path) == [18, 19], "the active segment stays"


def test_reader_too_far_behind_does_not_hold(backend: Backend, queue_path: Path) -> None:
    retention = Retention(check_interval_s=QUIET, max_reader_lag=3 * SMALL_SEGMENT)
    with (
        backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as first,
        backend.open_reader(queue_path, "behind") as reader,
    ):
        first.append(b"x")
        reader.poll()
        reader.commit()
        first.close()
        with sealed(backend, queue_path, retention) as writer:
            writer.retain_now()
            assert writer.statistics().segments_deleted > 0
        # The open reader raises PositionLost, and so does the next one.
        with pytest.raises(PositionLost) as caught:
            list(reader)
        assert str(queue_path) in str(caught.value)
        reader.seek_position(type(reader.position)(*caught.value.nearest))
        assert reader.poll() is not None


def test_retention_by_bytes(backend: Backend, queue_path: Path) -> None:
    retention = Retention(max_bytes=4 * SMALL_SEGMENT, check_interval_s=QUIET)
    with sealed(backend, queue_path, retention) as writer:
        writer.retain_now()
        left = len(list(queue_path.glob("*.q")))
        assert left * SMALL_SEGMENT <= 4 * SMALL_SEGMENT
        assert left >= 3
    assert seqs(backend, queue_path)[-1] == 19


def test_retention_by_bytes_spares_what_a_reader_needs(backend: Backend, queue_path: Path) -> None:
    retention = Retention(max_bytes=2 * SMALL_SEGMENT, check_interval_s=QUIET)
    # Before the messages: opening a writer also runs retention once, possibly late.
    backend.open_writer(queue_path, segment_size=SMALL_SEGMENT).close()
    with (
        backend.open_reader(queue_path, "needs") as reader,
        sealed(backend, queue_path, retention) as writer,
    ):
        writer.retain_now()
        assert [message.seq for message in reader] == list(range(20))


def test_retention_by_age(backend: Backend, queue_path: Path) -> None:
    now = time.time_ns()
    retention = Retention(max_age_s=3600, check_interval_s=QUIET)
    with backend.open_writer(queue_path, roll=Roll(messages=1), retention=retention) as writer:
        for hours in (5, 4, 3, 0.5, 0.1, 0):
            writer.append(b"x", timestamp_ns=now - round(hours * 3600 * 10**9))
        eventually(lambda: writer.statistics().seals == 5)
        writer.retain_now()
    assert seqs(backend, queue_path) == [3, 4, 5]


def test_retention_happens_by_itself(backend: Backend, queue_path: Path) -> None:
    retention = Retention(max_bytes=3 * SMALL_SEGMENT, check_interval_s=0.01)
    with sealed(backend, queue_path, retention) as writer:
        eventually(lambda: len(list(queue_path.glob("*.q"))) <= 3)
        assert writer.statistics().retention_errors == 0


def test_archive_by_date(backend: Backend, queue_path: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    days = [datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(2024, 3, 1, 0, 0, 1, tzinfo=UTC)]
    retention = Retention(max_age_s=1, archive=str(archive), check_interval_s=QUIET)
    with backend.open_writer(
        queue_path, roll=Roll(messages=2), segment_size=SMALL_SEGMENT, retention=retention
    ) as writer:
        for day in days:
            for _ in range(2):
                writer.append(day.isoformat().encode(), timestamp_ns=int(day.timestamp()) * 10**9)
        writer.append(b"now")
        eventually(lambda: writer.statistics().seals == 2)
        writer.retain_now()
        assert writer.statistics().segments_archived == 2
        assert writer.statistics().segments_deleted == 0
    found = sorted(path.relative_to(archive) for path in archive.rglob("*") if path.is_file())
    assert [str(path) for path in found] == [
        "2024/02/29/000000000.idx",
        "2024/02/29/000000000.q",
        "2024/02/29/control.meta",  # so that the day can be read as a queue
        "2024/03/01/000000001.idx",
        "2024/03/01/000000001.q",
        "2024/03/01/control.meta",
    ]
    assert backend.payloads(queue_path) == [b"now"]
    # Archived files that are moved back are part of the queue again; nothing was lost.
    for path in found:
        (archive / path).rename(queue_path / path.name)
    assert seqs(backend, queue_path) == [0, 1, 2, 3, 4]


def test_archive_on_another_file_system(backend: Backend, queue_path: Path) -> None:
    archive = Path("/dev/shm") / f"aiochronicle-{os.getpid()}"
    retention = Retention(max_bytes=SMALL_SEGMENT, archive=str(archive), check_interval_s=QUIET)
    try:
        with sealed(backend, queue_path, Retention(check_interval_s=QUIET)):
            pass
        # Before retention is configured: its housekeeper runs once when the writer is opened.
        before = {path.name: path.read_bytes() for path in queue_path.glob("00*.q")}
        with backend.open_writer(
            queue_path, segment_size=SMALL_SEGMENT, retention=retention
        ) as writer:
            writer.retain_now()
            moved = {path.name: path.read_bytes() for path in archive.rglob("*.q")}
            assert len(moved) >= 8
            assert all(before[name] == content for name, content in moved.items())
            assert {path.stat().st_mode & 0o777 for path in archive.rglob("*.q")} == {0o600}
            assert not any((queue_path / name).exists() for name in moved)
    finally:
        for path in sorted(archive.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        archive.rmdir()


def test_no_index_is_left_without_its_segment(backend: Backend, queue_path: Path) -> None:
    retention = Retention(max_bytes=2 * SMALL_SEGMENT, check_interval_s=0.001)
    with backend.open_writer(
        queue_path, roll=Roll(messages=1), segment_size=SMALL_SEGMENT, retention=retention
    ) as writer:
        for _ in range(100):
            writer.append(b"x")
            writer.retain_now()
        eventually(lambda: writer.statistics().seals == 99)
        writer.retain_now()
        segments = {path.stem for path in queue_path.glob("*.q")}
        assert {path.stem for path in queue_path.glob("*.idx")} <= segments
        assert writer.statistics().retention_errors == 0
