"""Committed positions: when they are stored, and where a reader resumes."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aiochronicle import Position, Reader
from aiochronicle.errors import InvalidArgument, InvalidName, PositionLost, ReaderBusy
from contract.backend import SMALL_SEGMENT, Backend


def test_new_name_starts_at_the_first_message(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 3)
    assert backend.payloads(queue_path, "new") == [b"0", b"1", b"2"]
    assert backend.payloads(queue_path, "new") == [b"0", b"1", b"2"], "nothing was committed"


def test_new_name_of_two_readers_at_once_goes_to_one_of_them(
    backend: Backend, queue_path: Path
) -> None:
    backend.fill(queue_path, 1)
    together = threading.Barrier(2)

    def open_one(name: str) -> str:
        together.wait()
        try:
            with backend.open_reader(queue_path, name):
                return "open"
        except ReaderBusy:
            return "busy"

    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            names = [f"new{number}"] * 2
            assert "open" in list(pool.map(open_one, names))


def test_resume_after_commit(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    for first in range(0, 100, 7):
        with backend.open_reader(queue_path, "resuming") as reader:
            batch = reader.read_batch(7)
            assert batch[0].seq == first
            reader.commit()
            reader.read_batch(5)  # not committed
    assert backend.payloads(queue_path, "resuming") == []


def test_commit_of_a_certain_message(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path, "certain") as reader:
        messages = list(reader)
        reader.commit(messages[41])
        assert reader.poll() is None, "committing does not move the reader"
    assert backend.payloads(queue_path, "certain")[0] == b"42"
    with backend.open_reader(queue_path, "certain") as reader:
        reader.commit(messages[9])  # a reader may go back
    assert backend.payloads(queue_path, "certain")[0] == b"10"
    with backend.open_reader(queue_path, "certain", start="first") as reader:
        reader.commit(None)
    assert backend.payloads(queue_path, "certain")[0] == b"0"


def test_commit_takes_messages_of_its_own_queue(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "one", 2)
    backend.fill(tmp_path / "two", 2)
    with (
        backend.open_reader(tmp_path / "one") as one,
        backend.open_reader(tmp_path / "two", "x") as two,
    ):
        foreign = one.poll()
        with pytest.raises(InvalidArgument, match="this reader's queue"):
            two.commit(foreign)
        with pytest.raises(TypeError):
            two.commit(17)  # type: ignore[arg-type]
        assert two.committed == two.position


def test_names_are_independent(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 10)
    for name, count in (("a", 3), ("b", 7), ("a.b-c_D9", 1)):
        with backend.open_reader(queue_path, name) as reader:
            assert reader.name == name
            reader.read_batch(count)
            reader.commit()
    assert backend.payloads(queue_path, "a")[0] == b"3"
    assert backend.payloads(queue_path, "b")[0] == b"7"
    assert backend.payloads(queue_path, "a.b-c_D9")[0] == b"1"


@pytest.mark.needs("one reader per name")
def test_one_live_reader_per_name(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1)
    with backend.open_reader(queue_path, "single"):
        with pytest.raises(ReaderBusy, match=r"single"):
            backend.open_reader(queue_path, "single")
        with backend.open_reader(queue_path, "other"), backend.open_reader(queue_path):
            pass
    with backend.open_reader(queue_path, "single"):
        pass


@pytest.mark.needs("one reader per name")
def test_name_is_held_across_processes(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1)
    code = """
with backend.open_reader(sys.argv[1], "held"):
    print("ready", flush=True)
    sys.stdin.read()
"""
    with backend.start(code, queue_path) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(ReaderBusy):
            backend.open_reader(queue_path, "held")
        child.stdin.close()
        assert child.wait(30) == 0
    with backend.open_reader(queue_path, "held"):
        pass


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-x", "a/b", "..", "a b", "ü", "x" * 65, "a\n", "a\0b"]
)
def test_names_that_are_none(backend: Backend, queue_path: Path, name: str) -> None:
    backend.fill(queue_path, 1)
    before = sorted(queue_path.rglob("*"))
    with pytest.raises(InvalidName):
        backend.open_reader(queue_path, name)
    assert sorted(queue_path.rglob("*")) in (before, [*before, queue_path / "readers"])


def test_anonymous_reader_has_no_position(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 2)
    with backend.open_reader(queue_path) as reader:
        assert reader.name is None
        reader.poll()
        with pytest.raises(InvalidArgument):
            reader.commit()
        with pytest.raises(InvalidArgument):
            _ = reader.committed
    assert backend.payloads(queue_path) == [b"0", b"1"]


# when positions are stored


def poll_times(count: int) -> Callable[[Reader], object]:
    return lambda reader: [reader.poll() for _ in range(count)]


@pytest.mark.parametrize(
    ("commit", "use", "resumes_at"),
    [
        ("manual", poll_times(5), 0),
        ("manual", list, 0),
        # A message counts as processed when the reader asks for the next one.
        ("auto", poll_times(1), 0),
        ("auto", poll_times(5), 4),
        ("auto", list, 10),
        (1, poll_times(5), 4),
        (3, poll_times(3), 0),
        (3, poll_times(4), 3),
        (3, poll_times(7), 6),
        (3, list, 9),
        (100, list, 0),
        # A batch is delivered as a whole: none of its messages counts as processed before the next call.
        ("auto", lambda reader: reader.read_batch(5), 0),
        ("auto", lambda reader: (reader.read_batch(5), reader.read_batch(2)), 5),
        ("auto", lambda reader: (reader.read_batch(5), reader.poll()), 5),
        (3, lambda reader: reader.read_batch(10), 0),
        (3, lambda reader: (reader.read_batch(2), reader.read_batch(2), reader.poll()), 4),
    ],
)
def test_commit_modes(
    backend: Backend,
    queue_path: Path,
    commit: str | int,
    use: Callable[[Reader], object],
    resumes_at: int,
) -> None:
    backend.fill(queue_path, 10)
    with backend.open_reader(queue_path, "mode", commit=commit) as reader:
        use(reader)
    expected = [b"%d" % number for number in range(resumes_at, 10)]
    assert backend.payloads(queue_path, "mode") == expected


def test_commit_by_hand_in_automatic_mode(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 10)
    with backend.open_reader(queue_path, "both", commit=4) as reader:
        reader.read_batch(3)
        reader.commit()
        for _ in range(4):
            reader.poll()
    assert backend.payloads(queue_path, "both")[0] == b"3"


def test_position_survives_a_killed_process(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 10)
    code = """
