"""Frames into queues: order, times, and exactly once whatever dies when."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructField, StructType

import aiochronicle
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    InvalidName,
    LockedError,
    MessageTooLarge,
    PositionLost,
    StorageError,
    TimestampOrder,
    UnsupportedVersion,
)
from aiochronicle.spark import journal
from aiochronicle.spark.append import append_rows
from aiochronicle.spark.merge import merge
from aiochronicle.spark.options import write_options
from aiochronicle.spark.publish import abandon, publish
from aiochronicle.spark.runs import BATCH_BYTES, CAUSE, Run, check_columns, stage
from aiochronicle.spark.sink import BatchSink, StreamSink
from aiochronicle.spark.staging import Place

from .filling import FIRST_NS, STEP_NS, fill


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
    directory = Place(root=str(root), writer_id=writer).new_directory()
    return [run for task in tasks for run in stage(task, directory, queue)]


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


def test_rows_of_many_tasks_come_in_order_of_time(root: Path, rng: random.Random) -> None:
    numbers = list(range(30_000))
    rng.shuffle(numbers)
    tasks = [[rows("a", numbers[i::3][:5000]), rows("a", numbers[i::3][5000:])] for i in range(3)]
    write(root, staged(root, *tasks))
    assert content(root / "a") == [
        (FIRST_NS + n * STEP_NS, 0, f"a {n}".encode()) for n in range(30_000)
    ]
    assert (root / "a" / "READY").exists()
    assert not list((root / ".staging").iterdir())


def test_many_small_batches_are_staged_as_few(root: Path) -> None:
    small = [rows("a", list(range(first, first + 100))) for first in range(0, 10_000, 100)]
    (run,) = staged(root, small)
    assert [len(share.batches) for share in run.shares] == [2]
    write(root, [run])
    assert [payload for _, _, payload in content(root / "a")] == [
        f"a {number}".encode() for number in range(10_000)
    ]


def test_large_payloads_are_merged_a_few_at_a_time(root: Path) -> None:
    def many(first: int) -> pa.RecordBatch:
        payload = pa.array([bytes(10_000)] * 6000, pa.binary())
        return rows("a", list(range(first, 48_000, 8)), payload=payload)

    runs = staged(root, *([many(first)] for first in range(8)))
    held_bytes = pa.total_allocated_bytes()
    most_bytes = count = 0
    for batch in merge(runs, "a"):
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - held_bytes)
        count += batch.num_rows
    assert count == 48_000
    assert most_bytes < 8 * 4 * BATCH_BYTES
    huge = rows("b", [0, 1], payload=pa.array([bytes(3 << 20)] * 2, pa.binary()))
    write(root, staged(root, [huge]))
    assert payloads(root / "b") == [bytes(3 << 20)] * 2


def test_rows_of_equal_times_come_in_order_of_source_and_seq(root: Path) -> None:
    same = {"timestamp_ns": pa.array([FIRST_NS] * 10_000, pa.int64())}
    tasks = [
        [rows("b", list(range(1, 20_000, 2)), **same)],
        [rows("a", list(range(0, 20_000, 2)), **same)],
    ]
    tasks += [[rows("b", list(range(0, 20_000, 2)), **same)]]
    runs = staged(root, *tasks, queue="all")
    merged = [
        payload for batch in merge(runs, "all") for payload in batch.column("payload").to_pylist()
    ]
    expected = [f"a {n}".encode() for n in range(0, 20_000, 2)]
    assert merged == expected + [f"b {n}".encode() for n in range(20_000)]


def test_each_source_has_its_queue_or_all_have_one(root: Path) -> None:
    batches = [rows("md/x", [0, 2]), rows("y", [1])]
    write(root, staged(root, batches))
    assert payloads(root / "md" / "x") == [b"md/x 0", b"md/x 2"]
    assert payloads(root / "y") == [b"y 1"]
    write(root, staged(root, batches, queue="all"), batch_id=1)
    assert payloads(root / "all") == [b"md/x 0", b"y 1", b"md/x 2"]


def test_types_and_causes_are_kept(root: Path) -> None:
    cause = pa.array(
        [None, {"queue_id": -1, "seq": 7}, None],
        pa.struct([("queue_id", pa.int64()), ("seq", pa.int64())]),
    )
    types = pa.array([3, 3, 4], pa.int32())
    write(root, staged(root, [rows("a", [0, 1, 2], type_id=types, cause=cause)]))
    with aiochronicle.open_reader(root / "a") as reader:
        messages = list(reader)
        assert [message.type_id for message in messages] == [3, 3, 4]
        assert [message.cause for message in messages] == [None, (2**64 - 1, 7), None]


def test_runs_with_and_without_causes_are_merged(root: Path) -> None:
    cause = pa.array([None, {"queue_id": 5, "seq": 7}, None], CAUSE)
    plain, caused = rows("a", [0, 2, 4]), rows("a", [1, 3, 5], cause=cause)
    runs = staged(root, [plain], [caused])
    assert [run.caused for run in runs] == [False, True]
    write(root, runs)
    with aiochronicle.open_reader(root / "a") as reader:
        found = [(message.payload, message.cause) for message in reader]
    assert found == [(f"a {n}".encode(), (5, 7) if n == 3 else None) for n in range(6)]


def test_rows_of_any_kind_come_back(root: Path, rng: random.Random) -> None:
    """Empty payloads, long ones, stretches of a type and single rows, causes now and then."""
    count = 20_000
    types = [rng.choice([0, 0, 65534]) if n % 3000 < 50 else 7 for n in range(count)]
    sent = [rng.randbytes(rng.choice([0, 1, 63, 100, rng.randrange(20_000)])) for _ in types]
    causes = [{"queue_id": n, "seq": n} if rng.random() < 0.001 else None for n in range(count)]
    frame = rows(
        "a",
        list(range(count)),
        payload=pa.array(sent, pa.binary()),
        type_id=pa.array(types, pa.int32()),
        cause=pa.array(causes, pa.struct([("queue_id", pa.int64()), ("seq", pa.int64())])),
    )
    write(root, staged(root, [frame.slice(0, 7000), frame.slice(7000)]))
    with aiochronicle.open_reader(root / "a") as reader:
        for n, message in enumerate(reader):
            cause = None if causes[n] is None else (n, n)
            assert (message.type_id, message.payload) == (types[n], sent[n])
            assert (message.timestamp_ns, message.cause) == (FIRST_NS + n * STEP_NS, cause)
        assert reader.statistics().messages == count


def test_a_batch_is_written_once(root: Path) -> None:
    write(root, staged(root, [rows("a", [0, 1])]), batch_id=0)
    write(root, staged(root, [rows("a", [0, 1])]), batch_id=0)
    write(root, [], batch_id=1)
    write(root, staged(root, [rows("a", [5])]), batch_id=1)
    write(root, staged(root, [rows("a", [2])]), batch_id=2)
    assert payloads(root / "a") == [b"a 0", b"a 1", b"a 2"]


def test_batches_may_be_written_in_any_order(root: Path) -> None:
    """As by a nightly job that fills in a day that it missed."""
    for day in (20261116, 20261115, 20261116, 20261114, 20261115):
        task = (begun := sink(root, writerId="nightly", batchId=str(day))).write(
            iter([rows(f"day{day}", [0])])
        )
        begun.commit([task])
    for day in (20261114, 20261115, 20261116):
        assert payloads(root / f"day{day}") == [f"day{day} 0".encode()]
    text = (root / ".sink" / "nightly.json").read_text()
    assert msgspec.json.decode(text)["written"]["ranges"] == [[20261114, 20261116]]


def test_a_writer_is_of_one_stream_or_of_none(root: Path) -> None:
    place = Place(root=str(root), writer_id="test")
    options = write_options({"path": str(root)})
    publish(options, place, 0, staged(root, [rows("a", [0])]), query="first")
    publish(options, place, 0, staged(root, [rows("a", [0])]), query="first")
    for query, name in (("second", "the stream second"), (None, "no stream")):
        with pytest.raises(InvalidArgument, match=f"of the stream first, this one is of {name}"):
            publish(options, place, 0, staged(root, [rows("a", [1])]), query=query)
    publish(options, place, 1, staged(root, [rows("a", [1])]), query="first")
    assert payloads(root / "a") == [b"a 0", b"a 1"]


def test_a_batch_that_another_stream_has_begun_is_not_taken_for_the_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    place = Place(root=str(root), writer_id="test")
    with pytest.raises(InvalidArgument, match="of no stream, this one is of the stream second"):
        publish(write_options({"path": str(root)}), place, 0, [], query="second")


@pytest.mark.parametrize("way", ["stream", "foreachBatch"])
def test_a_stream_with_a_new_checkpoint_needs_a_new_id(
    spark: SparkSession, root: Path, tmp_path: Path, way: str
) -> None:
    fill(root / "a", 5, ready=True)

    def run(checkpoint: str) -> None:
        stream = spark.readStream.format("chronicle").option("startingOffsets", "earliest")
        writing = (
            stream.load(str(root)).writeStream.trigger(availableNow=True).format("chronicle")
        ).option("checkpointLocation", str(tmp_path / checkpoint))
        if way == "stream":
            query = writing.option("writerId", "copy").option("late", "hold").start(target)
        else:
            query = writing.foreachBatch(write_batch).start()
        query.awaitTermination()

    def write_batch(frame: DataFrame, batch_id: int) -> None:
        writing = frame.write.format("chronicle").mode("append").option("late", "hold")
        writing.options(writerId="copy", batchId=batch_id).save(target)

    target = str(tmp_path / "target")
    run("first")
    run("first")
    fill(root / "a", 5, first=5)
    with pytest.raises(PySparkException, match="give it another writerId"):
        run("second")
    run("first")
    assert payloads(tmp_path / "target" / "a") == [f"a {n}".encode() for n in range(10)]


def test_late_rows_fail_or_are_held(root: Path) -> None:
    write(root, staged(root, [rows("a", [5])]), batch_id=0)
    with pytest.raises(TimestampOrder, match="late=hold"):
        write(root, staged(root, [rows("a", [4, 6])]), batch_id=1)
    assert payloads(root / "a") == [b"a 5"]
    write(root, staged(root, [rows("a", [4, 6])]), batch_id=1, late="hold")
    times = [FIRST_NS + n * STEP_NS for n in (5, 5, 6)]
    assert content(root / "a") == [
        (t, 0, p) for t, p in zip(times, [b"a 5", b"a 4", b"a 6"], strict=True)
    ]


def test_what_cannot_be_written_is_told_before_anything_is(root: Path) -> None:
    large = [rows("a", [0], payload=pa.array([bytes(1 << 20)], pa.binary()))]
    with pytest.raises(MessageTooLarge, match="give option segmentSize"):
        write(root, staged(root, large), segmentSize=str(1 << 20))
    assert not (root / "a").exists()
    with aiochronicle.open_writer(root / "a"), pytest.raises(LockedError):
        write(root, staged(root, [rows("a", [0]), rows("b", [0])]))
    wrong = ["../a", "", ".hidden", "a//b", "a/b", "2026/11/16", "md/2026/11/16", "1/2/3/4/5"]
    for name in wrong:
        with pytest.raises(InvalidArgument, match="cannot be the name of a queue"):
            write(root, staged(root, [rows("c", [0]), rows(name, [0])]))
    with pytest.raises(InvalidArgument, match="inside another"):
        write(root, staged(root, [rows("b", [0]), rows("b/c/d", [0])]))
    with pytest.raises(InvalidArgument, match="leave out option queue"):
        sink(root / "a", queue="b")
    assert payloads(root / "a") == []
    assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == ["a"]
    for column, nothing in (("payload", pa.binary()), ("type_id", pa.int32())):
        with pytest.raises(InvalidArgument, match=f"a row has no {column}"):
            staged(root, [rows("a", [0], **{column: pa.nulls(1, nothing)})])
    with pytest.raises(InvalidArgument, match="before 1970"):
        staged(root, [rows("a", [0], timestamp_ns=pa.array([-1], pa.int64()))])
    with pytest.raises(InvalidArgument, match="the end of time"):
        staged(root, [rows("a", [0], timestamp_ns=pa.array([2**63 - 1], pa.int64()))])
    for type_id in (-1, 65535):
        with pytest.raises(InvalidArgument, match=f"type_id {type_id}: must be 0 to 65534"):
            staged(root, [rows("a", [0], type_id=pa.array([type_id], pa.int32()))])


def test_a_queue_is_not_made_around_others(root: Path) -> None:
    write(root, staged(root, [rows("a/b/c", [0])]))
    with pytest.raises(InvalidArgument, match="'a' cannot be the name of a queue: nobody looks"):
        write(root, staged(root, [rows("a", [0])]), 1)


def test_new_queues_have_segments_for_the_largest_payload(root: Path) -> None:
    large = rows("large", [0], payload=pa.array([bytes((128 << 20) + 1)], pa.binary()))
    write(root, staged(root, [large], [rows("small", [0])]))
    sizes = [aiochronicle.inspect(root / name).segment_size for name in ("large", "small")]
    assert sizes == [256 << 20, 128 << 20]
    fill(root / "there", 1)
    for run in staged(root, [rows("there", [9], payload=pa.array([bytes(1 << 20)]))]):
        with pytest.raises(MessageTooLarge, match="keeps the size it was made with"):
            write(root, [run], 1)


PAYLOAD = StructField("payload", BinaryType())
SOURCE = StructField("source", StringType())
TIME = StructField("timestamp_ns", LongType())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([SOURCE, TIME], "no column payload"),
        ([SOURCE, PAYLOAD], "no column timestamp_ns"),
        ([TIME, PAYLOAD], "into which queue"),
        ([SOURCE, TIME, PAYLOAD, StructField("price", LongType())], "'price' is no part of a"),
        (
            [SOURCE, PAYLOAD, StructField("timestamp_ns", DoubleType())],
            "timestamp_ns is of type double",
        ),
        ([SOURCE, TIME, PAYLOAD, StructField("seq", StringType())], "seq is of type string"),
    ],
)
def test_a_frame_must_look_like_messages(fields: list[StructField], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_columns(StructType(fields), None)


def test_a_stream_must_be_known_by_its_checkpoint(root: Path) -> None:
    schema = StructType([SOURCE, TIME, PAYLOAD])
    with pytest.raises(InvalidArgument, match="needs option checkpointLocation"):
        StreamSink(write_options({"path": str(root)}), schema)
    elsewhere = {"path": str(root), "checkpointLocation": "s3://bucket/checkpoint"}
    with pytest.raises(InvalidArgument, match="give the stream option writerId"):
        StreamSink(write_options(elsewhere), schema)
    StreamSink(write_options({**elsewhere, "writerId": "me"}), schema)


SCHEMA = StructType([SOURCE, TIME, PAYLOAD])


def sink(root: Path, **options: str) -> BatchSink:
    return BatchSink(write_options({"path": str(root), **options}), SCHEMA)


def leftovers(root: Path) -> list[str]:
    """What is left in the directories of sinks but journals of writers that have a name."""
    found = [path for name in (".sink", ".staging") for path in (root / name).rglob("*")]
    return sorted(path.name for path in found if path.suffix not in (".json", ".lock"))


def test_nobody_deletes_what_another_has_staged(root: Path) -> None:
    """Neither a writer whose name begins alike, nor another batch, nor whoever cleans up."""
    write(root, [], writer="stream")
    writing: list[tuple[BatchSink, Any]] = []
    names = [("nightly", "1"), ("nightly", "2"), ("nightly-eu", "1"), ("night", "1")]
    for number, (writer, batch) in enumerate(names):
        begun = sink(root, writerId=writer, batchId=batch)
        writing.append((begun, begun.write(iter([rows(f"q{number}", [0])]))))
    begun = sink(root)
    writing.append((begun, begun.write(iter([rows("q4", [0])]))))
    ready = staged(root, [rows("s", [0])], writer="stream")
    for begun, task in writing:
        begun.commit([task])
    write(root, ready, 1, writer="stream")
    for name in ("q0", "q1", "q2", "q3", "q4", "s"):
        assert payloads(root / name) == [f"{name} 0".encode()]
    assert leftovers(root) == []
    assert len(list((root / ".sink").glob("*.lock"))) == 4


def test_a_stream_that_may_not_write_deletes_only_its_own_rows(root: Path) -> None:
    """As one whose writerId is that of another stream, which is running."""
    options = write_options({"path": str(root), "writerId": "shared"})
    first, second = StreamSink(options, SCHEMA), StreamSink(options, SCHEMA)

    def stage_for(stream: StreamSink, query: str, number: int) -> Any:
        task = stream.write(iter([rows(query, [number])]))
        task.query = query
        return task

    first.commit([stage_for(first, "a", 0)], 0)
    ready, refused = stage_for(first, "a", 1), stage_for(second, "b", 0)
    with pytest.raises(InvalidArgument, match="give it another writerId"):
        second.commit([refused], 0)
    second.abort([refused], 0)
    first.commit([ready], 1)
    assert payloads(root / "a") == [b"a 0", b"a 1"]
    assert not (root / "b").exists()
    assert leftovers(root) == []


def test_what_was_staged_long_ago_is_deleted(root: Path) -> None:
    for writer in ("+a", "nightly", "test"):
        (run,) = staged(root, [rows("a", [0])], writer=writer)
        attempt = Path(run.path).parent
        for path in (attempt, attempt.parent):
            os.utime(path, (0, 0))
    staged(root, [rows("a", [0])], writer="new")
    write(root, [], writer="other")
    assert [path.name for path in (root / ".staging").iterdir()] == ["new@stream"]


def test_failed_writes_leave_nothing_behind(root: Path) -> None:
    with aiochronicle.open_writer(root / "a"):
        failing = sink(root)
        task = failing.write(iter([rows("a", [0])]))
        with pytest.raises(LockedError):
            failing.commit([task])
        failing.abort([task])
    assert not list((root / ".sink").iterdir())
    assert leftovers(root) == []


def empty(file: Path) -> None:
    os.truncate(file, 0)


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    """Change a bit of the rows, and nothing that tells where they are."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, empty, halve, flip])
def test_rows_that_are_gone_are_told_before_anything_is_written(
    root: Path, damage: Callable[[Path], None]
) -> None:
    runs = staged(root, [rows("a", [0])])
    damage(Path(runs[0].path))
    with pytest.raises(StorageError, match=r"staged in it\. Nothing was written: write it"):
        write(root, runs)
    assert not (root / "a").exists()


