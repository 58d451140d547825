"""Corrupt messages raise an error with the place, or are skipped, counted and recorded."""

import logging
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle.errors import CorruptionError, ExportFailed
from aiochronicle.spark import bad_records
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.source.plan import plan
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.snapshot import Snapshot
from spark.filling import FIRST_NS, STEP_NS, fill


def options_for(path: Path, **given: str) -> ReadOptions:
    return read_options({"path": str(path), **given})


def damage(root: Path, message: int, *, header: bool = False) -> int:
    """Overwrite part of a short message in the first segment; return its place."""
    offset = 64 + message * 128
    with (root / "a" / "000000000.q").open("r+b") as segment:
        segment.seek(offset if header else offset + 64)
        segment.write(b"\xff\xff")
    return offset


def test_corrupt_messages_are_an_error_or_stepped_over_and_counted(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(root / "a", 1000)
    offset = damage(root, 100)
    damage(root, 101)
    behind = damage(root, 700, header=True)
    options = options_for(root)
    parts = plan(Snapshot(options).sources, {"a": 0}, {"a": 1000})
    columns = ["seq", "payload"]
    with pytest.raises(CorruptionError, match=rf"000000000\.q at offset {offset}"):
        list(read_range(parts[0], columns, options))
    tolerant = options_for(root, on_corrupt="skip", badRecordsPath=str(tmp_path / "bad"))
    for _ in range(2):  # a repeated task records the same
        with caplog.at_level(logging.WARNING):
            batches = list(read_range(parts[0], columns, tolerant))
        seqs = [seq for batch in batches for seq in batch.column("seq").to_pylist()]
        assert seqs == [*range(100), *range(102, 700), *range(701, 1000)]
    assert "stepped over 3 damaged or missing of messages 0 to 999 of a" in caplog.text
    segment = str(root / "a" / "000000000.q")
    notes = bad_records(tmp_path / "bad")
    assert [(note.source, note.first_seq, note.end_seq) for note in notes] == [
        ("a", 100, 102),
        ("a", 700, 701),
    ]
    assert [(note.file, note.offset) for note in notes] == [(segment, offset), (segment, behind)]
    assert notes[0].reason == "payload checksum fails"


def test_messages_of_a_missing_segment_are_noted_as_such(root: Path, tmp_path: Path) -> None:
    with aiochronicle.open_writer(root / "a", segment_size=1 << 16) as writer:
        for number in range(2000):
            writer.append(b"x" * 100, timestamp_ns=FIRST_NS + number)
    (root / "a" / "000000001.q").unlink()
    options = options_for(root, on_corrupt="skip", badRecordsPath=str(tmp_path / "bad"))
    parts = plan(Snapshot(options).sources, {"a": 0}, {"a": 2000})
    rows = sum(batch.num_rows for part in parts for batch in read_range(part, ["seq"], options))
    (note,) = bad_records(tmp_path / "bad")
    assert rows == 2000 - (note.end_seq - note.first_seq) < 2000
    assert (note.file, note.offset) == (str(root / "a"), 0)
    assert note.reason == "missing: removed, cut off, or lost in a power cut"


def test_notes_about_corrupt_messages_that_cannot_be_taken_are_told(
    root: Path, tmp_path: Path
) -> None:
    fill(root / "a", 10)
    damage(root, 5)
    (tmp_path / "file").write_text("")
    options = options_for(root, on_corrupt="skip", badRecordsPath=str(tmp_path / "file"))
    parts = plan(Snapshot(options).sources, {"a": 0}, {"a": 10})
    with pytest.raises(ExportFailed, match="cannot note which messages are corrupt"):
        list(read_range(parts[0], ["seq", "payload"], options))


def test_times_behind_a_corrupt_message_are_found(root: Path) -> None:
    fill(root / "a", 1000)
    damage(root, 100, header=True)
    moments = {
        "startingTimestamp": FIRST_NS + 500 * STEP_NS,
        "endingTimestamp": FIRST_NS + 600 * STEP_NS,
    }
    snapshot = Snapshot(
        options_for(root, **{name: str(time_ns) for name, time_ns in moments.items()})
    )
    assert (snapshot.start, snapshot.end) == ({"a": 500}, {"a": 600})
