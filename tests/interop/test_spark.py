"""The Spark source on queues that a JVM is writing; the tasks' work runs here, without a session."""

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from aiochronicle._core.slices import Queue
from aiochronicle.cq4.columns import WireColumns
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source.plan import plan
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.scan import count
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.stream import RangeStreamReader

from .judge import Judge, JudgeQueue, Message

NOON_MS = 1_700_000_000_000


def listed(messages: list[Message]) -> list[tuple[int, bytes]]:
    return [(message.index, message.payload) for message in messages]


def rows_of(part: Any, options: Any) -> list[tuple[int, bytes]]:
    return [
        (row["seq"], row["payload"])
        for batch in read_range(part, ["seq", "payload"], options)
        for row in batch.to_pylist()
    ]


def test_frame_and_count_of_a_live_queue(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "q"
    with judge.open(path, roll_cycle="TEST4_SECONDLY", time_ms=NOON_MS) as queue:
        for second in (0, 1, 2, 7, 8):
            queue.set_time(NOON_MS + second * 1000)
            queue.append_bytes(*(f"{second}:{number}".encode() for number in range(150)))
        queue.append_metadata(b"not a message")
        for partitions in (1, 4, 33):
            options = read_options({"path": str(path), "minPartitions": partitions})
            found = Snapshot(options)
            parts = plan(
                found.sources,
                found.start,
                found.end,
                spans=found.spans,
                partitions_min=options.partitions_min,
            )
            assert len(parts) >= partitions
            rows = [row for part in parts for row in rows_of(part, options)]
            assert rows == listed(queue.read_all())
        assert count(str(path)) == queue.info().entry_count == 750


def test_stream_follows_a_jvm_over_rolls(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "q"
    with judge.open(path, roll_cycle="TEST_SECONDLY") as queue:
        queue.start_append(prefix="j", rate_hz=2000)
        options = read_options({"path": str(path), "startingOffsets": "earliest"})
        rows: list[tuple[int, bytes]] = []
        stream = RangeStreamReader(options)
        at = stream.initialOffset()
        until = time.monotonic() + 60.0
        while len(list(path.glob("*.cq4"))) < 4 and time.monotonic() < until:
            at = advance(stream, at, ReadMaxRows(777), rows)
        written = queue.stop_append()
        assert written.thrown is None
        for _ in range(2):
            at = advance(stream, at, ReadAllAvailable(), rows)
        stream.stop()
        assert rows == listed(queue.read_all())
        assert len(rows) == written.written
        assert len(queue.info().files) >= 3


def advance(
    stream: RangeStreamReader, at: dict[str, int], limit: Any, rows: list[tuple[int, bytes]]
) -> dict[str, int]:
    end = stream.latestOffset(at, limit)
    for partition in stream.partitions(at, end):
        rows += rows_of(partition.value, stream._options)
    return end


def fields_of(queue: JudgeQueue, path: Path, wanted: dict[str, Any]) -> tuple[Any, Any]:
    with Queue(path) as whole:
        table = whole.slice().to_arrow(["seq", "payload"])
    assert len(table) == len(queue.read_all())
    return WireColumns(wanted).decode(table["payload"].combine_chunks())


def test_fields_that_java_wrote(judge: Judge, tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "q"
    with judge.open(path) as queue:
        queue.append_fields(
            [("px", ["f64", 1.5]), ("size", ["i64", 2**40]), ("side", ["text", "BUY"])]
        )
        queue.append_fields([("px", ["f64", 1.0]), ("size", ["i64", 2**63 - 1])])
        wanted = {"px": pa.float64(), "size": pa.int64(), "side": pa.utf8()}
        columns, troubles = fields_of(queue, path, wanted)
    assert troubles is None
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "px": [1.5, 1.0],
        "size": [2**40, 2**63 - 1],
        "side": ["BUY", None],
    }
