"""Parts of a queue: the right messages, the right count, the same result every time."""

import gc
import random
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from reference import format as fmt

import aiochronicle
from aiochronicle import errors, open_reader, open_writer

COUNT = 1000
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
EPOCH_NS = int(EPOCH.timestamp()) * 10**9
STEP_NS = 1_000_000


@pytest.fixture
def filled(queue_path: Path) -> Path:
    """Return a queue with seqs 0 to 999 in many segments; pairs share a time, a millisecond apart."""
    with open_writer(queue_path, segment_size=1 << 14) as writer:
        for number in range(COUNT):
            time_ns = EPOCH_NS + number // 2 * STEP_NS
            writer.append(bytes(number % 100), timestamp_ns=time_ns)
    return queue_path


def seqs(part: aiochronicle.Slice) -> list[int]:
    """Return the seqs of a slice, the same by iteration, Arrow and count."""
    by_message = [message.seq for message in part]
    assert part.to_arrow(["seq"]).column("seq").to_pylist() == by_message
    assert part.to_arrow().column("seq").to_pylist() == by_message
    assert part.count == len(by_message)
    return by_message


def test_by_seq(filled: Path, rng: random.Random) -> None:
    with aiochronicle.Queue(filled) as whole:
        assert seqs(whole.slice()) == list(range(COUNT))
        for _ in range(30):
            start, end = sorted((rng.randrange(COUNT + 50), rng.randrange(COUNT + 50)))
            assert seqs(whole.slice(start, end)) == list(range(COUNT))[start:end]
            assert seqs(whole.slice(start)) == list(range(COUNT))[start:]
            assert seqs(whole.slice(end=end)) == list(range(COUNT))[:end]


