"""Option filter: every query over the frame sees exactly the rows that pass."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark import count, scan
from aiochronicle.spark.filters import Bounds, parse_filter
from aiochronicle.spark.jobs import bars
from aiochronicle.spark.options import read_options
from spark.filling import FIRST_NS, STEP_NS, fill

ROWS = 100

TIME = "timestamp '2023-11-14T22:13:20.000050Z'"  # FIRST_NS is 22:13:20

FILTERS = [
    f"seq >= 10 AND seq < 20 AND timestamp_ns < {FIRST_NS + 15 * STEP_NS}",
    "seq between 7 and 9",
    "type_id = 1",
    "type_id in (0, 2) and seq > 90",
    "source = 'a' and seq = 3",
    "source in ('b', 'c')",
    "source = 'nowhere'",
    "seq = 3 and seq = 4",
    "seq < -5",
    "timestamp_ns < -5",
    "timestamp_ns >= 9223372036854775807",
    "seq > 99999999999999999999",
    f"timestamp_ns = {FIRST_NS + STEP_NS}",
    f"timestamp > {TIME}",
    f"timestamp <= {TIME}",
    f"timestamp = {TIME}",
    "timestamp < timestamp '1960-01-01'",
    "timestamp >= timestamp '1960-01-01' AND seq <= 2",
]


def union_of_two(frame: DataFrame) -> int:
    return frame.where("seq = 7").union(frame.where("seq = 9")).count()


def self_join(frame: DataFrame) -> int:
    one = frame.where("seq = 13").alias("one")
    return frame.alias("all").join(one, col("all.source") == col("one.source")).count()


def subquery(frame: DataFrame) -> int:
    frame.createOrReplaceTempView("messages")
    nested = "select * from messages where seq > (select max(seq) from messages where seq < 15)"
    return frame.sparkSession.sql(nested).count()


def filtered_then_whole(frame: DataFrame) -> int:
    frame.where("seq = 7").count()
    return frame.count()


QUERIES = [union_of_two, self_join, subquery, filtered_then_whole]


def test_a_filter_leaves_what_spark_would_leave(spark: SparkSession, root: Path) -> None:
    """This holds for both entry points: the format and scan."""
    for name in ("a", "b"):
        fill(root / name, ROWS, types=(0, 1, 2))
    whole = spark.read.format("chronicle").load(str(root)).cache()
    for condition in FILTERS:
        expected = whole.where(condition).select("source", "seq").collect()
        if "nowhere" in condition:
            with pytest.raises(PySparkException, match="no queue"):
                spark.read.format("chronicle").option("filter", condition).load(str(root)).count()
            continue
        found = scan(spark, str(root), columns=["source", "seq"], filter=condition).collect()
        assert (condition, sorted(found)) == (condition, sorted(expected))
    for condition in FILTERS[:3]:
        frame = spark.read.format("chronicle").option("filter", condition).load(str(root))
        expected = whole.where(condition).select("source", "seq").collect()
        assert sorted(frame.select("source", "seq").collect()) == sorted(expected)
    whole.unpersist()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_one_frame_in_several_queries(
    spark: SparkSession, root: Path, query: Callable[[DataFrame], int]
) -> None:
    fill(root / "a", ROWS)
    filtered = spark.read.format("chronicle").option("filter", "seq < 20").load(str(root))
    expected = query(
        spark.read.format("chronicle").load(str(root)).where("seq < 20").localCheckpoint()
    )
    assert query(filtered) == expected > 0


def test_what_does_not_pass_is_not_read(spark: SparkSession, root: Path) -> None:
    """The first segment is unreadable, so only a frame that skips it can be read."""
    fill(root / "a", 30_000)
    with (root / "a" / "000000000.q").open("r+b") as segment:
        segment.seek(4096)
        segment.write(b"\xff" * 4096)
    late = f"timestamp_ns >= {FIRST_NS + 29_000 * STEP_NS}"
    reader = spark.read.format("chronicle")
    assert reader.option("filter", late).load(str(root)).count() == 1_000
    assert count(str(root), filter=late) == 1_000
    with pytest.raises(PySparkException, match=r"000000000.q at offset 4\d\d\d: .*on_corrupt"):
        spark.read.format("chronicle").load(str(root)).where(late).count()


def test_a_stream_may_have_a_filter(spark: SparkSession, root: Path) -> None:
    for name in ("a", "b"):
        fill(root / name, ROWS, types=(0, 1, 2))
    query = (
        spark.readStream.format("chronicle")
        .options(startingOffsets="earliest", filter="source = 'a' AND type_id = 1 AND seq < 50")
        .load(str(root))
        .writeStream.format("memory")
        .queryName("filtered")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.table("filtered").collect()
    assert {(row.source, row.type_id) for row in rows} == {("a", 1)}
    assert sorted(row.seq for row in rows) == [seq for seq in range(50) if seq % 3 == 1]


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("price > 5", "'price' is not a column that it knows"),
        ("seq > 5 or seq < 3", "'or' is not expected"),
        ("not seq > 5", "'not' is not a column"),
        ("seq >", "it ends too early"),
        ("seq > 'a'", "another kind of value"),
        ("seq ! 5", "is not understood"),
        ("seq in (1, 2)", "'IN' is not for numbers"),
        ("source > 'a'", "by = and IN only"),
        ("source = 5", "compared with a text"),
        ("type_id = 'a'", "compared with a number"),
        ("timestamp > 5", "another kind of value"),
        ("timestamp > timestamp 'noon'", "'noon' is no time"),
        ("seq > 5;", "is not understood"),
    ],
)
def test_what_cannot_narrow_a_frame_is_refused(condition: str, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        parse_filter(condition)


def test_conditions_are_put_together() -> None:
    found = parse_filter(
        "SEQ>=5 and seq<=9 AND source IN ('it''s','b') and type_id=1 AND type_id IN (1,2)"
    )
    assert found.seq == Bounds(5, 10)
    assert found.names == frozenset({"it's", "b"})
    assert found.types == frozenset({1})


def test_who_asks_for_pushdown_is_told_of_filter(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 3)
    with pytest.raises(InvalidArgument, match="no option 'pushdown': did you mean filter"):
        read_options({"path": str(root), "pushdown": "true"})
    with pytest.raises(InvalidArgument, match="filter is for frames, not for jobs"):
        bars(spark, str(root), every="1s", options={"filter": "seq > 1"})
    with pytest.raises(InvalidArgument, match="does not know types"):
        count(str(root), filter="type_id = 1")
