"""Progress reports: the rows of each queue in a batch, and the lag."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.waiting import eventually
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from aiochronicle.spark import ProgressListener, StreamProgress, scan_stream, stream_progress
from spark.filling import fill


def test_a_listener_is_told_of_each_batch(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 300)
    fill(root / "b", 100)
    told: list[StreamProgress] = []
    listener = ProgressListener(told.append)
    spark.streams.addListener(listener)
    try:
        query = (
            scan_stream(
                spark, root, columns=["seq"], startingOffsets="earliest", maxOffsetsPerTrigger=150
            )
            .writeStream.format("memory")
            .queryName("told")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        eventually(lambda: told[-1:] != [] and told[-1].behind == 0)
    finally:
        spark.streams.removeListener(listener)
    assert [each.batch for each in told] == list(range(len(told)))
    assert told[0].messages is None
    assert told[0].behind in range(250, 400)
    for before, each in pairwise(told):
        assert each.messages in range(1, 151)
        assert (each.query, before.behind) == ("told", (each.messages or 0) + (each.behind or 0))
        assert each.behind_max == max(queue.behind or 0 for queue in each.queues)
    assert [(q.name, q.end, q.latest) for q in told[-1].queues] == [
        ("a", 300, 300),
        ("b", 100, 100),
    ]
    assert query.lastProgress is not None
    assert stream_progress(query.lastProgress) == told[-1]
    assert sum(one["numInputRows"] for one in query.recentProgress) < 400, "which counts ranges"


def progress(*sources: tuple[Any, Any, Any]) -> StreamingQueryProgress:
    described = [
        {
            "description": "of tests",
            **dict(zip(("startOffset", "endOffset", "latestOffset"), offsets, strict=True)),
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
        }
        for offsets in sources
    ]
    text = json.dumps({"id": "0" * 32, "runId": "0" * 32, "batchId": 3, "sources": described})
    whole: dict[str, Any] = {
        "name": None,
        "timestamp": "2026-11-16T08:00:00.000Z",
        "batchDuration": 7,
        "durationMs": {},
        "stateOperators": [],
        "sink": {"description": "", "numOutputRows": -1},
    }
    return StreamingQueryProgress.fromJson({**whole, **json.loads(text)})


def test_what_offsets_do_not_tell_is_left_open() -> None:
    cycle = 1 << 32
    found = stream_progress(
        progress(
            (
                {"new": 5, "java": cycle + 2, "gone": 9},
                {"java": 2 * cycle + 1, "new": 7, "q": 3},
                None,
            ),
            (None, {"first": 4}, {"first": 10}),
            (3, 4, 5),
            ({"topic": {"0": 1}}, {"topic": {"0": 2}}, {"topic": {"0": 2}}),
        )
    )
    seen = [(q.name, q.messages, q.behind) for q in found.queues]
    assert seen == [("java", None, None), ("new", 2, None), ("q", 0, None), ("first", None, 6)]
    assert (found.messages, found.behind, found.behind_max) == (None, None, 6)
    assert (found.batch, found.duration_ms) == (3, 7)
