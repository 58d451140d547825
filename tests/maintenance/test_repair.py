"""Repair fixes what it can, reports the rest, and destroys nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aiochronicle import (
    Retention,
    Roll,
    backup,
    configure,
    inspect,
    list_readers,
    list_recovered,
    open_reader,
    open_writer,
    read_recovered,
    repair,
    verify,
)
from aiochronicle.errors import (
    BackupError,
    CorruptionError,
    InvalidArgument,
    LockedError,
    QueueNotFound,
)

COUNT = 350


@pytest.fixture
def broken(queue_path: Path) -> Path:
    """A queue of four segments that the tests then damage."""
    import msgspec

    class Number(msgspec.Struct):
        value: int

    with open_writer(
        queue_path, segment_size=1 << 16, roll=Roll(messages=100), codec=Number
    ) as writer:
        for number in range(COUNT):
            writer.send(Number(number))
    open_reader(queue_path, "audit").close()
    return queue_path


@pytest.fixture
def backups(broken: Path) -> Path:
    backup(broken, broken.with_name("backups"))
    return broken.with_name("backups")


def poke(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def kinds(path: Path, **options: object) -> list[tuple[str, bool]]:
    report = repair(path, **options)  # type: ignore[arg-type]
    return [(one.kind, one.fixed) for one in report.findings]


def test_nothing_is_wrong(broken: Path) -> None:
    report = repair(broken)
    assert report.sound
    assert report.findings == []
    assert report.recovery is not None
    assert report.recovery.clean


def test_a_dry_run_changes_nothing(broken: Path, backups: Path) -> None:
    poke(broken / "000000001.q", 64 + 64, b"?")
    poke(broken / "readers" / "audit.meta", 0, b"?" * 80)
    poke(broken / "schema.json", 0, b"?")
    (broken / "000000002.q").unlink()
    before = content(broken)
    expected = [("segment", True), ("missing", True), ("position", True), ("schema", True)]
    assert kinds(broken, backup=backups, dry_run=True) == expected
    assert kinds(broken, dry_run=True) == [
        ("segment", False), ("missing", False), ("position", True), ("schema", False)
    ]  # fmt: skip
    assert content(broken) == before


def test_damage_is_mended_from_a_backup_and_set_aside(broken: Path, backups: Path) -> None:
    whole = content(broken)
    poke(broken / "000000001.q", 64 + 64, b"?")
    bad = (broken / "000000001.q").read_bytes()
    poke(broken / "schema.json", 0, b"?")
    (broken / "000000002.q").unlink()
    report = repair(broken, backup=backups)
    assert report.sound
    assert verify(broken).records == COUNT
    for name in ("000000001.q", "000000002.q", "schema.json"):
        assert (broken / name).read_bytes() == whole[name]
    aside = [one.set_aside for one in report.findings if one.kind == "segment"]
    assert aside[0] is not None
    assert Path(aside[0]).read_bytes() == bad
    sound = [message.seq for message in read_recovered(broken, Path(aside[0]).name)]
    assert sound == list(range(101, 200))


def test_without_a_backup_damage_stays_and_is_said(broken: Path) -> None:
    poke(broken / "000000001.q", 64 + 64, b"?")
    before = (broken / "000000001.q").read_bytes()
    report = repair(broken)
    assert not report.sound
    assert "backup" in report.findings[0].remedy
    assert (broken / "000000001.q").read_bytes() == before
    assert verify(broken).corrupt == 1


def test_a_damaged_backup_mends_nothing(broken: Path, backups: Path) -> None:
    for path in (broken, backups / "000001"):
        poke(path / "000000001.q", 64 + 64, b"?")
    assert kinds(broken, backup=backups) == [("segment", False)]


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("with_backup", [False, True])
def test_a_lost_control_block_is_made_anew(
    broken: Path, backups: Path, how: str, *, with_backup: bool
) -> None:
    queue_id = inspect(broken).queue_id
    if how == "missing":
        (broken / "control.meta").unlink()
    else:
        poke(broken / "control.meta", 0, b"?" * 16)
    report = repair(broken, backup=backups if with_backup else None)
    first = report.findings[0]
    assert (first.kind, first.fixed) == ("control", True)
    assert report.sound
    assert (report.findings[0].set_aside is not None) == (how == "damaged")
    assert verify(broken).records == COUNT
    assert inspect(broken).next_seq == COUNT
    assert (inspect(broken).queue_id == queue_id) == with_backup
    assert not list(broken.parent.glob(".aiochronicle-*"))


def test_a_lost_control_block_does_not_hide_a_missing_segment(broken: Path, backups: Path) -> None:
    (broken / "control.meta").unlink()
    (broken / "000000002.q").unlink()
    found = kinds(broken, backup=backups)
    assert ("missing", True) in found
    assert verify(broken).records == COUNT


def test_a_damaged_position_makes_the_reader_a_new_one(broken: Path) -> None:
    poke(broken / "readers" / "audit.meta", 0, b"?" * 80)
    assert kinds(broken) == [("position", True)]
    assert list_readers(broken) == []
    assert [one.kind for one in list_recovered(broken)] == ["file"]


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")]
)
def test_what_stands_in_for_a_position_is_set_aside(
    broken: Path, make: Callable[[Path], None]
) -> None:
    position = broken / "readers" / "audit.meta"
    position.unlink()
    make(position)
    assert [one.kind for one in repair(broken, dry_run=True).findings] == ["position"]
    assert kinds(broken) == [("position", True)]
    assert list_readers(broken) == []
    assert len(list((broken / "recovered").iterdir())) == 1


def test_salvage_needs_consent(broken: Path) -> None:
    (broken / "000000003.q").unlink()
    report = repair(broken)
    assert [(one.kind, one.fixed) for one in report.findings] == [("end", False)]
    assert repair(broken, salvage=True).sound
    assert verify(broken).records == 300


@pytest.fixture
def copied(broken: Path) -> Path:
    """A copy of the queue, which its next writer gives a new id."""
    return Path(shutil.copytree(broken, broken.with_name("copied")))


def test_a_damaged_segment_does_not_prevent_writing_to_a_copy(copied: Path) -> None:
    poke(copied / "000000001.q", 0, b"?" * 64)
    assert kinds(copied) == [("segment", False)]
    with open_writer(copied) as writer:
        assert writer.append(b"more") == COUNT
    with open_reader(copied, start=200, on_corrupt="skip") as reader:
        assert [message.seq for message in reader] == list(range(200, COUNT + 1))


def test_what_prevents_writing_is_said_and_set_aside_with_salvage(copied: Path) -> None:
    poke(copied / "000000001.q", 0, bytes(64))  # as if copied while it was being created
    with pytest.raises(CorruptionError):
        open_writer(copied)
    report = repair(copied)
    assert not report.sound
    assert report.recovery is None
    assert [one.kind for one in report.findings] == ["segment", "end"]
    assert report.findings[-1].path == str(copied / "000000001.q")
    assert "salvage" in report.findings[-1].remedy
    salvaged = repair(copied, salvage=True)
    assert salvaged.sound
    aside = salvaged.findings[0].set_aside
    assert aside is not None
    assert Path(aside).read_bytes()[:64] == bytes(64)
    with open_writer(copied) as writer:
        assert writer.append(b"more") >= 100


def test_the_segment_being_written_is_not_taken_from_a_backup(broken: Path, backups: Path) -> None:
    poke(broken / "000000003.q", 64 + 64, b"?")
    report = repair(broken, backup=backups)
    assert [(one.kind, one.fixed) for one in report.findings] == [("segment", False)]
    assert "aioc restore" in report.findings[0].remedy
    (broken / "000000003.q").unlink()
    report = repair(broken, backup=backups)
    assert [(one.kind, one.fixed) for one in report.findings] == [("end", False)]
    assert "aioc restore" in report.findings[0].remedy


def test_retention_of_the_queue_is_not_applied(
    broken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Repair does not apply the limits of settings.toml; a log line says when a writer does."""
    caplog.set_level("INFO", "aiochronicle.settings")
    configure(broken, retention=Retention(max_bytes=1, check_interval_s=0.001))
    assert repair(broken).sound
    assert not caplog.records
    assert verify(broken).records == COUNT
    with open_writer(broken):
        assert caplog.records


