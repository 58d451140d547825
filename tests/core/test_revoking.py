"""Moving or forgetting a reader that a process has open raises an error in that process."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aiochronicle import (
    FanIn,
    forget_reader,
    list_readers,
    open_reader,
    open_writer,
    seek_reader,
)
from aiochronicle._core.position_files import FILE_BYTES
from aiochronicle.errors import (
    InvalidArgument,
    PositionRevoked,
    QueueGone,
    ReaderBusy,
    ReaderNotFound,
)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "trades", segment_size=1 << 16) as writer:
        for number in range(100):
            writer.append(b"%d" % number)
    return tmp_path / "trades"


def committed(queue: Path) -> dict[str, int | None]:
    return {reader.name: reader.committed_seq for reader in list_readers(queue)}


def test_a_reader_that_is_open_is_moved_by_force_only(queue: Path) -> None:
    with open_reader(queue, "risk") as reader:
        reader.read_batch(10)
        reader.commit()
        with pytest.raises(ReaderBusy) as busy:
            seek_reader(queue, "risk", 50)
        assert busy.value.pid == os.getpid()
        assert "python" in str(busy.value.command)
        assert committed(queue) == {"risk": 10}
        assert seek_reader(queue, "risk", 50, force=True) == 50
        reader.read_batch(5)
        with pytest.raises(PositionRevoked, match="open it again"):
            reader.commit()
        assert committed(queue) == {"risk": 50}
    assert committed(queue) == {"risk": 50}  # closing does not store a position either
    with open_reader(queue, "risk") as reader:
        message = reader.poll()
        assert message is not None
        assert message.seq == 50
        reader.commit()
    assert committed(queue) == {"risk": 51}


def test_reading_raises_at_the_end_of_what_is_there(queue: Path) -> None:
    with open_reader(queue, "risk", start="last") as reader:
        assert reader.poll() is None
        seek_reader(queue, "risk", "first", force=True)
        with pytest.raises(PositionRevoked):
            reader.poll()
        with pytest.raises(PositionRevoked):
            reader.poll()
    assert committed(queue) == {"risk": 0}


def test_a_source_of_a_fan_in_raises(queue: Path) -> None:
    with open_reader(queue, "risk") as reader, FanIn([reader]) as merged:
        assert len(list(merged)) == 100
        forget_reader(queue, "risk", force=True)
        with pytest.raises(PositionRevoked):
            list(merged)
    assert committed(queue) == {}


def test_forgotten_by_force_and_back_as_a_new_one(queue: Path) -> None:
    with open_reader(queue, "risk") as old:
        old.read_batch(10)
        forget_reader(queue, "risk", force=True)
        assert committed(queue) == {}
        with open_reader(queue, "risk", start="last") as new:  # no process holds the name
            new.commit()
            with pytest.raises(PositionRevoked):
                old.commit()
        assert committed(queue) == {"risk": 100}
    with pytest.raises(ReaderNotFound):
        forget_reader(queue, "nobody", force=True)


def test_places_are_seqs_times_and_ends(queue: Path) -> None:
    open_reader(queue, "risk").close()
    assert seek_reader(queue, "risk", "last") == 100
    assert seek_reader(queue, "risk", datetime.now(UTC) - timedelta(days=1)) == 0
    with pytest.raises(ReaderNotFound, match="it has risk"):
        seek_reader(queue, "audit", 5)
    assert seek_reader(queue, "audit", 5, create=True) == 5
    assert seek_reader(queue, "audit", 100) == 100  # the end
    for beyond in (101, 999_999_999, datetime.now(UTC) + timedelta(days=1)):
        with pytest.raises(InvalidArgument, match="The reader was not moved"):
            seek_reader(queue, "audit", beyond, force=True)
    assert committed(queue) == {"audit": 100, "risk": 0}


FOLLOWER = """
import sys, aiochronicle
from aiochronicle.errors import PositionRevoked, QueueGone
reader = aiochronicle.open_reader(sys.argv[1], "risk")
reader.read_batch(10)
reader.commit()
print("ready", flush=True)
sys.stdin.readline()
try:
    reader.read_batch(10)
    reader.commit()
    print("committed")
except (PositionRevoked, QueueGone) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("killed", [False, True], ids=["told", "operator killed before the mark"])
def test_another_process_never_commits_over_it(queue: Path, killed: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(queue)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        operator = "import sys, os, aiochronicle\n" + (
            "os.pwrite = lambda *_: os.kill(os.getpid(), 9)\n" if killed else ""
        )
        operator += "aiochronicle.seek_reader(sys.argv[1], 'risk', 70, force=True)\n"
        done = subprocess.run([sys.executable, "-c", operator, str(queue)], check=False)
        assert done.returncode == (-9 if killed else 0)
        out, _ = follower.communicate("go\n")
    assert out.strip() == (QueueGone if killed else PositionRevoked).__name__
    assert committed(queue) == {"risk": 70}


def test_the_file_of_a_position_keeps_its_owner_and_mode(queue: Path) -> None:
    file = queue / "readers" / "risk.meta"
    with open_reader(queue, "risk"):
        file.chmod(0o640)
        if os.geteuid() == 0:
            os.chown(file, -1, 65534)
        before = file.stat()
        seek_reader(queue, "risk", 7, force=True)
        after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert after.st_size == FILE_BYTES
    assert [path.name for path in (queue / "readers").iterdir()] == ["risk.meta"]
