"""A damaged control block affects only queries that read its queue."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiochronicle
from aiochronicle import Retention
from aiochronicle.errors import ChronicleError, CorruptionError, NotAQueue
from aiochronicle.spark import bad_records, explain, scan
from aiochronicle.spark.__main__ import main
from aiochronicle.spark.jobs import archive
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.source.columns import frame_schema
from aiochronicle.spark.source.found import FoundDirectory
from aiochronicle.spark.source.plan import plan
from aiochronicle.spark.source.queues import damage_of
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.stream import StreamReader
from spark.filling import fill

FIRST_NS = 1_700_000_000_000_000_000
ROWS = 3000  # spread over three and a half days
STEP_NS = 10**11

Damage = Callable[[Path], object]


def emptied(control: Path) -> None:
    control.write_bytes(b"")


def zeroed(control: Path) -> None:
    """Zero the control block, as it is briefly while a queue is created; readers wait a second for it."""
    control.write_bytes(bytes(control.stat().st_size))


def scrambled(control: Path) -> None:
    control.write_bytes(b"\xff" * 8 + control.read_bytes()[8:])


def missing(control: Path) -> None:
    control.unlink()


def an_hour_ago(damage: Damage, control: Path) -> None:
    """Apply the damage with old file times, so that readers do not wait for a writer or remover."""
    damage(control)
    then_s = time.time() - 3600
    for path in filter(Path.exists, (control, control.parent)):
        os.utime(path, (then_s, then_s))


def test_a_queue_that_is_being_removed_is_not_damaged(root: Path) -> None:
    """A slow removal counts as one as long as files keep disappearing."""
    with aiochronicle.open_writer(root / "a", segment_size=1 << 12) as writer:
        for _ in range(40):
            writer.append(bytes(1000))
    (root / "a" / "control.meta").unlink()

    def remove() -> None:
        for file in sorted((root / "a").glob("*.q")):
            file.unlink()
            time.sleep(0.1)

    remover = Thread(target=remove)
    remover.start()
    assert damage_of(FoundDirectory(str(root / "a"))) is None
    assert not list((root / "a").glob("*.q"))
    remover.join()


@pytest.fixture(params=[emptied, scrambled, missing])
def damage(request: pytest.FixtureRequest) -> Damage:
    return partial(an_hour_ago, request.param)


@pytest.fixture
def archives(root: Path) -> Path:
    """The archives of queues a and b, several days each; the newest segments are in the root."""
    place = root.parent / "archives"
    place.mkdir()
    for name in "ab":
        with aiochronicle.open_writer(root / name, segment_size=1 << 16) as writer:
            for number in range(ROWS):
                writer.append(bytes(50), timestamp_ns=FIRST_NS + number * STEP_NS)
        moved = Retention(max_bytes=1, archive=str(place / name))
        with aiochronicle.open_writer(root / name, retention=moved) as writer:
            writer.retain_now()
        assert len(days_of(place / name)) == 3
    return place


def days_of(archive: Path) -> list[Path]:
    return sorted(archive.glob("*/*/*"))


def seqs_in(queue: Path) -> list[int]:
    with aiochronicle.Queue(queue) as opened:
        return [message.seq for message in opened.slice()]


def options_for(path: Path, **given: str) -> ReadOptions:
    return read_options({"path": str(path), **given})


def seqs_by_queue(options: ReadOptions) -> dict[str, list[int]]:
    snapshot = Snapshot(options)
    found: dict[str, list[int]] = {name: [] for name in snapshot.sources}
    for part in plan(snapshot.sources, snapshot.start, snapshot.end):
        for batch in read_range(part, ["seq"], options):
            found[part.source.name] += batch.column("seq").to_pylist()
    return found


def test_queues_that_are_not_damaged_can_be_read(
    root: Path, archives: Path, damage: Damage
) -> None:
    whole = seqs_by_queue(options_for(archives, subscribe="b"))
    damage(days_of(archives / "a")[1] / "control.meta")
    for chosen in ({"subscribe": "b"}, {"subscribePattern": "b|c"}):
        assert seqs_by_queue(options_for(archives, **chosen)) == whole
        both = options_for(root, archive=str(archives), **chosen)
        assert seqs_by_queue(both) == {"b": [*range(ROWS)]}
    damage(root / "a" / "control.meta")
    for chosen in ({"subscribe": "b"}, {"subscribePattern": "b|c"}):
        both = options_for(root, archive=str(archives), **chosen)
        assert seqs_by_queue(both) == {"b": [*range(ROWS)]}


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_day_is_an_error_for_those_who_ask_for_its_queue(
    root: Path, archives: Path, damage: Damage, number: int
) -> None:
    days = days_of(archives / "a")
    whole = seqs_by_queue(options_for(archives))
    control = days[number] / "control.meta"
    damage(control)
    for options in (
        options_for(archives),
        options_for(archives, subscribe="a"),
        options_for(archives, subscribePattern="a|b"),
        options_for(archives / "a"),
        options_for(root, archive=str(archives)),
        # Without the control block, the time range of the day is unknown.
        options_for(archives, startingTimestamp=str(FIRST_NS + ROWS * STEP_NS)),
    ):
        with pytest.raises(CorruptionError, match=f"{control}.* Restore the file") as told:
            Snapshot(options)
        assert "this day of the archive cannot be opened" in str(told.value)
    # Follow the advice of the error:
    shutil.copy(days[number - 1] / "control.meta", control)
    assert seqs_by_queue(options_for(archives)) == whole


def test_a_damaged_day_in_the_middle_is_stepped_over_and_its_messages_are_counted(
    root: Path, archives: Path, tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    day = days_of(archives / "a")[1]
    lost = seqs_in(day)
    damage(day / "control.meta")
    bad = str(tmp_path / "bad")
    options = options_for(root, archive=str(archives), on_corrupt="skip", badRecordsPath=bad)
    with caplog.at_level(logging.WARNING):
        assert seqs_by_queue(options) == {
            "a": [*range(lost[0]), *range(lost[-1] + 1, ROWS)],
            "b": [*range(ROWS)],
        }
    assert f"left out of a: {day}/control.meta: " in caplog.text
    assert (
        f"stepped over {len(lost)} damaged or missing of messages 0 to {ROWS - 1} of a"
        in caplog.text
    )
    notes = bad_records(bad)
    assert [(note.source, note.first_seq, note.end_seq) for note in notes] == [
        ("a", 0, 0),
        ("a", lost[0], lost[-1] + 1),
    ]
    assert {note.file for note in notes} == {str(day / "control.meta")}


@pytest.mark.parametrize("number", [0, -1])
def test_a_damaged_day_at_an_end_is_stepped_over_and_told(
    archives: Path, tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = seqs_by_queue(options_for(archives))
    day = days_of(archives / "a")[number]
    lost = seqs_in(day)
    an_hour_ago(emptied, day / "control.meta")
    bad = str(tmp_path / "bad")
    options = options_for(archives, on_corrupt="skip", badRecordsPath=bad)
    rest = [seq for seq in whole["a"] if seq not in lost]
    assert seqs_by_queue(options) == {"a": rest, "b": whole["b"]}
    assert f"left out of a: {day}/control.meta: 0 bytes long" in caplog.text
    (note,) = bad_records(bad)
    assert (note.source, note.first_seq, note.end_seq) == ("a", 0, 0)
    assert note.file == str(day / "control.meta")


def test_a_queue_that_cannot_be_opened_is_stepped_over_unless_it_is_asked_for(
    root: Path, archives: Path, tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    damage(root / "a" / "control.meta")
    for day in days_of(archives / "a"):
        damage(day / "control.meta")
    for place in (root, archives):
        caplog.clear()
        bad = str(tmp_path / f"bad-{place.name}")
        tolerant = {"on_corrupt": "skip", "badRecordsPath": bad}
        with caplog.at_level(logging.WARNING):
            found = seqs_by_queue(options_for(place, **tolerant))
        assert list(found) == ["b"]
        assert f"left out of a: {place}/a/" in caplog.text
        assert [note.source for note in bad_records(bad)] == ["a"]
        for options in (
            options_for(place, subscribe="a,b", **tolerant),
            options_for(place / "a", **tolerant),
            options_for(place),
        ):
            with pytest.raises((CorruptionError, NotAQueue), match=f"{place}/a/.*control.meta"):
                Snapshot(options)


@pytest.mark.parametrize("damage", [emptied, zeroed, missing])
def test_damaged_queues_by_day_keep_their_names(root: Path, damage: Damage) -> None:
    """Otherwise a pattern would silently miss them."""
    days = [root / "md/2026/11/15", root / "md/2026/11/16"]
    days[0].parent.mkdir(parents=True)
    for day in days:
        fill(day, 10)
    damage(days[0] / "control.meta")
    assert list(Snapshot(options_for(root, subscribe="md/2026/11/16")).sources) == ["md/2026/11/16"]
    damage(days[1] / "control.meta")
    with pytest.raises((CorruptionError, NotAQueue), match=r"2026/11/1[56]/control\.meta"):
        Snapshot(options_for(root, subscribePattern="md/.*"))


def test_streams_leave_out_damaged_queues_too(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        fill(root / name, 10, ready=True)
    an_hour_ago(emptied, root / "a" / "control.meta")
    strict = options_for(root, startingOffsets="earliest")
    with pytest.raises(CorruptionError, match=r"a/control\.meta"):
        StreamReader(strict, frame_schema(strict, {}))
    (root / "c").rename(root.parent / "c")
    an_hour_ago(emptied, root.parent / "c" / "control.meta")
    options = options_for(root, startingOffsets="earliest", on_corrupt="skip")
    stream = StreamReader(options, frame_schema(options, {}))
    try:
        assert stream.latestOffset({"b": 0}, ReadAllAvailable()) == {"b": 10}
        (root.parent / "c").rename(root / "c")
        fill(root / "d", 10, ready=True)
        offsets = {"b": 10}
        while "d" not in offsets:  # it rescans the directory now and then
            offsets = stream.latestOffset(offsets, ReadAllAvailable())
        assert offsets == {"b": 10, "d": 0}
    finally:
        stream.stop()
    for name in "ac":
        assert caplog.text.count(f"left out of {name}: ") == 1


def test_jobs_and_frames_over_a_root_with_a_damaged_day(
    spark: SparkSession, archives: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = {name: len(seqs) for name, seqs in seqs_by_queue(options_for(archives)).items()}
    day = days_of(archives / "a")[1]
    lost = len(seqs_in(day))
    an_hour_ago(emptied, day / "control.meta")
    reading = spark.read.format("chronicle")
    with pytest.raises(Exception, match="this day of the archive") as told:
        reading.load(str(archives)).count()
    assert explain(told.value).startswith(f"{day}/control.meta: ")
    assert scan(spark, str(archives), subscribe="b").count() == whole["b"]
    assert (
        spark.read.format("chronicle").option("subscribe", "b").load(str(archives)).count()
        == whole["b"]
    )
    skipped = spark.read.format("chronicle").option("on_corrupt", "skip").load(str(archives))
    assert skipped.count() == whole["a"] + whole["b"] - lost

    # The archive job archives the sound queues and fails for the damaged one.
    out = tmp_path / "out"
    with pytest.raises(ChronicleError, match=f"{day}/control.meta"):
        archive(spark, str(archives), str(out), reader=None)
    assert {path.name for path in out.glob("type=*/date=*/*")} == {"source=b"}
    assert main(["audit", str(archives)]) == 5
    advice = "Other queues can be read by --queues, and other days by --skip-corrupt."
    assert advice in capfd.readouterr().err
    command = ["audit", str(archives), "--skip-corrupt"]
    assert main([*command, "--bad-records", str(tmp_path / "bad"), "--dry-run"]) == 0
    assert not (tmp_path / "bad").exists()
    assert main(command) == 0
    complaints = capfd.readouterr().err
    assert f"audit: damaged messages that were stepped over: {lost:,}" in complaints
    assert f"audit:   a cannot be opened: {day}/control.meta: " in complaints
