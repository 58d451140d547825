"""The comparisons on a recording like that of a venue's feed (market.py): Spark on queues and on Parquet.

The Parquet files have the same rows as the queues, one file set for each type, written by Spark with its
default settings, with every field as a column. Both sides answer the same query in the same session. The
contestants of a comparison take turns; after warm-up rounds, the medians of the rounds are compared.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from aiochronicle import Queue
from aiochronicle.spark import count, scan
from aiochronicle.spark.archive.writing import COMPRESSION
from aiochronicle.spark.jobs import archive, asof, audit, bars
from benchmarks.market import MARKETS, Depth, record
from benchmarks.measure import Result

__all__ = ["market"]

QUESTION = "spark"
TYPES = ("Trade", "BookTicker", "Depth")
SECOND_NS = 10**9
WARM_UP = 2  # rounds; the JVM continues to compile after them, for all contestants


class Times(msgspec.Struct, frozen=True):
    """The seconds of each round of each contestant."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median of a contestant."""
        return statistics.median(self.seconds[name])

    def describe(self, *names: str) -> str:
        """Return medians and ranges, for the table."""
        parts = [
            f"{self.median(name):.3f} s ({min(taken):.3f} to {max(taken):.3f})"
            for name, taken in ((name, self.seconds[name]) for name in names)
        ]
        return f"{' / '.join(parts)}, n = {len(self.seconds[names[0]])}"

    def at_least(self, bar: float, what: str, measured: str, yardstick: str) -> Result:
        """Return the result for a contestant that must be this many times as fast as its yardstick."""
        speed = self.median(yardstick) / self.median(measured)
        detail = self.describe(measured, yardstick)
        return Result.at_least(QUESTION, what, speed, bar, "x", detail)


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = WARM_UP,
    between: Callable[[], None] = lambda: None,
) -> Times:
    """Let the contestants take turns; ``between`` removes what one of them leaves."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-warm_up, rounds):
        for name, contestant in contestants.items():
            between()
            started = time.perf_counter()
            contestant()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    return Times(seconds)


def drain(frame: DataFrame) -> None:
    """Produce every row, and discard it inside the JVM."""
    frame.write.format("noop").mode("overwrite").save()


class Recording:
    """The queues, and the same rows as Parquet files by type."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.root = directory / "market-types"
        self.raw = directory / "market-raw"
        self.out = directory / "market-out"
        self._files = directory / "market-parquet"
        for name in TYPES:
            path = self._files / name
            if not path.exists():
                self.typed(name).write.parquet(str(path))

    def typed(self, name: str, *columns: str) -> DataFrame:
        """Return the messages of a type, by ``scan``."""
        chosen = list(columns) if columns else None
        frame = scan(self.spark, str(self.root), columns=chosen, type=name, mode="FAILFAST")
        return frame if columns else frame.drop("payload")

    def loaded(self, name: str, schema: str) -> DataFrame:
        """Return the messages of a type, by the data source."""
        reading = self.spark.read.format("chronicle").schema(schema)
        return reading.options(type=name, mode="FAILFAST").load(str(self.root))

    def files(self, name: str) -> DataFrame:
        """Return the same messages from Parquet files."""
        return self.spark.read.parquet(str(self._files / name))

    def clear(self) -> None:
        """Remove the output."""
        shutil.rmtree(self.out, ignore_errors=True)


def market(spark: SparkSession, directory: Path, messages: int, rounds: int) -> Iterator[Result]:
    """Run all comparisons; ``messages`` is the size of the recording."""
    for name, typed in (("market-types", True), ("market-raw", False)):
        if not (directory / name).exists():
            record(directory / name, messages, typed=typed)
    recording = Recording(spark, directory)
    yield from _typed_scan(recording, rounds)
    yield from _levels(recording, rounds)
    yield from _bars(recording, rounds)
    yield from _counting(recording, rounds)
    yield from _asof(recording, rounds)
    yield from _audit(recording, rounds)
    yield from _archive(recording, rounds)


