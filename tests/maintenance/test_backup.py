"""Backups of live queues are consistent, incremental, verified, and sound after any kill."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from cli.running import aioc

import aiochronicle
from aiochronicle import (
    BackupProgress,
    Retention,
    Roll,
    backup,
    configure,
    forget_reader,
    inspect,
    list_backups,
    list_groups,
    list_readers,
    open_group,
    open_reader,
    open_writer,
    repair,
    restore,
    seek_reader,
    verify,
)
from aiochronicle.errors import (
    AccessDenied,
    BackupError,
    BackupNotFound,
    CorruptionError,
    QueueNotFound,
)

# Payloads contain their seq, so a copy can be compared message by message.
WRITER = """
import sys, time, aiochronicle
from aiochronicle import Retention, Roll
path, stop = sys.argv[1:3]
retention = Retention(max_bytes=int(sys.argv[3]), check_interval_s=0.01) if len(sys.argv) > 3 else None
with aiochronicle.open_writer(path, segment_size=1 << 18, retention=retention) as writer:
    print("ready", flush=True)
    seq = writer.next_seq
    while True:
        for _ in range(500):
            writer.append(b"%d " % seq * (seq % 7 + 1))
            seq += 1
        if retention:  # at a speed at which something can be copied before it goes
            time.sleep(0.005)
