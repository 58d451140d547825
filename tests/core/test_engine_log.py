"""Failures of the engine's threads are logged by Python's logging, as ``aiochronicle.engine``."""

import errno
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from faults.system_calls import injected
from helpers.waiting import eventually

from aiochronicle import Retention, open_reader, open_writer
from aiochronicle._engine import lib
from aiochronicle.errors import ChronicleError, QueueGone, StorageError

ENGINE = "aiochronicle.engine"
SEGMENT = 1 << 16
CHECK_S = 0.02


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiochronicle")


def lines(caplog: pytest.LogCaptureFixture, name: str = ENGINE) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in list(caplog.records) if r.name == name]


PRELUDE = """
import logging, os, shutil, subprocess, sys, time
from pathlib import Path
from aiochronicle import Retention, errors, open_reader, open_writer

format = "%(levelname)s %(name)s %(message)s"
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=format)
path = Path(sys.argv[1])

def mount(size, *options):
    options = ",".join([*options, f"size={size}"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)

def fill(writer, segments):
    while writer.position.segment < segments:
        writer.append(bytes(1000))

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
"""


def run(code: str, *arguments: Path, status: int = 0, within: Sequence[str] = ()) -> list[str]:
    """Run a program that logs to its standard output; return the lines that it printed."""
    done = subprocess.run(
        [*within, sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_failed_sync_should_be_an_error_in_the_log(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(queue_path, segment_size=SEGMENT) as writer:
        writer.append(b"order")
        with injected("sync_map", errno.EIO), pytest.raises(StorageError):
            writer.flush_now()
        statistics = writer.statistics()
        with pytest.raises(ChronicleError):
            writer.close()
    assert statistics.sync_errors == 1
    segment = queue_path / "000000000.q"
    assert statistics.last_error.startswith(f"{segment}: cannot sync")
    assert "Input/output error" in statistics.last_error
    ((level, text),) = lines(caplog)
    assert level == logging.ERROR
    assert text == f"{segment}: syncing failed: {statistics.last_error.partition(': ')[2]}"


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """Yield a directory that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        yield directory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_retention_should_name_the_position_that_it_may_not_read(open_tmp: Path) -> None:
    """The file is another user's, as after a restore by root. Start and end are logged once each."""
    code = """
child = os.fork()
if child == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    with open_writer(path, segment_size=1 << 16) as writer:
        fill(writer, 3)
        with open_reader(path, "audit") as reader:
            reader.commit(reader.poll())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
position = path / "readers" / "audit.meta"
os.chown(position, 0, 0)
os.chmod(position, 0)
blocked, says_blocked = os.pipe()
go_on, says_go_on = os.pipe()
child = os.fork()
if child == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    retention = Retention(max_bytes=1, check_interval_s=0.02)
    with open_writer(path, segment_size=1 << 16, retention=retention) as writer:
        until(lambda: writer.statistics().retention_errors > 5)
        assert str(position) in writer.statistics().last_error
        assert writer.statistics().segments_deleted == 0
        os.write(says_blocked, b"x")
        os.read(go_on, 1)
        until(lambda: writer.statistics().segments_deleted == 3)
    sys.stdout.flush()
    os._exit(0)
os.read(blocked, 1)
os.unlink(position)
os.write(says_go_on, b"x")
assert os.waitpid(child, 0)[1] == 0
"""
    queue = open_tmp / "queue"
    found = run(code, queue)
    position = queue / "readers" / "audit.meta"
    failed, works = found
    assert failed == (
        f"WARNING {ENGINE} {position}: retention failed: cannot open: Permission denied"
    )
    assert works.startswith(f"INFO {ENGINE} {queue}: retention works again")


# A namespace in which ``mount`` works and is invisible to other processes.
NAMESPACE = ("unshare", "--map-root-user", "--mount")


def test_a_disk_that_fills_up_should_be_in_statistics_and_log(tmp_path: Path) -> None:
    code = """
mount("1m")
with open_writer(path / "queue", segment_size=64 << 10) as writer:
    for _ in range(3):
        try:
            while True:
                writer.append(bytes(1000))
        except errors.DiskFull:
            pass
    statistics = writer.statistics()
    assert statistics.prealloc_errors >= 3, statistics
    assert statistics.last_error.startswith(f"{path}/queue/0000"), statistics
    assert "No space left" in statistics.last_error, statistics
    mount("4m", "remount")
    fill(writer, writer.position.segment + 1)
"""
    disk = tmp_path / "disk"
    disk.mkdir()
    found = run(code, disk, within=NAMESPACE)
    failed, works = [
        line for line in found if "creating" in line
    ]  # a full disk has no room for indexes either
    assert failed.startswith(f"WARNING {ENGINE} {disk}/queue/0000")
    assert "creating the next segment failed: " in failed
    assert failed.endswith("No space left on device")
    assert works.startswith(f"INFO {ENGINE} {disk}/queue: creating the next segment works again")


def test_an_archive_without_room_should_be_in_the_log(tmp_path: Path) -> None:
    code = """
mount("300k")
queue = Path(sys.argv[2])
retention = Retention(max_bytes=1, check_interval_s=0.02, archive=path)
with open_writer(queue, segment_size=128 << 10, retention=retention) as writer:
    fill(writer, 6)
    until(lambda: writer.statistics().retention_errors > 5)
    assert "space" in writer.statistics().last_error
    assert writer.statistics().segments_archived < 3
    assert len(list(queue.glob("*.q"))) > 3
"""
    queue = tmp_path / "queue"
    (tmp_path / "archive").mkdir()
    (line,) = run(code, tmp_path / "archive", queue, within=NAMESPACE)
    assert line.startswith(f"WARNING {ENGINE} {queue}/0000")
    assert "retention failed: cannot archive: No space left on device" in line


def test_a_removed_queue_should_be_an_error_in_the_log(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(queue_path, segment_size=SEGMENT) as writer:
        queue_path.rename(queue_path.with_name("elsewhere"))
        eventually(lambda: len(lines(caplog)) > 0)  # logged by the thread, without any call
        with pytest.raises(QueueGone):
            writer.flush_now()
    ((level, text),) = lines(caplog)
    assert level == logging.ERROR
    assert text.startswith(f"{queue_path}: the queue's directory was removed or moved away")


def test_recovery_should_be_one_line(queue_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
writer = open_writer(path, segment_size=1 << 16)
for _ in range(10):
    writer.append(b"order")
os.kill(os.getpid(), 9)
"""
    run(code, queue_path, status=-signal.SIGKILL)
    with open_writer(queue_path) as writer:
        assert not writer.recovery.clean
    ((level, text),) = lines(caplog, "aiochronicle.writer")
    assert level == logging.INFO
    assert text == f"{queue_path}: not closed cleanly; checked 10 records, nothing was lost"
    caplog.clear()
    open_writer(queue_path).close()
    open_writer(queue_path.with_name("new"), segment_size=SEGMENT).close()
    assert caplog.records == []


def test_recovery_that_cut_something_should_be_a_warning(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
writer = open_writer(path, segment_size=1 << 16)
for _ in range(10):
    writer.append(b"order")
end = writer.position.offset
with open(path / "000000000.q", "r+b") as file:
    file.seek(end)
    file.write(b"what a power cut left")
os.kill(os.getpid(), 9)
"""
    run(code, queue_path, status=-signal.SIGKILL)
    with open_writer(queue_path) as writer:
        aside = writer.recovery.bytes_set_aside
    assert aside > 0
    ((level, text),) = lines(caplog, "aiochronicle.writer")
    assert level == logging.WARNING
    assert f"{aside} bytes" in text
    assert "recovered/" in text


def test_damage_that_was_left_alone_is_no_repair(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(queue_path, segment_size=SEGMENT) as writer:
        writer.append_many([b"order"] * 10)
    segment = queue_path / "000000000.q"
    with segment.open("r+b") as file:
        file.seek(64 + 128 + 64)  # the payload of the second message
        file.write(b"O")
    before = segment.read_bytes()
    with open_writer(queue_path, verify=True) as writer:
        assert writer.recovery.corrupt_records == 1
    assert segment.read_bytes()[: 64 + 10 * 128] == before[: 64 + 10 * 128]
    ((level, text),) = lines(caplog, "aiochronicle.writer")
    assert level == logging.WARNING
    assert "repaired" not in text
    assert "left 1 damaged places as they are, because their records had been durable;" in text


def test_a_short_program_should_lose_nothing(queue_path: Path) -> None:
    """Its last lines are logged while it exits, and a waiting thread does not keep it alive."""
    code = """
writer = open_writer(path, segment_size=1 << 16)
path.rename(path.with_name("elsewhere"))
try:
    writer.flush_now()
except errors.QueueGone:
    pass
"""
    found = run(code, queue_path)
    assert len(found) == 1
    assert found[0].startswith(f"ERROR {ENGINE} {queue_path}: the queue's directory was removed")


def test_a_forked_child_should_log_by_itself(queue_path: Path) -> None:
    code = """
parent = open_writer(path / "parent", segment_size=1 << 16)
sys.stdout.flush()
child = os.fork()
if child == 0:
    lines = []
    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    logging.getLogger().addHandler(Handler())
    writer = open_writer(path / "child", segment_size=1 << 16)
    shutil.rmtree(path / "child")
    until(lambda: lines)  # told by the child's own thread
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
shutil.rmtree(path / "parent")
time.sleep(3)
"""
    queue_path.mkdir()
    found = run(code, queue_path)
    assert [line.split(": ")[0] for line in found] == [
        f"ERROR {ENGINE} {queue_path}/child",
        f"ERROR {ENGINE} {queue_path}/parent",
    ]


class Fussy(logging.Handler):
    """A handler that raises and opens queues, as a handler that logs into a queue does."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        with open_writer(self._path / f"log-{len(self.seen)}", segment_size=SEGMENT) as writer:
            writer.append(record.getMessage().encode())
        raise RuntimeError("no handler may do this")


def test_handlers_that_raise_or_use_queues_should_do_no_harm(tmp_path: Path) -> None:
    logger = logging.getLogger(ENGINE)
    handler = Fussy(tmp_path)
    logger.addHandler(handler)
    try:
        started_s = time.monotonic()
        for number in range(3):
            with open_writer(tmp_path / f"{number}", segment_size=SEGMENT) as writer:
                writer.append(b"order")
                with injected("sync_map", errno.EIO), pytest.raises(StorageError):
                    writer.flush_now()
                with pytest.raises(ChronicleError):
                    writer.close()
        eventually(lambda: len(handler.seen) == 3)
        assert time.monotonic() - started_s < 20
    finally:
        logger.removeHandler(handler)


class Slow(logging.Handler):
    """A handler that blocks the logging thread."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        assert self.released.wait(30)


def test_entries_for_which_there_was_no_room_should_be_counted(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow handler does not use unbounded memory, and the log says how many entries were dropped."""
    logger, handler = logging.getLogger(ENGINE), Slow()
    logger.addHandler(handler)

    def fail(number: int) -> None:
        """Append until the engine fails to allocate, with a different error text each time."""
        with (
            injected("allocate", (errno.EIO, errno.ENOSPC)[number % 2]),
            pytest.raises(StorageError),
        ):
            while True:
                writer.append(bytes(1000))

    try:
        with open_writer(queue_path, segment_size=SEGMENT, _inline_housekeeping=1) as writer:
            fail(0)
            assert handler.entered.wait(30)
            for number in range(1, 1000):
                fail(number)
            handler.released.set()
            eventually(lambda: len(lines(caplog)) > 100 and not lib.ac_log_wait(0))
            fail(1000)
    finally:
        handler.released.set()
        logger.removeHandler(handler)
    found = [text for _, text in lines(caplog)]
    (dropped,) = [text for text in found if "dropped" in text]
    count = int(dropped.split()[0])
    assert count + len([text for text in found if "failed: " in text]) == 1001


def test_an_idle_process_should_not_wake_up_for_its_log(queue_path: Path) -> None:
    code = """
import threading
with open_writer(path, segment_size=1 << 16) as writer, open_reader(path) as reader:
    (thread,) = [t for t in threading.enumerate() if t.name == "aiochronicle-log"]
    assert thread.daemon
    def switches():
        text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return int(text.partition("voluntary_ctxt_switches:")[2].split()[0])
    time.sleep(0.2)
    before = switches()
    time.sleep(2)
    assert switches() == before
"""
    assert run(code, queue_path) == []


def test_what_works_should_not_be_in_the_log(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retention = Retention(check_interval_s=CHECK_S)
    with open_writer(queue_path, segment_size=SEGMENT, retention=retention) as writer:
        with open_reader(queue_path, "reader") as reader:
            writer.append(b"order")
            assert reader.poll()
            reader.commit()
        time.sleep(5 * CHECK_S)
    assert lines(caplog) == []


def test_names_of_files_forge_no_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A newline, an escape sequence that clears the screen, and a byte that is not UTF-8, are escaped."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\nERROR b\x1b[2J\xff"))
    with open_writer(path, segment_size=SEGMENT) as writer:
        (path / "writer.lock").unlink()
        writer.append(b"x")
        writer.flush_now()
    ((_, line),) = lines(caplog)
    assert line.isprintable()
    assert line.startswith(f"{tmp_path}/a\\nERROR b\\x1b[2J\\xff: writer.lock was removed")
    assert line.encode() != b""
