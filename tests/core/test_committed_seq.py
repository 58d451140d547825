"""Positions as seqs: the committed one, the durable one, the next one."""

from pathlib import Path

import pytest

from aiochronicle import Queue, Roll, list_readers, open_reader, open_writer
from aiochronicle.errors import QueueNotFound


def fill(path: Path, count: int, **options: object) -> None:
    with open_writer(path, segment_size=4096, **options) as writer:  # type: ignore[arg-type]
        for number in range(count):
            writer.append(b"%d" % number)


@pytest.mark.parametrize("messages", [1, 3, 1000])
def test_committed_seq_is_that_of_the_first_message_that_is_not_committed(
    tmp_path: Path, messages: int
) -> None:
    path = tmp_path / "queue"
    fill(path, 0)
    with (
        open_writer(path, roll=Roll(messages=messages)) as writer,
        open_reader(path, "audit") as reader,
    ):
        assert reader.committed_seq == 0
        for number in range(10):
            writer.append(b"x")
            assert reader.committed_seq == number
            reader.poll()
            assert reader.committed_seq == number
            reader.commit()
            assert reader.committed_seq == number + 1
            assert [info.committed_seq for info in list_readers(path)] == [number + 1]
    for commits in (10, 4):
        with open_reader(path, "audit", start=commits) as reader:
            reader.commit()
        with open_reader(path, "audit") as reader:
            assert reader.committed_seq == commits
            assert reader.statistics().next_seq == commits, "known before anything was read"
            assert [message.seq for message in reader] == list(range(commits, 10))
            assert reader.statistics().next_seq == 10


def test_next_seq_is_known_wherever_the_reader_is(tmp_path: Path) -> None:
    fill(tmp_path / "queue", 20, roll=Roll(messages=5))
    with open_reader(tmp_path / "queue") as reader:
        assert reader.statistics().next_seq == 0
        for seq in (3, 5, 19, 20, 10):
            reader.seek(seq)
            assert reader.statistics().next_seq == seq
        assert [message.seq for message in reader] == list(range(10, 20))
        reader.seek_last()
        assert reader.statistics().next_seq == 20


def test_anonymous_readers_have_nothing_committed(tmp_path: Path) -> None:
    fill(tmp_path / "queue", 1)
    with open_reader(tmp_path / "queue") as reader:
        assert reader.committed_seq is None


def test_committed_seq_after_the_data_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    fill(path, 6, roll=Roll(messages=2))
    with open_reader(path, "audit") as reader:
        (path / "000000000.q").unlink()
        assert reader.committed_seq is None
        assert [info.committed_seq for info in list_readers(path)] == [None]


def test_durable_seq(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with open_writer(path, segment_size=4096) as writer, open_reader(path) as reader:
        assert reader.durable_seq == 0
        for number in range(1, 4):
            writer.append(b"x")
            assert reader.durable_seq == number - 1
            writer.flush_now()
            assert reader.durable_seq == number
        assert reader.poll() is not None
        assert reader.durable_seq == 3
        (path / "index.meta").unlink()
        assert reader.durable_seq is None


def test_queue_readers_have_it(tmp_path: Path) -> None:
    fill(tmp_path / "queue", 3)
    with open_reader(tmp_path / "queue", "audit", start=2) as reader:
        reader.commit()
    with Queue(tmp_path / "queue") as queue:
        assert [info.committed_seq for info in queue.readers()] == [2]


def test_a_queue_that_is_not_there_yet(tmp_path: Path) -> None:
    with open_reader(tmp_path / "queue", "audit", wait_for_queue=True) as reader:
        with pytest.raises(QueueNotFound):
            _ = reader.committed_seq
        with pytest.raises(QueueNotFound):
            _ = reader.durable_seq


def test_an_error_about_a_position_names_its_file(tmp_path: Path) -> None:
    fill(tmp_path / "queue", 1)
    (tmp_path / "queue" / "readers" / "nobody.meta").mkdir(parents=True)
    with pytest.raises(Exception, match=r"queue/readers/nobody\.meta"):
        open_reader(tmp_path / "queue", "nobody")
