"""Java queues: inspection, backup while they are written to, restore and conversion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.java_queues import unpack
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Writer,
    backup,
    convert,
    cq4,
    inspect,
    list_backups,
    list_readers,
    open_reader,
    open_writer,
    restore,
    verify,
    why_kept,
)
from aiochronicle.errors import (
    BackupError,
    CorruptionError,
    InvalidArgument,
    NotSupported,
    TimestampUnknown,
)

HOUR_NS = 3600 * 10**9
BEGIN_NS = 498_600 * HOUR_NS


class Clock:
    def __init__(self) -> None:
        self.now_ns = BEGIN_NS

    def __call__(self) -> int:
        return self.now_ns


def fill(writer: Writer, clock: Clock, cycles: int, count: int) -> None:
    for cycle in range(cycles):
        clock.now_ns += HOUR_NS if cycle else 0
        for number in range(count):
            writer.send(cq4.Fields({"at": clock.now_ns + number, "text": "x" * (number % 90)}))


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue with three cycles of 700 messages and a tailer in the second."""
    clock = Clock()
    path = tmp_path / "ticks"
    with open_writer(path, format="cq4", roll_cycle="FAST_HOURLY", clock=clock) as writer:
        fill(writer, clock, 3, 700)
    with open_reader(path, "audit") as reader:
        reader.read_batch(900)
        reader.commit()
    return path


def content(path: Path) -> list[tuple[int, bytes]]:
    with open_reader(path) as reader:
        return [(message.seq, message.payload) for message in reader]


def test_inspect_and_why_kept(queue: Path) -> None:
    info = inspect(queue)
    assert (info.format, info.roll_cycle, info.holder_pid) == ("cq4", "FAST_HOURLY", None)
    assert (info.segments, info.oldest_ns) == (3, BEGIN_NS)
    assert info.disk_bytes == sum(file.stat().st_blocks * 512 for file in queue.glob("*.cq4"))
    kept = why_kept(queue)
    assert [(one.why, one.reader, one.readers) for one in kept] == [
        ("operator", None, 0),
        ("tailer", "audit", 1),
        ("active", "audit", 1),
    ]
    assert [one.file for one in kept] == sorted(file.name for file in queue.glob("*.cq4"))


def test_the_holder_of_the_lock_is_seen(queue: Path) -> None:
    table = queue / "metadata.cq4t"
    content = bytearray(table.read_bytes())
    at = content.index(b"chronicle.write.lock")
    at = content.index((1 << 63).to_bytes(8, "little"), at)
    content[at : at + 8] = os.getpid().to_bytes(8, "little")
    table.write_bytes(content)
    assert inspect(queue).holder_pid == os.getpid()


