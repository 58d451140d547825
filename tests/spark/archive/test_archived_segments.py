"""Segments that retention has moved to an archive are read like those that are still in the queue."""

import logging
import shutil
import threading
from pathlib import Path

import pytest
from helpers.waiting import eventually
from pyspark.sql.streaming.datasource import ReadAllAvailable
from reference import format as fmt

import aiochronicle
from aiochronicle import Retention
from aiochronicle.errors import NotAQueue, PositionLost
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.source.columns import frame_schema
from aiochronicle.spark.source.plan import Range, plan
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.stream import StreamReader
from spark.filling import FIRST_NS, STEP_NS, fill

ROWS = 30_000


def archive(queue: Path, place: Path) -> None:
    """Move all finished segments to the archive."""
    retention = Retention(max_bytes=1, archive=str(place))
    with aiochronicle.open_writer(queue, retention=retention) as writer:
        writer.retain_now()
    assert aiochronicle.inspect(queue).segments == 1


def options_for(path: Path, **given: str) -> ReadOptions:
    return read_options({"path": str(path), **given})


def read(parts: list[Range], options: ReadOptions) -> list[int]:
    return [
        seq
        for part in parts
        for batch in read_range(part, ["seq"], options)
        for seq in batch.column("seq").to_pylist()
    ]


def everything(options: ReadOptions) -> tuple[list[str], list[int]]:
    snapshot = Snapshot(options)
    parts = plan(snapshot.sources, snapshot.start, snapshot.end, partitions_min=5)
    return sorted(snapshot.sources), read(parts, options)


@pytest.fixture
def archives(root: Path) -> Path:
    """The archive of queue a; the live part of the queue is in the root."""
    fill(root / "a", ROWS)
    place = root.parent / "archives"
    place.mkdir()
    archive(root / "a", place / "a")
    return place


def test_archive_and_queue_are_one_source(root: Path, archives: Path) -> None:
    fill(root / "b", 10)
    options = options_for(root, archive=str(archives))
    names, seqs = everything(options)
    assert names == ["a", "b"]
    assert sorted(seqs) == sorted([*range(ROWS), *range(10)])
    only_live = everything(options_for(root, subscribe="a"))[1]
    assert 0 < len(only_live) < ROWS
    assert only_live == list(range(only_live[0], ROWS))


def test_an_archive_can_be_loaded_by_itself(root: Path, archives: Path) -> None:
    live = everything(options_for(root))[1]
    for path in (archives, archives / "a"):
        names, seqs = everything(options_for(path))
        assert names == ["a"]
        assert seqs == list(range(live[0]))


def test_queues_by_day_are_no_archive(root: Path) -> None:
    """Each queue begins with seq 0; only its name looks like that of an archive."""
    for day, rows in ((14, 100), (15, 150), (16, 150)):
        (root / "md/eu/equities/2026/11").mkdir(parents=True, exist_ok=True)
        fill(root / f"md/eu/equities/2026/11/{day}", rows)
    names, seqs = everything(options_for(root))
    assert names == [f"md/eu/equities/2026/11/{day}" for day in (14, 15, 16)]
    assert len(seqs) == 400
    assert len(everything(options_for(root / "md/eu/equities"))[1]) == 400
    fill(root / "md/eu/one", 5)
    (root / "2026/11").mkdir(parents=True)
    fill(root / "2026/11/16", 5)
    names, seqs = everything(options_for(root))
    assert {"2026/11/16", "md/eu/one"} < set(names)
    assert len(seqs) == 410


def test_days_of_other_programs_are_no_archive(root: Path) -> None:
    (root / "md/2026/11").mkdir(parents=True)
    for day in (15, 16):
        with fmt.ForeignWriter(root / f"md/2026/11/{day}", 1 << 16) as writer:
            for number in range(20):
                writer.append(b"x", 0, FIRST_NS + number)
    names, seqs = everything(options_for(root))
    assert names == ["md/2026/11/15", "md/2026/11/16"]
    assert sorted(seqs) == sorted([*range(20), *range(20)])


def test_the_archive_of_another_queue_is_not_taken(root: Path, archives: Path) -> None:
    """The archive of another queue is not used, even if it has the same name or is the only archive."""
    fill(root / "b", 10)
    assert everything(options_for(root, archive=str(archives / "a"), subscribe="b"))[1] == [
        *range(10)
    ]
    assert everything(options_for(root, archive=str(archives / "a"), subscribe="a"))[1] == [
        *range(ROWS)
    ]
    shutil.rmtree(root / "a")
    fill(root / "a", 10)
    with pytest.raises(NotAQueue, match="archives/a: not the archive of a, or not of it alone"):
        everything(options_for(root, archive=str(archives)))
    # The queue's own segments go into another day of the same archive.
    fill(root / "a", ROWS, first=10**11)
    archive(root / "a", archives / "a")
    with pytest.raises(NotAQueue, match="not of it alone"):
        everything(options_for(root, archive=str(archives)))
    assert len(everything(options_for(archives))[0]) == 2


