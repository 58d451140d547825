"""Stage and write rows as the tasks and the driver of a sink do."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import aiochronicle
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink.append import append_rows
from aiochronicle.spark.sink.batch_writer import BatchSink
from aiochronicle.spark.sink.publish import publish
from aiochronicle.spark.sink.runs import Run, stage
from aiochronicle.spark.sink.staging import Place
from spark.filling import FIRST_NS, STEP_NS

PAYLOAD = StructField("payload", BinaryType())
SOURCE = StructField("source", StringType())
TIME = StructField("timestamp_ns", LongType())
SCHEMA = StructType([SOURCE, TIME, PAYLOAD])


def rows(source: str, numbers: list[int], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "source": pa.array([source] * len(numbers), pa.utf8()),
            "seq": pa.array(numbers, pa.int64()),
            "timestamp_ns": pa.array([FIRST_NS + n * STEP_NS for n in numbers], pa.int64()),
            "payload": pa.array([f"{source} {n}".encode() for n in numbers], pa.binary()),
            **columns,
        }
    )


def staged(
    root: Path, *tasks: list[pa.RecordBatch], queue: str | None = None, writer: str = "test"
) -> list[Run]:
    attempt = Place(root=str(root), writer_id=writer).new_attempt()
    return [run for task in tasks for run in stage(task, attempt, queue)]


def write(
    root: Path, runs: list[Run], batch_id: int = 0, *, writer: str = "test", **options: str
) -> None:
    place = Place(root=str(root), writer_id=writer)
    publish(write_options({"path": str(root), **options}), place, batch_id, runs)


def content(path: Path) -> list[tuple[int, int, bytes]]:
    with aiochronicle.open_reader(path) as reader:
        return [(m.timestamp_ns, m.type_id, m.payload) for m in reader]


def payloads(path: Path) -> list[bytes]:
    return [payload for _, _, payload in content(path)]


def sink(root: Path, **options: str) -> BatchSink:
    return BatchSink(write_options({"path": str(root), **options}), SCHEMA)


def leftovers(root: Path) -> list[str]:
    """Return what is left in the sinks' directories, except the journals of named writers."""
    found = [path for name in (".sink", ".staging") for path in (root / name).rglob("*")]
    return sorted(path.name for path in found if path.suffix not in (".json", ".lock"))


def die_half_way(
    root: Path, runs: list[Run], writer: str, monkeypatch: pytest.MonkeyPatch, late: str = "fail"
) -> None:
    """Append a part of a batch, then fail as if the process had died."""
    appended: list[int] = []

    def append_once(to: aiochronicle.Writer, batch: pa.RecordBatch) -> None:
        if appended:
            raise KeyboardInterrupt
        appended.append(batch.num_rows)
        append_rows(to, batch)

    with monkeypatch.context() as patch:
        patch.setattr("aiochronicle.spark.sink.publish.append_rows", append_once)
        with pytest.raises(KeyboardInterrupt):
            write(root, runs, writer=writer, late=late)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(appended[0])]