@pytest.mark.parametrize("damage", [Path.unlink, empty, halve, flip])
@pytest.mark.parametrize("writer", ["named", "+nameless"])
def test_a_batch_that_cannot_be_completed_is_told_and_does_not_stop_others(
    root: Path,
    writer: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer=writer)
    die_half_way(root, runs, writer, monkeypatch)
    damage(Path(runs[0].path))
    other = staged(root, [rows("b", [0])], writer="other")
    told = "rows of batch 0 of writer .* 'a' from seq 0 on"
    write(root, other, writer="other")
    assert payloads(root / "b") == [b"b 0"]
    assert "rows of batch 0 of writer" in caplog.text
    if writer == "+nameless":  # it does not come back: told once to whoever writes to its queue
        late = staged(root, [rows("a", [20_000])], writer="other")
        with pytest.raises(StorageError, match=f"(?s){told}.*Writing goes on"):
            write(root, late, 1, writer="other")
        write(root, late, 1, writer="other")
        assert payloads(root / "a")[-1] == b"a 20000"
    if writer == "named":
        there = payloads(root / "a")
        for _ in range(2):
            with pytest.raises(StorageError, match=f"(?s){told}.*then delete .*named.json"):
                write(root, staged(root, [rows("a", [0])], writer=writer), writer=writer)
        assert payloads(root / "a") == there


