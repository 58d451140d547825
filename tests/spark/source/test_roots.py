"""Several directories or queues as one frame or stream."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.errors import InvalidArgument, QueueNotFound
from aiochronicle.spark import count, scan, scan_stream
from aiochronicle.spark.jobs import audit
from aiochronicle.spark.options import read_options, roots_option
from aiochronicle.spark.source.queues import find_sources
from spark.filling import fill


def names(*roots: Path, **options: str) -> list[str]:
    return sorted(find_sources(read_options({**roots_option(list(roots)), **options})))


@pytest.fixture
def venues(root: Path) -> list[Path]:
    """Two directories of queues, and a queue."""
    for name, rows in (("md/btc", 3), ("md/eth", 2), ("orders/btc", 4), ("fills", 5), ("other", 9)):
        (root / name).parent.mkdir(exist_ok=True)
        fill(root / name, rows)
    return [root / "md", root / "orders", root / "fills"]


def test_names_begin_below_what_the_directories_have_in_common(
    venues: list[Path], root: Path
) -> None:
    everything = ["fills", "md/btc", "md/eth", "orders/btc"]
    assert names(*venues) == everything
    assert names(*venues, subscribe="orders/btc,fills") == ["fills", "orders/btc"]
    assert names(*venues, subscribePattern=".*btc") == ["md/btc", "orders/btc"]
    assert names(root / "md" / "btc", root / "md" / "eth") == ["btc", "eth"], "as of md alone"
    assert names(root / "md") == ["btc", "eth"]
    (root / "elsewhere").symlink_to(root / "other")
    assert names(root / "fills", root / "elsewhere") == ["elsewhere", "fills"]
    with pytest.raises(QueueNotFound, match=r"no queue btc; there are fills, md/btc"):
        names(*venues, subscribe="btc")
    assert count(venues) == 14
    assert count(venues, start=dict.fromkeys(everything, 1)) == 10


def test_what_cannot_be_meant_is_refused(venues: list[Path], root: Path) -> None:
    (root / "again").symlink_to(root / "md" / "btc")
    for other in (root / "md" / "btc", root / "md", root / "again"):
        with pytest.raises(InvalidArgument, match="its messages would be read twice"):
            names(root / "md", other)
    with pytest.raises(QueueNotFound, match=r"nowhere: there is no such directory"):
        names(root / "md", root / "nowhere")
    with pytest.raises(InvalidArgument, match="names no directory"):
        read_options(roots_option([]))
    with pytest.raises(InvalidArgument, match="paths must be JSON like"):
        read_options({"paths": "a,b"})
    with pytest.raises(InvalidArgument, match="path and paths exclude each other"):
        read_options({"path": "a", "paths": '["b"]'})
    with pytest.raises(InvalidArgument, match="s3: is not supported"):
        read_options(roots_option(["s3://a/b", "c"]))


def test_frames_streams_and_jobs_take_several(
    spark: SparkSession, venues: list[Path], tmp_path: Path
) -> None:
    expected = {"fills": 5, "md/btc": 3, "md/eth": 2, "orders/btc": 4}
    frame = spark.read.format("chronicle").load([str(path) for path in venues])
    for rows in (frame.select("source"), scan(spark, venues, columns=["source"])):
        found = [row.source for row in rows.collect()]
        assert {name: found.count(name) for name in found} == expected
    query = (
        scan_stream(spark, venues, columns=["source"], startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("of_several")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [row.source for row in spark.table("of_several").collect()]
    assert {name: found.count(name) for name in found} == expected
    assert audit(spark, venues).sources == tuple(expected)
