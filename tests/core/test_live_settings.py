"""Settings that change while a writer is open: by the program, and by a file of the queue."""

import asyncio
import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.users import SHARED, STRANGER, WRITER, run_as
from helpers.waiting import eventually

from aiochronicle import (
    Batch,
    Capacity,
    Retention,
    Roll,
    Writer,
    configure,
    inspect,
    open_reader,
    open_writer,
)
from aiochronicle.errors import (
    AccessDenied,
    ClosedError,
    InvalidArgument,
    InvalidConfiguration,
    QueueFull,
    QueueNotFound,
    WrongType,
)

NAME = "aiochronicle.settings"


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiochronicle")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in list(caplog.records) if r.name == NAME and r.levelno == level]


def fill(writer: Writer, count: int = 20) -> None:
    for number in range(count):
        writer.append(b"%d" % number)


def in_force(path: Path) -> tuple[object, object, object]:
    writer = inspect(path).writer
    assert writer is not None
    return writer.retention, writer.capacity, writer.flush


def test_the_program_changes_what_it_names_and_nothing_else(queue_path: Path) -> None:
    with open_writer(queue_path, flush=Batch(1 << 20, 1.0), capacity=1 << 20) as writer:
        writer.configure(retention=Retention(max_bytes=1 << 30))
        writer.configure(capacity=None)
    retention, capacity, flush = in_force(queue_path)
    assert retention == Retention(max_bytes=1 << 30)
    assert capacity is None
    assert flush == Batch(1 << 20, 1.0)


def test_sync_mode_from_the_next_append_on(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        fill(writer)
        assert writer.statistics().durable_seq == 0
        writer.configure(flush="sync")
        writer.append(b"durable")
        assert writer.statistics().durable_seq == 21


def test_retention_begins_without_a_restart(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=4096, roll=Roll(messages=2)) as writer:
        fill(writer)
        assert inspect(queue_path).segments >= 10
        writer.configure(retention=Retention(max_bytes=8192, check_interval_s=0.01))
        eventually(lambda: writer.statistics().segments_deleted > 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"flush": "sometimes"}, InvalidArgument),
        ({"flush": Batch(0, 1.0)}, InvalidArgument),
        ({"capacity": 0}, InvalidArgument),
        ({"capacity": "many"}, WrongType),
        ({"capacity": Capacity(5, "wait")}, InvalidArgument),  # type: ignore[arg-type]
        ({"retention": 5}, WrongType),
        ({"retention": Retention(max_age_s=-1.0)}, InvalidArgument),
        ({"retention": Retention(archive="x" * 2000)}, InvalidArgument),
    ],
)
def test_what_is_refused_changes_nothing(
    queue_path: Path, given: dict[str, Any], expected: type[Exception]
) -> None:
    with open_writer(queue_path, capacity=4096) as writer:
        with pytest.raises(expected):
            writer.configure(**given)
        with pytest.raises(expected):
            configure(queue_path, **given)
        assert not (queue_path / "settings.toml").exists()
        writer.configure()
        assert writer._settings.capacity_bytes == 4096
    with pytest.raises(ClosedError):
        writer.configure(capacity=None)


