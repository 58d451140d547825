"""The comparisons for the question `spark`: everything that imports Spark."""

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import aiochronicle
from aiochronicle.spark import scan, scan_stream
from aiochronicle.spark.archive.writing import COMPRESSION
from aiochronicle.spark.jobs import archive, asof, bars
from aiochronicle.spark.jobs.inputs import find_input
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink.batch_writer import BatchSink
from aiochronicle.spark.source.rows import read_range
from benchmarks.measure import Best, Result, compare
from benchmarks.spark import FIRST_NS, QUESTION, STEP_NS, Sizes, Trade, take_turns
from benchmarks.spark_memory import WatchedWorkers

__all__ = ["Rows", "jobs", "large", "reading", "streaming", "typed", "writing"]

RAW = "source string, seq long, timestamp_ns long, timestamp timestamp, type_id int, payload binary"
COLUMNS = ("seq", "timestamp_ns", "timestamp", "type_id", "payload")
MIB = 1 << 20
ASOF_LEAST = 20.0
LIMITED = "limited"
MEMORY_MAX_MIB = 64  # the size of one batch with large payloads


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("chronicle").options(**options).load(str(path))


def drain(frame: DataFrame) -> None:
    """Produce every row, and discard it inside the JVM."""
    frame.write.format("noop").mode("overwrite").save()


def drain_within(spark: SparkSession, frame: DataFrame, limit_s: float) -> bool:
    """Drain the frame, but give up after this time; return whether it came to its end."""
    given_up = Event()

    def give_up() -> None:
        given_up.set()
        spark.sparkContext.cancelJobGroup(LIMITED)

    timer = Timer(limit_s, give_up)
    spark.sparkContext.setJobGroup(LIMITED, "stopped when its time is over", interruptOnCancel=True)
    timer.start()
    try:
        drain(frame)
    except Exception:
        if not given_up.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    return not given_up.is_set()


class TupleReader(DataSourceReader):
    """Reads the same ranges row by row."""

    def __init__(self, path: str) -> None:
        self._found = find_input(path)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self._found.parts()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        part = partition.value
        for batch in read_range(part, COLUMNS, self._found.options):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield (part.source.name, *row)


class RowSink(DataSourceWriter):
    """The sink with Spark's interface of rows; everything else is the same.

    The same number of tasks stage the same files, and the same code publishes them with the same promises.
    """

    BATCH_ROWS = 8192

    def __init__(self, path: str, schema: StructType) -> None:
        self._sink = BatchSink(write_options({"path": path}), schema)
        self._fields = [
            (number, field)
            for number, field in enumerate(to_arrow_schema(schema, timezone="UTC"))
            if field.name != "timestamp"  # timestamp_ns is there
        ]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._sink.write(self._batches(iterator))

    def _batches(self, rows: Iterator[Any]) -> Iterator[Any]:
        schema = pa.schema([field for _, field in self._fields])
        while some := list(islice(rows, self.BATCH_ROWS)):
            columns = list(zip(*some, strict=True))
            arrays = [pa.array(columns[number], field.type) for number, field in self._fields]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def commit(self, messages: Any) -> None:
        self._sink.commit(messages)

    def abort(self, messages: Any) -> None:
        self._sink.abort(messages)