def test_a_time_is_found_on_either_side(root: Path, archives: Path) -> None:
    first_live = everything(options_for(root))[1][0]
    for number in (0, 1, first_live - 1, first_live, ROWS - 1):
        moment = str(FIRST_NS + number * STEP_NS)
        options = options_for(root, archive=str(archives), startingTimestamp=moment)
        assert everything(options)[1] == list(range(number, ROWS))


def test_a_stream_over_an_archive_sees_what_is_moved_there(root: Path, archives: Path) -> None:
    options = options_for(archives, startingOffsets="earliest")
    stream = StreamReader(options, frame_schema(options, {}))
    ends = [stream.latestOffset({"a": 0}, ReadAllAvailable())["a"]]
    for first in (ROWS, 10**11):  # on the same day, and on another one
        fill(root / "a", ROWS, first=first)
        archive(root / "a", archives / "a")
        end = Snapshot(options).end["a"]
        assert end > ends[-1]
        eventually(lambda: stream.latestOffset({"a": 0}, ReadAllAvailable())["a"] == end)  # noqa: B023
        ends.append(end)
    stream.stop()


def test_a_segment_that_moves_under_a_running_query_is_found(root: Path, tmp_path: Path) -> None:
    fill(root / "a", ROWS)
    (tmp_path / "archives" / "a").mkdir(parents=True)
    archive(root / "a", tmp_path / "archives" / "a")
    fill(root / "a", ROWS, first=ROWS)
    options = options_for(root, archive=str(tmp_path / "archives"))
    snapshot = Snapshot(options)
    parts = plan(snapshot.sources, snapshot.start, snapshot.end, partitions_min=2)
    batches = read_range(parts[-1], ["seq"], options)
    seen = next(batches).column("seq").to_pylist()
    archive(root / "a", tmp_path / "archives" / "a")
    for batch in batches:
        seen += batch.column("seq").to_pylist()
    assert seen == list(range(parts[-1].start, 2 * ROWS))
    assert read(parts[:-1], options) == list(range(parts[-1].start))


def test_a_segment_that_is_removed_under_a_query_is_an_error_or_left_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(root / "a", ROWS)
    strict, tolerant = options_for(root), options_for(root, failOnDataLoss="false")
    snapshot = Snapshot(strict)
    parts = plan(snapshot.sources, snapshot.start, snapshot.end)
    min((root / "a").glob("*.q")).unlink()
    with pytest.raises(PositionLost, match=r"a: messages 0 to \d+ of a are gone"):
        read(parts, strict)
    with caplog.at_level(logging.WARNING):
        rest = read(parts, tolerant)
    assert rest == list(range(rest[0], ROWS))
    assert f"messages {parts[0].start} to {rest[0] - 1} of a" in caplog.text


def test_a_queue_that_lacks_a_segment_in_the_middle_is_read_around_it(root: Path) -> None:
    fill(root / "a", 2 * ROWS)
    gone = sorted((root / "a").glob("*.q"))[1]
    with aiochronicle.open_reader(root / "a") as reader:
        # The reader's position is after the message, in the same segment.
        seqs = [message.seq for message in reader if reader.position.segment == 1]
    gone.unlink()
    gone.with_suffix(".idx").unlink()
    with pytest.raises(PositionLost, match=rf"messages {seqs[0]} to \d+ of a are gone"):
        everything(options_for(root))
    tolerant = options_for(root, failOnDataLoss="false")
    assert everything(tolerant)[1] == sorted({*range(2 * ROWS)} - {*seqs})


def test_queues_are_loaded_while_retention_removes_segments(root: Path) -> None:
    """Regression: one load in fifty failed while a writer removed a segment at each roll."""
    fill(root / "a", 1, segment_size=1 << 16)
    done = threading.Event()

    def write() -> None:
        limits = Retention(max_bytes=4 << 16)
        with aiochronicle.open_writer(root / "a", retention=limits) as writer:
            while not done.is_set():
                for _ in range(100):
                    writer.append(bytes(1000))
                writer.retain_now()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        ends = [Snapshot(options_for(root)).end["a"] for _ in range(300)]
        assert ends == sorted(ends)
    finally:
        done.set()
        writing.join()
