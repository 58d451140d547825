"""Queues as frames: their rows, the selection of rows, and error texts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import aiochronicle
from aiochronicle.spark.options import Given, read_options
from aiochronicle.spark.source.snapshot import Snapshot
from spark.filling import FIRST_NS, STEP_NS, fill


def load(spark: SparkSession, path: Path, **options: str | int) -> DataFrame:
    return spark.read.format("chronicle").options(**options).load(str(path))


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def time_of(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        microseconds=(FIRST_NS + number * STEP_NS) // 1000
    )


def test_every_message_of_every_queue_is_a_row(spark: SparkSession, root: Path) -> None:
    fill(root / "binance", 3, types=(7, 8))
    fill(root / "kraken", 2)
    rows = load(spark, root).orderBy("source", "seq").collect()
    assert rows[0] == Row(
        source="binance",
        seq=0,
        timestamp_ns=FIRST_NS,
        timestamp=time_of(0).replace(tzinfo=None),
        type_id=7,
        payload=bytearray(b"binance 0"),
    )
    assert [(row.source, row.seq, row.timestamp_ns, row.type_id) for row in rows[1:]] == [
        ("binance", 1, FIRST_NS + STEP_NS, 8),
        ("binance", 2, FIRST_NS + 2 * STEP_NS, 7),
        ("kraken", 0, FIRST_NS, 0),
        ("kraken", 1, FIRST_NS + STEP_NS, 0),
    ]


def test_a_single_queue_and_nested_ones_can_be_loaded(spark: SparkSession, root: Path) -> None:
    (root / "md").mkdir()
    fill(root / "md" / "binance", 3)
    assert {row.source for row in load(spark, root).collect()} == {"md/binance"}
    assert {row.source for row in load(spark, root / "md" / "binance").collect()} == {"binance"}


def test_a_frame_is_a_snapshot_whatever_filter_is_used(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 10)
    frame = load(spark, root)
    fill(root / "a", 10, first=10)
    assert seqs(frame) == list(range(10))
    assert seqs(frame.where("seq >= 5")) == list(range(5, 10))
    assert seqs(load(spark, root)) == list(range(20))


def test_long_queues_are_cut_into_parts_that_cover_them(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 30_000)
    frame = load(spark, root, minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert seqs(frame) == list(range(30_000))


def test_a_schema_of_some_columns_is_the_projection(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 4)
    frame = spark.read.format("chronicle").schema("seq long, source string").load(str(root))
    assert frame.orderBy("seq").collect()[-1] == Row(seq=3, source="a")


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 100)
    fill(root / "b", 50)
    assert seqs(load(spark, root, startingOffsets='{"a": 97, "b": -1}')) == [97, 98, 99]
    frame = load(spark, root, endingOffsets='{"a": 2, "b": -2}', startingOffsets="earliest")
    assert seqs(frame) == [0, 1]
    moment = (FIRST_NS + 98 * STEP_NS, FIRST_NS + 99 * STEP_NS)
    frame = load(spark, root, startingTimestamp=moment[0], endingTimestamp=moment[1])
    assert seqs(frame) == [98]
    later = time_of(99) + timedelta(hours=1)
    assert seqs(load(spark, root, startingTimestamp=later.isoformat())) == []
    assert seqs(load(spark, root, endingOffsets='{"a": 5000, "b": 0}')) == list(range(100))
    beyond = load(spark, root, startingOffsets='{"a": 5000, "b": 49}', failOnDataLoss="false")
    assert seqs(beyond) == [49]


def test_queues_are_chosen_by_name_and_by_pattern(spark: SparkSession, root: Path) -> None:
    for name in ("a1", "a2", "b1"):
        fill(root / name, 1)
    by_name = load(spark, root, subscribe="a1, b1")
    assert {row.source for row in by_name.collect()} == {"a1", "b1"}
    by_pattern = load(spark, root, SUBSCRIBEPATTERN="a.")
    assert {row.source for row in by_pattern.collect()} == {"a1", "a2"}


WRONG: list[tuple[dict[str, Given], str]] = [
    ({"startingOfsets": "earliest"}, "'startingOfsets': did you mean startingOffsets"),
    ({"start": "2026-01-01"}, "'start': did you mean startingTimestamp or startingOffsets?"),
    ({"end": "2026-01-01"}, "'end': did you mean endingTimestamp or endingOffsets (a stream"),
    ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
    ({"startingOffsets": '{"b": 1}'}, "startingOffsets names b, but the queues are a"),
    ({"startingOffsets": '{"a": -3}'}, "must be a seq, -1 or -2, not -3"),
    ({"startingTimestamp": "1700000000000"}, "numbers are nanoseconds"),
    ({"startingTimestamp": "2026-01-01"}, "has no time zone: 2026-01-01T00:00:00Z is in UTC"),
    ({"startingTimestamp": "9" * 23}, "is too far ahead"),
    ({"startingOffsets": '{"a": 2}'}, "startingOffsets of a is 2, but it ends at 1"),
    ({"startingOffsets": "{}"}, "says nothing about a"),
    ({"subscribe": ""}, "option subscribe is empty"),
    ({"queue": "a"}, "option queue is not for reading"),
    ({"startingTimestamp": "yesterday"}, "ISO 8601"),
    ({"startingTimestamp": "2026-01-01T00:00:00Z", "startingOffsets": "latest"}, "exclude each"),
    ({"subscribe": "a,c"}, "no queue c; there are a"),
    ({"subscribePattern": "x.*"}, "no queue whose name matches 'x.*'"),
    ({"subscribePattern": "("}, "is no regular expression"),
    ({"failOnDataLoss": "maybe"}, "must be true or false"),
    ({"minPartitions": "0"}, "must be a number from 1 on"),
    ({"on_corrupt": "explode"}, "must be one of raise, skip"),
    ({"badRecordsPath": "/x"}, "badRecordsPath notes what on_corrupt=skip steps over"),
    ({"archive": "/nowhere"}, "the archive is not a directory"),
    (
        {
            "startingTimestamp": datetime(2026, 1, 2, tzinfo=UTC),
            "endingTimestamp": "2026-01-01T00:00:00Z",
        },
        "endingTimestamp is before startingTimestamp, by 86,400.000 s",
    ),
    ({"minPartitions": 0}, "must be a number from 1 on"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_wrong_options_say_what_is_wrong(
    root: Path, options: dict[str, Given], message: str
) -> None:
    fill(root / "a", 1)
    with pytest.raises(aiochronicle.ChronicleError) as raised:
        Snapshot(read_options({"path": str(root), **options}))
    assert message in str(raised.value)


def test_options_may_be_given_as_what_they_mean() -> None:
    as_texts = read_options(
        {
            "path": "bus",
            "startingTimestamp": "1700000000000000000",
            "endingOffsets": '{"a": 5}',
            "verify": "false",
            "minPartitions": "4",
        }
    )
    moment = datetime.fromtimestamp(1_700_000_000, UTC)
    for start in (moment, 1_700_000_000_000_000_000):
        given: dict[str, Given] = {
            "path": "bus",
            "startingTimestamp": start,
            "endingOffsets": {"a": 5},
            "verify": False,
            "minPartitions": 4,
        }
        assert read_options(given) == as_texts


def test_spark_reports_what_is_wrong(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 1)
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(spark, root, startingOfsets="earliest")


def test_a_root_without_queues_is_told(spark: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException, match="there is no queue in or below it"):
        load(spark, root).count()
    with pytest.raises(PySparkException, match="there is no such directory"):
        load(spark, root / "missing").count()


def test_an_unknown_column_is_told(spark: SparkSession, root: Path) -> None:
    fill(root / "a", 1)
    for schema, message in (("price double", "no column 'price'"), ("seq int", "seq is bigint")):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("chronicle").schema(schema).load(str(root)).count()


def test_an_empty_queue_has_no_rows(spark: SparkSession, root: Path) -> None:
    aiochronicle.open_writer(root / "empty", segment_size=1 << 20).close()
    assert load(spark, root).count() == 0