async def test_drain_goes_by_the_new_capacity(queue_path: Path) -> None:
    with open_writer(queue_path, capacity=4096) as writer, open_reader(queue_path, "slow"):
        with pytest.raises(QueueFull):
            fill(writer, 100)
        draining = asyncio.create_task(writer.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        writer.configure(capacity=1 << 20)
        await asyncio.wait_for(draining, 10)
        writer.append(b"there is room")


def test_an_append_that_waits_goes_on_with_a_larger_capacity(queue_path: Path) -> None:
    capacity = Capacity(4096, "block")
    with open_writer(queue_path, capacity=capacity) as writer, open_reader(queue_path, "slow"):
        appending = threading.Thread(target=fill, args=(writer, 100))
        appending.start()
        eventually(lambda: writer.statistics().capacity_waits > 0)
        writer.configure(capacity=1 << 20)
        appending.join(10)
        assert not appending.is_alive()


def test_the_file_is_noticed_and_goes_before_the_program(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(queue_path, capacity=1 << 20) as writer:
        started = time.monotonic()
        configure(queue_path, capacity=None, flush=Batch(4096, 0.5))
        eventually(lambda: writer._settings.capacity_bytes == 0)
        assert time.monotonic() - started < 3
        assert len(lines(caplog, logging.INFO)) == 1
        writer.configure(capacity=2 << 20)  # which the file overrides
        assert writer._settings.capacity_bytes == 0
        configure(queue_path, retention=Retention(max_bytes=5))  # and keeps the rest
        eventually(lambda: in_force(queue_path)[0] == Retention(max_bytes=5))
        assert in_force(queue_path)[1:] == (None, Batch(4096, 0.5))
        configure(queue_path, clear=True)
        eventually(lambda: writer._settings.capacity_bytes == 2 << 20)
        eventually(lambda: in_force(queue_path)[2] == "async")
    assert not (queue_path / "settings.toml").exists()


def test_the_file_holds_for_the_next_writer_too(queue: Path) -> None:
    archive = str(queue.parent / 'archive with "quotes" and ü')
    wanted = Retention(max_age_s=3600.5, archive=archive, wait_for="audit")
    configure(queue, retention=wanted, capacity=Capacity(5000, "block", 0.25), flush="sync")
    with open_writer(queue, retention=Retention(), capacity=7):
        pass
    assert in_force(queue) == (wanted, Capacity(5000, "block", 0.25), "sync")


def test_a_relative_archive_is_made_absolute(queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(queue.parent)
    configure(queue, retention=Retention(archive="archive"))
    assert f'archive = "{queue.parent}/archive"' in (queue / "settings.toml").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('flush = "sometimes"', "flush = 'sometimes'"),
        ("capacity = -1\nflush = 'sync'", "capacity = -1"),
        ("retention = { max_age = 5 }", "max_age"),
        ('retention = { archive = "here" }', "an absolute path"),
        ('retention = { wait_for = "../x" }', "wait_for"),
        ("segment_size = 8192", "segment_size"),
        ("capacity = ", "not a TOML file"),
        ("\xff", "settings.toml"),
        ("[" * 5000, "settings.toml"),
        ("#" * 70000, "larger than"),
    ],
)
def test_a_file_that_is_wrong_is_logged_once_and_changes_nothing(
    queue_path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    with open_writer(queue_path, capacity=4096) as writer:
        (queue_path / "settings.toml").write_bytes(text.encode("latin-1"))
        eventually(lambda: len(lines(caplog, logging.ERROR)) == 1)
        os.utime(queue_path / "settings.toml")  # checked again
        time.sleep(1.5)
        (line,) = lines(caplog, logging.ERROR)
        assert said in line
        assert line.endswith(". The settings of the writer stay as they are.")
        assert str(queue_path) in line
        assert writer._settings.capacity_bytes == 4096
        writer.append(b"goes on")
        (queue_path / "settings.toml").write_text("capacity = 8192")
        eventually(lambda: writer._settings.capacity_bytes == 8192)
    assert in_force(queue_path) == (None, Capacity(8192), "async")


def test_a_wrong_file_is_not_written_over(queue: Path) -> None:
    (queue / "settings.toml").write_text("nonsense = 1")
    with pytest.raises(InvalidConfiguration, match="nonsense"):
        configure(queue, capacity=None)
    assert (queue / "settings.toml").read_text() == "nonsense = 1"
    configure(queue, capacity=None, clear=True)
    assert (queue / "settings.toml").read_text() == "capacity = false\n"


def test_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        configure(tmp_path / "none", capacity=None)
    with pytest.raises(QueueNotFound):
        configure(tmp_path, capacity=None)
    assert list(tmp_path.iterdir()) == []


def _make_link(path: Path) -> None:
    (path.parent / "elsewhere.toml").write_text("capacity = 1")
    (path / "settings.toml").symlink_to(path.parent / "elsewhere.toml")


def _make_pipe(path: Path) -> None:
    os.mkfifo(path / "settings.toml")


def _make_everybodys(path: Path) -> None:
    (path / "settings.toml").write_text("capacity = 1")
    (path / "settings.toml").chmod(0o666)


@pytest.mark.parametrize("make", [_make_link, _make_pipe, _make_everybodys])
def test_a_file_that_is_not_to_be_trusted_is_not_obeyed(
    queue_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    with open_writer(queue_path, capacity=4096) as writer:
        make(queue_path)
        eventually(lambda: len(lines(caplog, logging.ERROR)) == 1)
        assert writer._settings.capacity_bytes == 4096
    with pytest.raises(AccessDenied):
        configure(queue_path, capacity=None)


def test_a_writer_that_is_dropped_meanwhile_is_not_touched(queue_path: Path) -> None:
    for number in range(50):
        writer = open_writer(queue_path)
        (queue_path / "settings.toml").write_text(f"capacity = {number + 1}")
        writer.close()
        del writer
    gc.collect()


def test_a_process_of_its_own_and_a_kill(queue_path: Path) -> None:
    code = """if True:
    import sys, time
    from aiochronicle import open_writer
    writer = open_writer(sys.argv[1])
    print("open", flush=True)
    time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(queue_path)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        configure(queue_path, capacity=4096)
        eventually(lambda: in_force(queue_path)[1] == Capacity(4096), timeout_s=10)
    finally:
        process.kill()
        process.communicate()
    with open_writer(queue_path):
        assert in_force(queue_path)[1] == Capacity(4096)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
class TestOfAnotherUser:
    """The file belongs to a user other than the writer's."""

    @pytest.fixture
    def path(self) -> Iterator[Path]:
        base = Path(tempfile.mkdtemp())
        base.chmod(0o755)
        os.chown(base, WRITER, SHARED)

        def make() -> None:
            with open_writer(base / "queue", mode=0o640):
                pass

        run_as(WRITER, make)
        yield base / "queue"
        shutil.rmtree(base)

    @staticmethod
    def opened(path: Path) -> object:
        with open_writer(path, mode=0o640) as writer:
            return writer._settings.capacity_bytes

    def test_a_strangers_is_not_obeyed(self, path: Path) -> None:
        configure(path, capacity=4096)
        os.chown(path / "settings.toml", STRANGER, SHARED)
        assert run_as(WRITER, lambda: self.opened(path)) == 0

    def test_that_of_root_is_obeyed(self, path: Path) -> None:
        configure(path, capacity=4096)
        assert (path / "settings.toml").stat().st_uid == WRITER
        os.chown(path / "settings.toml", 0, 0)
        assert run_as(WRITER, lambda: self.opened(path)) == 4096

    def test_who_may_not_write_to_the_directory_cannot_change_anything(self, path: Path) -> None:
        path.chmod(0o755)

        def change() -> str:
            try:
                configure(path, capacity=1)
            except AccessDenied as error:
                return str(error)
            return "changed"

        assert "settings.toml" in run_as(STRANGER, change) or "control" in run_as(STRANGER, change)
        assert not (path / "settings.toml").exists()
