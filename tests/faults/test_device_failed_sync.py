"""Opening the queue again does not hide a failed sync.

The kernel reports a failed write-back once. Afterwards the pages count as clean though the disk does not
have them, and the next sync of the same pages succeeds without writing anything. So a writer that opens the
queue must write them again before it reports them as durable.
"""

import errno
from pathlib import Path

import pytest

from .actor import Actor, Failure
from .device_queues import SALT, fill, make_killed, read, recover, segment
from .devices import Disk

FLUSHED = 300
COUNT = 700


def fail_a_flush(disk: Disk, actor: Actor, queue: Path) -> None:
    """Leave a queue whose pages are clean in the kernel's cache but not on the disk."""
    actor.do("writer = open_writer(path, segment_size=1 << 20)", path=str(queue))
    fill(actor, 0, FLUSHED)
    assert actor.do("writer.flush_now()") == FLUSHED
    fill(actor, FLUSHED, COUNT - FLUSHED)
    with disk.unwritable(segment(queue, 0)):
        failure = actor.fails("writer.flush_now()")
        assert failure.errno == errno.EIO, failure
        assert actor.fails("writer.flush_now()").kind == "WriterPoisoned"
        assert actor.fails("writer.append(b'more')").kind == "WriterPoisoned"
        actor.attempt("writer.close()")


def assert_on_disk(disk: Disk, queue: Path, count: int) -> None:
    """What was reported as durable is in the image of a power cut, and there after mounting again."""
    with disk.power_cut() as image:
        assert recover(image / queue.name) >= count
        found = read(image / queue.name)
        assert found == list(range(len(found)))
        assert len(found) >= count


@pytest.mark.parametrize("another_process", [False, True])
def test_failed_sync_is_made_good_by_the_next_writer(
    disk: Disk, actor: Actor, another_process: bool
) -> None:
    queue = disk.path / "queue"
    fail_a_flush(disk, actor, queue)
    if another_process:
        actor.kill()
    with Actor() as fresh:
        second = fresh if another_process else actor
        second.do("writer = open_writer(path)", path=str(queue))
        next_seq = second.do("writer.next_seq")
        assert next_seq >= FLUSHED
        durable = second.do("writer.flush_now()")
        assert durable == next_seq == second.do("writer.statistics().durable_seq")
        assert_on_disk(disk, queue, durable)
        fill(second, next_seq, 100)
        durable = second.do("writer.flush_now()")
        assert durable == next_seq + 100
        assert_on_disk(disk, queue, durable)
        second.kill()
    disk.drop_caches()
    assert read(queue) == list(range(durable))


def test_failed_sync_of_a_killed_writer_is_made_good_by_the_next_one(disk: Disk) -> None:
    """The next writer repairs a write-back that failed after the writer was killed."""
    queue = disk.path / "queue"
    make_killed(queue, COUNT, "segment_size=1 << 20")
    with disk.unwritable(segment(queue, 0)), Actor() as actor:
        actor.attempt("fd = os.open(path, os.O_RDONLY); os.fsync(fd)", path=str(segment(queue, 0)))
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        durable = actor.do("writer.statistics().durable_seq")
        assert actor.do("writer.next_seq") == COUNT
        assert_on_disk(disk, queue, durable)
        assert actor.do("writer.flush_now()") == COUNT
        assert_on_disk(disk, queue, COUNT)


def test_failed_sync_of_a_disk_that_still_fails_claims_nothing(disk: Disk, actor: Actor) -> None:
    queue = disk.path / "queue"
    fail_a_flush(disk, actor, queue)
    actor.kill()
    with disk.unwritable(segment(queue, 0)), Actor() as second:
        opened = second.attempt("writer = open_writer(path)", path=str(queue))
        durable = FLUSHED
        if not isinstance(opened, Failure):
            flushed = second.attempt("writer.flush_now()")
            durable = second.do("writer.statistics().durable_seq")
            if not isinstance(flushed, Failure):
                assert flushed == durable
                assert_on_disk(disk, queue, flushed)
        assert_on_disk(disk, queue, durable)
        second.kill()
    with Actor() as third:
        third.do("writer = open_writer(path)", path=str(queue))
        assert_on_disk(disk, queue, third.do("writer.flush_now()"))


def test_failed_sync_of_a_sync_writer_is_told_with_its_seq(disk: Disk, actor: Actor) -> None:
    """After NotDurable, a new writer shows whether the message is there, before it is sent again."""
    queue = disk.path / "queue"
    step = "writer = open_writer(path, segment_size=1 << 20, flush='sync')"
    actor.do(step, path=str(queue))
    fill(actor, 0, FLUSHED)
    with disk.unwritable(segment(queue, 0)):
        assert actor.fails(f"writer.append(payload({SALT}, {FLUSHED}))").kind == "NotDurable"
        actor.kill()
    with Actor() as second:
        second.do("writer = open_writer(path, flush='sync')", path=str(queue))
        next_seq = second.do("writer.next_seq")
        assert next_seq in (FLUSHED, FLUSHED + 1)
        assert_on_disk(disk, queue, next_seq)
