"""The relevant line is extracted from a Spark error."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from aiochronicle.spark import explain
from spark.filling import fill


def test_of_a_failed_task_the_reason_is_told() -> None:
    def failed_by(raised: str) -> RuntimeError:
        traceback = f'Traceback (most recent call last):\n  File "x", line 1\n    f()\n{raised}\n'
        return RuntimeError(f"Job aborted: PythonException: {traceback}\n\tat org.apache")

    full = failed_by("aiochronicle.errors.DiskFull: /x: full. Free some.")
    assert explain(full) == "/x: full. Free some."
    others = failed_by("aiochronicle.errors.SchemaMismatch: not the same:\n  a: int\n  b: str")
    assert explain(others) == "not the same: a: int b: str"
    arrow = failed_by("pyarrow.lib.ArrowInvalid: Could not convert 'a'\nwith type str")
    assert explain(arrow) == "pyarrow.lib.ArrowInvalid: Could not convert 'a' with type str"
    assert explain(RuntimeError("first\nValueError: wrong\nlast")) == "ValueError: wrong"
    assert explain(RuntimeError("just this\nand that")) == "just this"
    assert explain(RuntimeError()) == "RuntimeError()"


def test_of_a_frame_that_cannot_be_loaded_the_reason_is_told(
    spark: SparkSession, root: Path
) -> None:
    with pytest.raises(PySparkException) as told:
        spark.read.format("chronicle").load(str(root))
    assert explain(told.value) == f"{root}: there is no queue in or below it"
    fill(root / "a", 1)
    with pytest.raises(PySparkException) as told:
        spark.read.format("chronicle").load(str(root)).select("price")
    assert "`price` cannot be resolved" in explain(told.value)
    assert "SQLSTATE" not in explain(told.value)


def test_of_a_stream_that_ended_the_reason_is_told(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    fill(root / "a", 5, ready=True)
    stream = spark.readStream.format("chronicle").option("startingOffsets", "earliest")

    def why_it_ended(frame: DataFrame, checkpoint: str, **options: str) -> str:
        writing = frame.writeStream.trigger(availableNow=True).format("chronicle")
        writing = writing.option("checkpointLocation", str(tmp_path / checkpoint))
        with pytest.raises(PySparkException) as told:
            writing.options(**options).start(str(tmp_path / "copy")).awaitTermination()
        return explain(told.value)

    def why_a_batch_failed(checkpoint: str, **options: str) -> str:
        def write_batch(frame: DataFrame, _: int) -> None:
            frame.write.format("chronicle").mode("append").options(**options).save(str(tmp_path))

        writing = stream.load(str(root)).writeStream.foreachBatch(write_batch)
        writing = writing.option("checkpointLocation", str(tmp_path / checkpoint))
        with pytest.raises(PySparkException) as told:
            writing.trigger(availableNow=True).start().awaitTermination()
        return explain(told.value)

    told = why_it_ended(stream.load(str(root)), "batched", batchId="3")
    assert told == "a stream counts its batches itself: leave out option batchId"
    without = stream.load(str(root)).selectExpr(
        "source", "timestamp_ns", "cast(null as binary) payload"
    )
    told = why_it_ended(without, "without")
    assert told.startswith("a row has no payload: timestamp_ns "), "in a task"
    told = why_a_batch_failed("batches", late="never")
    assert told == "late must be one of fail, hold, not 'never'"
    told = why_a_batch_failed("unnamed", writerId="copy")
    assert told == "a batch is known by writerId and batchId: give both or neither"


def test_a_package_that_was_not_sent_along_is_explained(spark: SparkSession) -> None:
    def read(_: Iterator[Any]) -> Iterator[Any]:
        importlib.import_module("aiochronicle.of_another_version")
        yield from ()

    with pytest.raises(PySparkException) as raised:
        spark.range(1).mapInArrow(read, "id long").collect()
    told = explain(raised.value)
    assert told.startswith("the executors do not have aiochronicle, or another version: install it")
    assert "--archives lib.tar.gz#lib" in told