def test_a_batch_that_has_to_wait_does_not_stop_writes_to_other_queues(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    with aiochronicle.open_writer(root / "a"):
        write(root, staged(root, [rows("b", [0])], writer="other"), writer="other")
        with pytest.raises(LockedError):
            write(root, staged(root, [rows("a", [0])], writer="third"), writer="third")
    write(root, staged(root, [rows("b", [1])], writer="other"), 1, writer="other")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def test_staged_rows_are_found_from_another_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    relative = Path(root.name)
    die_half_way(relative, staged(relative, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    monkeypatch.chdir("/")
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def test_staged_rows_are_found_when_the_root_was_moved(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    moved = root.rename(root.parent / "moved")
    write(moved, [], 1)
    assert payloads(moved / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert leftovers(moved) == []


def test_a_batch_in_a_journal_with_absolute_paths_is_completed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of version 2 are."""
    runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch)
    file = root / ".sink" / "test.json"
    content = msgspec.json.decode(file.read_bytes())
    content["version"] = 2
    content["pending"]["runs"][0]["path"] = runs[0].path
    file.write_bytes(msgspec.json.encode(content))
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert msgspec.json.decode(file.read_bytes())["version"] == 4


def test_a_batch_whose_runs_have_no_differences_is_completed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of version 3, and of 2, which has no checksums either."""
    batches = [rows("a", list(range(first, 20_000, 2))) for first in (0, 1)]
    with monkeypatch.context() as patch:
        patch.setattr("aiochronicle.spark.runs.DELTAS", ())
        runs = [run for batch in batches for run in staged(root, [batch])]
    die_half_way(root, runs, "test", monkeypatch)
    file = root / ".sink" / "test.json"
    content = msgspec.json.decode(file.read_bytes())
    content["version"] = 3
    for run in content["pending"]["runs"]:
        assert run.pop("deltas") == []
    file.write_bytes(msgspec.json.encode(content))
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


@pytest.mark.parametrize("segments", [1, 3])
def test_a_batch_whose_begin_is_gone_is_not_written_again(
    root: Path, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root / "a", 0)  # with small segments, of which a batch needs more than one
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    fill(root / "a", 20_000, first=20_000)
    for file in sorted((root / "a").glob("*.q"))[:segments]:
        file.unlink()  # as retention does
    there = payloads(root / "a")
    with pytest.raises(PositionLost, match="nobody can tell how much"):
        write(root, [], 1, late="hold")
    assert payloads(root / "a") == there


def test_what_is_needed_is_kept_whatever_the_directory_is_called(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer="nightly")
    die_half_way(root, runs, "nightly", monkeypatch)
    link = root.parent / "link"
    link.symlink_to(root)
    with aiochronicle.open_writer(root / "a"):
        place = Place(root=str(link), writer_id="nightly")
        options = write_options({"path": str(link)})
        with pytest.raises(LockedError):
            publish(options, place, 0, [])
        abandon(options, place, Path(runs[0].path).parent)
    write(link, [], writer="nightly")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def die_half_way(
    root: Path, runs: list[Run], writer: str, monkeypatch: pytest.MonkeyPatch, late: str = "fail"
) -> None:
    """Append some of a batch, and fail as if the process had ended there."""
    appended: list[int] = []

    def append_once(to: aiochronicle.Writer, batch: pa.RecordBatch) -> None:
        if appended:
            raise KeyboardInterrupt
        appended.append(batch.num_rows)
        append_rows(to, batch)

    with monkeypatch.context() as patch:
        patch.setattr("aiochronicle.spark.publish.append_rows", append_once)
        with pytest.raises(KeyboardInterrupt):
            write(root, runs, writer=writer, late=late)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(appended[0])]


def test_late_rows_of_a_batch_are_held_by_whoever_completes_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch, late="hold")
    fill(root / "a", 1, first=50_000)
    write(root, [], writer="other")
    times = [time_ns for time_ns, _, _ in content(root / "a")]
    assert len(times) == 20_001
    assert times == sorted(times)


def test_rows_that_have_become_late_since_a_batch_was_begun_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    fill(root / "a", 1, first=50_000)
    with pytest.raises(TimestampOrder, match=r"batch 0 of writer test was .* late=hold completes"):
        write(root, [], 1)
    write(root, [], 1, late="hold")
    assert len(payloads(root / "a")) == 20_001


def test_a_write_that_may_repeat_a_failed_one_is_not_written_unasked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = list(range(20_000))
    die_half_way(root, staged(root, [rows("a", numbers)], writer="+1"), "+1", monkeypatch)
    again = sink(root, late="hold")
    task = again.write(iter([rows("a", numbers)]))
    with pytest.raises(ChronicleError, match="a write of 20000 rows to a that had ended half-way"):
        again.commit([task])
    again.abort([task])
    assert payloads(root / "a") == [f"a {n}".encode() for n in numbers]
    again = sink(root, late="hold")
    again.commit([again.write(iter([rows("a", numbers)]))])
    assert payloads(root / "a") == [f"a {n}".encode() for n in numbers] * 2


def test_a_failed_write_to_other_queues_is_completed_on_the_way(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer="+1")
    die_half_way(root, runs, "+1", monkeypatch)
    other = sink(root)
    other.commit([other.write(iter([rows("b", [0])]))])
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert payloads(root / "b") == [b"b 0"]
    assert not list((root / ".sink").iterdir())


@pytest.mark.parametrize("name", ["a/b", "../../evil", "*", "x" * 300, "+ours", "a@b", ".hidden"])
def test_writers_have_names_that_cannot_mean_anything_else(root: Path, name: str) -> None:
    with pytest.raises(InvalidName, match="writerId"):
        sink(root, writerId=name, batchId="1")
    assert not list(root.iterdir())


def test_a_root_that_is_a_file_is_told_before_anything_else(root: Path) -> None:
    file = root / "notes.txt"
    file.touch()
    for path in (file, file / "below" / "it"):
        with pytest.raises(InvalidArgument, match=r"notes\.txt: is not a directory; queues are"):
            sink(path)
    write_options({"path": str(root / "to" / "be" / "made")})


def test_segments_have_a_size_that_the_engine_takes(root: Path) -> None:
    for size in ("1", "4095", "5000", str((1 << 32) + 64)):
        with pytest.raises(InvalidArgument, match="a multiple of 64 from 4096 to 4294967296"):
            write_options({"path": str(root), "segmentSize": size})
    for size in ("4096", str(1 << 32)):
        options = write_options({"path": str(root), "segmentSize": size})
        assert options.segment_size == int(size)


def test_a_batch_needs_both_its_ids(root: Path) -> None:
    for given in ({"writerId": "nightly"}, {"batchId": "1"}):
        with pytest.raises(InvalidArgument, match="writerId and batchId"):
            sink(root, **given)


@pytest.mark.parametrize(
    ("found", "error", "told"),
    [
        ("", CorruptionError, "not the journal of a sink"),
        ("nonsense", CorruptionError, "not the journal of a sink"),
        ('{"version": 1, "pending": 7}', UnsupportedVersion, "a journal of version 1, not 4"),
        (None, CorruptionError, "not a regular file"),
    ],
)
def test_a_journal_that_is_none_is_told_and_stops_its_writer_only(
    root: Path,
    found: str | None,
    error: type[ChronicleError],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = root / ".sink" / "test.json"
    if found is None:
        file.mkdir(parents=True)
    else:
        file.parent.mkdir()
        file.write_text(found)
    with pytest.raises(error, match=f"(?s){told}.*or delete it"):
        write(root, staged(root, [rows("a", [0])]))
    assert not (root / "a").exists()
    write(root, staged(root, [rows("a", [1])], writer="other"), writer="other")
    assert payloads(root / "a") == [b"a 1"]
    [record] = caplog.records
    assert "writer test" in record.getMessage()
    assert told in record.getMessage()


def test_what_a_journal_names_is_on_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what was not synced: names, if their directory was not."""
    on_disk: dict[Path, set[Path]] = {}
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            on_disk[path] = set(path.iterdir())

    def lost(path: Path) -> list[Path]:
        return [
            place
            for place in (path, *path.parents)
            if place.is_relative_to(tmp_path)
            and place != tmp_path
            and place not in on_disk.get(place.parent, ())
        ]

    def begin(own: journal.Journal, pending: journal.Pending) -> None:
        looked_at.extend(path for run in pending.runs for path in lost(Path(run.path)))
        looked_at.extend(lost(own.path.parent))
        looked_at.extend(lost(own.path.parent.parent / "md"))
        noted(own, pending)

    looked_at: list[Path] = []
    noted = journal.Journal.begin
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal.Journal, "begin", begin)
    root = tmp_path / "new" / "bus"
    write(root, staged(root, [rows("md/x", [0])], [rows("md/x", [1]), rows("y", [1])]))
    begun = sink(tmp_path / "newer" / "bus")
    begun.commit([begun.write(iter([rows("md/x", [0])]))])
    assert looked_at == []
    assert payloads(root / "md" / "x") == [b"md/x 0", b"md/x 1"]


ROWS = 12_000  # two appends
Killer = Callable[..., int]


@pytest.fixture
def killer() -> Iterator[Killer]:
    """Publishes runs in a process of its own, which dies at some step; gives its exit code."""
    command = [sys.executable, str(Path(__file__).parent / "sink_killer.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def carry_out(root: Path, last_step: int, runs: list[Run], late: str = "fail") -> int:
            order = {"root": str(root), "last_step": last_step, "runs": runs, "late": late}
            orders.write(msgspec.json.encode(order) + b"\n")
            orders.flush()
            return int(answers.readline())

        yield carry_out
        orders.close()


def test_whatever_step_it_dies_at_a_batch_is_written_once(root: Path, killer: Killer) -> None:
    """The driver's half, killed at its first step, at its second …"""
    expected = [(FIRST_NS + n * STEP_NS, 0, f"a {n}".encode()) for n in range(ROWS)]
    for step in range(1, 100):
        place = root / str(step)
        place.mkdir()
        runs = staged(place, [rows("a", list(range(ROWS)))], [rows("b", [3, 1, 2])])
        code = killer(place, step, runs)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        # What the next driver has computed for the same batch may be in another order.
        again = staged(place, [rows("b", [2, 1, 3])], [rows("a", list(range(ROWS - 1, -1, -1)))])
        write(place, again, segmentSize=str(1 << 22))
        assert content(place / "a") == expected, f"killed at step {step}"
        assert payloads(place / "b") == [b"b 1", b"b 2", b"b 3"]
        assert not list((place / ".staging").iterdir())
        shutil.rmtree(place)
    else:
        pytest.fail("it never came to an end")
    assert step > 12


@pytest.mark.parametrize("late", ["fail", "hold"])
def test_a_batch_is_written_once_though_others_write_whenever_it_dies(
    root: Path, killer: Killer, late: str
) -> None:
    """Killed in its midst, then at the first step of completing it, at the second …"""
    numbers = list(range(20_000))
    times = {} if late == "hold" else {"timestamp_ns": pa.array([FIRST_NS] * 20_000, pa.int64())}

    def write_meanwhile(path: Path, number: int) -> None:
        time_ns = FIRST_NS + (number * STEP_NS if late == "hold" else 0)
        with aiochronicle.open_writer(path) as writer:
            writer.append(b"of somebody else", timestamp_ns=time_ns)

    for step in range(1, 100):
        place = root / str(step)
        place.mkdir()
        runs = staged(place, [rows("a", numbers, **times)])
        assert killer(place, 4, runs, late) == -signal.SIGKILL
        assert 0 < len(payloads(place / "a")) < 20_000
        write_meanwhile(place / "a", 15_000)
        code = killer(place, step, [], late)
        write_meanwhile(place / "a", 25_000)
        write(place, [])
        written = [payload for payload in payloads(place / "a") if payload.startswith(b"a ")]
        assert written == [f"a {n}".encode() for n in numbers], f"killed at step {step}"
        assert len(payloads(place / "a")) == 20_002
        if code == 0:
            break
        assert code == -signal.SIGKILL
        shutil.rmtree(place)
    else:
        pytest.fail("it never came to an end")
    assert step > 10


def test_another_writer_completes_what_a_dead_one_began(root: Path, killer: Killer) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))])
    assert killer(root, 4, runs) == -signal.SIGKILL
    assert 0 < len(payloads(root / "a")) < 20_000
    write(root, staged(root, [rows("b", [0])], writer="other"), writer="other")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    with journal.held(str(root), "test") as own:
        assert own is not None
        assert own.has_written(0)
        assert own.pending is None


