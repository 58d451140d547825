"""The archive holds what the queues hold, once, and says so only when it is true."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import LockedError, NotAQueue, QueueNotFound
from aiochronicle.spark.jobs import archive
from aiochronicle.spark.jobs.ledger import Ledger, locked

MIDNIGHT_NS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 10**9
Row = tuple[str, int, int, int, bytes]


def append(path: Path, rng: random.Random, count: int, start_ns: int = MIDNIGHT_NS - 10**9) -> None:
    """Append messages of the two seconds around midnight, or a given one."""
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for number in range(count):
            time_ns = start_ns + number * (2 * 10**9 // count)
            payload = rng.randbytes(rng.randrange(60))
            writer.append(payload, type_id=rng.randrange(3), timestamp_ns=time_ns)


def rows_of_queues(root: Path) -> list[Row]:
    rows: list[Row] = []
    for path in sorted(root.iterdir()):
        with aiochronicle.open_reader(path, start="first") as reader:
            rows += [(path.name, m.seq, m.timestamp_ns, m.type_id, m.payload) for m in reader]
    return rows


def rows_of_archive(spark: SparkSession, out: Path) -> list[Row]:
    frame = spark.read.parquet(str(out)).orderBy("source", "seq")
    assert all(
        str(row.date) == str(datetime.fromtimestamp(row.timestamp_ns // 10**9, UTC).date())
        for row in frame.collect()
    )
    return [
        (row.source, row.seq, row.timestamp_ns, row.type_id, bytes(row.payload))
        for row in frame.collect()
    ]


def files_of(out: Path) -> list[str]:
    return sorted(path.parent.relative_to(out).as_posix() for path in out.rglob("*.parquet"))


def committed_seq(path: Path) -> int | None:
    with aiochronicle.open_reader(path, "archive") as reader:
        message = reader.poll()
        return None if message is None else message.seq


def test_archive_is_complete_incremental_and_compact(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "binance", rng, 300)
    append(root / "kraken", rng, 20)
    first = archive(spark, str(root), str(out), options={"minPartitions": "3"})
    assert [(done.source, done.rows, done.next_seq) for done in first] == [
        ("binance", 300, 300),
        ("kraken", 20, 20),
    ]
    assert rows_of_archive(spark, out) == rows_of_queues(root)

    for options in ({}, {"endingTimestamp": str(MIDNIGHT_NS)}):
        assert [done.rows for done in archive(spark, str(root), str(out), options=options)] == [
            0,
            0,
        ]
    assert rows_of_archive(spark, out) == rows_of_queues(root)

    append(root / "binance", rng, 50, MIDNIGHT_NS + 5 * 10**9)
    assert [done.rows for done in archive(spark, str(root), str(out))] == [50, 0]
    assert rows_of_archive(spark, out) == rows_of_queues(root)
    # The day's small last file was written anew together with what is new.
    assert files_of(out).count("date=2026-03-02/source=kraken") == 1
    ledger = Ledger.load(out, "binance")
    assert ledger is not None
    assert (ledger.rows, ledger.next_seq) == (350, 350)
    assert len(ledger.files) == sum("binance" in name for name in files_of(out))
    for file in ledger.files:
        digest = StreamDigest(["binance"])
        with aiochronicle.Queue(root / "binance") as queue:
            digest.add(queue.slice(file.first_seq, file.end_seq))
        assert digest.hexdigest() == file.digest

    assert committed_seq(root / "binance") is None
    append(root / "binance", rng, 1, MIDNIGHT_NS + 8 * 10**9)
    assert committed_seq(root / "binance") == 350


def test_archive_cleans_up_after_a_run_that_died(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 10)
    directory = out / "date=2026-03-01" / "source=a"
    directory.mkdir(parents=True)
    (directory / "0000000000000000000-dead.parquet").write_bytes(b"half a file")
    (directory / ".0000000000000000000-dead.parquet.part").write_bytes(b"less than that")
    archive(spark, str(root), str(out))
    assert rows_of_archive(spark, out) == rows_of_queues(root)
    assert not list(out.rglob("*dead*"))


def test_archive_does_not_believe_what_it_did_not_verify(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    """A damaged file is found when it is compacted; nothing is lost, and nothing claimed."""
    out = tmp_path / "archive"
    append(root / "a", rng, 10, MIDNIGHT_NS)
    archive(spark, str(root), str(out))
    before = Ledger.load(out, "a")
    assert before is not None
    append(root / "b", rng, 10, MIDNIGHT_NS)
    archive(spark, str(root / "b"), str(tmp_path / "other"))
    (other,) = (tmp_path / "other").rglob("*.parquet")
    (out / before.files[0].path).write_bytes(other.read_bytes())
    append(root / "a", rng, 5, MIDNIGHT_NS + 5 * 10**9)
    with pytest.raises(PySparkException, match="has 10 rows with digest"):
        archive(spark, str(root / "a"), str(out))
    assert Ledger.load(out, "a") == before
    assert committed_seq(root / "a") == 10


def test_archive_of_a_corrupt_queue_names_the_place(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 100)
    with (root / "a" / "000000000.q").open("r+b") as segment:
        segment.seek(64 * 20)
        segment.write(b"\xff" * 64)
    with pytest.raises(PySparkException, match=r"a/000000000.q at offset \d+: "):
        archive(spark, str(root), str(out))
    assert not list(out.rglob("*.parquet"))
    assert Ledger.load(out, "a") is None
    (done,) = archive(spark, str(root), str(out), options={"on_corrupt": "skip"})
    assert 90 < done.rows < 100
    assert done.next_seq == 100


def test_archive_refuses_what_it_cannot_do(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    with pytest.raises(QueueNotFound, match="there is no queue"):
        archive(spark, str(root), str(out))
    append(root / "a", rng, 10)
    with locked(out), pytest.raises(LockedError, match="another job is archiving"):
        archive(spark, str(root), str(out))
    archive(spark, str(root), str(out))
    (tmp_path / "elsewhere").mkdir()
    append(tmp_path / "elsewhere" / "a", rng, 10)
    with pytest.raises(NotAQueue, match="another queue of the name a"):
        archive(spark, str(tmp_path / "elsewhere"), str(out))
    (out / "_chronicle" / "a.json").write_text("{")
    with pytest.raises(NotAQueue, match="not the ledger"):
        archive(spark, str(root), str(out))
