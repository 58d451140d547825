"""One frame in several queries: right as frames are by default, and not with pushdown, for now.

Spark 4.1 to 4.3 keeps the partitions that a filter has left with the loaded frame (one readInfo for each
PythonDataSourceV2), and every scan of that frame that is planned from then on uses them, whatever
its own filter is. A scan without a filter does not even call Python, so no source can set it right.
The day Spark does (its development version has readInfo in the scan), these tests fail as passing
unexpectedly: then pushdown can be the default where Spark is new enough.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    In,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.functions import col

from aiochronicle.spark.filters import narrow

from .filling import fill

ROWS = 100


def union_of_two(frame: DataFrame) -> tuple[int, int]:
    both = frame.where("seq = 7").union(frame.where("seq = 9"))
    return len({row.seq for row in both.collect()}), 2


def self_join(frame: DataFrame) -> tuple[int, int]:
    one = frame.where("seq = 3").alias("one")
    return frame.alias("all").join(one, col("all.source") == col("one.source")).count(), ROWS


def subquery(frame: DataFrame) -> tuple[int, int]:
    frame.createOrReplaceTempView("messages")
    nested = "select * from messages where seq > (select max(seq) from messages where seq < 50)"
    return frame.sparkSession.sql(nested).count(), ROWS - 50


def filtered_then_whole(frame: DataFrame) -> tuple[int, int]:
    frame.where("seq = 7").count()
    return frame.count(), ROWS


QUERIES = [union_of_two, self_join, subquery, filtered_then_whole]

Query = Callable[[DataFrame], tuple[int, int]]


def check(spark: SparkSession, root: Path, query: Query, *, pushdown: bool) -> None:
    fill(root / "a", ROWS)
    reader = spark.read.format("chronicle")
    frame = reader.option("pushdown", pushdown) if pushdown else reader
    found, expected = query(frame.load(str(root)))
    assert found == expected


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_one_frame_in_several_queries(spark: SparkSession, root: Path, query: Query) -> None:
    check(spark, root, query, pushdown=False)


@pytest.mark.xfail(reason="Spark uses one filter's partitions for other queries", strict=True)
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_pushdown_needs_a_frame_per_query(spark: SparkSession, root: Path, query: Query) -> None:
    check(spark, root, query, pushdown=True)


def test_what_is_filtered_and_cached_can_be_queried_again(spark: SparkSession, root: Path) -> None:
    fill(root / "a", ROWS)
    pushed = spark.read.format("chronicle").option("pushdown", True).load(str(root))
    some = pushed.where("seq < 10").cache()
    try:
        assert (some.count(), some.where("seq = 3").count()) == (10, 1)
        assert some.union(some).count() == 20
    finally:
        some.unpersist()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo(("source",), "eu/bonds"), ["eu/bonds"]),
        (In(("source",), ("us/bonds", "gone", None)), ["us/bonds"]),
        (StringStartsWith(("source",), "eu/"), ["eu/bonds", "eu/swaps"]),
        (StringEndsWith(("source",), "bonds"), ["eu/bonds", "us/bonds"]),
        (StringContains(("source",), "swap"), ["eu/swaps"]),
        (Not(EqualTo(("source",), "eu/bonds")), ["eu/bonds", "eu/swaps", "us/bonds"]),
    ],
)
def test_a_queue_is_left_out_only_if_its_name_cannot_pass(
    condition: Filter, wanted: list[str]
) -> None:
    names = ["eu/bonds", "eu/swaps", "us/bonds"]
    assert [name for name in names if narrow([condition]).wants(name)] == wanted
