"""The archive holds each message of the queues once, and commits only what it has verified."""

import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers.power_cut import copy_as_original
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import Retention, Roll
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    LockedError,
    NotAQueue,
    PositionLost,
    QueueNotFound,
)
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.archive.store import open_store
from aiochronicle.spark.jobs import archive
from aiochronicle.spark.jobs.archive import archive_plan

MIDNIGHT_NS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 10**9
Row = tuple[str, int, int, int, bytes]


def append(path: Path, rng: random.Random, count: int, start_ns: int = MIDNIGHT_NS - 10**9) -> None:
    """Append messages with random times in the two seconds around midnight, or with a given time."""
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for number in range(count):
            time_ns = start_ns + number * (2 * 10**9 // count)
            payload = rng.randbytes(rng.randrange(60))
            writer.append(payload, type_id=rng.randrange(3), timestamp_ns=time_ns)


def rows_of_queues(root: Path, names: list[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    for path in sorted(root.iterdir() if names is None else [root / name for name in names]):
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
    # The day's small last file was rewritten together with the new rows.
    assert files_of(out).count("type=raw/date=2026-03-02/source=kraken") == 1
    manifest = Manifest.load(out, "binance")
    assert manifest is not None
    assert (manifest.rows, manifest.next_seq) == (350, 350)
    assert len(manifest.files) == sum("binance" in name for name in files_of(out))
    for file in manifest.files:
        digest = StreamDigest(["binance"])
        with aiochronicle.Queue(root / "binance") as queue:
            digest.add(queue.slice(file.first_seq, file.end_seq))
        assert digest.hexdigest() == file.digest

    assert committed_seq(root / "binance") is None
    append(root / "binance", rng, 1, MIDNIGHT_NS + 8 * 10**9)
    assert committed_seq(root / "binance") == 350


def test_archive_is_not_made_among_the_queues(spark: SparkSession, root: Path) -> None:
    append(root / "q", random.Random(1), 10)
    before = sorted(root.rglob("*"))
    with pytest.raises(InvalidArgument, match="is the source of the archive"):
        archive(spark, str(root), f"{root}/q/..")
    with pytest.raises(InvalidArgument, match="is the source of the archive"):
        archive_plan(str(root), str(root))
    assert sorted(root.rglob("*")) == before


def test_archive_cleans_up_after_a_run_that_died(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 10)
    directory = out / "type=raw" / "date=2026-03-01" / "source=a"
    directory.mkdir(parents=True)
    (directory / "0000000000000000000-dead.parquet").write_bytes(b"half a file")
    (directory / ".0000000000000000000-dead.parquet.part").write_bytes(b"less than that")
    archive(spark, str(root), str(out))
    assert rows_of_archive(spark, out) == rows_of_queues(root)
    assert not list(out.rglob("*dead*"))


def test_archive_does_not_believe_what_it_did_not_verify(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    """Compaction finds a damaged file; nothing is lost, and nothing is reported as archived."""
    out = tmp_path / "archive"
    append(root / "a", rng, 10, MIDNIGHT_NS)
    archive(spark, str(root), str(out))
    before = Manifest.load(out, "a")
    assert before is not None
    append(root / "b", rng, 10, MIDNIGHT_NS)
    archive(spark, str(root / "b"), str(tmp_path / "other"))
    (other,) = (tmp_path / "other").rglob("*.parquet")
    (out / before.files[0].path).write_bytes(other.read_bytes())
    append(root / "a", rng, 5, MIDNIGHT_NS + 5 * 10**9)
    with pytest.raises(CorruptionError, match=r"has changed since it was verified.*Restore"):
        archive(spark, str(root / "a"), str(out))
    assert Manifest.load(out, "a") == before
    assert committed_seq(root / "a") == 0, "retention would delete what is nowhere else"


def test_archive_of_a_corrupt_queue_names_the_place(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 100)
    with (root / "a" / "000000000.q").open("r+b") as segment:
        segment.seek(64 * 20)
        segment.write(b"\xff" * 64)
    with pytest.raises(CorruptionError, match=r"a/000000000.q at offset \d+: "):
        archive(spark, str(root), str(out))
    assert not list(out.rglob("*.parquet"))
    assert Manifest.load(out, "a") is None
    (done,) = archive(spark, str(root), str(out), options={"on_corrupt": "skip"})
    assert 90 < done.rows < 100
    assert done.next_seq == 100


def test_archive_goes_on_with_other_queues_when_some_cannot_be_read(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    names = ["a", "busy", "cut", "damaged", "headless", "unlisted", "z"]
    for name in names:
        append(root / name, rng, 100)
    archive(spark, str(root), str(out), options={"endingTimestamp": str(MIDNIGHT_NS)})
    before = {name: Manifest.load(out, name) for name in names}
    for name, offset in (("damaged", 64 * 2 * 80), ("cut", 64 * 2 * 90)):
        with (root / name / "000000000.q").open("r+b") as segment:
            segment.seek(offset)
            segment.write(b"\xff" * 64)
            if name == "cut":
                segment.truncate(offset)
    (root / "headless" / "control.meta").write_bytes(b"")
    (out / "_chronicle" / "unlisted.json").write_text("{")
    kept = list(out.glob("type=raw/date=*/source=unlisted/*"))
    with aiochronicle.open_reader(root / "busy", "archive"), pytest.raises(ChronicleError) as told:
        archive(spark, str(root), str(out), options={"minPartitions": "14"})
    assert "5 queues failed" in str(told.value)
    for name in ("busy", "cut", "damaged", "headless", "unlisted"):
        assert f" {name}: " in str(told.value)
    for name in ("cut", "damaged", "headless"):
        assert Manifest.load(out, name) == before[name]
    for name in ("cut", "damaged"):
        assert committed_seq(root / name) == 50
    assert list(out.glob("type=raw/date=*/source=unlisted/*")) == kept
    expected = rows_of_queues(root, ["a", "busy", "z"])
    found = [row for row in rows_of_archive(spark, out) if row[0] in ("a", "busy", "z")]
    assert found == expected
    for name in ("a", "z"):
        assert committed_seq(root / name) is None
    assert committed_seq(root / "busy") == 50


def test_archive_notices_that_the_queue_has_lost_its_end(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    """A power cut may cut a queue; archive and queue then have different messages with the same seqs."""
    out, saved = tmp_path / "archive", tmp_path / "saved"
    append(root / "a", rng, 50, MIDNIGHT_NS)
    append(root / "b", rng, 10, MIDNIGHT_NS)
    copy_as_original(root / "a", saved)
    append(root / "a", rng, 50, MIDNIGHT_NS + 5 * 10**9)
    archive(spark, str(root), str(out))
    before = Manifest.load(out, "a")
    shutil.rmtree(root / "a")
    copy_as_original(saved, root / "a")
    for appended, trouble in ((20, "it ends at 70"), (40, "message 99 is another one now")):
        append(root / "a", rng, appended, MIDNIGHT_NS + appended * 10**9)
        append(root / "b", rng, 5, MIDNIGHT_NS + appended * 10**9)
        with pytest.raises(
            PositionLost, match=f"a is archived up to seq 100, but {trouble}: a pow"
        ):
            archive(spark, str(root), str(out))
        assert Manifest.load(out, "a") == before
        with pytest.raises(PositionLost, match=trouble):
            archive_plan(str(root / "a"), str(out))
    # Other queues are archived meanwhile.
    (other,) = archive(spark, str(root / "b"), str(out))
    assert (other.rows, other.next_seq) == (0, 20)
    shutil.rmtree(root / "b")
    append(root / "b", rng, 1)
    with pytest.raises(ChronicleError, match=r"2 queues failed. a: .*up to seq.* b: .*the name b"):
        archive(spark, str(root), str(out))


def test_archive_that_begins_later_is_not_told_to_retention(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 100)
    start = {"startingTimestamp": str(MIDNIGHT_NS)}
    for _ in range(2):
        (done,) = archive(spark, str(root), str(out), options=start)
        assert done.next_seq == 100
    append(root / "a", rng, 10, MIDNIGHT_NS + 5 * 10**9)
    assert [done.rows for done in archive(spark, str(root), str(out))] == [10]
    assert committed_seq(root / "a") == 0
    assert len(rows_of_archive(spark, out)) == 60


def test_archive_goes_on_behind_a_loss_if_that_is_allowed(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    append(root / "a", rng, 10, MIDNIGHT_NS)
    append(root / "b", rng, 10, MIDNIGHT_NS)
    archive(spark, str(root), str(out), reader=None)  # a reader would keep the messages
    with aiochronicle.open_writer(root / "a", roll=Roll(messages=5)) as writer:
        for number in range(20):
            writer.append(b"lost", timestamp_ns=MIDNIGHT_NS + 5 * 10**9 + number)
    with aiochronicle.open_writer(root / "a", retention=Retention(max_bytes=1)) as writer:
        writer.retain_now()
    append(root / "b", rng, 10, MIDNIGHT_NS + 5 * 10**9)
    with pytest.raises(PositionLost, match=r"messages 10 to \d+ of a were removed before") as told:
        archive(spark, str(root), str(out))
    assert "--allow-loss" in str(told.value)
    manifests = [Manifest.load(out, name) for name in "ab"]
    assert [manifest and manifest.next_seq for manifest in manifests] == [10, 20]
    done = archive(spark, str(root), str(out), options={"failOnDataLoss": "false"})
    assert [queue.next_seq for queue in done] == [30, 20]
    rest = [row for row in rows_of_queues(root) if row[0] == "a"]
    assert [row for row in rows_of_archive(spark, out) if row[0] == "a"][10:] == rest


def test_archive_refuses_what_it_cannot_do(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    with pytest.raises(QueueNotFound, match="there is no queue"):
        archive(spark, str(root), str(out))
    append(root / "a", rng, 10)
    with open_store(out).locked(), pytest.raises(LockedError, match="another job is archiving"):
        archive(spark, str(root), str(out))
    archive(spark, str(root), str(out))
    (tmp_path / "elsewhere").mkdir()
    append(tmp_path / "elsewhere" / "a", rng, 10)
    with pytest.raises(NotAQueue, match="another queue of the name a"):
        archive(spark, str(tmp_path / "elsewhere"), str(out))
    (out / "_chronicle" / "a.json").write_text("{")
    with pytest.raises(NotAQueue, match="not the manifest"):
        archive(spark, str(root), str(out))
