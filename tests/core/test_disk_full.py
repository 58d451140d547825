"""A full file system raises an exception and loses nothing; work continues when there is room again.

Most tests run in a process of their own that mounts a small tmpfs in a mount namespace, so they
need no rights on the host and leave nothing behind.
"""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from faults.system_calls import injected

from aiochronicle import open_reader, open_writer
from aiochronicle.errors import DiskFull, WriterPoisoned

PRELUDE = """
import os, subprocess, sys
from pathlib import Path
from aiochronicle import Batch, errors, open_reader, open_writer

disk = Path(sys.argv[1])

def mount(size):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)

def payloads(path):
    with open_reader(path) as reader:
        return [message.payload for message in reader]
"""


def run(code: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    outcome = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", PRELUDE + code, str(disk)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr


def test_append_on_a_full_disk(tmp_path: Path) -> None:
    code = """
mount("1m")
ballast = disk / "ballast"
queue = disk / "queue"
written = []
with open_writer(queue, segment_size=64 << 10) as writer:
    writer.append(b"first")
    written.append(b"first")
    room = os.statvfs(disk)
    ballast.write_bytes(b"x" * (room.f_bavail * room.f_bsize - (150 << 10)))

    def fill():
        for number in range(10_000):
            payload = b"%d" % number * 100
            writer.append(payload)
            written.append(payload)

    for _ in range(3):  # it stays an exception, however often one tries
        try:
            fill()
        except errors.DiskFull as error:
            assert isinstance(error, OSError) and error.errno == 28
            assert error.path.startswith(str(queue)) and str(queue) in str(error)
            assert "space" in str(error)
        else:
            raise AssertionError("no DiskFull")
    assert len(written) > 50
    assert payloads(queue) == written
    assert writer.next_seq == len(written)
    assert not list(queue.glob("*.tmp"))
    ballast.unlink()
    for number in range(1000):
        assert writer.append(b"%d" % number) == len(written)
        written.append(b"%d" % number)
    writer.flush_now()
    assert writer.statistics().sync_errors == 0
assert payloads(queue) == written
with open_writer(queue) as writer:
    assert writer.append(b"reopened") == len(written)
assert payloads(queue) == [*written, b"reopened"]
"""
    run(code, tmp_path)


def test_batches_and_reservations_on_a_full_disk(tmp_path: Path) -> None:
    code = """
mount("512k")
queue = disk / "queue"
with open_writer(queue, segment_size=64 << 10) as writer:
    count = 0
    try:
        while True:
            writer.append_many([b"x" * 1000] * 10)
            count += 10
    except errors.DiskFull:
        pass
    try:
        for _ in range(100):
            with writer.reserve(1000) as room:
                room[:] = b"y" * 1000
            count += 1
    except errors.DiskFull:
        pass
    found = payloads(queue)
    assert len(found) == count, (len(found), count)
    assert count % 10 != 0 or found[-1] in (b"x" * 1000, b"y" * 1000)
"""
    run(code, tmp_path)


def test_no_room_to_begin_with(tmp_path: Path) -> None:
    code = """
mount("256k")
queue = disk / "queue"
for _ in range(3):
    try:
        open_writer(queue, segment_size=1 << 20)
    except errors.DiskFull as error:
        assert error.path.startswith(str(queue))
    else:
        raise AssertionError("no DiskFull")
    assert not list(queue.glob("*.q*"))
subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
with open_writer(queue, segment_size=1 << 20) as writer:
    assert writer.append(b"now") == 0
assert payloads(queue) == [b"now"]
"""
    run(code, tmp_path)


def test_commit_of_a_reader_on_a_full_disk(tmp_path: Path) -> None:
    code = """
mount("512k")
queue = disk / "queue"
with open_writer(queue, segment_size=64 << 10) as writer:
    for number in range(10):
        writer.append(b"%d" % number)
with open_reader(queue, "old") as old:
    old.read_batch(3)
    room = os.statvfs(disk)
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    old.commit()  # its file has had its room since it was opened
    try:
        with open_reader(queue, "new") as new:
            assert len(new.read_batch()) == 10
    except errors.DiskFull as error:
        assert str(queue) in str(error)
    else:
        raise AssertionError("no DiskFull")
with open_reader(queue, "old") as old:
    assert [message.payload for message in old] == [b"%d" % n for n in range(3, 10)]
os.unlink(disk / "ballast")
with open_reader(queue, "new") as new:
    assert len(new.read_batch()) == 10
"""
    run(code, tmp_path)


def test_flush_on_a_full_disk_says_what_to_do(queue_path: Path) -> None:
    """Thin and network file systems report it when they write; readers have the message by then."""
    with open_writer(queue_path, segment_size=64 << 10) as writer:
        writer.append(b"appended")
        with injected("sync_map", errno.ENOSPC), pytest.raises(DiskFull) as caught:
            writer.flush_now()
        assert "othing was written" not in str(caught.value)
        assert "close the writer and open it again" in str(caught.value)
        with pytest.raises(WriterPoisoned):
            writer.append(b"more")
        with pytest.raises(WriterPoisoned):
            writer.close()
    with open_reader(queue_path) as reader:
        assert [message.payload for message in reader] == [b"appended"]


@pytest.mark.parametrize("there", [False, True])
def test_a_queue_that_does_not_fit_leaves_nothing_behind(tmp_path: Path, there: bool) -> None:
    code = f"""
mount("1m")
queue = disk / "queue"
if {there}:
    queue.mkdir()
before = os.statvfs(disk).f_bfree
try:
    open_writer(queue, segment_size=8 << 20)
except errors.DiskFull as error:
    assert error.errno == 28 and error.path.startswith(str(queue))
else:
    raise AssertionError("no DiskFull")
assert queue.exists() == {there}
assert not list(disk.glob("queue/*"))
assert os.statvfs(disk).f_bfree == before
with open_writer(queue, segment_size=64 << 10) as writer:
    assert writer.statistics().segment_size == 64 << 10
    writer.append(b"smaller")
assert payloads(queue) == [b"smaller"]
"""
    run(code, tmp_path)


@pytest.mark.parametrize(("first", "second"), [(1 << 20, 1 << 16), (1 << 16, 1 << 20)])
def test_a_half_made_queue_takes_the_size_of_the_next_call(
    queue_path: Path, first: int, second: int
) -> None:
    """The disk may also fill up just before the first segment is created, when a reader already waits."""
    with open_reader(queue_path, "early", wait_for_queue=True) as reader:
        with injected("allocate", errno.ENOSPC), pytest.raises(DiskFull):
            open_writer(queue_path, segment_size=first)
        assert [path.suffix for path in queue_path.glob("*.q*")] == []
        assert reader.poll() is None
        with open_reader(queue_path) as late:
            assert late.poll() is None
            with open_writer(queue_path, segment_size=second) as writer:
                assert writer.statistics().segment_size == second
                seqs = writer.append_many([bytes(1000)] * 50)
                more = writer.append_many([bytes(1000)] * 50)
            for one in (reader, late):
                assert [message.seq for message in one] == [*seqs, *more]
                assert one.statistics().segment_size == second
    with open_writer(queue_path, segment_size=first) as writer:
        assert writer.statistics().segment_size == second, "it has segments now"