def test_by_time(filled: Path, rng: random.Random) -> None:
    times = [EPOCH_NS + number // 2 * STEP_NS for number in range(COUNT)]
    with aiochronicle.Queue(filled) as whole:
        for _ in range(40):
            start, end = sorted(rng.randrange(-5, COUNT // 2 + 5) for _ in "ab")
            shift_ns = rng.choice([-1, 0, 1])
            start_ns, end_ns = EPOCH_NS + start * STEP_NS, EPOCH_NS + end * STEP_NS + shift_ns
            if start_ns > end_ns:
                continue
            expected = [seq for seq in range(COUNT) if start_ns <= times[seq] < end_ns]
            assert seqs(whole.slice_time(start_ns, end_ns)) == expected
        start_at, end_at = EPOCH + timedelta(milliseconds=10), EPOCH + timedelta(milliseconds=20)
        assert seqs(whole.slice(start_at, end_at)) == list(range(20, 40))
        assert seqs(whole.slice(30, end_at)) == list(range(30, 40))
        assert seqs(whole.slice(start_at, 25)) == list(range(20, 25))
        assert seqs(whole.slice(start_at, 5)) == []


def test_range_outside_of_the_data_is_empty(filled: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        assert seqs(whole.slice(COUNT)) == []
        assert seqs(whole.slice(COUNT + 5, COUNT + 10)) == []
        assert seqs(whole.slice(0, 0)) == []
        assert seqs(whole.slice(EPOCH + timedelta(days=1))) == []
        assert seqs(whole.slice(end=EPOCH)) == []


@pytest.mark.parametrize("bounds", [(5, 4), (-1, None), (None, 1 << 63), (True, None), (1.5, None)])
def test_impossible_range(filled: Path, bounds: tuple[int | None, int | None]) -> None:
    with (
        aiochronicle.Queue(filled) as whole,
        pytest.raises(errors.InvalidArgument, match=r"start|end"),
    ):
        whole.slice(*bounds)


def test_impossible_time(filled: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        with pytest.raises(errors.InvalidArgument, match="aware"):
            whole.slice(datetime(2024, 1, 1))
        with pytest.raises(errors.InvalidArgument, match="after"):
            whole.slice(EPOCH + timedelta(days=1), EPOCH)
        with pytest.raises(errors.InvalidArgument):
            whole.slice_time(-1)


def test_messages_that_come_later_are_not_in_it(queue_path: Path) -> None:
    with (
        open_writer(queue_path, segment_size=1 << 14) as writer,
        aiochronicle.Queue(queue_path) as whole,
    ):
        empty = whole.slice()
        assert seqs(empty) == []
        writer.append_many([b"x"] * 50)
        part, future = whole.slice(10), whole.slice(40, 60)
        writer.append_many([b"y"] * 50)
        for number in range(50):
            writer.append(b"%d" % number)
        assert seqs(empty) == []
        assert seqs(part) == list(range(10, 50))
        assert seqs(future) == list(range(40, 50))
        assert seqs(whole.slice(40, 60)) == list(range(40, 60))


def test_removed_segments_are_missed(filled: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        part = whole.slice()
        (filled / "000000000.q").unlink()
        with pytest.raises(errors.PositionLost):
            part.to_arrow()
        left = seqs(whole.slice())
    assert left == list(range(left[0], COUNT))
    assert left[0] > 0


def test_count_does_not_believe_an_index_that_lies(filled: Path) -> None:
    for index in filled.glob("*.idx"):
        content = bytearray(index.read_bytes())
        content[72:80] = (2).to_bytes(8, "little")  # entry_count
        index.write_bytes(content + content[80:104])
    with aiochronicle.Queue(filled) as whole:
        assert seqs(whole.slice(3)) == list(range(3, COUNT))


def test_foreign_seqs_that_restart_are_counted(queue_path: Path) -> None:
    for _ in range(3):
        with fmt.ForeignWriter(queue_path, 4096) as writer:
            for number in range(40):
                writer.append(b"%d" % number, 1, 1000 + number)
    with aiochronicle.Queue(queue_path) as whole:
        part = whole.slice()
        assert part.count == 120
        assert part.to_arrow().num_rows == 120


def damage_header(path: Path, number: int) -> None:
    with (path / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * number)
        segment.write(b"\xff" * 64)


@pytest.mark.parametrize("foreign", [True, False])
def test_bounds_are_found_behind_a_corrupt_record(queue_path: Path, foreign: bool) -> None:
    """Where the length of the record is lost, a walk has to stop there, but the slice must not."""
    if foreign:
        with fmt.ForeignWriter(queue_path, 1 << 16) as other:
            for number in range(100):
                other.append(b"%d" % number, 1, 1000 + number)
    else:
        with open_writer(queue_path, segment_size=1 << 16) as writer:
            for number in range(100):
                writer.append(b"%d" % number, timestamp_ns=1000 + number)
    damage_header(queue_path, 40)
    everything = list(range(100))
    with aiochronicle.Queue(queue_path, on_corrupt="skip") as whole:
        sound = [seq for seq in everything if seq != 40]
        for start, end in [(None, None), (30, 70), (50, None), (50, 60), (41, 42), (0, 40)]:
            expected = [seq for seq in sound if (start or 0) <= seq < (end or 100)]
            assert [message.seq for message in whole.slice(start, end)] == expected
            assert whole.slice(start, end).to_arrow()["seq"].to_pylist() == expected
        times = whole.slice_time(1050, 1060).to_arrow(["seq"])["seq"].to_pylist()
        assert times == list(range(50, 60))
    with open_reader(queue_path, on_corrupt="skip") as reader:
        for seq in [50, 41, 40, 30, 99]:
            expected = [number for number in sound if number >= seq]
            reader.seek(seq)
            assert [message.seq for message in reader] == expected
            reader.seek_time(1000 + seq)
            assert [message.seq for message in reader] == expected
    with aiochronicle.Queue(queue_path) as whole:
        assert [message.seq for message in whole.slice(0, 39)] == everything[:39]
        batches = whole.slice().batches(20)
        assert [next(batches).num_rows, next(batches).num_rows] == [20, 20]
        with pytest.raises(errors.CorruptionError):
            next(batches)
        with pytest.raises(errors.CorruptionError):
            whole.slice(50, 60).to_arrow()


def test_large_tables_are_read_by_several_threads(
    queue_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiochronicle._core.slices._ROWS_PER_THREAD_MIN", 100)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    with open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append_many([b"%d" % number for number in range(5000)])
    with aiochronicle.Queue(queue_path) as whole:
        assert len(whole.slice()._parts()) == 3
        assert len(whole.slice(4900)._parts()) == 1
        assert seqs(whole.slice()) == list(range(5000))
        assert seqs(whole.slice(17, 4321)) == list(range(17, 4321))


def test_small_slices_take_little_memory(filled: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        few = whole.slice(10, 20)
        assert few.to_arrow().get_total_buffer_size() < 50_000
        (batch,) = few.batches(10**9)
        assert batch.num_rows == 10
        assert batch.get_total_buffer_size() < 50_000


def test_closed_queue(filled: Path) -> None:
    whole = aiochronicle.Queue(filled)
    part = whole.slice()
    messages = iter(part)
    first = next(messages)
    whole.close()
    assert whole.closed
    assert next(messages).seq == first.seq + 1  # has a reader of its own
    for use in (lambda: whole.slice(), lambda: part.count, lambda: next(iter(part))):
        with pytest.raises(errors.ClosedError):
            use()
    messages.close()  # type: ignore[attr-defined]


def test_unclosed_queue_is_released_in_silence(filled: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = sum(batch.num_rows for batch in aiochronicle.Queue(filled).slice().batches())
        gc.collect()
    assert rows == COUNT


def test_missing_queue(queue_path: Path) -> None:
    with pytest.raises(errors.QueueNotFound):
        aiochronicle.Queue(queue_path)


def test_slice_of_an_empty_queue(queue_path: Path) -> None:
    with open_writer(queue_path), aiochronicle.Queue(queue_path) as whole:
        assert seqs(whole.slice()) == []
        assert seqs(whole.slice(0, 10)) == []
        assert seqs(whole.slice_time(5)) == []
