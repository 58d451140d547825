"""An archive can be read when the queues are gone, typed like them."""

import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.errors import QueueNotFound, UnknownType
from aiochronicle.spark.jobs import archive, archived

from .market import record, trades_of


def test_an_archive_has_the_typed_columns_of_its_queues(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    written = record(root / "binance", rng, 200) + record(
        root / "kraken", rng, 50, encoding="msgpack"
    )
    files = str(tmp_path / "archive")
    archive(spark, str(root), files)
    live = spark.read.format("chronicle").option("type", "trade").load(str(root))
    columns = live.schema
    shutil.rmtree(root)
    frame = archived(spark, files, type="trade")
    assert frame.schema == columns
    rows = frame.orderBy("source", "seq").collect()
    assert [(row.source, row.seq, row.timestamp_ns, row.symbol, row.price) for row in rows] == [
        (message.source, message.seq, message.timestamp_ns, trade.symbol, trade.price)
        for message, trade in trades_of(written)
    ]
    day = str(rows[0].timestamp.date())
    some = archived(spark, files, queues=["kraken"], days=[day, "1999-01-01"])
    assert {row.source for row in some.collect()} == {"kraken"}
    assert archived(spark, files, days=["1999-01-01"]).count() == 0


def test_what_an_archive_does_not_have_is_told(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    with pytest.raises(QueueNotFound, match="there is no such archive"):
        archived(spark, str(tmp_path / "no"))
    with pytest.raises(QueueNotFound, match="no job has archived anything there"):
        archived(spark, str(tmp_path))
    record(root / "a", rng, 10)
    archive(spark, str(root), str(tmp_path / "archive"))
    with pytest.raises(UnknownType, match="no queue has a type 'fill'; there are Quote, Trade"):
        archived(spark, str(tmp_path / "archive"), type="fill")
