"""Polling, iterating and batches."""

from pathlib import Path
from typing import Any

import pytest

from aiochronicle.errors import ClosedError, InvalidArgument, QueueNotFound
from contract.backend import SMALL_SEGMENT, Backend


def test_poll_gives_none_when_there_is_nothing(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 2)
    with backend.open_reader(queue_path) as reader:
        polled = [reader.poll() for _ in range(4)]
    assert [message and message.payload for message in polled] == [b"0", b"1", None, None]


def test_iteration_stops_and_goes_on(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer, backend.open_reader(queue_path) as reader:
        assert list(reader) == []
        writer.append_many([b"a", b"b"])
        iterator = iter(reader)
        assert next(iterator).payload == b"a"
        assert [message.payload for message in reader] == [b"b"], "iterators share the position"
        with pytest.raises(StopIteration):
            next(iterator)
        writer.append(b"c")
        assert next(iterator).payload == b"c", "what came since"


def test_iteration_works_inside_generators(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 3)
    with backend.open_reader(queue_path) as reader:

        def through() -> object:
            yield from reader

        assert [message.payload for message in through()] == [b"0", b"1", b"2"]  # type: ignore[attr-defined]


def test_readers_are_independent(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 10)
    with backend.open_reader(queue_path) as one, backend.open_reader(queue_path, "two") as two:
        assert len(one.read_batch(3)) == 3
        assert len(two.read_batch(7)) == 7
        assert [message.seq for message in one] == list(range(3, 10))
        assert [message.seq for message in two] == list(range(7, 10))


def test_read_batch_defaults_to_1024(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        for _ in range(15):
            writer.append_many([b"x"] * 100)
    with backend.open_reader(queue_path) as reader:
        assert [len(reader.read_batch()) for _ in range(3)] == [1024, 476, 0]


def test_read_batch_by_number_across_segments(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path) as reader:
        batches = [reader.read_batch(max_messages=30) for _ in range(5)]
    assert [len(batch) for batch in batches] == [30, 30, 30, 10, 0]
    assert [message.seq for batch in batches for message in batch] == list(range(100))


def test_read_batch_stays_within_its_bytes(backend: Backend, queue_path: Path) -> None:
    empty = [0, 0] if "empty payloads" in backend.features else []
    sizes = [10, 10, 10, 10, 25, 1, 100, 5, 5, *empty, 30]
    with backend.open_writer(queue_path) as writer:
        for size in sizes:
            writer.append(bytes(size))
    with backend.open_reader(queue_path) as reader:
        batches = []
        while batch := reader.read_batch(max_bytes=30):
            batches.append([len(message) for message in batch])
    # A message larger than the budget is returned alone; otherwise it would never be returned.
    assert batches == [[10, 10, 10], [10], [25, 1], [100], [5, 5, *empty], [30]]
    with backend.open_reader(queue_path) as reader:
        assert len(reader.read_batch(2, 1000)) == 2
        assert len(reader.read_batch(None, None)) == len(sizes) - 2


def test_byte_budget_at_the_end_of_a_segment(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for _ in range(100):
            writer.append(bytes(50))
    with backend.open_reader(queue_path) as reader:
        seen: list[int] = []
        while batch := reader.read_batch(max_bytes=149):
            assert len(batch) == 2
            seen += [message.seq for message in batch]
        assert seen == list(range(100))
        assert reader.statistics().messages == 100
        assert reader.statistics().payload_bytes == 5000


@pytest.mark.parametrize("limits", [(0, None), (-1, None), (1, 0), (1, -5)])
def test_limits_of_a_batch_are_positive(
    backend: Backend, queue_path: Path, limits: tuple[int, int | None]
) -> None:
    backend.fill(queue_path, 2)
    with backend.open_reader(queue_path) as reader:
        with pytest.raises(ValueError, match="positive"):
            reader.read_batch(*limits)
        with pytest.raises(TypeError):
            reader.read_batch(max_message=1)  # type: ignore[call-arg]
        assert len(reader.read_batch()) == 2


def test_message_attributes(backend: Backend, queue_path: Path) -> None:
    timestamps: list[int | None] = [1000, 2000] if "timestamps" in backend.features else [None] * 2
    type_id = 42 if "types" in backend.features else 0
    with backend.open_writer(queue_path) as writer:
        writer.append(b"zero", timestamp_ns=timestamps[0])
        writer.append(b"payload", type_id=type_id, timestamp_ns=timestamps[1])
    with backend.open_reader(queue_path) as reader:
        reader.poll()
        message = reader.poll()
        assert message is not None
    assert (message.seq, message.type_id) == (1, type_id)
    if "timestamps" in backend.features:
        assert message.timestamp_ns == 2000
    assert message.source == queue_path.name
    assert message.payload == b"payload"
    assert message.payload is message.payload, "made once"
    assert message.cause is None
    assert len(message) == 7
    for word in ("seq=1", f"type_id={type_id}", "payload", queue_path.name):
        assert word in repr(message)
    with pytest.raises(AttributeError):
        message.seq = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        type(message)()


def test_view_and_buffer_protocol(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"payload")
    with backend.open_reader(queue_path) as reader:
        message = reader.poll()
        assert message is not None
        view = message.view
    assert (bytes(view), view.readonly, view.nbytes) == (b"payload", True, 7)
    assert bytes(memoryview(message)) == b"payload"
    assert b"".join([b"<", message, b">"]) == b"<payload>"
    with pytest.raises(TypeError):
        view[0] = 1


@pytest.mark.needs("segments")
def test_views_outlive_the_reader_and_the_files(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 100, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path) as reader:
        messages = list(reader)
        views = [message.view for message in messages]
    for file in sorted(queue_path.glob("*.q")):
        file.unlink()
    assert [bytes(view) for view in views] == [b"%d" % number for number in range(100)]
    del views
    assert [message.payload for message in messages] == [b"%d" % number for number in range(100)]


def test_closed_reader_says_so(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 2)
    reader = backend.open_reader(queue_path, "closed")
    iterator = iter(reader)
    next(iterator)
    reader.close()
    reader.close()
    assert reader.closed
    assert "closed" in repr(reader)
    for call in (
        reader.poll,
        reader.read_batch,
        reader.commit,
        reader.wait,
        reader.seek_first,
        reader.seek_last,
        lambda: next(iterator),
        lambda: reader.seek(0),
        lambda: reader.seek_time(0),
        lambda: reader.lag,
        lambda: reader.committed,
    ):
        with pytest.raises(ClosedError):
            call()
    assert reader.statistics().messages == 1


def test_open_reader_that_is_dropped_is_told(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1)
    reader = backend.open_reader(queue_path)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del reader
    writer = backend.open_writer(queue_path)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del writer
    assert backend.payloads(queue_path) == [b"0"]


def test_no_queue_no_reader(backend: Backend, queue_path: Path) -> None:
    with pytest.raises(QueueNotFound) as caught:
        backend.open_reader(queue_path)
    assert str(queue_path) in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert not queue_path.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"start": "middle"},
        {"start": -1},
        {"start": True},
        {"start": 1.5},
        {"start": None},
        {"commit": "sometimes", "name": "x"},
        {"commit": 0, "name": "x"},
        {"commit": "auto"},
        {"commit": 5},
        {"on_corrupt": "ignore"},
        {"wait": "sleep"},
    ],
    ids=str,
)
def test_options_of_a_reader_are_checked(
    backend: Backend, queue_path: Path, options: dict[str, Any]
) -> None:
    backend.fill(queue_path, 1)
    with pytest.raises(InvalidArgument):
        backend.open_reader(queue_path, **options)


