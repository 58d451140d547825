"""Options that Spark adds itself are not reported as user errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.options import read_options, write_options


def fill(root: Path) -> None:
    with aiochronicle.open_writer(root / "a", segment_size=1 << 20) as writer:
        for number in range(10):
            writer.append(b"%d" % number, timestamp_ns=1_700_000_000_000_000_000 + number)
        writer.mark_ready()


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for name in ("by_location", "by_option", "described"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_stream_into_queues_may_have_a_name(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    fill(root)
    query = (
        spark.readStream.format("chronicle")
        .option("startingOffsets", "earliest")
        .load(str(root))
        .writeStream.format("chronicle")
        .queryName("copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination()
    assert query.name == "copy"
    with aiochronicle.open_reader(tmp_path / "copy" / "a") as reader:
        assert [message.payload for message in reader] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("by_location", "LOCATION '{root}'"),
        ("by_option", "OPTIONS (path '{root}')"),
        ("described", "OPTIONS (subscribe 'a') LOCATION '{root}' COMMENT 'all'"),
    ],
)
def test_a_table_can_be_made(tables: SparkSession, root: Path, name: str, rest: str) -> None:
    fill(root)
    tables.sql(f"CREATE TABLE {name} USING chronicle {rest.format(root=root)}")
    assert tables.table(name).columns[:2] == ["source", "seq"]
    # Spark stores a table's location but does not pass it to the reader (4.2, 4.3).
    assert tables.read.option("path", str(root)).table(name).count() == 10
    with_path = f"SELECT count(*) FROM {name} WITH ('path' = '{root}')"
    assert tables.sql(with_path).collect() == [(10,)]
    with pytest.raises(Exception, match="does not pass on the location of a table"):
        tables.table(name).count()


def test_a_view_knows_where_its_queues_are(spark: SparkSession, root: Path) -> None:
    fill(root)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW seen USING chronicle OPTIONS (path '{root}', subscribe 'a')"
    )
    assert spark.sql("SELECT count(*) FROM seen").collect() == [(10,)]
    spark.catalog.dropTempView("seen")


def test_what_looks_like_one_is_still_a_mistake() -> None:
    added = {"queryName": "x", "owner": "me", "option.type": "trade", "IS_MANAGED_LOCATION": "true"}
    assert read_options({"path": "a", **added}).where == write_options({"path": "a", **added}).path
    assert read_options({"location": "file:/data/a", "provider": "chronicle"}).where == "/data/a"
    assert read_options({"location": "a", "path": "b"}).where == "b"
    with pytest.raises(InvalidArgument, match="no option 'queryNames'"):
        read_options({"path": "a", "queryNames": "x"})
    with pytest.raises(InvalidArgument, match="s3a: is not supported here"):
        read_options({"location": "s3a://bucket/a"})
