"""What other processes can see of a queue's writer: its process and its statistics."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.users import COLLEAGUE, SHARED, STRANGER, WRITER, run_as
from helpers.waiting import eventually

from aiochronicle import (
    Batch,
    Capacity,
    QueueInfo,
    Retention,
    Roll,
    WriterInfo,
    configure,
    inspect,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle.errors import NotSupported

WRITE = """
import sys, time
from aiochronicle import open_writer
writer = open_writer(sys.argv[1], segment_size=1 << 20)
writer.append(b"first")
print("open", flush=True)
for line in sys.stdin:
    if line == "go\\n":
        for _ in range(400):
            writer.append(b"x" * 100)
            time.sleep(0.005)
    print("done", flush=True)
writer.close()
"""


READ = """
import sys
from aiochronicle import open_reader
reader = open_reader(sys.argv[1], "far")
print("open", flush=True)
sys.stdin.read()
"""


class Elsewhere:
    """A writer in a process of its own."""

    def __init__(self, path: Path) -> None:
        arguments = [sys.executable, "-c", WRITE, str(path)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self, number: int | None = None) -> None:
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate()


def writer_of(path: Path) -> WriterInfo:
    found = inspect(path).writer
    assert found is not None
    return found


def test_a_writer_of_another_process_is_seen_with_its_rate(queue_path: Path) -> None:
    before_ns = time.time_ns()
    elsewhere = Elsewhere(queue_path)
    try:
        seen = writer_of(queue_path)
        assert (seen.state, seen.pid, seen.user) == ("open", elsewhere.process.pid, os.geteuid())
        assert "open_writer" in seen.command
        assert before_ns <= seen.since_ns <= time.time_ns()
        assert seen.retention is None
        assert seen.capacity is None
        assert seen.flush == "async"
        elsewhere.say("go")
        eventually(lambda: writer_of(queue_path).rate > 20, timeout_s=10)
        seen = writer_of(queue_path)
        assert seen.rate_bytes > seen.rate * 100
        assert seen.statistics is not None
        assert seen.statistics.next_seq > 20
        assert seen.statistics.recovery.clean
        assert [s.messages for s in seen.samples] == sorted(s.messages for s in seen.samples)
    finally:
        elsewhere.end()
    seen = writer_of(queue_path)
    assert (seen.state, seen.rate) == ("closed", 0.0)
    assert seen.closed_ns is not None
    assert seen.closed_ns >= seen.since_ns
    assert seen.statistics is not None
    assert seen.statistics.messages == 401


def test_a_killed_writer_is_dead_at_once_and_its_successor_is_another(queue_path: Path) -> None:
    elsewhere = Elsewhere(queue_path)
    elsewhere.process.kill()
    assert writer_of(queue_path).state == "died"  # while it is a zombie
    elsewhere.end()
    seen = writer_of(queue_path)
    assert (seen.state, seen.pid, seen.rate) == ("died", elsewhere.process.pid, 0.0)
    assert seen.statistics is not None
    with open_writer(queue_path):
        seen = writer_of(queue_path)
        assert (seen.state, seen.pid) == ("open", os.getpid())
        assert seen.statistics is not None
        assert not seen.statistics.recovery.clean


def test_a_stopped_writer_holds_the_queue_and_has_no_rate(queue_path: Path) -> None:
    elsewhere = Elsewhere(queue_path)
    try:
        elsewhere.say("go")
        eventually(lambda: writer_of(queue_path).rate > 20, timeout_s=10)
        elsewhere.process.send_signal(signal.SIGSTOP)
        eventually(lambda: writer_of(queue_path).rate == 0, timeout_s=10)
        assert writer_of(queue_path).state == "open"
    finally:
        elsewhere.end(signal.SIGKILL)


def test_looking_touches_neither_the_lock_nor_a_file(queue_path: Path) -> None:
    elsewhere = Elsewhere(queue_path)

    def state() -> dict[str, tuple[int, int]]:
        names = ["control.meta", "writer.lock", "index.meta"]
        found = {name: (queue_path / name).stat() for name in names}
        return {name: (status.st_ino, status.st_size) for name, status in found.items()}

    def names() -> list[Path]:
        """List the files, without segments: the writer may prepare its next one at any time."""
        return sorted(path for path in queue_path.iterdir() if path.suffix != ".q")

    try:
        before, names_before = state(), names()
        for _ in range(100):
            assert writer_of(queue_path).state == "open"
        assert state() == before
        assert names() == names_before
    finally:
        elsewhere.end()


def test_a_copy_and_a_restored_backup_have_no_writer(queue_path: Path, tmp_path: Path) -> None:
    elsewhere = Elsewhere(queue_path)
    try:
        shutil.copytree(queue_path, tmp_path / "copy")
        copy = inspect(tmp_path / "copy")
        assert copy.writer is None
        assert copy.next_seq == 1
    finally:
        elsewhere.end()
    shutil.copytree(queue_path, tmp_path / "backup")
    shutil.rmtree(queue_path)
    shutil.copytree(tmp_path / "backup", queue_path)
    assert inspect(queue_path).writer is None
    with open_writer(queue_path):
        assert writer_of(queue_path).pid == os.getpid()
    queue_path.rename(tmp_path / "moved")
    assert writer_of(tmp_path / "moved").state == "closed"


def test_settings_in_force_are_seen(queue_path: Path) -> None:
    retention = Retention(max_age_s=60.0, reader_ttl_s=5.0, wait_for="audit", archive="/archive")
    capacity = Capacity(1 << 20, "block", 2.5)
    batch = Batch(4096, 0.25)
    with open_writer(queue_path, retention=retention, capacity=capacity, flush=batch):
        seen = writer_of(queue_path)
    assert (seen.retention, seen.capacity, seen.flush) == (retention, capacity, batch)


def test_a_writer_that_published_nothing_is_seen_by_its_lock_file(queue_path: Path) -> None:
    with open_writer(queue_path):
        (queue_path / "statistics.meta").unlink()
        seen = writer_of(queue_path)
        assert (seen.state, seen.pid) == ("open", os.getpid())
        assert seen.statistics is None
        assert seen.published_ns is None
        assert seen.samples == ()


def test_random_statistics_are_harmless(queue_path: Path, rng: random.Random) -> None:
    with open_writer(queue_path) as writer:
        writer.append(b"x")
        content = bytearray((queue_path / "statistics.meta").read_bytes())
        for _ in range(200):
            damaged = bytearray(content)
            for _ in range(rng.randrange(1, 40)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            (queue_path / "statistics.meta").write_bytes(damaged[: rng.randrange(len(damaged))])
            assert inspect(queue_path).next_seq == 1


def test_the_size_and_the_oldest_message(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=1 << 16, roll=Roll(messages=2)) as writer:
        assert inspect(queue_path).oldest_ns is None
        for number in range(5):
            writer.append(b"%d" % number, timestamp_ns=1000 + number)
        info = inspect(queue_path)
    assert isinstance(info, QueueInfo)
    assert info.oldest_ns == 1000
    assert info.disk_bytes >= 3 << 16


def test_a_reader_has_the_process_that_holds_it(queue: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", READ, str(queue)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with open_reader(queue, "near"):
            far, near = list_readers(queue)
        assert (near.pid, near.live) == (os.getpid(), True)
        assert (far.pid, far.live) == (process.pid, True)
        assert far.command is not None
        assert "open_reader" in far.command
        assert abs(time.time_ns() - far.heartbeat_ns) < 60 * 10**9
    finally:
        process.kill()
        process.communicate()
    far, near = list_readers(queue)
    assert (far.pid, far.command, far.live) == (None, None, False)
    assert near.pid is None


def test_a_java_queue_has_no_one_writer_and_no_such_settings(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        writer.append(b"hello")
        assert inspect(queue_path).writer is None
        with pytest.raises(NotSupported, match="configure"):
            writer.configure(capacity=4096)
        with pytest.raises(NotSupported, match=r"settings\.toml"):
            configure(queue_path, capacity=4096)
        assert not (queue_path / "settings.toml").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
class TestOfAnotherUser:
    """Statistics of a queue that a Unix group may read."""

    @pytest.fixture
    def shared(self) -> Iterator[Path]:
        base = Path(tempfile.mkdtemp())
        base.chmod(0o755)
        os.chown(base, WRITER, SHARED)
        yield base / "queue"
        shutil.rmtree(base)

    def test_is_seen_by_its_group_and_by_nobody_else(self, shared: Path) -> None:
        def write() -> None:
            with open_writer(shared, mode=0o640) as writer:
                writer.append(b"x")

        run_as(WRITER, write)
        assert (shared / "statistics.meta").stat().st_mode & 0o777 == 0o640

        def look() -> list[object]:
            seen = writer_of(shared)
            return [seen.state, seen.user, seen.statistics and seen.statistics.messages]

        assert run_as(COLLEAGUE, look) == ["closed", WRITER, 1]

        def refused() -> str:
            try:
                inspect(shared)
            except Exception as error:  # noqa: BLE001
                return type(error).__name__
            return "seen"

        assert run_as(STRANGER, refused) == "AccessDenied"

    def test_made_by_somebody_else_is_not_used(self, shared: Path) -> None:
        def write() -> None:
            with open_writer(shared, mode=0o640):
                pass

        run_as(WRITER, write)
        os.chown(shared / "statistics.meta", STRANGER, SHARED)
        (shared / "statistics.meta").chmod(0o644)

        def look() -> list[object]:
            return [writer_of(shared).state, writer_of(shared).statistics is None]

        assert run_as(COLLEAGUE, look) == ["closed", True]

        def write_again() -> str:
            with open_writer(shared, mode=0o640) as writer:
                writer.append(b"x")
                return writer_of(shared).state

        assert run_as(WRITER, write_again) == "open"