def _typed_scan(recording: Recording, rounds: int) -> Iterator[Result]:
    trades = ("symbol", "price", "quantity", "is_buyer_maker")
    quotes = ("symbol", "bid", "bid_quantity", "ask", "ask_quantity")

    def of_trades(frame: DataFrame) -> object:
        turnover = sql.sum(sql.col("price") * sql.col("quantity"))
        makers = sql.sum(sql.col("is_buyer_maker").cast("int"))
        found = frame.groupBy("symbol").agg(turnover, makers, sql.max("price"), sql.count("*"))
        return found.collect()

    def of_quotes(frame: DataFrame) -> object:
        spread = sql.avg(sql.col("ask") - sql.col("bid"))
        sizes = sql.max(sql.col("bid_quantity") + sql.col("ask_quantity"))
        return frame.groupBy("symbol").agg(spread, sizes, sql.count("*")).collect()

    of_type = "symbol string, price double, quantity double, is_buyer_maker boolean"
    times = take_turns(
        {
            "scan": lambda: of_trades(recording.typed("Trade", *trades)),
            "load": lambda: of_trades(recording.loaded("Trade", of_type)),
            "files": lambda: of_trades(recording.files("Trade")),
            "quotes": lambda: of_quotes(recording.typed("BookTicker", *quotes)),
            "quotes of files": lambda: of_quotes(recording.files("BookTicker")),
        },
        rounds,
    )
    yield times.at_least(0.8, "4 fields of trades, by scan : Parquet", "scan", "files")
    yield times.at_least(0.8, "4 fields of trades, by load : Parquet", "load", "files")
    what = "5 fields of quotes, by scan : Parquet"
    yield times.at_least(0.8, what, "quotes", "quotes of files")


def _levels(recording: Recording, rounds: int) -> Iterator[Result]:
    """Read all levels of the book: in Spark, and as columns in one thread of Python."""

    def engine() -> None:
        for market in MARKETS:
            with Queue(recording.root / market) as queue:
                for _ in queue.slice().batches(columns=["seq", "bids", "asks"], codec=Depth):
                    pass

    columns = ("seq", "bids", "asks")
    times = take_turns(
        {
            "scan": lambda: drain(recording.typed("Depth", *columns)),
            "files": lambda: drain(recording.files("Depth").select(*columns)),
            "engine": engine,
        },
        rounds,
    )
    rows = recording.files("Depth").count()
    cores = len(os.sched_getaffinity(0))
    for what, name, threads in (
        ("books of 20 levels, by scan, per core", "scan", cores),
        ("books of 20 levels, as columns, per core", "engine", 1),
    ):
        rate = rows / times.median(name) / threads / 1e6
        yield Result.at_least(QUESTION, what, rate, 1.0, "M/s", times.describe(name))
    yield times.at_least(0.5, "books of 20 levels, by scan : Parquet", "scan", "files")


def _bars(recording: Recording, rounds: int) -> Iterator[Result]:
    def by_job() -> None:
        drain(
            bars(recording.spark, str(recording.root), every="1s", trades="Trade", size="quantity")
        )

    def by_sql() -> None:
        drain(_sql_bars(recording.files("Trade")))

    times = take_turns({"job": by_job, "sql": by_sql}, rounds)
    yield times.at_least(0.8, "bars of a second : SQL on Parquet", "job", "sql")


def _sql_bars(trades: DataFrame) -> DataFrame:
    """Return the rows of the job, in its order, except that each addition rounds the sums."""
    first, last = sql.min_by("price", "seq"), sql.max_by("price", "seq")
    volume = sql.sum("quantity")
    bar = sql.floor(sql.col("timestamp_ns") / SECOND_NS)
    return (
        trades.groupBy("source", "symbol", bar.alias("bar"))
        .agg(
            first.alias("open"),
            sql.max("price").alias("high"),
            sql.min("price").alias("low"),
            last.alias("close"),
            volume.alias("volume"),
            (sql.sum(sql.col("price") * sql.col("quantity")) / volume).alias("vwap"),
            sql.count("*").alias("trades"),
            sql.min("timestamp_ns").alias("first_ns"),
            sql.max("timestamp_ns").alias("last_ns"),
        )
        .orderBy("source", "symbol", "bar")
    )


