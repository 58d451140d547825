"""Queues as streams: offsets, restarts, limits, queues that come and go."""

import pickle
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import aiochronicle
from aiochronicle.errors import InvalidArgument, PositionLost, QueueNotFound
from aiochronicle.spark import scan, scan_stream
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source.columns import frame_schema
from aiochronicle.spark.source.offsets import limit
from aiochronicle.spark.source.read_task import RangePartition
from aiochronicle.spark.source.stream import StreamReader
from spark.filling import FIRST_NS, STEP_NS, fill
from spark.venues import MARKETS, record_venues

ALL = ReadAllAvailable()


def follow(root: Path, **options: str) -> StreamReader:
    chosen = read_options({"path": str(root), **options})
    return StreamReader(chosen, frame_schema(chosen, {}))


def numbers(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """Return the seqs of a batch, read as the tasks read it."""
    found: list[int] = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RangePartition)
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):  # noqa: S301
            found += batch.column("seq").to_pylist()
    return found


def test_earliest_reads_everything_in_the_first_batch(root: Path) -> None:
    fill(root / "a", 10)
    reader = follow(root, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert (start, end) == ({"a": 0}, {"a": 10})
    assert numbers(reader, start, end) == list(range(10))
    reader.stop()


@pytest.mark.parametrize("option", ["latest", "a time to come"])
def test_a_start_at_the_end_is_put_into_the_checkpoint_first(root: Path, option: str) -> None:
    fill(root / "a", 10)
    later = str(FIRST_NS + 10**12)
    options = {"startingOffsets": option} if option == "latest" else {"startingTimestamp": later}
    reader = follow(root, **options)
    initial = reader.initialOffset()
    fill(root / "a", 5, first=10)
    assert reader.initialOffset() == initial == {"a": 10}
    assert reader.latestOffset(initial, ALL) == {"a": 10}
    assert reader.latestOffset(initial, ALL) == {"a": 15}
    reader.stop()
    # Killed in the first batch: the restarted source's initial offset is after the batch's end.
    restarted = follow(root, **options)
    assert restarted.initialOffset() == {"a": 15}
    assert numbers(restarted, {"a": 15}, {"a": 10}) == []
    assert restarted.latestOffset({"a": 10}, ALL) == {"a": 15}
    restarted.stop()


@contextmanager
def being_written(path: Path) -> Generator[None]:
    """Append to a queue continuously."""
    done = threading.Event()

    def write() -> None:
        with aiochronicle.open_writer(path) as writer:
            while not done.wait(1e-4):
                writer.append(b"tick")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        done.set()
        writing.join()


@pytest.mark.parametrize("option", ["latest", "a time to come"])
def test_the_end_of_a_queue_that_grows_is_put_into_the_checkpoint_first(
    root: Path, option: str
) -> None:
    fill(root / "a", 10)
    later = {"startingTimestamp": "2200-01-01T00:00Z"} if option != "latest" else {}
    with being_written(root / "a"):
        for _ in range(20):
            reader = follow(root, **later)
            initial = reader.initialOffset()
            assert reader.latestOffset(initial, ALL) == initial
            reader.stop()


def test_a_time_in_the_past_is_a_place_that_stays(root: Path) -> None:
    fill(root / "a", 10)
    reader = follow(root, startingTimestamp=str(FIRST_NS + 4 * STEP_NS))
    assert reader.initialOffset() == {"a": 4}
    assert reader.latestOffset({"a": 4}, ALL) == {"a": 10}
    reader.stop()


def test_a_new_queue_enters_with_its_first_message(root: Path) -> None:
    fill(root / "a", 3)
    reader = follow(root, startingOffsets="earliest")
    assert reader.latestOffset({"a": 0}, ALL) == {"a": 3}
    fill(root / "b", 4, ready=True)
    fill(root / "c", 4)  # not ready yet
    eventually(lambda: reader.latestOffset({"a": 3}, ALL) == {"a": 3, "b": 0})
    assert reader.latestOffset({"a": 3, "b": 0}, ALL) == {"a": 3, "b": 4}
    assert numbers(reader, {"a": 3}, {"a": 3, "b": 0}) == []
    assert numbers(reader, {"a": 3, "b": 0}, {"a": 3, "b": 4}) == [0, 1, 2, 3]
    reader.stop()


def test_a_stream_may_start_before_its_queues(root: Path) -> None:
    reader = follow(root)
    assert reader.initialOffset() == {}
    fill(root / "a", 2, ready=True)
    eventually(lambda: reader.latestOffset({}, ALL) == {"a": 0})
    reader.stop()
    shutil.rmtree(root / "a")
    with pytest.raises(QueueNotFound, match="there is no queue"):
        follow(root, follow="false")


def test_available_now_ends_where_the_queues_ended(root: Path) -> None:
    fill(root / "a", 10)
    reader = follow(root, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    fill(root / "a", 10, first=10)
    fill(root / "b", 1, ready=True)
    assert reader.latestOffset({"a": 0}, ReadMaxRows(7)) == {"a": 7}
    assert reader.latestOffset({"a": 7}, ReadMaxRows(7)) == {"a": 10}
    assert reader.latestOffset({"a": 10}, ReadMaxRows(7)) == {"a": 10}
    reader.stop()


def test_available_now_may_begin_behind_where_the_queues_ended(root: Path) -> None:
    fill(root / "a", 10)
    reader = follow(root)
    reader.prepareForTriggerAvailableNow()
    fill(root / "a", 5, first=10)
    assert reader.initialOffset() == {"a": 15}
    assert reader.latestOffset({"a": 15}, ALL) == {"a": 15}
    assert reader.latestOffset({"a": 15}, ALL) == {"a": 15}
    reader.stop()


def test_available_now_tells_of_a_queue_that_has_become_shorter(root: Path) -> None:
    fill(root / "a", 3)
    reader, tolerant = follow(root), follow(root, failOnDataLoss="false")
    for stream in (reader, tolerant):
        stream.prepareForTriggerAvailableNow()
    for limited in (ALL, ReadMaxRows(1)):
        with pytest.raises(PositionLost, match="read a up to 7, but it ends at 3"):
            reader.latestOffset({"a": 7}, limited)
    assert tolerant.latestOffset({"a": 7}, ALL) == {"a": 0}
    assert tolerant.latestOffset({"a": 0}, ALL) == {"a": 3}
    for stream in (reader, tolerant):
        stream.stop()


@pytest.mark.parametrize("trigger", ["available now", "processing time"])
def test_a_start_beyond_the_end_is_told(root: Path, trigger: str) -> None:
    fill(root / "a", 10)
    reader = follow(root, startingOffsets='{"a": 15}')
    if trigger == "available now":
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(PositionLost, match="startingOffsets of a is 15, but it ends at 10"):
        reader.initialOffset()
    reader.stop()
    tolerant = follow(root, startingOffsets='{"a": 15}', failOnDataLoss="false")
    start = tolerant.initialOffset()
    assert tolerant.latestOffset(start, ALL) == start  # so that the checkpoint gets it
    assert tolerant.latestOffset(start, ALL) == {"a": 0}
    tolerant.stop()


def test_a_limit_is_shared_by_the_queues() -> None:
    assert limit({"a": 0, "b": 10}, {"a": 900, "b": 110}, 100) == {"a": 90, "b": 20}
    assert limit({"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert limit({"a": 0}, {"a": 5}, 5) == {"a": 5}
    assert limit({"a": 9, "b": 0}, {"a": 2, "b": 10}, 5) == {"a": 2, "b": 5}


def batches_of(reader: StreamReader, rows_max: int) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Follow the queues to their ends as Spark does; return the batches."""
    found: list[tuple[dict[str, int], dict[str, int]]] = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(rows_max))) != start:
        found.append((start, end))
        start = end
    return found


@pytest.mark.parametrize("rows_max", [1, 7, 250, 10_000])
def test_batches_are_cut_at_one_time(root: Path, rows_max: int) -> None:
    """Queues have different rates, one begins later, and many messages have equal times."""
    received = record_venues(root, 2, 150 if rows_max > 1 else 15)
    reader = follow(root, startingOffsets="earliest")
    batches = batches_of(reader, rows_max)
    reader.stop()
    newest_ns = 0
    for start, end in batches:
        times_ns = [
            each.timestamp_ns
            for each in received
            if start[each.source] <= each.seq < end[each.source]
        ]
        assert 0 < len(times_ns) <= rows_max
        assert min(times_ns) >= newest_ns
        newest_ns = max(times_ns)
    assert batches[-1][1] == dict.fromkeys(MARKETS, len(received) // 3)
    assert len(batches) <= 2 * len(received) // rows_max + 1


def test_more_messages_of_one_time_than_a_batch_has(root: Path) -> None:
    for name in ("a", "b"):
        with aiochronicle.open_writer(root / name, segment_size=1 << 20) as writer:
            for number in range(100):
                writer.append(b"x", timestamp_ns=FIRST_NS + number // 90)
    reader = follow(root, startingOffsets="earliest")
    batches = batches_of(reader, 30)
    reader.stop()
    assert all(0 < sum(end.values()) - sum(start.values()) <= 30 for start, end in batches)
    assert batches[-1][1] == {"a": 100, "b": 100}
    assert {"a": 90, "b": 90} in [end for _, end in batches]  # the end of the first time


def test_no_row_is_late_for_a_watermark_while_a_stream_catches_up(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    received = record_venues(root, 4, 1500)
    query = (
        spark.readStream.format("chronicle")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=600)
        .schema("source string, timestamp timestamp")
        .load(str(root))
        .withWatermark("timestamp", "10 milliseconds")
        .groupBy("source", window("timestamp", "100 milliseconds"))
        .count()
        .writeStream.format("memory")
        .queryName("in_time")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) >= 4
    windows: dict[Any, int] = {}
    for row in spark.table("in_time").collect():
        windows[row.source, row.window] = max(
            row["count"], windows.get((row.source, row.window), 0)
        )
    assert sum(windows.values()) == len(received)


def test_the_limit_is_what_the_option_says(root: Path) -> None:
    fill(root / "a", 1)
    reader = follow(root, maxOffsetsPerTrigger="123")
    assert reader.getDefaultReadLimit() == ReadMaxRows(123)
    assert follow(root).getDefaultReadLimit() == ALL


def test_a_checkpoint_of_other_queues_is_told(root: Path) -> None:
    fill(root / "a", 3)
    reader = follow(root)
    with pytest.raises(
        PositionLost, match=r"read b up to 7, and that queue is gone, or not chosen.*checkpoint of"
    ):
        reader.latestOffset({"a": 3, "b": 7}, ALL)
    with pytest.raises(PositionLost, match="read a up to 7, but it ends at 3"):
        reader.latestOffset({"a": 7}, ALL)
    with pytest.raises(PositionLost, match="there is no such queue"):
        reader.partitions({"b": 0}, {"b": 7})
    reader.stop()
    tolerant = follow(root, failOnDataLoss="false")
    assert tolerant.latestOffset({"a": 7, "b": 7}, ALL) == {"a": 0}
    assert numbers(tolerant, {"b": 0}, {"b": 7}) == []
    tolerant.stop()


def test_a_queue_that_is_removed_and_made_again_is_told(root: Path) -> None:
    fill(root / "a", 30)
    reader = follow(root)
    assert reader.latestOffset({"a": 20}, ALL) == {"a": 30}
    shutil.rmtree(root / "a")
    fill(root / "a", 10)
    with pytest.raises(PositionLost, match="read a up to 30, but that is another queue now"):
        reader.latestOffset({"a": 30}, ALL)
    shutil.rmtree(root / "a")
    with pytest.raises(PositionLost, match="that queue is gone"):
        reader.latestOffset({"a": 30}, ALL)
    reader.stop()


def test_a_queue_that_is_made_again_and_has_grown_as_long_is_told(root: Path) -> None:
    fill(root / "a", 10)
    reader, tolerant = follow(root), follow(root, failOnDataLoss="false")
    for stream in (reader, tolerant):
        assert stream.latestOffset({"a": 5}, ALL) == {"a": 10}
    shutil.rmtree(root / "a")
    fill(root / "a", 25, ready=True)
    assert reader.reportLatestOffset() == {"a": 25}  # this call may come first
    with pytest.raises(PositionLost, match="read a up to 10, but that is another queue now"):
        reader.latestOffset({"a": 10}, ALL)
    reader.stop()
    assert tolerant.latestOffset({"a": 10}, ALL) == {"a": 0}
    assert numbers(tolerant, {"a": 10}, {"a": 0}) == []
    assert tolerant.latestOffset({"a": 0}, ALL) == {"a": 25}
    tolerant.stop()


def test_messages_that_retention_took_are_told(root: Path) -> None:
    fill(root / "a", 30_000)
    (root / "a" / "000000000.q").unlink()
    with pytest.raises(PositionLost, match=r"messages 0 to \d+ of a are gone"):
        numbers(follow(root), {"a": 0}, {"a": 30_000})
    rest = numbers(follow(root, failOnDataLoss="false"), {"a": 0}, {"a": 30_000})
    assert rest == list(range(rest[0], 30_000))


def test_offsets_for_some_queues_only_are_refused(root: Path) -> None:
    fill(root / "a", 1)
    fill(root / "b", 1)
    reader = follow(root, startingOffsets='{"a": 0}')
    with pytest.raises(InvalidArgument, match="startingOffsets says nothing about b"):
        reader.initialOffset()
    reader.stop()


def test_a_stream_without_end_takes_no_end(root: Path) -> None:
    fill(root / "a", 1)
    for option in ({"endingOffsets": "latest"}, {"endingTimestamp": str(FIRST_NS)}):
        with pytest.raises(InvalidArgument, match="a stream has no end"):
            follow(root, **option)


def test_a_stream_goes_on_where_its_checkpoint_says(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    def run() -> None:
        stream = spark.readStream.format("chronicle").options(
            startingOffsets="earliest", maxOffsetsPerTrigger=400
        )
        query = (
            stream.load(str(root))
            .select("source", "seq")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        assert all(progress.numInputRows <= 400 for progress in query.recentProgress)

    fill(root / "a", 1000)
    run()
    fill(root / "a", 100, first=1000)
    fill(root / "b", 50)
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    expected = [("a", seq) for seq in range(1100)] + [("b", seq) for seq in range(50)]
    assert sorted((row.source, row.seq) for row in rows) == expected


def test_a_stream_that_fails_in_its_first_batch_gets_its_messages_again(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    """The stream starts at the end of a queue that keeps growing."""
    seen: list[int] = []

    def run(until: Callable[[], bool], each: Callable[[DataFrame, int], None]) -> None:
        query = (
            spark.readStream.format("chronicle")
            .load(str(root))
            .select("seq")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(each)
            .start()
        )
        try:
            eventually(until, timeout_s=100)
        finally:
            query.stop()

    def fail(batch: DataFrame, _: int) -> None:
        seqs = sorted(row.seq for row in batch.collect())
        failed.extend(seqs)
        if seqs:
            raise RuntimeError("on purpose")

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(sorted(row.seq for row in batch.collect()))

    failed: list[int] = []
    fill(root / "a", 10)
    with being_written(root / "a"):
        run(lambda: bool(failed), fail)
        run(lambda: bool(seen) and seen[-1] > failed[-1], take)
    assert seen == list(range(failed[0], seen[-1] + 1))


def test_a_stream_by_scan_goes_on_with_the_same_checkpoint(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    columns = ["timestamp_ns", "seq", "payload", "source"]

    def run(frame: DataFrame) -> int:
        query = (
            frame.select(columns)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return len(query.recentProgress)

    fill(root / "a", 1000)
    options: dict[str, Any] = {"startingOffsets": "earliest", "minPartitions": 3}
    run(spark.readStream.format("chronicle").options(**options).load(str(root)))
    fill(root / "a", 200, first=1000)
    stream = scan_stream(spark, str(root), columns=columns, maxOffsetsPerTrigger=80, **options)
    assert stream.columns == columns
    assert run(stream) == 3
    written = spark.read.parquet(str(tmp_path / "out")).orderBy("seq").collect()
    assert written == scan(spark, str(root), columns=columns).orderBy("seq").collect()


def test_a_stream_by_scan_begins_where_it_is_told(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 10)
    fill(root / "b", 10)
    moment = datetime.fromtimestamp(FIRST_NS // 10**9, UTC) + timedelta(microseconds=1)
    for start in ({"a": 7, "b": 9}, moment):
        stream = scan_stream(spark, str(root), columns=["source", "seq"], start=start)
        query = (
            stream.writeStream.format("memory")
            .queryName("begun")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = [(row.source, row.seq) for row in spark.sql("select * from begun").collect()]
        expected = scan(spark, str(root), columns=["source", "seq"], start=start).collect()
        assert sorted(rows) == sorted((row.source, row.seq) for row in expected) != []


def test_a_stream_by_scan_is_refused_at_once(spark: SparkSession, root: Path) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue"):
        scan_stream(spark, str(root))
    fill(root / "a", 1)
    with pytest.raises(InvalidArgument, match="no column 'price'"):
        scan_stream(spark, str(root), columns=["price"])
    with pytest.raises(InvalidArgument, match="did you mean startingOffsets"):
        scan_stream(spark, str(root), startingOffset="earliest")


def test_a_running_stream_sees_what_is_appended(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    with aiochronicle.open_writer(root / "a", segment_size=1 << 20) as writer:
        query = (
            spark.readStream.format("chronicle")
            .option("startingOffsets", "earliest")
            .load(str(root))
            .writeStream.format("memory")
            .queryName("seen")
            .start()
        )
        try:
            writer.append(b"one")
            eventually(lambda: spark.sql("select * from seen").count() == 1, timeout_s=60)
            writer.append(b"two")
            eventually(lambda: spark.sql("select * from seen").count() == 2, timeout_s=60)
        finally:
            query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("door", ["format", "scan"])
def test_a_stream_that_is_to_follow_waits_for_the_first_queue(
    spark: SparkSession, root: Path, door: str
) -> None:
    source = spark.readStream.format("chronicle")
    with pytest.raises(PySparkException, match="there is no queue in or below it"):
        source.load(str(root))
    with pytest.raises(PySparkException, match="there is no queue in or below it"):
        source.options(follow=True, type="trade").load(str(root))
    with pytest.raises(PySparkException, match="there is no such directory"):
        spark.readStream.format("chronicle").option("follow", True).load(str(root / "typo"))
    with pytest.raises(PySparkException, match="there is no queue in or below it"):
        spark.read.format("chronicle").option("follow", True).load(str(root)).count()
    stream = (
        spark.readStream.format("chronicle").option("follow", True).load(str(root))
        if door == "format"
        else scan_stream(spark, str(root), follow=True)
    )
    query = stream.writeStream.format("memory").queryName(f"awaited_{door}").start()
    try:
        query.processAllAvailable()
        fill(root / "a", 10, ready=True)
        eventually(lambda: spark.table(f"awaited_{door}").count() == 10, 60)
    finally:
        query.stop()
