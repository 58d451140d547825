"""Retention deletes nothing whose copy in the archive is damaged."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import Retention, Roll
from aiochronicle.errors import ChronicleError, CorruptionError
from aiochronicle.spark.archive.manifest import ArchivedFile, Manifest
from aiochronicle.spark.jobs import archive

DAY_NS = 86_400 * 10**9
FIRST_NS = 1_700_000_000 * 10**9
MESSAGES = 20  # per day, in a segment of their own


def append_day(path: Path, rng: random.Random, day: int) -> None:
    with aiochronicle.open_writer(path, segment_size=1 << 16, roll=Roll(messages=20)) as writer:
        for number in range(MESSAGES):
            writer.append(rng.randbytes(100), timestamp_ns=FIRST_NS + day * DAY_NS + number)


def retain(path: Path, max_bytes: int = 1) -> int:
    """Remove everything that retention may remove; return the first seq that is left."""
    limits = Retention(max_bytes=max_bytes, wait_for="archive")
    with aiochronicle.open_writer(path, retention=limits) as writer:
        writer.retain_now()
    with aiochronicle.Queue(path) as queue:
        return next(iter(queue.slice())).seq


def files_of(out: Path, name: str) -> tuple[ArchivedFile, ...]:
    manifest = Manifest.load(out, name)
    assert manifest is not None
    return manifest.files


def change(file: Path) -> bytes:
    """Flip one bit in the middle of a file; return the original content."""
    good = file.read_bytes()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    file.write_bytes(changed)
    return good


def test_a_file_that_is_damaged_later_takes_the_position_back(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    for name in "ab":
        for day in range(5):
            append_day(root / name, rng, day)
    archive(spark, str(root), str(out))
    changed = out / files_of(out, "a")[2].path
    good = change(changed)
    append_day(root / "a", rng, 5)
    with pytest.raises(CorruptionError, match=f"{changed}: has changed since it was verified"):
        archive(spark, str(root), str(out))
    # New messages are archived. Verified ones may be removed: from b all but the last segment.
    assert len(files_of(out, "a")) == 6
    assert retain(root / "b") == 4 * MESSAGES
    assert retain(root / "a") == 2 * MESSAGES
    with pytest.raises(CorruptionError, match="has changed since"):
        archive(spark, str(root), str(out))
    assert retain(root / "a") == 2 * MESSAGES

    changed.write_bytes(good)
    archive(spark, str(root), str(out))
    assert retain(root / "a") == 5 * MESSAGES
    # A queue cannot keep messages that it no longer has.
    changed.unlink()
    assert [done.rows for done in archive(spark, str(root), str(out))] == [0, 0]


def test_a_file_that_is_to_be_compacted_and_is_damaged_takes_the_position_back(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    for name in "ab":
        append_day(root / name, rng, 0)
    archive(spark, str(root), str(out))
    for name in "ab":
        change(out / files_of(out, name)[0].path)
        with aiochronicle.open_writer(root / name) as writer:
            writer.append(b"of the same day", timestamp_ns=FIRST_NS + MESSAGES)
    with pytest.raises(ChronicleError, match=r"2 queues failed. a: .*has changed.* b: .*has cha"):
        archive(spark, str(root), str(out))
    assert [retain(root / name) for name in "ab"] == [0, 0]