"""


def payload(seq: int) -> bytes:
    return b"%d " % seq * (seq % 7 + 1)


@contextmanager
def writer_at_full_speed(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, str(path), "-", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def fill(path: Path, count: int, first: int = 0) -> None:
    with open_writer(path, segment_size=1 << 16, roll=Roll(messages=100)) as writer:
        for seq in range(first, first + count):
            writer.append(payload(seq))


def messages(path: Path) -> list[tuple[int, int, bytes]]:
    with open_reader(path, start="first") as reader:
        return [(message.seq, message.timestamp_ns, message.payload) for message in reader]


def messages_after(path: Path, seq: int) -> list[bytes]:
    with open_reader(path, start=seq) as reader:
        return [message.payload for message in reader]


def poke(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def test_a_backup_is_a_queue_with_the_same_messages_and_positions(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 250)
    with open_reader(queue_path, "audit") as reader:
        reader.read_batch(130)
        reader.commit()
    report = backup(queue_path, backups)
    assert messages(Path(report.path)) == messages(queue_path)
    assert [(one.name, one.committed_seq) for one in list_readers(report.path)] == [("audit", 130)]
    assert (report.messages, report.next_seq, report.readers, report.corrupt) == (250, 250, 1, 0)
    assert [one.number for one in list_backups(backups)] == [1]


def test_the_next_backup_copies_what_is_new_and_shares_the_rest(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 250)
    first = backup(queue_path, backups)
    fill(queue_path, 250, first=250)
    second = backup(queue_path, backups)
    assert first.segments_copied == 3
    # The third segment was still active at the first backup.
    assert (second.segments, second.segments_copied) == (5, 3)
    shared = [Path(report.path) / "000000000.q" for report in (first, second)]
    assert shared[0].samefile(shared[1])
    assert messages(Path(second.path)) == messages(queue_path)
    assert [seq for seq, *_ in messages(Path(first.path))] == list(range(250))


def test_only_so_many_backups_stay(queue_path: Path, backups: Path) -> None:
    fill(queue_path, 10)
    for _ in range(4):
        backup(queue_path, backups, keep=2)
    assert [one.number for one in list_backups(backups)] == [3, 4]
    assert sorted(path.name for path in backups.iterdir()) == ["000003", "000004", "lock"]


def test_an_empty_queue_can_be_backed_up_and_restored(queue_path: Path, backups: Path) -> None:
    open_writer(queue_path, segment_size=4096).close()
    assert backup(queue_path, backups).messages == 0
    restore(backups, queue_path.with_name("again"))
    with open_writer(queue_path.with_name("again")) as writer:
        assert writer.append(b"first") == 0
    assert verify(queue_path.with_name("again")).records == 1


def test_a_queue_under_full_load_message_by_message(queue_path: Path, backups: Path) -> None:
    with writer_at_full_speed(queue_path):
        ends: list[int] = []
        for _ in range(2):
            before = inspect(queue_path).next_seq
            report = backup(queue_path, backups, keep=10)
            assert before <= report.next_seq <= inspect(queue_path).next_seq
            ends.append(report.next_seq)
    assert ends == sorted(set(ends)), "the writer went on"
    original = messages(queue_path)
    for one, end in zip(list_backups(backups), ends, strict=True):
        copied = messages(Path(one.path))
        assert copied == original[:end]
    assert all(content == payload(seq) for seq, _, content in original)


def test_retention_may_remove_segments_meanwhile(queue_path: Path, backups: Path) -> None:
    with writer_at_full_speed(queue_path, str(4 << 18)):
        while inspect(queue_path).first_segment == 0:
            time.sleep(0.01)
        made = 0
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s or not made:
            try:
                report = backup(queue_path, backups)
            except BackupError:  # retention was faster than the copy
                continue
            made += 1
            copied = messages(Path(report.path))
            first = copied[0][0]
            assert [seq for seq, *_ in copied] == list(range(first, report.next_seq))
            assert all(content == payload(seq) for seq, _, content in copied)
        assert made


KILLED = """
import sys, aiochronicle
aiochronicle.backup(sys.argv[1], sys.argv[2])
"""


def test_killed_anywhere_the_last_good_backup_stays_good(
    queue_path: Path, backups: Path, rng: random.Random
) -> None:
    fill(queue_path, 2000)
    good = backup(queue_path, backups)
    expected = messages(Path(good.path))
    fill(queue_path, 2000, first=2000)
    done = 0
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", KILLED, queue_path, backups]) as process:
            # Imports take most of this time; the kill then hits any step.
            time.sleep(rng.uniform(0.05, 0.3))
            process.send_signal(signal.SIGKILL)
        for one in list_backups(backups):
            assert one.problem is None
            assert verify(one.path).corrupt == 0
            found = messages(Path(one.path))
            assert found[: len(expected)] == expected
            done += len(found) == 4000
    assert backup(queue_path, backups).messages == 4000
    assert not (backups / ".part").exists()


def test_killed_after_every_step_the_last_good_backup_stays_good(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 300)
    expected = messages(Path(backup(queue_path, backups).path))
    fill(queue_path, 300, first=300)
    steps: list[BackupProgress] = []
    backup(queue_path, backups.with_name("others"), progress=steps.append)
    for last in range(len(steps)):
        child = os.fork()
        if child == 0:
            left = [last]

            def step(_: BackupProgress, left: list[int] = left) -> None:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1

            backup(queue_path, backups, keep=100, progress=step)
            os._exit(0)
        os.waitpid(child, 0)
        found = list_backups(backups)
        assert [one.number for one in found][:1] == [1]
        assert messages(Path(found[0].path)) == expected
    assert backup(queue_path, backups).messages == 600


def test_a_damaged_queue_does_not_replace_a_good_backup(queue_path: Path, backups: Path) -> None:
    fill(queue_path, 250)
    good = backup(queue_path, backups)
    with (queue_path / "000000001.q").open("r+b") as file:
        file.seek(64 + 64)
        file.write(b"?")
    with pytest.raises(CorruptionError):
        backup(queue_path, backups)
    assert [one.path for one in list_backups(backups)] == [good.path]
    assert verify(good.path).corrupt == 0
    kept = backup(queue_path, backups, on_corrupt="keep")
    assert kept.corrupt == 1
    assert len(messages(Path(good.path))) == 250


def test_a_queue_that_lost_messages_does_not_replace_a_good_backup(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 250)
    backup(queue_path, backups)
    older = queue_path.with_name("older")
    shutil.copytree(queue_path, older)
    fill(queue_path, 10, first=250)
    backup(queue_path, backups)
    shutil.rmtree(queue_path)
    restore(backups, queue_path, number=1)
    with pytest.raises(BackupError, match="before its last backup"):
        backup(queue_path, backups)


def test_a_directory_is_for_one_queue(queue_path: Path, queue: Path, backups: Path) -> None:
    fill(queue_path, 10)
    backup(queue_path, backups)
    with pytest.raises(BackupError, match="another queue"):
        backup(queue, backups)
    with pytest.raises(BackupError, match="inside"):
        backup(queue, queue / "backups")
    with pytest.raises(QueueNotFound):
        backup(queue.with_name("none"), backups)


def test_queues_of_other_programs_have_no_id(queue_path: Path, backups: Path) -> None:
    for path in (queue_path, queue_path.with_name("other")):
        fill(path, 250)
        with (path / "control.meta").open("r+b") as file:
            file.seek(32)
            file.write(bytes(8))
    report = backup(queue_path, backups)
    assert messages(Path(report.path)) == messages(queue_path)
    assert backup(queue_path, backups).number == 2
    with pytest.raises(BackupError, match="another queue"):
        backup(queue_path.with_name("other"), backups)
    restore(backups, queue_path.with_name("again"))
    assert messages(queue_path.with_name("again")) == messages(queue_path)


def test_readers_whose_positions_cannot_be_read_are_named(
    queue_path: Path, backups: Path, tmp_path: Path
) -> None:
    fill(queue_path, 10)
    for name in ("audit", "closed", "risk"):
        open_reader(queue_path, name).close()
    (queue_path / "readers" / "audit.meta").write_bytes(b"?" * 80)
    (queue_path / "readers" / "closed.meta").unlink()
    (queue_path / "readers" / "closed.meta").symlink_to("audit.meta")
    wanted = {
        "audit": "audit.meta is damaged",
        "closed": "closed.meta cannot be opened: it is a symbolic link",
    }
    report = backup(queue_path, backups)
    assert (report.messages, report.readers, report.left_out) == (10, 1, wanted)
    assert restore(backups, tmp_path / "again").left_out == wanted
    done = aioc("backup", queue_path, backups)
    assert done.status == 5
    assert "left out  reader audit: audit.meta is damaged\n" in done.out
    assert aioc("restore", backups, tmp_path / "more", "--json").json["left_out"] == wanted


def test_a_position_past_the_end_is_put_there(queue_path: Path, backups: Path) -> None:
    """A reader may commit messages that were appended after the backup began."""
    fill(queue_path, 10)
    with open_writer(queue_path) as writer, open_reader(queue_path, "quick") as reader:
        told = False

        def go_on(step: BackupProgress) -> None:
            nonlocal told
            if not told:
                told = True
                writer.append(b"later")
                list(reader)
                reader.commit()

        report = backup(queue_path, backups, progress=go_on)
    assert (report.next_seq, report.positions_moved) == (10, 1)
    restore(backups, queue_path.with_name("again"))
    with open_writer(queue_path.with_name("again")) as writer:
        assert writer.append(b"another") == 10
    with open_reader(queue_path.with_name("again"), "quick") as reader:
        assert [message.payload for message in reader] == [b"another"]


@pytest.mark.parametrize("new_id", [False, True])
def test_restore_drill(queue_path: Path, backups: Path, *, new_id: bool) -> None:
    with writer_at_full_speed(queue_path) as process:
        open_reader(queue_path, "audit").close()
        with open_reader(queue_path, "risk") as reader:
            reader.wait()
            seen = reader.read_batch(1000)
            reader.commit()
        report = backup(queue_path, backups)
        process.kill()
        process.wait()
    original = inspect(queue_path)
    lost = queue_path.with_name("lost")
    queue_path.rename(lost)
    restored = restore(backups, queue_path, new_id=new_id)
    assert messages(queue_path) == messages(lost)[: report.next_seq]
    assert restored.queue_id == (None if new_id else original.queue_id)
    with open_writer(queue_path) as writer:
        assert writer.recovery.clean
        assert writer.recovery.is_copy == new_id
        assert (writer.statistics().queue_id == original.queue_id) is not new_id
        assert writer.statistics().epoch > original.writer_epoch
        assert writer.append(payload(report.next_seq)) == report.next_seq
    with open_reader(queue_path, "risk") as reader:
        message = reader.poll()
        assert message is not None
        assert message.seq == len(seen)
    assert verify(queue_path).corrupt == 0


def test_restored_readers_count_as_just_seen(queue_path: Path, backups: Path) -> None:
    """Otherwise reader_ttl_s would let retention remove their unread messages before they reconnect."""
    fill(queue_path, 250)
    open_reader(queue_path, "away").close()
    meta = queue_path / "readers" / "away.meta"
    from aiochronicle._core.position_files import decode_position, encode_position

    slot = decode_position(meta.read_bytes())
    assert slot is not None
    import msgspec

    meta.write_bytes(encode_position(msgspec.structs.replace(slot, heartbeat_ns=1)))
    backup(queue_path, backups)
    again = queue_path.with_name("again")
    restore(backups, again)
    assert list_readers(again)[0].heartbeat_age_s < 60
    retention = Retention(max_bytes=1, reader_ttl_s=3600.0, check_interval_s=1000.0)
    with open_writer(again, retention=retention) as writer:
        writer.retain_now()
    assert inspect(again).first_segment == 0
    forget_reader(again, "away")


def test_restore_overwrites_nothing_and_says_what_is_missing(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 10)
    backup(queue_path, backups)
    before = messages(queue_path)
    with pytest.raises(BackupError, match="already exists"):
        restore(backups, queue_path)
    assert messages(queue_path) == before
    with pytest.raises(BackupNotFound, match="existing backups: 1"):
        restore(backups, queue_path.with_name("again"), number=7)
    with pytest.raises(BackupNotFound):
        restore(backups.with_name("none"), queue_path.with_name("again"))
    queue_path.with_name("again").mkdir()  # an empty directory is fine, such as a mount point
    restore(backups, queue_path.with_name("again"))


def test_a_killed_restore_leaves_no_queue_and_is_cleaned_up(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 250)
    backup(queue_path, backups)
    target = queue_path.with_name("again")
    child = os.fork()
    if child == 0:
        restore(backups, target, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(0)
    os.waitpid(child, 0)
    assert not target.exists()
    restore(backups, target)
    assert messages(target) == messages(queue_path)
    assert not list(target.parent.glob(".*"))


def test_a_damaged_backup_is_not_restored(queue_path: Path, backups: Path) -> None:
    fill(queue_path, 250)
    made = backup(queue_path, backups)
    with (Path(made.path) / "000000001.q").open("r+b") as file:
        file.seek(64 + 64)
        file.write(b"?")
    with pytest.raises(CorruptionError, match=r"--number") as error:
        restore(backups, queue_path.with_name("again"))
    assert error.value.path == str(Path(made.path) / "000000001.q")
    assert not queue_path.with_name("again").exists()


@pytest.mark.parametrize("on_corrupt", ["raise", "keep"])
def test_a_shared_segment_that_is_damaged_is_copied_again(
    queue_path: Path, backups: Path, on_corrupt: Literal["raise", "keep"]
) -> None:
    fill(queue_path, 350)
    made = Path(backup(queue_path, backups).path)
    poke(made / "000000000.q", 64 + 64, b"?")
    assert backup(queue_path, backups).segments_copied == 1  # and shares the damaged file
    poke(made / "000000001.q", 0, b"?" * 64)
    report = backup(queue_path, backups, verify_all=True, on_corrupt=on_corrupt)
    assert (report.replaced, report.segments_copied, report.corrupt) == ([0, 1], 3, 0)
    assert messages(Path(report.path)) == messages(queue_path)
    again = backup(queue_path, backups, verify_all=True)
    assert (again.replaced, again.segments_copied) == ([], 1)
    restore(backups, queue_path.with_name("again"))
    assert messages(queue_path.with_name("again")) == messages(queue_path)


def test_a_segment_that_is_damaged_in_the_queue_too_is_named_there(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 350)
    poke(queue_path / "000000001.q", 64 + 64, b"?")
    made = Path(backup(queue_path, backups, on_corrupt="keep").path)
    poke(made / "000000002.q", 64 + 64, b"?")
    with pytest.raises(CorruptionError, match="verify") as error:
        backup(queue_path, backups, verify_all=True)
    assert error.value.path == str(queue_path / "000000001.q")
    assert [one.number for one in list_backups(backups)] == [1]
    report = backup(queue_path, backups, verify_all=True, on_corrupt="keep")
    assert (report.corrupt, report.replaced) == (1, [1, 2])
    assert messages_after(Path(report.path), 200) == messages_after(queue_path, 200)


def test_a_manifest_that_cannot_be_read_is_said(queue_path: Path, backups: Path) -> None:
    fill(queue_path, 10)
    manifest = Path(backup(queue_path, backups).path) / "backup.json"
    content = json.loads(manifest.read_text())
    for wrong in ("no JSON", json.dumps({**content, "next_seq": "many"})):
        manifest.write_text(wrong)
        with pytest.raises(BackupError):
            restore(backups, queue_path.with_name("again"))
        assert list_backups(backups)[0].problem is not None
    manifest.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(aiochronicle.ChronicleError, match="version 2"):
        restore(backups, queue_path.with_name("again"))


FULL = """
import subprocess, sys
from pathlib import Path
from aiochronicle import backup, list_backups, open_writer, verify
from aiochronicle.cli import main
from aiochronicle.errors import DiskFull
queue, backups = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", backups], check=True)
good = backup(queue, backups)
with open_writer(queue) as writer:
    for number in range(2000):
        writer.append(b"more")