def test_a_frame_comes_back_from_queues_as_it_was(spark: SparkSession, root: Path) -> None:
    for name in ("a", "b"):
        fill(root / name, 5000, types=(1, 2))
    frame = spark.read.format("chronicle").load(str(root))
    copy = root.parent / "copy"
    frame.repartition(4).write.format("chronicle").mode("append").save(str(copy))
    assert content(copy / "a") == content(root / "a")
    assert content(copy / "b") == content(root / "b")
    named = frame.where("seq < 3").write.format("chronicle").mode("append")
    for _ in range(2):
        named.options(queue="all", writerId="job", batchId=1).save(str(copy))
    assert payloads(copy / "all") == [b"a 0", b"b 0", b"a 1", b"b 1", b"a 2", b"b 2"]
    assert not list((copy / ".staging").iterdir())
    assert [path.name for path in (copy / ".sink").glob("*.json")] == ["job.json"]
    with pytest.raises(PySparkException, match="queues are only ever appended to"):
        frame.write.format("chronicle").mode("overwrite").save(str(copy))


def test_a_failed_write_leaves_nothing(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 100)
    frame = spark.read.format("chronicle").load(str(root))
    broken = frame.selectExpr(
        "source", "seq", "timestamp_ns", "if(seq = 70, null, payload) payload"
    )
    with pytest.raises(PySparkException, match="a row has no payload"):
        broken.repartition(3).write.format("chronicle").mode("append").save(str(root / "copy"))
    assert not (root / "copy" / "a").exists()
    assert not list((root / "copy" / ".staging").iterdir())