def test_a_queue_with_a_writer_is_left_alone(broken: Path) -> None:
    with open_writer(broken), pytest.raises(LockedError):
        repair(broken)


def test_a_backup_of_another_queue_is_refused(broken: Path, queue: Path) -> None:
    backup(queue, queue.with_name("others"))
    before = content(broken)
    with pytest.raises(BackupError, match="another queue"):
        repair(broken, backup=queue.with_name("others"))
    assert content(broken).keys() - before.keys() <= {"writer.lock"}


def test_what_is_no_queue_is_said(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        repair(tmp_path)
    with pytest.raises(QueueNotFound):
        repair(tmp_path / "none")


def test_what_recovery_set_aside_can_be_read(queue_path: Path) -> None:
    """After a power cut, the end of a queue may be a hole followed by sound records."""
    with open_writer(queue_path, segment_size=1 << 16) as writer:
        for number in range(10):
            writer.append(b"%d" % number)
    shutil.copytree(queue_path, queue_path.with_name("copy"))
    copy = queue_path.with_name("copy")
    poke(copy / "000000000.q", 64 + 5 * 128, bytes(128))  # the sixth record
    poke(copy / "index.meta", 0, bytes(16))
    poke(copy / "control.meta", 56, bytes(48))  # as a killed writer leaves it
    with open_writer(copy) as writer:
        assert writer.recovery.bytes_set_aside > 0
        assert writer.next_seq == 5
    parts = list_recovered(copy)
    assert [one.kind for one in parts] == ["bytes"]
    found = list(read_recovered(copy, parts[0].name))
    assert [(one.seq, one.payload) for one in found] == [(n, b"%d" % n) for n in range(6, 10)]


@pytest.mark.parametrize("name", ["../control.meta", "", ".", "..", "none.q"])
def test_only_parts_can_be_read(broken: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        read_recovered(broken, name)
