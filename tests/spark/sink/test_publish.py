"""Batches are written to queues exactly once, whichever process dies at whichever step."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import aiochronicle
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    LockedError,
    PositionLost,
    StorageError,
    TimestampOrder,
    UnsupportedVersion,
)
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink import journal
from aiochronicle.spark.sink.batch_writer import BatchSink, StreamSink
from aiochronicle.spark.sink.publish import abandon, publish
from aiochronicle.spark.sink.runs import Run
from aiochronicle.spark.sink.staging import Place
from spark.filling import FIRST_NS, STEP_NS, fill
from spark.sink.staging_rows import (
    SCHEMA,
    content,
    die_half_way,
    leftovers,
    payloads,
    rows,
    sink,
    staged,
    write,
)


def test_a_batch_is_written_once(root: Path) -> None:
    write(root, staged(root, [rows("a", [0, 1])]), batch_id=0)
    write(root, staged(root, [rows("a", [0, 1])]), batch_id=0)
    write(root, [], batch_id=1)
    write(root, staged(root, [rows("a", [5])]), batch_id=1)
    write(root, staged(root, [rows("a", [2])]), batch_id=2)
    assert payloads(root / "a") == [b"a 0", b"a 1", b"a 2"]


def test_batches_may_be_written_in_any_order(root: Path) -> None:
    """A nightly job, for example, fills in a day that it missed."""
    for day in (20261116, 20261115, 20261116, 20261114, 20261115):
        task = (begun := sink(root, writerId="nightly", batchId=str(day))).write(
            iter([rows(f"day{day}", [0])])
        )
        begun.commit([task])
    for day in (20261114, 20261115, 20261116):
        assert payloads(root / f"day{day}") == [f"day{day} 0".encode()]
    text = (root / ".sink" / "nightly.json").read_text()
    assert msgspec.json.decode(text)["written"]["ranges"] == [[20261114, 20261116]]


def test_a_writer_is_of_one_stream_or_of_none(root: Path) -> None:
    place = Place(root=str(root), writer_id="test")
    options = write_options({"path": str(root)})
    publish(options, place, 0, staged(root, [rows("a", [0])]), query="first")
    publish(options, place, 0, staged(root, [rows("a", [0])]), query="first")
    for query, name in (("second", "the stream second"), (None, "no stream")):
        with pytest.raises(InvalidArgument, match=f"of the stream first, this one is of {name}"):
            publish(options, place, 0, staged(root, [rows("a", [1])]), query=query)
    publish(options, place, 1, staged(root, [rows("a", [1])]), query="first")
    assert payloads(root / "a") == [b"a 0", b"a 1"]


def test_a_batch_that_another_stream_has_begun_is_not_taken_for_the_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    place = Place(root=str(root), writer_id="test")
    with pytest.raises(InvalidArgument, match="of no stream, this one is of the stream second"):
        publish(write_options({"path": str(root)}), place, 0, [], query="second")


def test_nobody_deletes_what_another_has_staged(root: Path) -> None:
    """Staged rows survive writers with a similar name, other batches and clean-ups."""
    write(root, [], writer="stream")
    writing: list[tuple[BatchSink, Any]] = []
    names = [("nightly", "1"), ("nightly", "2"), ("nightly-eu", "1"), ("night", "1")]
    for number, (writer, batch) in enumerate(names):
        begun = sink(root, writerId=writer, batchId=batch)
        writing.append((begun, begun.write(iter([rows(f"q{number}", [0])]))))
    begun = sink(root)
    writing.append((begun, begun.write(iter([rows("q4", [0])]))))
    ready = staged(root, [rows("s", [0])], writer="stream")
    for begun, task in writing:
        begun.commit([task])
    write(root, ready, 1, writer="stream")
    for name in ("q0", "q1", "q2", "q3", "q4", "s"):
        assert payloads(root / name) == [f"{name} 0".encode()]
    assert leftovers(root) == []
    assert len(list((root / ".sink").glob("*.lock"))) == 4


def test_a_stream_that_may_not_write_deletes_only_its_own_rows(root: Path) -> None:
    """A stream may be refused because its writerId belongs to another running stream."""
    options = write_options({"path": str(root), "writerId": "shared"})
    first, second = StreamSink(options, SCHEMA), StreamSink(options, SCHEMA)

    def stage_for(stream: StreamSink, query: str, number: int) -> Any:
        task = stream.write(iter([rows(query, [number])]))
        task.query = query
        return task

    first.commit([stage_for(first, "a", 0)], 0)
    ready, refused = stage_for(first, "a", 1), stage_for(second, "b", 0)
    with pytest.raises(InvalidArgument, match="give it another writerId"):
        second.commit([refused], 0)
    second.abort([refused], 0)
    first.commit([ready], 1)
    assert payloads(root / "a") == [b"a 0", b"a 1"]
    assert not (root / "b").exists()
    assert leftovers(root) == []


def test_what_was_staged_long_ago_is_deleted(root: Path) -> None:
    for writer in ("+a", "nightly", "test"):
        (run,) = staged(root, [rows("a", [0])], writer=writer)
        attempt = Path(run.path).parent
        for path in (attempt, attempt.parent):
            os.utime(path, (0, 0))
    staged(root, [rows("a", [0])], writer="new")
    write(root, [], writer="other")
    assert [path.name for path in (root / ".staging").iterdir()] == ["new@stream"]


def test_failed_writes_leave_nothing_behind(root: Path) -> None:
    with aiochronicle.open_writer(root / "a"):
        failing = sink(root)
        task = failing.write(iter([rows("a", [0])]))
        with pytest.raises(LockedError):
            failing.commit([task])
        failing.abort([task])
    assert not list((root / ".sink").iterdir())
    assert leftovers(root) == []


def empty(file: Path) -> None:
    os.truncate(file, 0)


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    """Change a bit of the rows without touching the metadata that locates them."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, empty, halve, flip])
def test_rows_that_are_gone_are_told_before_anything_is_written(
    root: Path, damage: Callable[[Path], None]
) -> None:
    runs = staged(root, [rows("a", [0])])
    damage(Path(runs[0].path))
    with pytest.raises(StorageError, match=r"staged in it\. Nothing was written: write it"):
        write(root, runs)
    assert not (root / "a").exists()