reader = backend.open_reader(sys.argv[1], "killed")
reader.read_batch(4)
reader.commit()
reader.read_batch(3)
print("ready", flush=True)
sys.stdin.read()
"""
    with backend.start(code, queue_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.kill()
    assert backend.payloads(queue_path, "killed")[0] == b"4"


def test_committed_and_position(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path, "both") as reader:
        start = reader.position
        assert reader.committed == start
        reader.read_batch(50)
        middle = reader.position
        assert middle != start
        assert reader.committed == start
        reader.commit()
        assert reader.committed == middle
        reader.seek_position(start)
        message = reader.poll()
        assert message is not None
        assert message.seq == 0
        reader.seek_position(middle)
        message = reader.poll()
        assert message is not None
        assert message.seq == 50


# where a reader starts


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("committed", 20),
        ("first", 0),
        (0, 0),
        (33, 33),
        (99, 99),
        ("last", 100),
        (100, 100),
        (1 << 40, 100),
    ],
)
def test_start(backend: Backend, queue_path: Path, start: str | int, first: int) -> None:
    check_start(backend, queue_path, start, first, [None] * 101)


@pytest.mark.needs("timestamps")
@pytest.mark.parametrize(
    ("start", "first"),
    [
        (moment(0), 0),
        (moment(-50), 0),
        (moment(60), 60),
        (datetime(2001, 1, 1, tzinfo=UTC), 0),
        (moment(100), 100),
    ],
)
def test_start_at_a_time(backend: Backend, queue_path: Path, start: datetime, first: int) -> None:
    seconds = [*range(100), 99]
    stamps: list[int | None] = [(1_700_000_000 + second) * 10**9 for second in seconds]
    check_start(backend, queue_path, start, first, stamps)


def check_start(
    backend: Backend,
    queue_path: Path,
    start: str | int | datetime,
    first: int,
    timestamps_ns: list[int | None],
) -> None:
    *before, after = timestamps_ns
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for number, timestamp_ns in enumerate(before):
            writer.append(b"%d" % number, timestamp_ns=timestamp_ns)
        with backend.open_reader(queue_path, "started") as reader:
            reader.read_batch(20)
            reader.commit()
        with backend.open_reader(queue_path, "started", start=start) as reader:
            seen = [message.seq for message in reader]
            assert seen == list(range(first, 100))
            writer.append(b"new", timestamp_ns=after)
            assert [message.payload for message in reader] == [b"new"]
        with backend.open_reader(queue_path, "started") as reader:
            message = reader.poll()
            assert message is not None
            assert message.seq == 20, "starting elsewhere commits nothing"


def test_start_of_an_empty_queue(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        starts: list[object] = ["committed", "first", "last", 0, moment(0)]
        readers = [
            backend.open_reader(queue_path, f"r{number}", start=start)
            for number, start in enumerate(starts)
        ]
        writer.append(b"first")
        for reader in readers:
            assert [message.payload for message in reader] == [b"first"]
            reader.close()


def test_start_at_a_naive_datetime(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1)
    with pytest.raises(InvalidArgument, match="time zone"):
        backend.open_reader(queue_path, start=datetime(2024, 1, 1))


def test_positions_travel_with_a_copy_of_the_queue(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "one", 5)
    with backend.open_reader(tmp_path / "one", "mover") as reader:
        reader.read_batch(2)
        reader.commit()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert backend.payloads(tmp_path / "two", "mover") == [b"2", b"3", b"4"]


def test_position_beyond_the_end_is_refused(backend: Backend, queue_path: Path) -> None:
    """Otherwise the next writer would continue after it, with empty segments in between."""
    backend.fill(queue_path, 10)
    with backend.open_reader(queue_path, "mistaken") as reader:
        start = reader.committed
        end = reader.position
        while reader.poll() is not None:
            end = reader.position
        reader.seek_first()
        for beyond in (Position(end.segment, end.offset + 64), Position(2000, 64)):
            with pytest.raises(InvalidArgument, match="after the end"):
                reader.commit_position(beyond)
            with pytest.raises(PositionLost):
                reader.seek_position(beyond)
        assert reader.committed == reader.position == start
        reader.commit_position(end)
    backend.open_writer(queue_path).close()
    assert backend.payloads(queue_path, "mistaken") == []
    assert len([*queue_path.glob(backend.segments)]) == 1
