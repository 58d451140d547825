"""URLs as paths of frames, sinks and jobs: ``file:`` works everywhere, others are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.spark import bad_records, count, explain, scan, scan_stream
from aiochronicle.spark.__main__ import main
from aiochronicle.spark.jobs import archive, archived, audit, replay
from aiochronicle.spark.options import read_options, write_options
from aiochronicle.spark.pack import pack
from spark.venues import MARKETS, record_venues

S3 = "s3a://bucket/a"
OTHER = "gs://bucket/a"  # archives do not support it either


def _there(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("*")}


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry"])
def test_jobs_refuse_urls_before_spark_is_started(
    dry: list[str],
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    record_venues(root, 1, 20)
    before = _there(tmp_path)
    for command in (
        ["archive", "bus", "--out", OTHER],
        ["archive", S3, "--out", "out"],
        ["archive", "bus", "--out", "out", "--moved", S3],
        ["audit", "bus", "--out", S3],
        ["bars", "bus", "--trades", "Trade", "--every", "1s", "--out", S3],
        ["bars", "bus", "--trades", "Trade", "--every", "1s", "--plot", f"{S3}.png"],
        ["asof", "bus", "--trades", "Trade", "--quotes", "BookTicker", "--quotes-root", S3],
        ["quality", "bus", "--out", S3],
        ["quality", "bus", "--skip-corrupt", "--bad-records", S3],
        ["replay", OTHER, "--out", "again"],
        ["replay", "bus", "--out", S3],
    ):
        assert main([*command, *dry]) == 2, command
        told = capsys.readouterr().err
        assert "s3a: is not supported" in told or "gs: is not supported" in told, command
        assert "starting Spark" not in told
    assert _there(tmp_path) == before
    assert not aiochronicle.list_readers(root / "cm/btc")


def test_functions_refuse_urls(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record_venues(root, 1, 20)
    before = _there(tmp_path)
    none: Any = None  # refused before a session is needed
    calls: list[Callable[[], object]] = [
        lambda: archive(none, "bus", OTHER),
        lambda: archive(none, S3, "out"),
        lambda: replay(none, "bus", S3),
        lambda: replay(none, OTHER, "out"),
        lambda: audit(none, "bus", out=S3),
        lambda: archived(none, OTHER),
        lambda: scan(none, S3),
        lambda: scan_stream(none, S3),
        lambda: count(S3),
        lambda: pack(S3),
        lambda: bad_records(S3),
        lambda: read_options({"path": S3}),
        lambda: read_options({"path": "bus", "archive": S3}),
        lambda: write_options({"path": S3}),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"(s3a|gs): is not supported"):
            call()
    assert _there(tmp_path) == before


def test_file_urls_work_from_queues_to_archive_and_back(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = record_venues(root, 2, 50)
    url = f"file://{tmp_path}"
    frame = spark.read.format("chronicle").load(f"{url}/bus")
    assert frame.count() == len(written)
    assert count(f"file:{root}") == len(written)
    monkeypatch.chdir(tmp_path)
    done = archive(spark, f"{url}/bus", f"{url}/archive")
    assert sorted(queue.source for queue in done) == sorted(MARKETS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "bus"]
    assert archived(spark, f"{url}/archive").count() == len(written)
    replay(spark, f"{url}/archive", f"{url}/again")
    assert count(str(tmp_path / "again")) == len(written)
    frame.write.format("chronicle").mode("append").save(f"{url}/copy")
    assert count(str(tmp_path / "copy")) == len(written)
    assert audit(spark, str(root)).digest == audit(spark, f"{url}/copy").digest
    assert not [path for path in tmp_path.rglob("*") if ":" in path.name]
    for refused in (
        lambda: spark.read.format("chronicle").load(S3).collect(),
        lambda: frame.write.format("chronicle").mode("append").save(S3),
    ):
        with pytest.raises(Exception, match="s3a") as caught:
            refused()
        assert isinstance(caught.value, ChronicleError) or "s3a: is not supported" in explain(
            caught.value
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "archive", "bus", "copy"]
