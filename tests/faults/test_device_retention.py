"""Retention removes only what was read, even if the power is cut.

A committed position reaches the disk some time later, but a segment that was removed because of it is gone
at once. So retention syncs the positions that a removal relies on first.
"""

import errno
from pathlib import Path

import pytest

from .actor import Actor
from .device_queues import fill, read
from .devices import Disk

COUNT = 3_000
EARLY = 100
SYNC = "fd = os.open(file, os.O_RDONLY); os.fsync(fd); os.close(fd)"


def open_queue(writing: Actor, queue: Path, retention: str) -> None:
    step = f"writer = open_writer(path, segment_size=64 << 10, retention=Retention({retention}))"
    writing.do(step, path=str(queue))
    fill(writing, 0, COUNT)


def commit_twice(reading: Actor, queue: Path, name: str, count: int) -> None:
    """Commit an early position, which is written back, and a later one, which is not written back yet."""
    reading.do(f"reader = open_reader(path, {name!r}); readers = globals().get('readers', [])",
               path=str(queue))  # fmt: skip
    reading.do("readers.append(reader)")
    assert reading.do(f"len(reader.read_batch({EARLY}))") == EARLY
    reading.do("reader.commit()")
    reading.do(SYNC, file=str(queue / "readers" / f"{name}.meta"))
    assert reading.do(f"len(reader.read_batch({count - EARLY}))") == count - EARLY
    reading.do("reader.commit()")


def remove(writing: Actor, queue: Path, field: str = "segments_deleted") -> None:
    """Apply retention, and write the kernel's journal to the disk, as the kernel does some seconds later."""
    writing.do("writer.flush_now(); writer.retain_now()")
    assert writing.do(f"writer.statistics().{field}") > 0
    writing.do(SYNC, file=str(queue))
    assert not (queue / "000000000.q").exists()


@pytest.mark.parametrize("kind", ["deleted", "archived", "by size", "by age"])
def test_retention_goes_by_positions_that_a_power_cut_does_not_take_back(
    disk: Disk, kind: str
) -> None:
    queue = disk.path / "queue"
    rule = {
        "deleted": "",
        "archived": f"archive={str(disk.path / 'archive')!r}, ",
        "by size": "max_bytes=128 << 10, ",
        "by age": "max_age_s=0.001, ",
    }[kind]
    with Actor() as writing, Actor() as reading:
        open_queue(writing, queue, f"{rule}check_interval_s=3600")
        commit_twice(reading, queue, "audit", COUNT)
        remove(writing, queue, "segments_archived" if kind == "archived" else "segments_deleted")
        with disk.power_cut() as image:
            left = read(image / "queue")
            assert left, "what is not sealed yet stays"
            # No PositionLost: the reader continues no later than with the first message left.
            resumed = read(image / "queue", "audit")
            assert resumed == left[len(left) - len(resumed) :]
            with Actor() as actor:
                actor.do("writer = open_writer(path)", path=str(image / "queue"))
                assert actor.do("writer.next_seq") == COUNT
                actor.do("writer.close()")
            read(image / "queue", "audit")


def test_retention_goes_by_the_slowest_of_several_readers(disk: Disk) -> None:
    """Each reader resumes, whatever its position."""
    queue = disk.path / "queue"
    counts = {"audit": COUNT // 2, "risk": COUNT * 3 // 4, "archive": COUNT}
    with Actor() as writing, Actor() as reading:
        open_queue(writing, queue, "check_interval_s=3600")
        for name, count in counts.items():
            commit_twice(reading, queue, name, count)
        remove(writing, queue)
        with disk.power_cut() as image:
            for name, count in counts.items():
                found = read(image / "queue", name)
                assert found == list(range(COUNT - len(found), COUNT))
                assert len(found) >= COUNT - count


def test_retention_in_the_background_goes_by_such_positions_too(disk: Disk) -> None:
    queue = disk.path / "queue"
    with Actor() as writing, Actor() as reading:
        open_queue(writing, queue, "check_interval_s=0.01")
        commit_twice(reading, queue, "audit", COUNT)
        writing.do("while not writer.statistics().segments_deleted: time.sleep(0.001)")
        writing.do(SYNC, file=str(queue))
        with disk.power_cut() as image:
            found = read(image / "queue", "audit")
            assert found == list(range(COUNT - len(found), COUNT))


def test_retention_that_cannot_sync_a_position_removes_nothing(disk: Disk) -> None:
    queue = disk.path / "queue"
    with Actor() as writing, Actor() as reading:
        open_queue(writing, queue, "check_interval_s=3600")
        commit_twice(reading, queue, "audit", COUNT)
        writing.do("writer.flush_now()")
        with disk.unwritable(queue / "readers" / "audit.meta"):
            failure = writing.fails("writer.retain_now()")
            assert failure.errno == errno.EIO, failure
            assert str(queue / "readers") in failure.text, failure
            assert writing.do("writer.statistics().segments_deleted") == 0
            assert (queue / "000000000.q").exists()