@pytest.mark.parametrize("damage", [Path.unlink, empty, halve, flip])
@pytest.mark.parametrize("writer", ["named", "+nameless"])
def test_a_batch_that_cannot_be_completed_is_told_and_does_not_stop_others(
    root: Path,
    writer: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer=writer)
    die_half_way(root, runs, writer, monkeypatch)
    damage(Path(runs[0].path))
    other = staged(root, [rows("b", [0])], writer="other")
    told = "rows of batch 0 of writer .* 'a' from seq 0 on"
    write(root, other, writer="other")
    assert payloads(root / "b") == [b"b 0"]
    assert "rows of batch 0 of writer" in caplog.text
    if writer == "+nameless":  # never retried: the next write to its queue raises once
        late = staged(root, [rows("a", [20_000])], writer="other")
        with pytest.raises(StorageError, match=f"(?s){told}.*Writing continues"):
            write(root, late, 1, writer="other")
        write(root, late, 1, writer="other")
        assert payloads(root / "a")[-1] == b"a 20000"
    if writer == "named":
        there = payloads(root / "a")
        for _ in range(2):
            with pytest.raises(StorageError, match=f"(?s){told}.*then delete .*named.json"):
                write(root, staged(root, [rows("a", [0])], writer=writer), writer=writer)
        assert payloads(root / "a") == there