class Rows(DataSource):
    """The format `rows`: Python objects in both directions."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return RAW

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return RowSink(self.options["path"], schema)


def reading(spark: SparkSession, directory: Path, sizes: Sizes) -> list[Result]:
    raw, few = directory / "raw", directory / "few"
    parquet = str(directory / "raw.parquet")
    load(spark, raw).write.parquet(parquet)
    rows = sizes.rows

    def source() -> int:
        drain(load(spark, raw))
        return rows

    def scanned() -> int:
        drain(scan(spark, str(raw)))
        return rows

    def files() -> int:
        drain(spark.read.parquet(parquet))
        return rows

    def one() -> int:
        spark.read.format("chronicle").schema("seq long").load(str(raw)).agg(
            sql.sum("seq")
        ).collect()
        return rows

    def one_of_files() -> int:
        spark.read.parquet(parquet).agg(sql.sum("seq")).collect()
        return rows

    # The JVM continues to compile until about the fifth round.
    best = take_turns(
        {"source": source, "scan": scanned, "files": files, "one": one, "one file": one_of_files},
        2 * sizes.rounds,
    )

    def tuples() -> int:
        drain(spark.read.format("rows").load(str(few)))
        return sizes.slow_rows

    def few_batches() -> int:
        drain(load(spark, few))
        return sizes.slow_rows

    slow = take_turns({"tuples": tuples, "batches": few_batches}, sizes.rounds)
    say = {"question": QUESTION}
    return [
        best.at_least(0.55, "all columns : Parquet", pair=("source", "files"), **say),
        best.at_least(0.7, "all columns, by scan : Parquet", pair=("scan", "files"), **say),
        slow.at_least(8, "all columns : yielding tuples", pair=("batches", "tuples"), **say),
        best.at_least(2, "one column : all columns", pair=("one", "source"), **say),
        best.at_least(0.3, "one column : Parquet", pair=("one", "one file"), **say),
    ]


def large(spark: SparkSession, directory: Path, sizes: Sizes) -> list[Result]:
    """What matters most for large queues: the middle 5 % of the time, and memory."""
    path, parquet = directory / "large", str(directory / "large.parquet")
    load(spark, path).write.parquet(parquet)
    first_ns = FIRST_NS + sizes.large_rows // 2 * STEP_NS
    rows = sizes.large_rows // 20
    end_ns = first_ns + rows * STEP_NS
    within = f"timestamp_ns >= {first_ns} and timestamp_ns < {end_ns}"

    def pushed() -> int:
        drain(load(spark, path, filter=within))
        return rows

    def unpushed() -> int:
        drain(load(spark, path).where(within))
        return rows

    def files() -> int:
        drain(spark.read.parquet(parquet).where(within))
        return rows

    # Short contestants are warm, in the JVM and in its workers, only after several rounds.
    short = take_turns({"pushed": pushed, "files": files}, 3 * sizes.rounds)
    best = Best({**short.ns, **take_turns({"unpushed": unpushed}, min(sizes.rounds, 2)).ns})
    what, say = "5 % of the time, pushed down", {"question": QUESTION}
    return [
        best.at_least(6, f"{what} : without", pair=("pushed", "unpushed"), **say),
        best.at_least(1 / 1.3, f"{what} : Parquet", pair=("pushed", "files"), **say),
        *_memory(spark, path, directory / "few"),
    ]


def _memory(spark: SparkSession, path: Path, small: Path) -> list[Result]:
    """Compare the memory of a task for a large queue and for a small one."""
    grown: list[float] = []
    for queue in (small, path):
        with WatchedWorkers() as workers:
            drain(load(spark, queue))
        grown.append(workers.growth_bytes / MIB)
    of_small, of_large = grown
    size_gib = sum(file.stat().st_size for file in path.glob("*.q")) / (1024 * MIB)
    what, detail = f"memory of a task over {size_gib:.1f} GiB", f"{of_large:.1f} MiB"
    return [
        Result.at_most(
            QUESTION, what, of_large, MEMORY_MAX_MIB, "MiB", "beyond what it starts with"
        ),
        Result.at_most(
            QUESTION,
            f"{what} / small queue",
            of_large / max(of_small, 1),
            1.5,
            "x",
            f"{detail} / {of_small:.1f} MiB",
        ),
    ]


def jobs(spark: SparkSession, directory: Path, sizes: Sizes) -> Iterator[Result]:
    fixed, market = str(directory / "fixed"), str(directory / "market")

    def partials() -> int:
        return len(bars(spark, fixed, every="1m").collect()) and sizes.rows

    def by_sql() -> int:
        trades = scan(spark, fixed, type="trade", mode="FAILFAST")
        bar = sql.floor(sql.col("timestamp_ns") / (60 * 10**9))
        grouped = trades.groupBy("source", "symbol", bar.alias("bar")).agg(
            sql.min_by("price", "seq"),
            sql.max("price"),
            sql.min("price"),
            sql.max_by("price", "seq"),
            sql.sum("size"),
            sql.sum(sql.col("price") * sql.col("size")),
            sql.count("*"),
        )
        return len(grouped.collect()) and sizes.rows

    best = take_turns({"partials": partials, "sql": by_sql}, 2 * sizes.rounds)
    yield best.at_least(
        2.5, "bars : typed columns and SQL", question=QUESTION, pair=("partials", "sql")
    )

    def window() -> int:
        drain(asof(spark, market))
        return sizes.trades

    spark.conf.set("spark.sql.join.asofJoin.enabled", "true")
    for name in ("trade", "quote"):
        typed_rows = scan(spark, market, type=name, mode="FAILFAST").drop("payload")
        typed_rows.createOrReplaceTempView(f"{name}s")

    def native() -> int:
        joined = spark.sql(
            "select t.*, q.bid, q.ask from trades t asof join quotes q"
            " match_condition (t.timestamp_ns >= q.timestamp_ns) on t.symbol = q.symbol"
        )
        has_ended.append(drain_within(spark, joined, limit_s))
        return sizes.trades

    joins = take_turns({"window": window}, sizes.rounds)
    # The native join takes minutes, so it is warm within one round; once it has taken too long, its end does
    # not matter.
    limit_s = 1.25 * ASOF_LEAST * joins.ns["window"] * sizes.trades / 1e9
    has_ended: list[bool] = []
    once = take_turns({"native": native}, 1)
    what = f"as-of of {sizes.trades:,} x {sizes.quotes:,} : native join"
    if not all(has_ended):
        what += ", given up"
    yield Best({**joins.ns, **once.ns}).at_least(
        ASOF_LEAST, what, question=QUESTION, pair=("window", "native")
    )


def typed(spark: SparkSession, directory: Path, sizes: Sizes) -> list[Result]:
    fixed, packed = str(directory / "fixed"), str(directory / "packed")
    same_rows = str(directory / "packed-fixed")
    fields = ["source", "seq", "timestamp_ns", "timestamp", "symbol", "price", "size"]

    def columns() -> int:
        drain(scan(spark, fixed, columns=fields, type="trade", mode="FAILFAST"))
        return sizes.rows

    def raw() -> int:
        drain(scan(spark, fixed))
        return sizes.rows

    def unpacked() -> int:
        drain(scan(spark, packed, columns=fields, type="trade", mode="FAILFAST"))
        return sizes.slow_rows

    def packed_raw() -> int:
        drain(scan(spark, same_rows))
        return sizes.slow_rows

    best = take_turns(
        {"columns": columns, "raw": raw, "unpacked": unpacked, "packed raw": packed_raw},
        sizes.rounds,
    )
    decode_ns = _decoding_ns(Path(packed)) / len(os.sched_getaffinity(0))
    allowed_ns = best.ns["packed raw"] + decode_ns
    return [
        best.at_most(1.5, "fixed layout / raw scan", question=QUESTION, pair=("columns", "raw")),
        Result.at_most(
            QUESTION,
            "msgpack / raw scan and msgspec alone",
            best.ns["unpacked"] / allowed_ns,
            1.0,
            "x",
            f"{best.ns['unpacked']:.1f} ns / {best.ns['packed raw']:.1f} + {decode_ns:.1f} ns",
        ),
    ]


def _decoding_ns(path: Path) -> float:
    """Return the time of msgspec to decode a payload, plus the access to its fields, in one thread.

    Tasks do this on all processors at once. So the allowed time per row of a frame is the time per row of
    the raw scan plus this time divided by the number of processors.
    """
    registry = aiochronicle.Registry.load(path)
    decode = registry.named(Trade.__name__).codec.decoder
    with aiochronicle.Queue(path) as queue:
        payloads = [message.payload for message in queue.slice(0, 20_000)]

    def decoding() -> int:
        for payload in payloads:
            trade = decode(payload)
            _ = trade.symbol, trade.price, trade.size
        return len(payloads)

    return compare({"msgspec": decoding}, 10).ns["msgspec"]


def writing(spark: SparkSession, directory: Path, sizes: Sizes) -> list[Result]:
    raw, few = directory / "raw", directory / "few"
    out = directory / "out"

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)

    def archived() -> int:
        archive(spark, str(raw), str(out), reader=None)
        return sizes.rows

    def by_spark() -> int:
        load(spark, raw).write.option("compression", COMPRESSION).parquet(str(out))
        return sizes.rows

    best = take_turns({"archive": archived, "spark": by_spark}, sizes.rounds, between=clear)

    # On a frame in memory, and with the reading of a queue, which adds some 150 ns per row on both sides and
    # is what users who copy queues see. The JVM continues to compile until about the fifth round, and in
    # every other round the host may have reclaimed the memory of the last output.
    in_memory = load(spark, few).cache()
    in_memory.count()

    def written(frame: DataFrame, source: str) -> int:
        frame.write.format(source).mode("append").save(str(out))
        return sizes.slow_rows

    sinks = take_turns(
        {
            "sink": lambda: written(load(spark, few), "chronicle"),
            "rows": lambda: written(load(spark, few), "rows"),
            "sink, in memory": lambda: written(in_memory, "chronicle"),
            "rows, in memory": lambda: written(in_memory, "rows"),
        },
        3 * sizes.rounds,
        between=clear,
    )
    in_memory.unpersist()
    clear()
    what, say = "sink : row by row", {"question": QUESTION}
    return [
        best.at_least(
            3, "archive : Spark's Parquet writer", question=QUESTION, pair=("archive", "spark")
        ),
        sinks.at_least(
            8, f"{what}, from memory", pair=("sink, in memory", "rows, in memory"), **say
        ),
        sinks.at_least(8, f"{what}, from a queue", pair=("sink", "rows"), **say),
    ]


def streaming(spark: SparkSession, directory: Path, sizes: Sizes) -> list[Result]:
    raw, checkpoint = directory / "raw", directory / "checkpoint"

    def forget() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    def drained(frame: DataFrame) -> int:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sizes.rows

    def stream() -> int:
        reading = spark.readStream.format("chronicle").option("startingOffsets", "earliest")
        return drained(reading.load(str(raw)))

    def scanned() -> int:
        return drained(scan_stream(spark, str(raw), startingOffsets="earliest"))

    def batch() -> int:
        drain(scan(spark, str(raw)))
        return sizes.rows

    best = take_turns(
        {"stream": stream, "scanned": scanned, "batch": batch}, 2 * sizes.rounds, between=forget
    )
    return [
        best.at_least(0.5, "stream : scan", question=QUESTION, pair=("stream", "batch")),
        best.at_least(0.5, "stream, by scan : scan", question=QUESTION, pair=("scanned", "batch")),
    ]
