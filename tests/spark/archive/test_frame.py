"""An archive can be read after its queues are gone, with the same typed columns."""

import random
import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.errors import CorruptionError, InvalidArgument, QueueNotFound, UnknownType
from aiochronicle.spark import explain, scan
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.archive.verify import check_file, read_back
from aiochronicle.spark.jobs import archive, archived, replay
from aiochronicle.spark.options import write_options
from spark.market import record, trades_of


def test_an_archive_has_the_typed_columns_of_its_queues(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    written = record(root / "binance", rng, 200) + record(
        root / "kraken", rng, 50, encoding="msgpack"
    )
    files = str(tmp_path / "archive")
    archive(spark, str(root), files)
    live = spark.read.format("chronicle").option("type", "trade").load(str(root))
    columns = live.schema
    shutil.rmtree(root)
    frame = archived(spark, files, type="trade")
    assert frame.schema == columns
    rows = frame.orderBy("source", "seq").collect()
    assert [(row.source, row.seq, row.timestamp_ns, row.symbol, row.price) for row in rows] == [
        (message.source, message.seq, message.timestamp_ns, trade.symbol, trade.price)
        for message, trade in trades_of(written)
    ]
    day = str(rows[0].timestamp.date())
    some = archived(spark, files, queues=["kraken"], days=[day, "1999-01-01"])
    assert {row.source for row in some.collect()} == {"kraken"}
    assert archived(spark, files, days=["1999-01-01"]).count() == 0


def test_what_an_archive_does_not_have_is_told(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    with pytest.raises(QueueNotFound, match="there is no such archive"):
        archived(spark, str(tmp_path / "no"))
    with pytest.raises(QueueNotFound, match="no job has archived anything there"):
        archived(spark, str(tmp_path))
    record(root / "a", rng, 10)
    archive(spark, str(root), str(tmp_path / "archive"))
    with pytest.raises(QueueNotFound, match=r"no queue in or below it.*jobs\.archived reads it"):
        scan(spark, str(tmp_path / "archive"))
    with pytest.raises(QueueNotFound, match=r"there are none at all.*jobs\.archived reads it"):
        scan(spark, str(tmp_path / "archive"), subscribe="a")
    with pytest.raises(InvalidArgument, match="is for where retention moves segments to"):
        scan(spark, str(root), archive=str(tmp_path / "archive"))
    with pytest.raises(InvalidArgument, match="is an archive of Parquet files; write queues into"):
        write_options({"path": str(tmp_path / "archive")})
    with pytest.raises(QueueNotFound, match=r'Queues are read by format\("chronicle"\)'):
        archived(spark, str(root))
    with pytest.raises(UnknownType, match="no queue has a type 'fill'; there are Quote, Trade"):
        archived(spark, str(tmp_path / "archive"), type="fill")


def flip(file: Path, at: int) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[at // 8] ^= 1 << at % 8
    file.write_bytes(content)


def test_a_bit_that_changed_since_a_file_was_verified_is_noticed(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    """The change is noticed even if the file still decodes, to rows that differ from those written."""
    with aiochronicle.open_writer(root / "a") as writer:
        for _ in range(200):
            writer.append(rng.randbytes(100))  # incompressible, so no decoder notices
    out = tmp_path / "archive"
    archive(spark, str(root), str(out))
    manifest = Manifest.load(out, "a")
    assert manifest is not None
    file = out / manifest.files[0].path
    rows = [batch.to_pydict() for batch in read_back(file)]
    good = file.read_bytes()
    payload = next(iter(rows[0]["payload"]))
    flip(file, good.index(payload) * 8 + rng.randrange(800))
    assert [batch.to_pydict() for batch in read_back(file)] != rows
    for use in (
        lambda: archived(spark, str(out)).limit(1).collect(),
        lambda: replay(spark, str(out), str(tmp_path / "again")),
    ):
        with pytest.raises(PySparkException) as told:
            use()
        assert f"{file}: has changed since it was verified: " in explain(told.value)
    assert not (tmp_path / "again" / "a").exists()
    # Archives older than file checksums have the digest of the messages only.
    older = msgspec.structs.replace(manifest.files[0], checksum=None)
    with pytest.raises(CorruptionError, match=r"has changed since it was verified.*Restore"):
        check_file(out, "a", older)
    file.write_bytes(good)
    check_file(out, "a", older)
    for at in (rng.randrange(8 * len(good)) for _ in range(100)):
        flip(file, at)
        with pytest.raises(CorruptionError, match="has changed since it was verified"):
            check_file(out, "a", manifest.files[0])
        file.write_bytes(good)
    assert archived(spark, str(out)).count() == 200
    file.unlink()
    with pytest.raises(CorruptionError, match=r"is gone\. Restore"):
        check_file(out, "a", manifest.files[0])
