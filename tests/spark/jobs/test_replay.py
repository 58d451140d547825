"""A replay restores exactly the archived messages."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.errors import InvalidArgument, QueueNotFound, TimestampOrder
from aiochronicle.spark.jobs import archive, audit, replay
from spark.filling import fill
from spark.market import record
from spark.sink.staging_rows import die_half_way, rows, staged


def test_an_archive_comes_back_as_the_same_queues(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    written = record(root / "binance", rng, 300) + record(root / "kraken", rng, 50)
    archive(spark, str(root), str(tmp_path / "archive"))
    again = tmp_path / "again"
    done = replay(spark, str(tmp_path / "archive"), str(again))
    assert [(queue.source, queue.rows, queue.first_seq) for queue in done] == [
        ("binance", 300, 0),
        ("kraken", 50, 0),
    ]
    assert audit(spark, str(again)).digest == audit(spark, str(root)).digest
    for name in ("binance", "kraken"):
        registry = aiochronicle.Registry.load(again / name)
        with aiochronicle.open_reader(again / name, codec=registry) as reader:
            found = [(m.timestamp_ns, m.decode()) for m in reader]
        expected = [(m.timestamp_ns, m.content) for m in written if m.source == name]
        assert [time_ns for time_ns, _ in found] == [time_ns for time_ns, _ in expected]
        assert [str(content) for _, content in found] == [str(content) for _, content in expected]
    # A second replay would append older timestamps.
    with pytest.raises(TimestampOrder, match="never decrease: replay into a new directory"):
        replay(spark, str(tmp_path / "archive"), str(again), queues=["kraken"])
    with pytest.raises(TimestampOrder, match="again/kraken: the archive begins at"):
        replay(spark, str(tmp_path / "archive"), str(again), queue="kraken")


@pytest.mark.parametrize("queue", [None, "all"])
def test_relative_paths_are_those_of_the_caller(
    spark: SparkSession,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queue: str | None,
) -> None:
    """The caller may have changed directory after the session started."""
    fill(root / "a", 100)
    monkeypatch.chdir(tmp_path)
    archive(spark, "bus", "archive")
    (done,) = replay(spark, "archive", "again", queue=queue)
    assert done.rows == 100
    with aiochronicle.open_reader(tmp_path / "again" / (queue or "a")) as reader:
        assert len(list(reader)) == 100


def test_what_others_have_left_half_written_is_no_part_of_it(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root / "a", 100, first=30_000)
    archive(spark, str(root), str(tmp_path / "archive"))
    again = tmp_path / "again"
    again.mkdir()
    die_half_way(again, staged(again, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    (done,) = replay(spark, str(tmp_path / "archive"), str(again))
    assert (done.rows, done.first_seq) == (100, 20_000)
    with aiochronicle.open_reader(again / "a") as reader:
        written = [message.payload for message in reader]
    assert written == [f"a {n}".encode() for n in [*range(20_000), *range(30_000, 30_100)]]


def test_other_parquet_files_are_written_with_their_times(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    rows = [("b", 30, b"3"), ("a", 10, b"1"), ("a", 20, b"2")]
    columns = "source string, timestamp_ns long, payload binary"
    spark.createDataFrame(rows, columns).write.parquet(str(tmp_path / "files"))
    done = replay(spark, str(tmp_path / "files"), str(root))
    assert [(queue.source, queue.rows) for queue in done] == [("a", 2), ("b", 1)]
    replay(spark, str(tmp_path / "files"), str(root), queue="all")
    with aiochronicle.open_reader(root / "all", start="first") as reader:
        assert [(m.timestamp_ns, m.payload) for m in reader] == [(10, b"1"), (20, b"2"), (30, b"3")]
    spark.createDataFrame(rows, columns).drop("source").write.parquet(str(tmp_path / "nameless"))
    with pytest.raises(InvalidArgument, match="which queue"):
        replay(spark, str(tmp_path / "nameless"), str(root))
    with pytest.raises(QueueNotFound, match="there is no such archive"):
        replay(spark, str(tmp_path / "missing"), str(root))
    with pytest.raises(QueueNotFound, match="no queue x in it"):
        replay(spark, str(tmp_path / "files"), str(root), queues=["x"])
