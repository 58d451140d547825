"""Keys and headers as columns of frames, read and written."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiochronicle import open_reader, open_writer
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.jobs.archive import archive
from aiochronicle.spark.jobs.replay import replay
from aiochronicle.spark.sink.runs import CAUSE, HEADERS
from spark.sink.staging_rows import rows, staged, write

Parts = tuple[bytes, bytes | None, dict[str, bytes]]

SAMPLES: list[Parts] = [
    (b"plain", None, {}),
    (b"keyed", b"k", {}),
    (b"", b"", {}),
    (b"headed", None, {"a": b"1"}),
    (b"x" * 300, b"key", {"b": b"", "é": b"\0\xff"}),
]


class Keyed(msgspec.Struct):
    key: str
    price: float


def append_samples(path: Path) -> None:
    with open_writer(path) as writer:
        for payload, key, headers in SAMPLES:
            writer.append(payload, key=key, headers=headers)


def read_all(path: Path) -> list[Parts]:
    with open_reader(path) as reader:
        return [(m.payload, m.key, dict(m.headers)) for m in reader]


def parts_of(row: Any) -> Parts:
    headers = {name: bytes(value) for name, value in row["headers"].items()}
    return bytes(row["payload"]), None if row["key"] is None else bytes(row["key"]), headers


def test_columns_of_a_frame(spark: SparkSession, root: Path) -> None:
    append_samples(root / "a")
    frame = spark.read.format("chronicle").option("includeHeaders", True).load(str(root))
    kinds = dict(frame.dtypes)
    assert (kinds["key"], kinds["headers"]) == ("binary", "map<string,binary>")
    assert [parts_of(row) for row in frame.orderBy("seq").collect()] == SAMPLES
    usual = spark.read.format("chronicle").load(str(root))
    assert "headers" not in usual.columns
    assert [bytes(row["payload"]) for row in usual.orderBy("seq").collect()] == [
        payload for payload, _, _ in SAMPLES
    ]
    chosen = spark.read.format("chronicle").schema("seq long, headers map<string,binary>")
    found = chosen.load(str(root)).where("headers['a'] = X'31'").collect()
    assert [row["seq"] for row in found] == [3]


def test_a_field_called_key_is_the_column(spark: SparkSession, root: Path) -> None:
    with open_writer(root / "a", codec=Keyed) as writer:
        writer.send(Keyed("field", 1.5), key=b"k", headers={"h": b"v"})
    reader = spark.read.format("chronicle").option("type", "Keyed")
    (row,) = reader.option("includeHeaders", True).load(str(root)).collect()
    assert (row["key"], row["price"]) == ("field", 1.5)
    assert {name: bytes(value) for name, value in row["headers"].items()} == {"h": b"v"}
    (row,) = reader.option("includeHeaders", False).load(str(root)).collect()
    assert row["key"] == "field"


def test_from_queue_to_queue(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    append_samples(root / "a")
    frame = spark.read.format("chronicle").option("includeHeaders", True).load(str(root))
    target = tmp_path / "copy"
    frame.write.format("chronicle").mode("append").save(str(target))
    assert read_all(target / "a") == SAMPLES


def sample_columns() -> dict[str, Any]:
    return {
        "payload": pa.array([payload for payload, _, _ in SAMPLES], pa.binary()),
        "key": pa.array([key for _, key, _ in SAMPLES], pa.binary()),
        "headers": pa.array([list(headers.items()) or None for _, _, headers in SAMPLES], HEADERS),
    }


def test_rows_are_written_with_them(root: Path) -> None:
    write(root, staged(root, [rows("a", list(range(5)), **sample_columns())]))
    assert read_all(root / "a") == SAMPLES


def test_runs_with_and_without_them_are_merged(root: Path) -> None:
    cause = pa.array([None, {"queue_id": 5, "seq": 7}, None], CAUSE)
    headed = rows("a", [0, 2, 4, 6, 8], **sample_columns())
    runs = staged(root, [headed], [rows("a", [1, 3, 5], cause=cause)], [rows("a", [7])])
    assert [run.headed for run in runs] == [True, False, False]
    write(root, runs)
    assert read_all(root / "a")[::2] == SAMPLES
    with open_reader(root / "a") as reader:
        found = [(m.key, m.cause) for m in reader][1::2]
    assert found == [(None, None), (None, (5, 7)), (None, None), (None, None)]


def test_only_keys(root: Path) -> None:
    keys = pa.array([b"a", None], pa.binary())
    write(root, staged(root, [rows("a", [0, 1], key=keys)]))
    assert [(key, headers) for _, key, headers in read_all(root / "a")] == [(b"a", {}), (None, {})]


@pytest.mark.parametrize(
    ("headers", "key", "text"),
    [
        ([("a", None)], None, "value is null"),
        ([("", b"")], None, "1 to 255 bytes"),
        ([("n" * 256, b"")], None, "1 to 255 bytes"),
        ([(f"{i}", b"") for i in range(65)], None, "65 headers"),
        ([("a", bytes(40000))], bytes(40000), "80010 bytes"),
    ],
)
def test_what_no_message_can_have_is_refused_before_anything_is_written(
    root: Path, headers: list[tuple[str, bytes]], key: bytes | None, text: str
) -> None:
    bad = rows("a", [0], headers=pa.array([headers], HEADERS), key=pa.array([key], pa.binary()))
    with pytest.raises(InvalidArgument, match=text):
        staged(root, [bad])
    assert not (root / "a").exists()


def test_spark_says_what_is_wrong(spark: SparkSession, root: Path) -> None:
    frame = spark.sql("select 1L timestamp_ns, X'00' payload, 'a' source, map('', X'01') headers")
    with pytest.raises(PySparkException, match="1 to 255 bytes"):
        frame.write.format("chronicle").mode("append").save(str(root))


def test_archive_and_replay(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    append_samples(root / "a")
    archive(spark, str(root), str(tmp_path / "files"))
    rows = spark.read.parquet(str(tmp_path / "files")).orderBy("seq").collect()
    assert [parts_of(row) for row in rows] == SAMPLES
    replay(spark, str(tmp_path / "files"), str(tmp_path / "again"))
    assert read_all(tmp_path / "again" / "a") == SAMPLES
