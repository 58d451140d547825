"""Java queues in Spark are found beside native ones and read as Java lists them."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.java_queues import listing, unpack
from pyspark.sql import DataFrame, SparkSession

from aiochronicle import open_reader, open_writer
from aiochronicle._base.spans import Span
from aiochronicle.cq4 import Call, Fields
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import (
    CorruptionError,
    InvalidArgument,
    NotAQueue,
    NotSupported,
    PositionLost,
    UnknownType,
)
from aiochronicle.spark import bad_records, scan
from aiochronicle.spark.jobs import archive, archived, audit, quality
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source import plan as plan_module
from aiochronicle.spark.source.plan import Range, plan
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.scan import count
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.stream import RangeStreamReader

Listing = list[tuple[int, bytes]]

SECOND_NS = 10**9
BEGIN_S = 1_700_000_000


class Writer:
    """Writes a Java queue that rolls every second, with a clock that the test controls."""

    def __init__(self, path: Path, roll_cycle: str = "TEST_SECONDLY") -> None:
        self.now_s = BEGIN_S
        self.written: Listing = []
        self._opened = open_writer(
            path, format="cq4", roll_cycle=roll_cycle, clock=lambda: self.now_s * SECOND_NS
        )

    def write(self, messages: int, *, after_s: int = 0) -> Listing:
        self.now_s += after_s
        payloads = [f"{self.now_s}:{number}".encode() for number in range(messages)]
        written = [(self._opened.append(payload), payload) for payload in payloads]
        self.written += written
        return written

    def send(self, *objects: Any) -> None:
        for each in objects:
            self._opened.send(each)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows(frame: DataFrame) -> Listing:
    found = frame.select("seq", "payload").collect()
    return sorted((row.seq, bytes(row.payload)) for row in found)


def read_all(path: Path, **options: Any) -> Listing:
    """Return what the tasks would read, without Spark."""
    chosen = read_options({"path": str(path), **options})
    snapshot = Snapshot(chosen)
    parts = plan(
        snapshot.sources,
        snapshot.start,
        snapshot.end,
        spans=snapshot.spans,
        partitions_min=chosen.partitions_min,
    )
    return [row for part in parts for row in rows_of(part, chosen)]


def rows_of(part: Range, options: Any) -> Listing:
    return [
        (row["seq"], row["payload"])
        for batch in read_range(part, ["seq", "payload"], options)
        for row in batch.to_pylist()
    ]


def test_root_with_both_kinds(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    for name in ("j26-roll", "j26-huge-daily-xsparse", "j416-v4", "j517-unpadded", "j526-roll"):
        shutil.move(unpack(name, tmp_path), root / name)
    with open_writer(root / "native") as writer:
        writer.append(b"ours")
    frame = spark.read.format("chronicle").load(str(root))
    found: dict[str, Listing] = {}
    for row in frame.orderBy("source", "seq").collect():
        found.setdefault(row.source, []).append((row.seq, bytes(row.payload)))
    assert found.pop("native") == [(0, b"ours")]
    assert found == {name: listing(tmp_path / name) for name in found}
    assert len(found) == 5
    assert count(str(root)) == frame.count()


def test_one_queue_by_its_path(spark: SparkSession, tmp_path: Path) -> None:
    path = unpack("j26-pages", tmp_path)
    assert rows(spark.read.format("chronicle").load(str(path))) == listing(path)
    assert rows(scan(spark, str(path), minPartitions=7)) == listing(path)
    assert count(str(path)) == len(listing(path))


def test_any_number_of_tasks_reads_the_same(tmp_path: Path) -> None:
    path = unpack("j26-roll", tmp_path)
    expected = listing(path)
    for partitions in (1, 2, 5, len(expected), 1000):
        assert read_all(path, minPartitions=partitions) == expected


def test_large_cycles_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(tmp_path / "q") as writer:
        for after_s, messages in ((0, 10), (1, 1000), (5, 10), (1, 10), (9, 500)):
            writer.write(messages, after_s=after_s)
        expected = writer.written
    monkeypatch.setattr(plan_module, "TASK_BYTES", 4096)
    snapshot = Snapshot(read_options({"path": str(tmp_path / "q")}))
    parts = plan(snapshot.sources, snapshot.start, snapshot.end, spans=snapshot.spans)
    assert len(parts) > 5
    assert [row for part in parts for row in rows_of(part, read_options({"path": "q"}))] == expected
    assert max(part.messages for part in parts) < 400
    assert sum(part.messages for part in parts) == len(expected)


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_offsets_are_indexes(tmp_path: Path, step: int) -> None:
    path = unpack("j26-roll", tmp_path)
    expected = listing(path)
    for index, _ in expected[1:-1:3]:
        offsets = f'{{"j26-roll": {index + step}}}'
        found = read_all(path, startingOffsets=offsets, failOnDataLoss=False)
        assert found == [row for row in expected if row[0] >= index + step]
        found = read_all(path, endingOffsets=offsets)
        assert found == [row for row in expected if row[0] < index + step]


def test_start_in_a_cycle_that_is_gone(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        first, second = writer.write(3), writer.write(3, after_s=4)
    (tmp_path / "q" / "20231114-221320T.cq4").unlink()
    given = {"startingOffsets": f'{{"q": {first[1][0]}}}'}
    with pytest.raises(PositionLost, match=f"the next index is {second[0][0]}"):
        read_all(tmp_path / "q", **given)
    assert read_all(tmp_path / "q", **given, failOnDataLoss=False) == second
    assert read_all(tmp_path / "q", startingOffsets='{"q": 0}') == second


def test_cycle_removed_under_a_frame(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        first, second, third = (writer.write(3, after_s=2) for _ in range(3))
    options = read_options({"path": str(tmp_path / "q")})
    snapshot = Snapshot(options)
    [part] = plan(snapshot.sources, snapshot.start, snapshot.end, spans=snapshot.spans)
    (tmp_path / "q" / "20231114-221324T.cq4").unlink()
    with pytest.raises(PositionLost, match=f"messages {second[0][0]} to {second[-1][0]} of q"):
        rows_of(part, options)
    lenient = read_options({"path": str(tmp_path / "q"), "failOnDataLoss": False})
    assert rows_of(part, lenient) == first + third


def test_frames_are_snapshots(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        before = writer.write(5)
        options = read_options({"path": str(tmp_path / "q")})
        snapshot = Snapshot(options)
        writer.write(5)
        writer.write(5, after_s=1)
        [part] = plan(snapshot.sources, snapshot.start, snapshot.end, spans=snapshot.spans)
        assert rows_of(part, options) == before


def test_filter(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        for _ in range(6):
            writer.write(50, after_s=2)
        expected = writer.written

    def filtered(condition: str) -> DataFrame:
        return spark.read.format("chronicle").option("filter", condition).load(str(tmp_path / "q"))

    middle = expected[170][0]
    assert rows(filtered(f"seq >= {middle}")) == expected[170:]
    moment = datetime.fromtimestamp(BEGIN_S + 6, UTC)
    assert rows(filtered(f"timestamp >= timestamp '{moment.isoformat()}'")) == expected[100:]
    assert rows(filtered(f"timestamp_ns < {(BEGIN_S + 6) * SECOND_NS}")) == expected[:100]
    late = datetime.fromtimestamp(BEGIN_S + 7, UTC)  # within a cycle, so it has older messages too
    assert read_all(tmp_path / "q", startingTimestamp=late) == expected[150:]


def test_time_of_a_field(spark: SparkSession, tmp_path: Path) -> None:
    times_ms = [BEGIN_S * 1000 + step for step in (0, 7, 5, 9, 20)]  # one goes backwards
    with Writer(tmp_path / "q") as writer:
        writer.send(*(Fields({"at": at, "px": 1.5}) for at in times_ms))
    reading = spark.read.format("chronicle").option("timestamp", "at")
    reading = reading.option("timestampUnit", "ms")
    frame = reading.load(str(tmp_path / "q")).select("timestamp_ns")
    assert [row[0] // 10**6 for row in frame.collect()] == times_ms
    before = f"timestamp_ns < {times_ms[2] * 10**6 + 1}"
    wanted = reading.option("filter", before).load(str(tmp_path / "q")).select("timestamp_ns")
    assert [row[0] // 10**6 for row in wanted.collect()] == [times_ms[0], times_ms[2]]


def test_fields_as_columns(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        writer.send(
            Fields({"symbol": "EURUSD", "px": 1.0, "size": 2**40, "legs": [1, 2]}),
            Fields({"symbol": "é😀", "px": 2.5}),
            Call("tick", ["GBPUSD", 1.25]),
            Call("order", Fields({"id": 7, "side": "BUY"})),
            "a text",
            Fields({"symbol": "USDJPY", "px": "not a number"}),
        )
    schema = (
        "seq long, symbol string, px double, size long, legs array<int>,"
        " tick struct<symbol:string,px:double>, order struct<id:long,side:string>,"
        " _method string, _args string, _corrupt string"
    )
    found = spark.read.format("chronicle").schema(schema).load(str(tmp_path / "q")).collect()
    assert [(r.symbol, r.px, r.size, r.legs) for r in found] == [
        ("EURUSD", 1.0, 2**40, [1, 2]),
        ("é😀", 2.5, None, None),
        *[(None, None, None, None)] * 3,
        ("USDJPY", None, None, None),
    ]
    assert found[2].tick.asDict() == {"symbol": "GBPUSD", "px": 1.25}
    assert found[3].order.asDict() == {"id": 7, "side": "BUY"}
    assert [(r._method, r._args) for r in found[2:4]] == [
        ("tick", '["GBPUSD",1.25]'),
        ("order", '[{"id":7,"side":"BUY"}]'),
    ]
    assert [r._corrupt is None for r in found] == [True, True, True, True, False, False]
    strict = spark.read.format("chronicle").option("mode", "FAILFAST").schema("px double")
    with pytest.raises(Exception, match="neither fields nor a call"):
        strict.load(str(tmp_path / "q")).collect()


def test_fields_beside_a_native_queue(spark: SparkSession, root: Path) -> None:
    with Writer(root / "java") as writer:
        writer.send(Fields({"px": 1.5}))
    with open_writer(root / "native") as native:
        native.append(b"ours")
    frame = spark.read.format("chronicle").schema("source string, px double").load(str(root))
    assert sorted((row.source, row.px) for row in frame.collect()) == [
        ("java", 1.5),
        ("native", None),
    ]


def test_type_needs_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        writer.write(1)
    with pytest.raises(UnknownType, match=r"there is no schema\.json"):
        scan(spark, str(tmp_path / "q"), type="Tick")


def stream_to(
    spark: SparkSession, path: Path, out: Path, name: str, **options: Any
) -> Callable[[], Listing]:
    """Run one batch per call; return the new rows."""

    def step() -> Listing:
        stream = spark.readStream.format("chronicle").options(startingOffsets="earliest", **options)
        query = (
            stream.load(str(path))
            .writeStream.format("parquet")
            .option("path", str(out / name))
            .option("checkpointLocation", str(out / f"{name}-state"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return rows(spark.read.parquet(str(out / name)))

    return step


def test_stream_across_rolls(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        step = stream_to(spark, tmp_path / "q", tmp_path / "out", "all", maxOffsetsPerTrigger=70)
        writer.write(100)
        assert step() == writer.written
        writer.write(20)  # more in the same cycle
        writer.write(30, after_s=3)
        writer.write(1, after_s=1)
        assert step() == writer.written
        (tmp_path / "q" / "20231114-221320T.cq4").unlink()  # already read
        writer.write(10)
        assert step() == writer.written


def test_stream_notices_a_cycle_that_is_gone(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        first = writer.write(10)
        second = writer.write(10, after_s=5)
        for lenient in (False, True):
            options = read_options({"path": str(tmp_path / "q"), "failOnDataLoss": not lenient})
            stream = RangeStreamReader(options)
            start, end = {"q": first[5][0]}, {"q": second[-1][0] + 1}
            found = [part.value.messages for part in stream.partitions(start, end)]
            assert found == [10 if lenient else 15]
            (tmp_path / "q" / "20231114-221320T.cq4").unlink(missing_ok=True)
            if not lenient:
                with pytest.raises(PositionLost, match=f"begins at {second[0][0]}"):
                    stream.partitions(start, end)
            stream.stop()


def test_stream_limits_by_messages(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    with Writer(tmp_path / "q") as writer:
        for _ in range(3):
            writer.write(10, after_s=2)
        indexes = [index for index, _ in writer.written]
    stream = RangeStreamReader(
        read_options({"path": str(tmp_path / "q"), "startingOffsets": "earliest"})
    )
    at = stream.initialOffset()
    reached: list[int] = []
    for _ in range(5):
        at = stream.latestOffset(at, ReadMaxRows(7))
        reached.append(at["q"])
    stream.stop()
    assert reached == [*(indexes[n] for n in (7, 14, 21, 28)), indexes[-1] + 1]


def test_stream_finds_a_new_queue(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    (tmp_path / "bus").mkdir()
    stream = RangeStreamReader(read_options({"path": str(tmp_path / "bus"), "follow": True}))
    at = stream.initialOffset()
    assert at == {}
    with Writer(tmp_path / "bus" / "q") as writer:
        [(first, _)] = writer.write(1)
        stream._queues._looked_at = 0.0
        at = stream.latestOffset(at, ReadAllAvailable())
        assert at == {"q": first}
        assert stream.latestOffset(at, ReadAllAvailable()) == {"q": first + 1}
    stream.stop()


def test_stream_begins_in_an_empty_queue(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    with Writer(tmp_path / "q") as writer:
        stream = RangeStreamReader(
            read_options({"path": str(tmp_path / "q"), "startingOffsets": "earliest"})
        )
        start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        written = writer.write(3)
        end = stream.latestOffset(start, ReadAllAvailable())
        [part] = stream.partitions(start, end)
        assert part.value.messages == 3
        assert end == {"q": written[-1][0] + 1}
        stream.stop()


def test_archive_and_audit(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    shutil.move(unpack("j26-roll", tmp_path), root / "j26-roll")
    expected = listing(tmp_path / "j26-roll")
    out = tmp_path / "archive"
    with Writer(root / "q") as writer:
        writer.write(10)
        done = {one.source: one for one in archive(spark, str(root), str(out))}
        assert done["j26-roll"].rows == len(expected)
        writer.write(5)
        writer.write(5, after_s=3)
        done = {one.source: one for one in archive(spark, str(root), str(out))}
        assert (done["q"].rows, done["j26-roll"].rows) == (10, 0)
        found = archived(spark, str(out))
        assert rows(found.where("source = 'q'")) == writer.written
        assert rows(found.where("source = 'j26-roll'")) == expected
    with open_reader(root / "q") as reader:
        digest = StreamDigest(["q"])
        digest.add(reader)
    audited = audit(spark, str(root), options={"subscribe": "q"})
    assert (audited.messages, audited.digest) == (20, digest.hexdigest())


def test_quality_of_seqs_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        writer.write(1)
    with pytest.raises(NotSupported, match="jump from cycle to cycle"):
        quality(spark, str(tmp_path / "q"))


def test_sink_refuses_a_java_queue(spark: SparkSession, root: Path) -> None:
    with Writer(root / "java") as writer:
        written = writer.write(3)
    row = [("java", 2, 1, 0, b"x"), ("new", 2, 1, 0, b"x")]
    frame = spark.createDataFrame(
        row, "source string, seq long, timestamp_ns long, type_id int, payload binary"
    )
    for path in (root, root / "java"):
        with pytest.raises(Exception, match="is a Java queue"):
            frame.write.format("chronicle").mode("append").save(str(path))
    assert read_all(root / "java") == written
    assert not (root / "new").exists()


def test_damaged_table(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        writer.write(3)
    with (tmp_path / "q" / "metadata.cq4t").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 64)
    with pytest.raises(CorruptionError, match=r"metadata\.cq4t"):
        read_all(tmp_path / "q")


def damage(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"\xff\xff\xff\x3f")


@pytest.mark.parametrize("cycle", [0, 1, 2])
def test_damaged_cycle(tmp_path: Path, cycle: int, caplog: pytest.LogCaptureFixture) -> None:
    with Writer(tmp_path / "q") as writer:
        written = [writer.write(3, after_s=2) for _ in range(3)]
    file = tmp_path / "q" / f"20231114-22132{2 + 2 * cycle}T.cq4"
    damage(file, 0)
    with pytest.raises(CorruptionError, match=file.name):
        read_all(tmp_path / "q")
    del written[cycle]
    assert read_all(tmp_path / "q", on_corrupt="skip") == [row for rows in written for row in rows]
    if cycle == 1:  # otherwise the queue just begins later or ends sooner
        assert f"{file.name}: " in caplog.text


def test_damaged_message(tmp_path: Path) -> None:
    with Writer(tmp_path / "q") as writer:
        writer.write(3)
        written = writer.write(50, after_s=2)
    with open_reader(tmp_path / "q") as reader:
        place = next(message.position for message in reader if message.seq == written[10][0])
    file = tmp_path / "q" / "20231114-221322T.cq4"
    damage(file, place.offset)
    with pytest.raises(CorruptionError, match=file.name):
        read_all(tmp_path / "q")
    bad = tmp_path / "bad"
    found = read_all(tmp_path / "q", on_corrupt="skip", badRecordsPath=str(bad))
    (note,) = bad_records(str(bad))
    missing = {row for row in writer.written if row not in found}
    assert {index for index, _ in missing} == set(range(note.first_seq, note.end_seq))
    assert written[10] in missing
    assert len(missing) <= 4  # up to the next indexed message
    assert note.file == str(file)


def test_directories_named_like_files_of_java(root: Path) -> None:
    with open_writer(root / "native.cq4") as writer:
        writer.append(b"ours")
    assert list(Snapshot(read_options({"path": str(root)})).sources) == ["native.cq4"]


def test_queues_by_day_are_no_archive(root: Path) -> None:
    for day in ("01", "02"):
        (root / "2026" / "11").mkdir(parents=True, exist_ok=True)
        with Writer(root / "2026" / "11" / day) as writer:
            writer.write(2)
    snapshot = Snapshot(read_options({"path": str(root)}))
    assert sorted(snapshot.sources) == ["2026/11/01", "2026/11/02"]


def test_link_to_another_queue_is_not_followed(root: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "secret") as writer:
        writer.write(3)
    with Writer(root / "q") as writer:
        mine = writer.write(2)
    (root / "link").symlink_to(tmp_path / "secret")
    found = Snapshot(read_options({"path": str(root)}))
    assert list(found.sources) == ["q"]
    # Replace the directory that was found with a link to the other queue.
    [part] = plan(found.sources, found.start, found.end, spans=found.spans)
    (root / "q").rename(root / ".aside")
    (root / "q").symlink_to(tmp_path / "secret")
    with pytest.raises(PositionLost):
        rows_of(part, read_options({"path": str(root)}))
    (root / "q").unlink()
    (root / ".aside").rename(root / "q")
    assert rows_of(part, read_options({"path": str(root)})) == mine
    # Replace one of its files with a link.
    cycle = root / "q" / "20231114-221320T.cq4"
    cycle.unlink()
    cycle.symlink_to(tmp_path / "secret" / cycle.name)
    with pytest.raises(NotAQueue, match="is a symbolic link; not followed"):
        rows_of(part, read_options({"path": str(root)}))


def test_options_of_time(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="timestampUnit"):
        read_options({"path": "q", "timestampUnit": "ms"})
    with pytest.raises(InvalidArgument, match="must be one of ns, us, ms, s"):
        read_options({"path": "q", "timestamp": "at", "timestampUnit": "min"})


def test_ranges_of_a_native_queue_have_no_spans() -> None:
    part = Range(source=Source(name="a", live="a", archive=None), start=3, end=9)
    assert part.gapless == (Span(3, 9),)
    assert part.part(4, 5).messages == 1
