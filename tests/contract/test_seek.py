"""Seeking by seq and time, and lag."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aiochronicle.errors import InvalidArgument
from contract.backend import SMALL_SEGMENT, Backend

START_NS = 1_700_000_000 * 10**9


def write(backend: Backend, path: Path, timestamps: list[int]) -> None:
    with backend.open_writer(path, segment_size=SMALL_SEGMENT) as writer:
        for number, stamp in enumerate(timestamps):
            writer.append(b"%d" % number, timestamp_ns=stamp)


def test_seek_to_every_seq(backend: Backend, queue_path: Path, rng: random.Random) -> None:
    backend.fill(queue_path, 200, segment_size=SMALL_SEGMENT)
    order = list(range(200))
    rng.shuffle(order)
    with backend.open_reader(queue_path) as reader:
        for seq in order:
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert (message.seq, message.payload) == (seq, b"%d" % seq)


def test_seek_beyond_the_end_waits_there(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for _ in range(50):
            writer.append(b"old")
        with backend.open_reader(queue_path) as reader:
            seeks: list[Callable[[], None]] = [
                lambda: reader.seek(50),
                lambda: reader.seek(10**9),
                lambda: reader.seek_time(time.time_ns() + 10**12),
                reader.seek_last,
            ]
            for seek in seeks:
                seek()
                assert reader.poll() is None
                writer.append(b"new")
                message = reader.poll()
                assert message is not None
                assert message.payload == b"new"


def test_seek_sees_what_was_appended_since(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer,
        backend.open_reader(queue_path) as reader,
    ):
        for seq in range(300):
            writer.append(b"x")
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq


def test_seek_first_and_last(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path) as reader:
        reader.seek_last()
        assert reader.poll() is None
        reader.seek_first()
        assert [message.seq for message in reader] == list(range(100))
        assert reader.statistics().seq_restarts == 0, "moving is no restart"
        reader.seek_first()
        first = reader.position
        for go_back in (
            reader.seek_first,
            lambda: reader.seek(5),
            lambda: reader.seek(90),
            lambda: reader.seek_time(0),
            lambda: reader.seek_position(first),
        ):
            go_back()
            assert reader.poll() is not None
            assert len(list(reader)) > 0
            assert reader.statistics().seq_restarts == 0, "nor is moving back"


@pytest.mark.needs("timestamps")
def test_seek_time(backend: Backend, queue_path: Path, rng: random.Random) -> None:
    """Seeking finds the first of several equal timestamps, across segments too."""
    timestamps = [START_NS]
    for _ in range(300):
        timestamps.append(timestamps[-1] + rng.choice([0, 0, 0, 1, 1000, 10**9]))
    write(backend, queue_path, timestamps)
    wanted = sorted({stamp + delta for stamp in timestamps for delta in (-1, 0, 1)})
    rng.shuffle(wanted)
    with backend.open_reader(queue_path) as reader:
        for moment in wanted:
            reader.seek_time(moment)
            message = reader.poll()
            expected = next((i for i, stamp in enumerate(timestamps) if stamp >= moment), None)
            assert (message and message.seq) == expected


@pytest.mark.needs("timestamps")
def test_one_timestamp_over_several_segments(backend: Backend, queue_path: Path) -> None:
    write(backend, queue_path, [START_NS] * 5 + [START_NS + 1] * 100 + [START_NS + 2])
    with backend.open_reader(queue_path) as reader:
        for moment, seq in ((0, 0), (START_NS, 0), (START_NS + 1, 5), (START_NS + 2, 105)):
            reader.seek_time(moment)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq


@pytest.mark.needs("timestamps")
def test_seek_time_takes_datetimes(backend: Backend, queue_path: Path) -> None:
    write(backend, queue_path, [START_NS + 1000 * n for n in range(100)])
    start = datetime.fromtimestamp(1_700_000_000, UTC)
    with backend.open_reader(queue_path) as reader:
        for microseconds in (0, 1, 50, 99):
            reader.seek_time(start + timedelta(microseconds=microseconds))
            message = reader.poll()
            assert message is not None
            assert message.seq == microseconds
        for wrong in (datetime(2024, 1, 1), datetime(1960, 1, 1, tzinfo=UTC), -1):
            with pytest.raises(InvalidArgument):
                reader.seek_time(wrong)
        for wrong_seq in (-1, 1 << 63):
            with pytest.raises(InvalidArgument):
                reader.seek(wrong_seq)
        message = reader.poll()
        assert message is None, "a seek that fails does not move"


def test_seek_with_a_long_index(backend: Backend, queue_path: Path) -> None:
    """The segment has more messages than one step of a sparse index covers."""
    count = 20_000
    with backend.open_writer(queue_path, segment_size=1 << 20) as writer:
        for first in range(0, count, 500):
            stamps = [START_NS + 10 * seq for seq in range(first, first + 500)]
            given = stamps if "timestamps" in backend.features else None
            writer.append_many([b"x"] * 500, timestamps_ns=given)
    with backend.open_reader(queue_path) as reader:
        for seq in (0, 1, 4095, 4096, 4097, 8192, 16_000, 16_383, 16_384, count - 1):
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq
            if "timestamps" not in backend.features:
                continue
            reader.seek_time(START_NS + 10 * seq - 5)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq


# lag


def test_lag_counts_down(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path) as reader:
        previous_bytes = None
        for left in range(100, 0, -1):
            lag = reader.lag
            assert lag.messages == left
            assert lag.bytes > 0
            assert previous_bytes is None or lag.bytes < previous_bytes
            previous_bytes = lag.bytes
            assert reader.poll() is not None
        assert (reader.lag.messages, reader.lag.bytes, reader.lag.seconds) == (0, 0, 0)


@pytest.mark.needs("timestamps")
def test_lag_in_seconds_is_the_age_of_the_next_message(backend: Backend, queue_path: Path) -> None:
    now = time.time_ns()
    write(backend, queue_path, [now - 100 * 10**9, now - 50 * 10**9])
    with backend.open_reader(queue_path) as reader:
        assert 100 <= reader.lag.seconds < 130
        reader.poll()
        assert 50 <= reader.lag.seconds < 80
        reader.poll()
        assert reader.lag.seconds == 0


def test_lag_grows_with_appends(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer, backend.open_reader(queue_path) as reader:
        assert reader.lag.messages == 0
        writer.append(b"a")
        writer.append_many([b"b"] * 9)
        assert reader.lag.messages == 10
        assert reader.lag.messages == 10, "asking does not read"
        assert len(reader.read_batch()) == 10
