"""Removing a reader, and a reader whose position file is removed while it is open."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import (
    Capacity,
    FanIn,
    Reader,
    Retention,
    Roll,
    forget_reader,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle.errors import (
    CapacityTimeout,
    InvalidName,
    QueueFull,
    QueueGone,
    QueueNotFound,
    ReaderBusy,
    ReaderNotFound,
)

HOLD = """
import sys, time
from aiochronicle import open_reader
reader = open_reader(sys.argv[1], sys.argv[2])
print("open", flush=True)
time.sleep(600)
"""


def fill(path: Path, count: int = 6) -> None:
    with open_writer(path, segment_size=4096, roll=Roll(messages=2)) as writer:
        for number in range(count):
            writer.append(b"%d" % number)


def open_elsewhere(path: Path, name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), name], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_forgotten_reader_holds_nothing_and_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    fill(path)
    with open_reader(path, "gone") as reader:
        next(iter(reader))
        reader.commit()
    with open_reader(path, "stays") as reader:
        reader.seek_last()
        reader.commit()
    (path / "readers" / "gone.efd").touch()
    retention = Retention(check_interval_s=1000.0)
    with open_writer(path, roll=Roll(messages=2), retention=retention) as writer:
        writer.append(b"next")
        writer.retain_now()
        assert (path / "000000000.q").exists()
        forget_reader(path, "gone")
        assert sorted(entry.name for entry in (path / "readers").iterdir()) == ["stays.meta"]
        writer.retain_now()
        assert not (path / "000000000.q").exists()
    with open_reader(path, "gone") as reader:
        assert next(iter(reader)).seq > 0


def test_forgetting_is_refused_while_the_reader_is_open(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    holder = open_elsewhere(tmp_path / "queue", "risk")
    try:
        with pytest.raises(ReaderBusy, match=rf"pid {holder.pid}, started 20\d\d-.* UTC, .*python"):
            forget_reader(tmp_path / "queue", "risk")
        with pytest.raises(ReaderBusy, match=rf"pid {holder.pid}, started 20\d\d-"):
            open_reader(tmp_path / "queue", "risk")
        assert [reader.live for reader in list_readers(tmp_path / "queue")] == [True]
    finally:
        end(holder)
    forget_reader(tmp_path / "queue", "risk")
    assert list_readers(tmp_path / "queue") == []


def test_what_cannot_be_forgotten(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    with pytest.raises(ReaderNotFound, match="'nobody'"):
        forget_reader(tmp_path / "queue", "nobody")
    with open_reader(tmp_path / "queue", "somebody"), pytest.raises(ReaderNotFound):
        forget_reader(tmp_path / "queue", "nobody")
    with pytest.raises(InvalidName):
        forget_reader(tmp_path / "queue", "../control")
    with pytest.raises(QueueNotFound):
        forget_reader(tmp_path / "elsewhere", "nobody")


def test_a_damaged_position_can_be_forgotten(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    open_reader(tmp_path / "queue", "risk").close()
    (tmp_path / "queue" / "readers" / "risk.meta").write_bytes(bytes(80))
    forget_reader(tmp_path / "queue", "risk")
    with open_reader(tmp_path / "queue", "risk") as reader:
        assert len(list(reader)) == 6


def remove_file(path: Path) -> None:
    (path / "readers" / "risk.meta").unlink()


def replace_file(path: Path) -> None:
    remove_file(path)
    open_reader(path, "risk").close()


def remove_queue(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize("take_away", [remove_file, replace_file, remove_queue])
def test_commit_notices_that_its_position_is_gone(
    tmp_path: Path, take_away: Callable[[Path], None]
) -> None:
    fill(tmp_path / "queue")
    with open_reader(tmp_path / "queue", "risk") as reader:
        for _ in range(2):
            reader.poll()
            reader.commit()
        take_away(tmp_path / "queue")
        time.sleep(0.002)  # how long a commit may rely on the check of an earlier one
        with pytest.raises(QueueGone, match="queue"):
            reader.commit()
        with pytest.raises(QueueGone):
            reader.commit()
        with FanIn([reader]) as fan_in, pytest.raises(QueueGone):
            fan_in.commit()


def test_lag_of_a_queue_that_was_removed(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    with (
        open_reader(tmp_path / "queue", "risk") as reader,
        open_reader(tmp_path / "queue") as other,
    ):
        list(other)
        shutil.rmtree(tmp_path / "queue")
        for each in (reader, other):
            with pytest.raises(QueueGone, match="removed"):
                _ = each.lag


def test_a_position_that_came_back_is_good_again(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    position = tmp_path / "queue" / "readers" / "risk.meta"
    with open_reader(tmp_path / "queue", "risk") as reader:
        reader.poll()
        position.rename(tmp_path / "aside")
        with pytest.raises(QueueGone, match=r"readers/risk\.meta"):
            reader.commit()
        (tmp_path / "aside").rename(position)
        reader.commit()
    with open_reader(tmp_path / "queue", "risk") as reader:
        assert next(iter(reader)).seq == 1


def killed(path: Path, name: str) -> None:
    process = open_elsewhere(path, name)
    os.kill(process.pid, signal.SIGKILL)
    end(process)


def closed(path: Path, name: str) -> None:
    open_reader(path, name).close()


@pytest.mark.parametrize("leave", [closed, killed])
def test_a_reader_that_left_does_not_hold_the_writer_up(
    tmp_path: Path, leave: Callable[[Path, str], None]
) -> None:
    with open_writer(tmp_path / "queue", capacity=1024) as writer:
        leave(tmp_path / "queue", "risk")
        for _ in range(100):
            writer.append(bytes(64))
        assert writer.reader_lag() == (0, 0)


def full(writer_path: Path, capacity: Capacity, kind: type[Exception], pid: int) -> None:
    with (
        open_writer(writer_path, capacity=capacity) as writer,
        pytest.raises(kind, match=rf"reader 'risk' \(pid {pid}, started 20.*\) lags by 1\.0 MiB"),
    ):
        while True:
            writer.append(bytes(64))


def test_who_holds_the_writer_up_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "queue")
    holder = open_elsewhere(tmp_path / "queue", "risk")
    try:
        full(tmp_path / "queue", Capacity(1 << 20), QueueFull, holder.pid)
        blocking = Capacity(1 << 20, policy="block", timeout_s=0.01)
        full(tmp_path / "queue", blocking, CapacityTimeout, holder.pid)
    finally:
        end(holder)


def test_an_idle_reader_learns_it_by_its_next_commit(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "queue", retention=Retention(reader_ttl_s=0.1)) as writer,
        open_reader(tmp_path / "queue", "risk", commit="auto") as reader,
    ):
        writer.append(b"1")
        (tmp_path / "queue" / "readers" / "risk.meta").unlink()

        def is_told(reader: Reader) -> bool:
            writer.append(b"more")
            try:
                reader.poll()
            except QueueGone:
                return True
            return False

        eventually(lambda: is_told(reader))
