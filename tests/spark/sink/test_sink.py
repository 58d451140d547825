"""Writing frames to queues: order, times, and refused rows."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import aiochronicle
from aiochronicle.errors import (
    InvalidArgument,
    InvalidName,
    LockedError,
    MessageTooLarge,
    TimestampOrder,
)
from aiochronicle.spark.options import write_options
from aiochronicle.spark.private_files import Location
from aiochronicle.spark.sink.batch_writer import StreamSink
from aiochronicle.spark.sink.merge import merge
from aiochronicle.spark.sink.runs import BATCH_BYTES, CAUSE, check_columns, stage
from spark.filling import FIRST_NS, STEP_NS, fill
from spark.sink.staging_rows import (
    PAYLOAD,
    SOURCE,
    TIME,
    content,
    payloads,
    rows,
    sink,
    staged,
    write,
)


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
    """Empty and long payloads, runs of one type, single rows and occasional causes."""
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
    some = rows("a", [3, 4], payload=pa.array([b"", None], pa.binary()))
    which = f"timestamp_ns {FIRST_NS + 4 * STEP_NS}, source a, seq 4"
    with pytest.raises(InvalidArgument, match=f"a row has no payload: {which}$"):
        staged(root, [rows("a", [0, 1, 2]), some])
    bare = rows("a", [0], payload=pa.nulls(1, pa.binary())).select(["timestamp_ns", "payload"])
    with pytest.raises(InvalidArgument, match=f"a row has no payload: timestamp_ns {FIRST_NS}$"):
        stage([bare], Location(root=str(root), names=("staged",)), "one")
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
        (
            [SOURCE, PAYLOAD, StructField("timestamp", StringType())],
            "timestamp is of type string: make it a timestamp",
        ),
    ],
)
def test_a_frame_must_look_like_messages(fields: list[StructField], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_columns(StructType(fields), None)


def test_a_text_beside_the_time_in_nanoseconds_does_not_matter() -> None:
    check_columns(StructType([SOURCE, TIME, PAYLOAD, StructField("timestamp", StringType())]), None)


def test_a_stream_must_be_known_by_its_checkpoint(root: Path) -> None:
    schema = StructType([SOURCE, TIME, PAYLOAD])
    with pytest.raises(InvalidArgument, match="needs option checkpointLocation"):
        StreamSink(write_options({"path": str(root)}), schema)
    elsewhere = {"path": str(root), "checkpointLocation": "s3://bucket/checkpoint"}
    with pytest.raises(InvalidArgument, match="give the stream option writerId"):
        StreamSink(write_options(elsewhere), schema)
    StreamSink(write_options({**elsewhere, "writerId": "me"}), schema)


@pytest.mark.parametrize("name", ["a/b", "../../evil", "*", "x" * 300, "+ours", "a@b", ".hidden"])
def test_writers_have_names_that_cannot_mean_anything_else(root: Path, name: str) -> None:
    with pytest.raises(InvalidName, match="writerId"):
        sink(root, writerId=name, batchId="1")
    assert not list(root.iterdir())


def test_a_root_that_is_a_file_is_told_before_anything_else(root: Path) -> None:
    file = root / "notes.txt"
    file.touch()
    for path in (file, file / "below" / "it"):
        with pytest.raises(
            InvalidArgument, match=r"notes\.txt: is not a directory, so no queues can be"
        ):
            sink(path)
    write_options({"path": str(root / "to" / "be" / "made")})


def test_segments_have_a_size_that_the_engine_takes(root: Path) -> None:
    for size in ("1", "1m", "4095", "5000", str((1 << 32) + 64)):
        with pytest.raises(InvalidArgument, match="a multiple of 64 from 4096 to 4294967296"):
            write_options({"path": str(root), "segmentSize": size})
    for size in ("4096", str(1 << 32)):
        options = write_options({"path": str(root), "segmentSize": size})
        assert options.segment_size == int(size)


def test_a_batch_needs_both_its_ids(root: Path) -> None:
    for given in ({"writerId": "nightly"}, {"batchId": "1"}):
        with pytest.raises(InvalidArgument, match="writerId and batchId"):
            sink(root, **given)


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
