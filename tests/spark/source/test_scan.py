"""scan, the faster entry point: bounds, and counts without reading."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.errors import InvalidArgument, PositionLost, QueueNotFound, WrongType
from aiochronicle.spark import count, scan
from spark.filling import FIRST_NS, STEP_NS, fill


def test_count_is_the_number_of_rows(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 30_000)
    fill(root / "b", 50)
    (root / "a" / "000000000.q").unlink()  # as retention would
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        microseconds=(FIRST_NS + 20_000 * STEP_NS) // 1000
    )
    frame = scan(spark, str(root), end=moment)
    read = frame.groupBy("source").count().collect()
    assert count(str(root), end=moment) == frame.count() == sum(row["count"] for row in read)


def test_the_number_of_rows_is_counted_where_options_decide_about_them(
    spark: SparkSession, root: Path
) -> None:
    fill(root / "a", 3000, segment_size=1 << 16)
    whole = scan(spark, str(root), columns=["seq"])
    some = scan(spark, str(root), columns=["seq"], filter="seq >= 100")
    lossy = scan(spark, str(root), columns=["seq"], failOnDataLoss=False)
    assert (whole.count(), some.count(), lossy.count()) == (3000, 2900, 3000)
    (root / "a" / "000000000.q").unlink()
    assert whole.count() == 3000
    assert 0 < lossy.count() < 3000


def test_count_takes_bounds_and_queues(root: Path) -> None:
    fill(root / "a", 100)
    fill(root / "b", 50)
    path = str(root)
    assert count(path) == 150
    assert count(path, subscribe="b") == 50
    assert count(path, start={"a": 90, "b": 50}, end={"a": 95, "b": 70}) == 5
    assert count(path, start={"a": 90, "b": 60}, failOnDataLoss=False) == 10
    with pytest.raises(PositionLost, match="startingOffsets of b is 60, but it ends at 50"):
        count(path, start={"a": 90, "b": 60})
    assert count(path, startingTimestamp=FIRST_NS + 98 * STEP_NS) == 2
    fill(root / "a", 10, first=100)
    assert count(path) == 160


def test_count_says_what_it_cannot_count(root: Path) -> None:
    with pytest.raises(QueueNotFound, match="no queue in or below it"):
        count(str(root))
    fill(root / "a", 1)
    with pytest.raises(InvalidArgument, match=r"does not know types: use scan"):
        count(str(root), type="Trade")


def test_bounds_are_a_time_or_seqs(root: Path) -> None:
    fill(root / "a", 10)
    with pytest.raises(
        WrongType, match="start must be a datetime, nanoseconds since 1970 or a dict"
    ):
        count(str(root), start="7")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="numbers are nanoseconds since then"):
        count(str(root), start=7)
    assert count(str(root), start=FIRST_NS + STEP_NS, end=FIRST_NS + 3 * STEP_NS) == 2
    naive = datetime(2026, 11, 17, 9, 30)
    with pytest.raises(
        InvalidArgument, match="end has no time zone: with tzinfo=UTC, 2026-11-17 09:30:00 is"
    ):
        count(str(root), end=naive)