def test_a_batch_that_has_to_wait_does_not_stop_writes_to_other_queues(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    with aiochronicle.open_writer(root / "a"):
        write(root, staged(root, [rows("b", [0])], writer="other"), writer="other")
        with pytest.raises(LockedError):
            write(root, staged(root, [rows("a", [0])], writer="third"), writer="third")
    write(root, staged(root, [rows("b", [1])], writer="other"), 1, writer="other")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def test_staged_rows_are_found_from_another_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    relative = Path(root.name)
    die_half_way(relative, staged(relative, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    monkeypatch.chdir("/")
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def test_staged_rows_are_found_when_the_root_was_moved(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    moved = root.rename(root.parent / "moved")
    write(moved, [], 1)
    assert payloads(moved / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert leftovers(moved) == []


def test_a_batch_in_a_journal_with_absolute_paths_is_completed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 wrote such journals."""
    runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch)
    file = root / ".sink" / "test.json"
    content = msgspec.json.decode(file.read_bytes())
    content["version"] = 2
    content["pending"]["runs"][0]["path"] = runs[0].path
    file.write_bytes(msgspec.json.encode(content))
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert msgspec.json.decode(file.read_bytes())["version"] == 4


def test_a_batch_whose_runs_have_no_differences_is_completed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 3 wrote such runs, and version 2 did so without checksums."""
    batches = [rows("a", list(range(first, 20_000, 2))) for first in (0, 1)]
    with monkeypatch.context() as patch:
        patch.setattr("aiochronicle.spark.sink.runs.DELTA_ENCODED", ())
        runs = [run for batch in batches for run in staged(root, [batch])]
    die_half_way(root, runs, "test", monkeypatch)
    file = root / ".sink" / "test.json"
    content = msgspec.json.decode(file.read_bytes())
    content["version"] = 3
    for run in content["pending"]["runs"]:
        assert run.pop("deltas") == []
    file.write_bytes(msgspec.json.encode(content))
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


@pytest.mark.parametrize("segments", [1, 3])
def test_a_batch_whose_begin_is_gone_is_not_written_again(
    root: Path, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root / "a", 0)  # small segments: a batch needs several
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    fill(root / "a", 20_000, first=20_000)
    for file in sorted((root / "a").glob("*.q"))[:segments]:
        file.unlink()  # as retention would
    there = payloads(root / "a")
    with pytest.raises(PositionLost, match="nobody can tell how much"):
        write(root, [], 1, late="hold")
    assert payloads(root / "a") == there


def test_what_is_needed_is_kept_whatever_the_directory_is_called(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer="nightly")
    die_half_way(root, runs, "nightly", monkeypatch)
    link = root.parent / "link"
    link.symlink_to(root)
    with aiochronicle.open_writer(root / "a"):
        place = Place(root=str(link), writer_id="nightly")
        options = write_options({"path": str(link)})
        with pytest.raises(LockedError):
            publish(options, place, 0, [])
        abandon(options, place, Path(runs[0].path).parent)
    write(link, [], writer="nightly")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


def test_late_rows_of_a_batch_are_held_by_whoever_completes_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch, late="hold")
    fill(root / "a", 1, first=50_000)
    write(root, [], writer="other")
    times = [time_ns for time_ns, _, _ in content(root / "a")]
    assert len(times) == 20_001
    assert times == sorted(times)


def test_rows_that_have_become_late_since_a_batch_was_begun_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    fill(root / "a", 1, first=50_000)
    with pytest.raises(TimestampOrder, match=r"batch 0 of writer test was .* late=hold completes"):
        write(root, [], 1)
    write(root, [], 1, late="hold")
    assert len(payloads(root / "a")) == 20_001


def test_a_write_that_may_repeat_a_failed_one_is_not_written_unasked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = list(range(20_000))
    die_half_way(root, staged(root, [rows("a", numbers)], writer="+1"), "+1", monkeypatch)
    again = sink(root, late="hold")
    task = again.write(iter([rows("a", numbers)]))
    with pytest.raises(ChronicleError, match="a write of 20000 rows to a that had ended halfway"):
        again.commit([task])
    again.abort([task])
    assert payloads(root / "a") == [f"a {n}".encode() for n in numbers]
    again = sink(root, late="hold")
    again.commit([again.write(iter([rows("a", numbers)]))])
    assert payloads(root / "a") == [f"a {n}".encode() for n in numbers] * 2


def test_a_failed_write_to_other_queues_is_completed_on_the_way(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))], writer="+1")
    die_half_way(root, runs, "+1", monkeypatch)
    other = sink(root)
    other.commit([other.write(iter([rows("b", [0])]))])
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    assert payloads(root / "b") == [b"b 0"]
    assert not list((root / ".sink").iterdir())


@pytest.mark.parametrize(
    ("found", "error", "told"),
    [
        ("", CorruptionError, "not the journal of a sink"),
        ("nonsense", CorruptionError, "not the journal of a sink"),
        ('{"version": 1, "pending": 7}', UnsupportedVersion, "a journal of version 1, not 4"),
        (None, CorruptionError, "not a regular file"),
    ],
)
def test_a_journal_that_is_none_is_told_and_stops_its_writer_only(
    root: Path,
    found: str | None,
    error: type[ChronicleError],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = root / ".sink" / "test.json"
    if found is None:
        file.mkdir(parents=True)
    else:
        file.parent.mkdir()
        file.write_text(found)
    with pytest.raises(error, match=f"(?s){told}.*or delete it"):
        write(root, staged(root, [rows("a", [0])]))
    assert not (root / "a").exists()
    write(root, staged(root, [rows("a", [1])], writer="other"), writer="other")
    assert payloads(root / "a") == [b"a 1"]
    [record] = caplog.records
    assert "writer test" in record.getMessage()
    assert told in record.getMessage()


def test_what_a_journal_names_is_on_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses what was not synced, including names in an unsynced directory."""
    on_disk: dict[Path, set[Path]] = {}
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            on_disk[path] = set(path.iterdir())

    def lost(path: Path) -> list[Path]:
        return [
            place
            for place in (path, *path.parents)
            if place.is_relative_to(tmp_path)
            and place != tmp_path
            and place not in on_disk.get(place.parent, ())
        ]

    def begin(own: journal.Journal, pending: journal.Pending) -> None:
        looked_at.extend(path for run in pending.runs for path in lost(Path(run.path)))
        looked_at.extend(lost(own.path.parent))
        looked_at.extend(lost(own.path.parent.parent / "md"))
        noted(own, pending)

    looked_at: list[Path] = []
    noted = journal.Journal.begin
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal.Journal, "begin", begin)
    root = tmp_path / "new" / "bus"
    write(root, staged(root, [rows("md/x", [0])], [rows("md/x", [1]), rows("y", [1])]))
    begun = sink(tmp_path / "newer" / "bus")
    begun.commit([begun.write(iter([rows("md/x", [0])]))])
    assert looked_at == []
    assert payloads(root / "md" / "x") == [b"md/x 0", b"md/x 1"]


ROWS = 12_000  # needs two appends

Killer = Callable[..., int]


@pytest.fixture
def killer() -> Iterator[Killer]:
    """Return a function that publishes runs in a process that dies at a given step; it gives the status."""
    command = [sys.executable, str(Path(__file__).parent / "sink_killer.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def carry_out(root: Path, last_step: int, runs: list[Run], late: str = "fail") -> int:
            order = {"root": str(root), "last_step": last_step, "runs": runs, "late": late}
            orders.write(msgspec.json.encode(order) + b"\n")
            orders.flush()
            return int(answers.readline())

        yield carry_out
        orders.close()


def test_whatever_step_it_dies_at_a_batch_is_written_once(root: Path, killer: Killer) -> None:
    """The driver's half is killed at its first step, at its second …"""
    expected = [(FIRST_NS + n * STEP_NS, 0, f"a {n}".encode()) for n in range(ROWS)]
    for step in range(1, 100):
        place = root / str(step)
        place.mkdir()
        runs = staged(place, [rows("a", list(range(ROWS)))], [rows("b", [3, 1, 2])])
        code = killer(place, step, runs)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        # The next driver may compute the rows of the same batch in another order.
        again = staged(place, [rows("b", [2, 1, 3])], [rows("a", list(range(ROWS - 1, -1, -1)))])
        write(place, again, segmentSize=str(1 << 22))
        assert content(place / "a") == expected, f"killed at step {step}"
        assert payloads(place / "b") == [b"b 1", b"b 2", b"b 3"]
        assert not list((place / ".staging").iterdir())
        shutil.rmtree(place)
    else:
        pytest.fail("it never came to an end")
    assert step > 12


@pytest.mark.parametrize("late", ["fail", "hold"])
def test_a_batch_is_written_once_though_others_write_whenever_it_dies(
    root: Path, killer: Killer, late: str
) -> None:
    """The driver is killed half-way, then at the first step of the completion, at the second …"""
    numbers = list(range(20_000))
    times = {} if late == "hold" else {"timestamp_ns": pa.array([FIRST_NS] * 20_000, pa.int64())}

    def write_meanwhile(path: Path, number: int) -> None:
        time_ns = FIRST_NS + (number * STEP_NS if late == "hold" else 0)
        with aiochronicle.open_writer(path) as writer:
            writer.append(b"of somebody else", timestamp_ns=time_ns)

    for step in range(1, 100):
        place = root / str(step)
        place.mkdir()
        runs = staged(place, [rows("a", numbers, **times)])
        assert killer(place, 4, runs, late) == -signal.SIGKILL
        assert 0 < len(payloads(place / "a")) < 20_000
        write_meanwhile(place / "a", 15_000)
        code = killer(place, step, [], late)
        write_meanwhile(place / "a", 25_000)
        write(place, [])
        written = [payload for payload in payloads(place / "a") if payload.startswith(b"a ")]
        assert written == [f"a {n}".encode() for n in numbers], f"killed at step {step}"
        assert len(payloads(place / "a")) == 20_002
        if code == 0:
            break
        assert code == -signal.SIGKILL
        shutil.rmtree(place)
    else:
        pytest.fail("it never came to an end")
    assert step > 10


def test_another_writer_completes_what_a_dead_one_began(root: Path, killer: Killer) -> None:
    runs = staged(root, [rows("a", list(range(20_000)))])
    assert killer(root, 4, runs) == -signal.SIGKILL
    assert 0 < len(payloads(root / "a")) < 20_000
    write(root, staged(root, [rows("b", [0])], writer="other"), writer="other")
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    with journal.open_exclusively(str(root), "test") as own:
        assert own is not None
        assert own.has_written(0)
        assert own.pending is None


DISK_FULL = """
import os, subprocess, sys
from pathlib import Path
import pyarrow as pa
from aiochronicle import errors, open_reader
from aiochronicle.spark.sink import targets
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink.publish import publish
from aiochronicle.spark.sink.runs import stage
from aiochronicle.spark.sink.staging import Place

disk = Path(sys.argv[1])
place = Place(root=str(disk), writer_id="w")
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=True)
def rows():
    return pa.record_batch({
        "source": pa.array(["a"] * 1000), "seq": pa.array(range(1000)),
        "timestamp_ns": pa.array(range(10**18, 10**18 + 1000)),
        "payload": pa.array([os.urandom(5000) for _ in range(1000)]),  # not to be compressed
    })

try:
    stage([rows(), rows()], place.new_attempt(), None)
    sys.exit("staged more than there is room for")
except errors.DiskFull as error:
    assert "cannot stage the rows" in str(error)
place.sweep()
subprocess.run(["mount", "-o", "remount,size=11500k", disk], check=True)
runs = stage([rows()], place.new_attempt(), None)
options = write_options({"path": str(disk), "segmentSize": str(1 << 20)})
ballast = disk / "ballast"
ballast.write_bytes(bytes(2 << 20))
def fail(told):
    try:
        publish(options, place, 0, runs)
    except errors.DiskFull as error:
        assert told in str(error), error
    else:
        sys.exit("wrote more than there is room for")

fail("Nothing was written")
assert not (disk / "a").exists()
# Somebody else takes the room between that look and the writing.
targets.free_bytes = lambda path: 1 << 30
fail("some of its rows may be in the queues. Once there is nothing in its way, the next write")
with open_reader(disk / "a") as reader:
    assert 0 < len(list(reader)) < 1000
for _ in range(2):
    fail("while batch 0 of writer w, which was written in part, was being completed: some of its rows")
with open_reader(disk / "a") as reader:
    assert 0 < len(list(reader)) < 1000
ballast.unlink()
subprocess.run(["mount", "-o", "remount,size=18m", disk], check=True)
publish(options, place, 1, [])
with open_reader(disk / "a") as reader:
    assert [message.seq for message in reader] == list(range(1000))
"""


def test_a_full_disk_is_told_and_the_batch_completed_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", DISK_FULL]
    done = subprocess.run(
        [*command, str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