try:
    backup(queue, backups)
except DiskFull as error:
    assert error.path.startswith(str(backups)), error
    assert "append" not in str(error), error
else:
    raise AssertionError("there was room")
assert [one.path for one in list_backups(backups)] == [good.path]
assert verify(good.path).records == 100
assert not (backups / ".part").exists()
assert main(["backup", str(queue), str(backups)]) == 7
"""


def test_a_full_disk_leaves_the_last_good_backup(queue_path: Path, backups: Path) -> None:
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    fill(queue_path, 100)
    backups.mkdir()
    command = [*unshare, sys.executable, "-c", FULL, str(queue_path), str(backups)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_backups_at_a_time_are_refused(queue_path: Path, backups: Path) -> None:
    fill(queue_path, 10)
    refused: list[str] = []

    def again(_: BackupProgress) -> None:
        with pytest.raises(BackupError) as error:
            backup(queue_path, backups)
        refused.append(str(error.value))

    backup(queue_path, backups, progress=again)
    assert "another process is creating" in refused[0]


def test_a_backup_that_was_written_to_is_restored_as_it_was_made(
    queue_path: Path, backups: Path
) -> None:
    fill(queue_path, 250)
    """Only by somebody who takes away what says that it is a backup."""
    made = Path(backup(queue_path, backups).path)
    (made / "backup.json").rename(made / "hidden")
    fill(made, 250, first=250)
    (made / "hidden").rename(made / "backup.json")
    restore(backups, queue_path.with_name("again"))
    assert messages(queue_path.with_name("again")) == messages(queue_path)


@pytest.mark.parametrize("kind", ["native", "cq4"])
def test_a_backup_is_not_opened_for_writing(
    queue_path: Path, backups: Path, kind: Literal["native", "cq4"]
) -> None:
    """Named readers and groups are refused too, because they would move the saved positions."""
    with open_writer(queue_path, format=kind) as writer:
        writer.append(b"hello")
    with open_reader(queue_path, "audit") as reader:
        reader.commit()
    made = backup(queue_path, backups).path
    assert [reader.name for reader in list_readers(made)] == ["audit"]
    before = {path: path.stat().st_mtime_ns for path in Path(made).rglob("*")}
    refusals: list[Callable[[], object]] = [
        lambda: open_writer(made),
        lambda: open_writer(made, format=kind),
        lambda: open_reader(made, "audit"),
        lambda: open_group(made, "workers"),
        lambda: forget_reader(made, "audit"),
        lambda: forget_reader(made, "audit", force=True),
        lambda: seek_reader(made, "audit", "first", force=True),
        lambda: configure(made, retention=Retention(max_bytes=1 << 30)),
    ]
    if kind == "native":
        refusals.append(lambda: repair(made))
    for refused in refusals:
        with pytest.raises(BackupError, match=r"is a backup.*aioc restore") as error:
            refused()
        assert error.value.path == made
    assert {path: path.stat().st_mtime_ns for path in Path(made).rglob("*")} == before
    assert [payload for *_, payload in messages(Path(made))] == [b"hello"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
def test_another_user_may_back_up_what_it_may_read(tmp_path: Path) -> None:
    base = tmp_path / "shared"
    base.mkdir()
    for path in (*tmp_path.parents, tmp_path, base):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    base.chmod(0o777)
    with open_writer(base / "open", segment_size=4096, mode=0o644) as writer:
        writer.append(b"hello")
    with open_writer(base / "closed", segment_size=4096) as writer:
        writer.append(b"hello")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(4321)
        os.setuid(4321)
        status = 1
        try:
            backup(base / "open", base / "backups")
            restore(base / "backups", base / "again")
            try:
                backup(base / "closed", base / "others")
            except AccessDenied:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert messages(base / "again") == messages(base / "open")
    assert (base / "backups").stat().st_uid == 4321
    with pytest.raises(AccessDenied, match="4321"):  # that user could replace its content
        restore(base / "backups", base / "by-root")
    # A restore by root keeps the original owner.
    shutil.rmtree(base / "backups")
    backup(base / "again", base / "backups")
    restore(base / "backups", base / "theirs")
    assert (base / "theirs" / "control.meta").stat().st_uid == 4321


def test_a_group_is_restored_as_a_group(tmp_path: Path) -> None:
    """The group resumes at its position; its name does not become a reader's."""
    with open_writer(tmp_path / "q") as writer:
        for i in range(5):
            writer.append(b"%d" % i)
        with open_group(tmp_path / "q", "workers") as group:
            for delivery in group.take_batch(3):
                delivery.ack()
        open_reader(tmp_path / "q", "audit").close()
    backup(tmp_path / "q", tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "restored")
    assert [one.name for one in list_readers(tmp_path / "restored")] == ["audit", "workers"]
    assert [one.name for one in list_groups(tmp_path / "restored")] == ["workers"]
    with pytest.raises(aiochronicle.errors.ReaderBusy):
        open_group(tmp_path / "restored", "audit")
    with open_group(tmp_path / "restored", "workers") as group:
        assert group.info().pending == 2
        deliveries = group.take_batch()
        assert [delivery.message.payload for delivery in deliveries] == [b"3", b"4"]
        for delivery in deliveries:
            delivery.ack()


@pytest.mark.parametrize("length", [5000, 4928, 64])
def test_a_cut_newest_segment_is_not_backed_up_as_if_it_were_whole(
    queue_path: Path, backups: Path, length: int
) -> None:
    """Readers see a queue that ends early; only the control block knows that there was more."""
    with open_writer(queue_path, segment_size=1 << 16) as writer:
        writer.append_many([b"x" * 20] * 100)
    os.truncate(queue_path / "000000000.q", length)
    with pytest.raises(CorruptionError, match="seqs up to 99"):
        backup(queue_path, backups)
    assert list_backups(backups) == []
    report = backup(queue_path, backups, on_corrupt="keep")
    left = (length - 64) // 128
    assert (report.messages, report.next_seq) == (left, left)
    assert report.corrupt == 1