def test_statistics_of_a_reader(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for _ in range(70):
            writer.append(b"12345")
    with backend.open_reader(queue_path, "counted") as reader:
        assert reader.statistics().messages == 0
        reader.read_batch(69)
        reader.commit()
        statistics = reader.statistics()
        assert (statistics.messages, statistics.payload_bytes) == (69, 345)
        assert (statistics.commits, statistics.next_seq) == (1, 69)
        assert (statistics.skipped_records, statistics.seq_restarts) == (0, 0)
        assert reader.wait(0) is True, "looking does not count as reading"
        assert reader.statistics().messages == 69


def test_blocks_have_what_iteration_gives(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for number in range(100):
            writer.append(b"%d" % number)
    with backend.open_reader(queue_path) as reader:
        messages = list(reader)
    with backend.open_reader(queue_path) as reader:
        blocks = []
        while block := reader.read_block(7):
            assert 0 < len(block) <= 7
            blocks.append(block)
        assert len(reader.read_block()) == 0
    rows = [
        row
        for block in blocks
        for row in zip(block, block.timestamps_ns, block.type_ids, strict=True)
    ]
    assert rows == [(m.payload, m.timestamp_ns, m.type_id) for m in messages]
    seqs = [block.first_seq + row for block in blocks for row in range(len(block))]
    assert seqs == [message.seq for message in messages]
    for block in blocks:  # the messages outlive their reader
        for row, (offset, length) in enumerate(zip(block.offsets, block.lengths, strict=True)):
            assert block.buffer[offset : offset + length] == block[row]