DISK_FULL = """
import os, subprocess, sys
from pathlib import Path
import pyarrow as pa
from aiochronicle import errors, open_reader
from aiochronicle.spark import targets
from aiochronicle.spark.options import write_options
from aiochronicle.spark.publish import publish
from aiochronicle.spark.runs import stage
from aiochronicle.spark.staging import Place

disk, staged = Path(sys.argv[1]), Path(sys.argv[2])
place = Place(root=str(disk), writer_id="w")
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=True)
def rows():
    return pa.record_batch({
        "source": pa.array(["a"] * 1000), "seq": pa.array(range(1000)),
        "timestamp_ns": pa.array(range(10**18, 10**18 + 1000)),
        "payload": pa.array([os.urandom(5000) for _ in range(1000)]),  # not to be compressed
    })

try:
    stage([rows(), rows()], place.new_directory(), None)
    sys.exit("staged more than there is room for")
except errors.DiskFull as error:
    assert "cannot stage the rows" in str(error)
place.sweep()
runs = stage([rows()], str(staged), None)
options = write_options({"path": str(disk), "segmentSize": str(1 << 20)})
ballast = disk / "ballast"
ballast.write_bytes(bytes(2 << 20))
def fail(told):
    try:
        publish(options, place, 0, runs)
    except errors.DiskFull as error:
        assert told in str(error), error
    else:
        sys.exit("wrote more than there is room for")

fail("Nothing was written")
assert not (disk / "a").exists()
# Somebody else takes the room between that look and the writing.
targets.free_bytes = lambda path: 1 << 30
fail("some of its rows may be in the queues. Once there is nothing in its way, the next write")
with open_reader(disk / "a") as reader:
    assert 0 < len(list(reader)) < 1000
for _ in range(2):
    fail("while batch 0 of writer w, which was written in part, was to be completed: some of its rows")
with open_reader(disk / "a") as reader:
    assert 0 < len(list(reader)) < 1000
ballast.unlink()
subprocess.run(["mount", "-o", "remount,size=12m", disk], check=True)
publish(options, place, 1, [])
with open_reader(disk / "a") as reader:
    assert [message.seq for message in reader] == list(range(1000))
"""


def test_a_full_disk_is_told_and_the_batch_completed_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", DISK_FULL]
    done = subprocess.run(
        [*command, str(tmp_path / "disk"), str(tmp_path / "staged")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
