"""Recovery never cuts off what was reported as durable, whatever happens to a page before it.

A power cut leaves the image of the disk at that moment, and one bit of an old message has changed:
that is damage, not the end of the queue, and everything after it stays.
"""

import os
from pathlib import Path

import pytest

from .actor import Actor
from .device_queues import SALT, fill, flip_a_bit, kept_aside, offset_of, read
from .devices import Disk

COUNT = 2_000
DAMAGED = 500


def assert_damage_costs_one_message(queue: Path, count: int) -> None:
    """Recover the queue of an image; at least the first ``count`` messages are on disk.

    Recovery must read only the segment in which the queue ends.
    """
    flip_a_bit(queue, DAMAGED)
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        next_seq = actor.do("writer.next_seq")
        assert next_seq >= count
        if offset_of(queue, 0)[0] == actor.do("writer.position.segment"):
            assert actor.do("writer.recovery.corrupt_records") >= 1
        assert actor.do("aiochronicle.verify(path).corrupt") == 1
        assert actor.do("writer.flush_now()") == next_seq
        actor.do("writer.close()")
    found = read(queue, on_corrupt="skip")
    assert found == [seq for seq in range(next_seq) if seq != DAMAGED]


@pytest.mark.parametrize("segment_size", [4 << 20, 128 << 10])
def test_durable_messages_of_a_sync_writer_survive_damage_before_them(
    disk: Disk, actor: Actor, segment_size: int
) -> None:
    actor.do(
        "writer = open_writer(path, segment_size=segment_size, flush='sync')",
        path=str(disk.path / "queue"),
        segment_size=segment_size,
    )
    fill(actor, 0, COUNT)
    with disk.power_cut() as image:
        assert_damage_costs_one_message(image / "queue", COUNT)


def test_durable_messages_of_two_flushes_survive_damage_before_them(
    disk: Disk, actor: Actor
) -> None:
    actor.do("writer = open_writer(path, segment_size=4 << 20)", path=str(disk.path / "queue"))
    for first in (0, COUNT // 2):
        fill(actor, first, COUNT // 2)
        assert actor.do("writer.flush_now()") == first + COUNT // 2
        with disk.power_cut() as image:
            assert_damage_costs_one_message(image / "queue", first + COUNT // 2)


def test_durable_messages_of_a_batch_writer_survive_damage_before_them(
    disk: Disk, actor: Actor
) -> None:
    actor.do(
        "writer = open_writer(path, segment_size=4 << 20, flush=Batch(16 << 10, 0.01))",
        path=str(disk.path / "queue"),
    )
    fill(actor, 0, COUNT)
    wait = "while writer.statistics().durable_seq < writer.next_seq: time.sleep(0.001)"
    actor.do(wait)
    with disk.power_cut() as image:
        assert_damage_costs_one_message(image / "queue", COUNT)


def test_durable_messages_are_told_from_those_that_were_not_flushed(
    disk: Disk, actor: Actor
) -> None:
    """After the last flush an invalid record may be the end of the queue.

    Then recovery sets aside what follows; otherwise the record is ordinary damage and costs one message.
    """
    actor.do("writer = open_writer(path, segment_size=4 << 20)", path=str(disk.path / "queue"))
    fill(actor, 0, DAMAGED // 2)
    flushed = actor.do("writer.flush_now()")
    fill(actor, DAMAGED // 2, DAMAGED)
    actor.kill()
    disk.drop_caches()  # as if the kernel had written everything back
    queue = disk.path / "queue"
    flip_a_bit(queue, DAMAGED)
    with Actor() as second:
        second.do("writer = open_writer(path)", path=str(queue))
        assert second.do("writer.next_seq") >= flushed
        corrupt = second.do("writer.recovery.corrupt_records")
        second.do("writer.close()")
    found = read(queue, on_corrupt="skip")
    if corrupt:
        assert found == [seq for seq in range(DAMAGED // 2 + DAMAGED) if seq != DAMAGED]
    else:
        assert found == list(range(DAMAGED))
        assert kept_aside(queue)


_FLUSH_EACH = """
for seq in range(first, first + count):
    assert writer.append(payload(salt, seq)) == seq
    assert writer.flush_now() == seq + 1
"""


def test_messages_flushed_one_by_one_survive_damage_before_them(disk: Disk, actor: Actor) -> None:
    actor.do("writer = open_writer(path, segment_size=4 << 20)", path=str(disk.path / "queue"))
    actor.do(_FLUSH_EACH, first=0, count=COUNT // 2, salt=SALT)
    with disk.power_cut() as image:
        assert_damage_costs_one_message(image / "queue", COUNT // 2)


def _count_writes(disk: Disk) -> int:
    device = disk.path.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(path.read_text(encoding="utf-8").split()[4])


def test_one_durable_message_is_one_write_and_one_cache_flush(disk: Disk, actor: Actor) -> None:
    """A flush writes neither the inode, whose times change with each stat, nor index.meta."""
    count = 200
    actor.do("writer = open_writer(path, segment_size=4 << 20)", path=str(disk.path / "queue"))
    actor.do(_FLUSH_EACH, first=0, count=10, salt=SALT)
    before = _count_writes(disk)
    actor.do(_FLUSH_EACH, first=10, count=count, salt=SALT)
    # index.meta is synced once a second, and the kernel may write something of its own.
    assert _count_writes(disk) - before <= 2.5 * count
