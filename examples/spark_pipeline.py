"""Recorded ticks in Spark: a table per venue, a stream that catches up, and the result as a queue.

    python examples/spark_pipeline.py

Needs ``pip install "aiochronicle[spark]"``; the first start of Spark takes some seconds.
"""

import random
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import aiochronicle
from aiochronicle.codec import Codec, Width
from aiochronicle.spark import session

TICKS = 3000
FIRST_NS = 1_700_000_000_000_000_000


class Tick(msgspec.Struct):
    """A trade, in a fixed layout: its columns are copied from the payloads without decoding."""

    symbol: Annotated[str, Width("S8")]
    price: float
    size: int


def record(bus: Path, dice: random.Random) -> None:
    """Write ticks, as feed handlers would."""
    for venue in ("binance", "kraken"):
        codec = Codec(Tick, format="struct")
        path = bus / venue
        with aiochronicle.open_writer(path, segment_size=1 << 20, codec=codec) as writer:
            for number in range(TICKS // 2):
                tick = Tick(dice.choice(["ALFA", "BRAVO"]), 100 + dice.random(), dice.randint(1, 9))
                writer.send(tick, timestamp_ns=FIRST_NS + number * 20_000_000)


def ticks(spark: SparkSession, bus: Path) -> DataFrame:
    """All ticks of all venues, with their fields as columns."""
    return spark.read.format("chronicle").option("type", "Tick").load(str(bus))


def volumes(frame: DataFrame) -> dict[tuple[str, str], int]:
    """Return the volume of each symbol per venue."""
    table = frame.groupBy("source", "symbol").agg(f.sum("size").alias("volume"))
    return {(row.source, row.symbol): row.volume for row in table.collect()}


def copy_by_stream(spark: SparkSession, bus: Path, copy: Path) -> None:
    """Update the copy, one queue in the order of times; each call continues where the last one ended."""
    stream = spark.readStream.format("chronicle").option("startingOffsets", "earliest")
    query = (
        stream.load(str(bus))
        .writeStream.format("chronicle")
        .options(queue="ticks", segmentSize=1 << 20, checkpointLocation=f"{copy}.checkpoint")
        .trigger(availableNow=True)
        .start(str(copy))
    )
    query.awaitTermination()


def main() -> None:
    """Record, query, copy, and check."""
    with tempfile.TemporaryDirectory() as directory:
        bus, copy = Path(directory, "bus"), Path(directory, "copy")
        bus.mkdir()
        record(bus, random.Random(7))
        spark = session()
        try:
            for (venue, symbol), volume in sorted(volumes(ticks(spark, bus)).items()):
                print(f"{venue:8} {symbol:6} {volume:6}")
            copy_by_stream(spark, bus, copy)
            copy_by_stream(spark, bus, copy)  # nothing new: nothing written
        finally:
            spark.stop()
        with aiochronicle.open_reader(copy / "ticks") as reader:
            times = [message.timestamp_ns for message in reader]
        assert times == sorted(times)
        print(f"{len(times)} ticks of 2 venues copied in order of time, each exactly once")


if __name__ == "__main__":
    main()