def _counting(recording: Recording, rounds: int) -> Iterator[Result]:
    spark, root = recording.spark, str(recording.root)

    def load(schema: str | None = None) -> DataFrame:
        reading = spark.read.format("chronicle")
        return (reading if schema is None else reading.schema(schema)).load(root)

    times = take_turns(
        {
            "load": lambda: load().count(),
            "scan": lambda: scan(spark, root).count(),
            "seqs": lambda: load("seq long").count(),
            "index": lambda: count(root),
        },
        rounds,
    )
    what = "counting all rows / rows without payloads"
    for name in ("load", "scan"):
        ratio = times.median(name) / times.median("seqs")
        detail = f"{times.describe(name, 'seqs')}; count() {times.describe('index')}"
        yield Result.at_most(QUESTION, f"{what}, {name}", ratio, 1.2, "x", detail)


def _asof(recording: Recording, rounds: int) -> Iterator[Result]:
    def by_job() -> None:
        drain(asof(recording.spark, str(recording.root), trades="Trade", quotes="BookTicker"))

    def by_window() -> None:
        left, right = recording.typed("Trade"), recording.typed("BookTicker")
        drain(_window(left.drop("type_id"), right.drop("type_id", "timestamp")))

    rounds = max(1, rounds // 2)
    times = take_turns({"job": by_job, "window": by_window}, rounds, warm_up=1)
    rows = f"{recording.files('Trade').count():,} x {recording.files('BookTicker').count():,}"
    yield times.at_least(4, f"as-of of {rows} : union and window", "job", "window")


def _window(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Return the rows of the job, unordered: a union, and a window over it."""
    keys = [sql.col(name) for name in ("source", "symbol", "timestamp_ns", "seq")]
    nothing = sql.lit(None)
    trade = sql.struct(*trades.columns).alias("trade")
    quote = sql.struct(*(name for name in quotes.columns if name != "symbol")).alias("quote")

    def side(frame: DataFrame, number: int, *columns: Column) -> DataFrame:
        return frame.select(*keys, sql.lit(number).alias("side"), *columns)

    both = side(trades, 1, trade, nothing.alias("quote")).union(
        side(quotes, 0, nothing.alias("trade"), quote)
    )
    before = Window.partitionBy("source", "symbol").orderBy("timestamp_ns", "seq", "side")
    until_now = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_force = sql.last("quote", ignorenulls=True).over(until_now).alias("quote")
    return both.select("trade", in_force).where("trade is not null")


def _audit(recording: Recording, rounds: int) -> Iterator[Result]:
    """One digest of all rows in order; Spark has no such digest, so it only has to sort the rows."""
    spark, root = recording.spark, str(recording.root)

    def by_spark() -> None:
        hashed = scan(spark, root).withColumn("payload", sql.sha2("payload", 256))
        drain(hashed.orderBy("timestamp_ns", "source", "seq"))

    rounds = max(1, rounds // 2)
    times = take_turns({"audit": lambda: audit(spark, root), "spark": by_spark}, rounds, warm_up=1)
    yield times.at_least(2, "audit : SHA-256 and sort by Spark", "audit", "spark")


def _archive(recording: Recording, rounds: int) -> Iterator[Result]:
    spark = recording.spark

    def archived(root: Path) -> None:
        archive(spark, str(root), str(recording.out), reader=None)

    def rewritten(frame: DataFrame, name: str) -> None:
        parts = frame.write.option("compression", COMPRESSION)
        parts.parquet(str(recording.out / name))

    def types_rewritten() -> None:
        for name in TYPES:
            rewritten(recording.typed(name), name)

    times = take_turns(
        {
            "typed": lambda: archived(recording.root),
            "typed by Spark": types_rewritten,
            "raw": lambda: archived(recording.raw),
            "raw by Spark": lambda: rewritten(scan(spark, str(recording.raw)), "raw"),
        },
        max(1, rounds // 2),
        warm_up=1,
        between=recording.clear,
    )
    recording.clear()
    yield times.at_least(2, "archive, typed : Spark's rewrite", "typed", "typed by Spark")
    yield times.at_least(2, "archive, raw : Spark's rewrite", "raw", "raw by Spark")