def test_backups_are_incremental_and_restored(queue: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    first = backup(queue, tmp_path / "backups", progress=lambda step: steps.append(step.step))
    assert (first.messages, first.segments, first.segments_copied, first.readers) == (2100, 3, 3, 1)
    assert {"copy", "verify"} == set(steps)
    second = backup(queue, tmp_path / "backups")
    assert (second.messages, second.segments_copied) == (2100, 1)
    assert [one.segments for one in list_backups(tmp_path / "backups")] == [3, 3]
    assert content(Path(second.path)) == content(queue)
    report = restore(tmp_path / "backups", tmp_path / "again")
    assert (report.messages, report.readers, report.queue_id) == (2100, 1, None)
    assert content(tmp_path / "again") == content(queue)
    assert [one.committed_seq for one in list_readers(tmp_path / "again")] == [
        one.committed_seq for one in list_readers(queue)
    ]
    with open_writer(tmp_path / "again") as writer:
        writer.append(b"more")
    assert len(content(tmp_path / "again")) == 2101


def test_a_cycle_that_got_its_end_since_is_copied_again(queue: Path, tmp_path: Path) -> None:
    backup(queue, tmp_path / "backups")
    with open_writer(queue) as writer:  # ends the previous cycle
        writer.append(b"more")
    report = backup(queue, tmp_path / "backups")
    assert (report.messages, report.segments, report.segments_copied) == (2101, 4, 2)


def damage(file: Path, kind: str) -> None:
    content = file.read_bytes()
    place = content.rindex(b"xxx")
    if kind == "truncated":
        os.truncate(file, place - 100)
        return
    with file.open("r+b") as damaged:
        damaged.seek(0 if kind == "header" else place)
        damaged.write(b"?")


@pytest.mark.parametrize("kind", ["header", "payload", "truncated"])
def test_a_shared_cycle_that_is_damaged_is_copied_again(
    queue: Path, tmp_path: Path, kind: str
) -> None:
    """Java's files have no checksums; a digest also detects damage that still decodes."""
    backups = tmp_path / "backups"
    made = Path(backup(queue, backups).path)
    name = sorted(file.name for file in made.glob("*.cq4"))[1]
    damage(made / name, kind)
    assert backup(queue, backups).segments_copied == 1  # and shares the damaged file
    with pytest.raises(CorruptionError, match="--number") as error:
        restore(backups, tmp_path / "again")
    assert error.value.path == str(backups / "000002" / name)
    assert not (tmp_path / "again").exists()
    report = backup(queue, backups, verify_all=True)
    cycle = next(one.segment for one in why_kept(queue) if one.file == name)
    assert (report.replaced, report.segments_copied, report.corrupt) == ([cycle], 2, 0)
    assert content(Path(report.path)) == content(queue)
    assert backup(queue, backups, verify_all=True).replaced == []
    assert restore(backups, tmp_path / "again").messages == 2100
    assert content(tmp_path / "again") == content(queue)


def test_a_cycle_that_is_damaged_in_the_queue_too_is_named_there(
    queue: Path, tmp_path: Path
) -> None:
    name = sorted(file.name for file in queue.glob("*.cq4"))[1]
    damage(queue / name, "header")
    with pytest.raises(CorruptionError) as error:
        backup(queue, tmp_path / "backups")
    assert name in str(error.value.path)
    assert list_backups(tmp_path / "backups") == []


WRITER = """
import sys, time, aiochronicle
from aiochronicle import cq4
with aiochronicle.open_writer(sys.argv[1], format="cq4", roll_cycle="TEST_SECONDLY") as writer:
    number = 0
    while True:
        for _ in range(200):
            writer.send(cq4.Fields({"number": number}))
            number += 1
        time.sleep(0.002)
"""


def test_backup_of_a_queue_that_is_being_written(tmp_path: Path) -> None:
    """Each backup is a prefix of the queue, and its restored copy can be continued."""
    path = tmp_path / "live"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as process:
        try:
            eventually(lambda: (path / "metadata.cq4t").exists() and inspect(path).segments >= 2)
            reports = [backup(path, tmp_path / "backups", keep=9) for _ in range(6)]
        finally:
            process.kill()
    whole = content(path)
    for report in reports:
        copy = Path(report.path)
        assert verify(copy).corrupt == 0
        assert content(copy) == whole[: report.messages]
        assert report.messages > 0
        with open_reader(copy) as reader:  # by the index
            for seq, payload in whole[: report.messages : 501]:
                reader.seek(seq)
                message = reader.poll()
                assert message is not None
                assert (message.seq, message.payload) == (seq, payload)
        restored = tmp_path / f"again-{report.number}"
        restore(tmp_path / "backups", restored, number=report.number)
        with open_writer(restored) as writer:
            last = writer.append(b"on")
        assert content(restored)[-1] == (last, b"on")
        assert len(content(restored)) == report.messages + 1


def test_tailers_beyond_the_end_are_put_to_it(queue: Path, tmp_path: Path) -> None:
    """A tailer may read on while the backup is made."""
    with open_reader(queue, "fast", start="last") as reader:
        reader.commit()
    original = aiochronicle.inspect(queue).next_seq
    with open_writer(queue) as writer:
        writer.append(b"late")
    with open_reader(queue, "fast") as reader:
        assert len(list(reader)) == 1
        reader.commit()
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in [*sorted(queue.glob("*.cq4"))[:3], queue / "metadata.cq4t"]:
        (copy / file.name).write_bytes(file.read_bytes())
    from aiochronicle._base.binding import check, encode_path, lib, new_error

    error = new_error()
    with open_reader(copy, start="last") as reader:
        end = reader.position
    moved = check(lib.ac_queue_end_java_copy(encode_path(copy), *end, original, error), error)
    assert moved == 1
    assert {one.name: one.committed_seq for one in list_readers(copy)}["fast"] == original
    assert inspect(copy).last_segment == end.segment


def test_what_cannot_be_backed_up_says_why(queue: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"before 5\.16\.9"):
        backup(unpack("j416-v4", tmp_path), tmp_path / "old-backups")
    with pytest.raises(NotSupported, match="their next writer completes"):
        aiochronicle.repair(queue)
    backup(queue, tmp_path / "backups")
    for file in sorted(queue.glob("*.cq4"))[-1:]:
        file.unlink()
    with pytest.raises(BackupError, match="before its last backup"):
        backup(queue, tmp_path / "backups")


def test_convert_there_and_back(queue: Path, tmp_path: Path) -> None:
    there = convert(queue, tmp_path / "native", timestamp="at")
    assert (there.format, there.messages, there.readers, there.times_raised) == (
        "native",
        2100,
        1,
        0,
    )
    with open_reader(tmp_path / "native") as reader:
        messages = list(reader)
    assert [message.payload for message in messages] == [payload for _, payload in content(queue)]
    assert messages[701].timestamp_ns == BEGIN_NS + HOUR_NS + 1
    assert [one.committed_seq for one in list_readers(tmp_path / "native")] == [900]
    back = convert(tmp_path / "native", tmp_path / "java", roll_cycle="FAST_HOURLY")
    assert (back.format, back.messages) == ("cq4", 2100)
    assert content(tmp_path / "java") == content(queue)
    assert list_readers(tmp_path / "java")[0].committed_seq == list_readers(queue)[0].committed_seq


def test_convert_refuses(queue: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(BackupError, match="already exists"):
        convert(queue, tmp_path / "there")
    with pytest.raises(TimestampUnknown):
        convert(queue, tmp_path / "new", timestamp="nothing")
    convert(queue, tmp_path / "native")
    with pytest.raises(InvalidArgument):
        convert(tmp_path / "native", tmp_path / "new", timestamp="at")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["native", "there", "ticks"]
