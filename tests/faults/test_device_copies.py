"""Snapshots and copies of a queue that is in use.

A snapshot of hard links must not disturb the users of the queue. A copy made file by file has segments that
are older than the small files next to them. It is still a queue, which ends where its records end.
"""

import random
from pathlib import Path

import pytest

from .actor import Actor
from .copies import copy_in_name_order, hard_links
from .device_queues import SALT, fill, kept_aside, read, segment
from .oracle import BrokenPromiseError

SMALL = "segment_size=64 << 10"
TAKE = f"""
taken = []
for message in reader:
    assert message.payload == payload({SALT}, message.seq), message.seq
    taken.append(message.seq)
message = None
"""


def take(actor: Actor) -> list[int]:
    """Let the actor's ``reader`` read all available messages; return the seqs."""
    actor.do(TAKE)
    found = actor.do("taken")
    assert isinstance(found, list)
    return found


def open_both(writing: Actor, reading: Actor, queue: Path, name: str | None = "audit") -> None:
    writing.do(f"writer = open_writer(path, {SMALL})", path=str(queue))
    fill(writing, 0, 1000)
    reading.do("reader = open_reader(path, name)", path=str(queue), name=name)
    assert take(reading) == list(range(1000))
    if name is not None:
        reading.do("reader.commit()")


@pytest.mark.parametrize("name", ["audit", None])
def test_copies_by_hard_links_do_not_disturb_live_readers(tmp_path: Path, name: str | None) -> None:
    queue = tmp_path / "queue"
    with Actor() as writing, Actor() as reading:
        open_both(writing, reading, queue, name)
        fill(writing, 1000, 500)  # they are in segments that the reader has not opened yet
        hard_links(queue, tmp_path / "snapshot")
        assert take(reading) == list(range(1000, 1500))
        fill(writing, 1500, 1000)
        assert take(reading) == list(range(1500, 2500))
        reading.do("reader.seek_first()")
        assert take(reading) == list(range(2500))
        reading.do("reader.seek(700)")
        assert reading.do("reader.poll().seq") == 700
    assert read(queue) == list(range(2500))


def test_copies_by_hard_links_do_not_disturb_those_who_open_the_queue(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    with Actor() as writing, Actor() as reading:
        open_both(writing, reading, queue)
        reading.do("reader.close()")
        hard_links(queue, tmp_path / "snapshot")
        reading.do("reader = open_reader(path, 'audit')")
        fill(writing, 1000, 500)
        assert take(reading) == list(range(1000, 1500))
        writing.do("writer.close()")
        writing.do("writer = open_writer(path)")
        assert writing.do("writer.next_seq") == 1500
        fill(writing, 1500, 500)
        assert writing.do("writer.flush_now()") == 2000
        assert take(reading) == list(range(1500, 2000))
        assert reading.do("aiochronicle.verify(path).corrupt") == 0


def test_copies_by_hard_links_do_not_disturb_the_repair_after_a_kill(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    with Actor() as writing, Actor() as reading:
        open_both(writing, reading, queue)
        hard_links(queue, tmp_path / "snapshot")
        writing.kill()
        with Actor() as second:
            second.do("writer = open_writer(path)", path=str(queue))
            assert second.do("writer.next_seq") == 1000
            fill(second, 1000, 500)
            assert take(reading) == list(range(1000, 1500))


def test_copies_by_hard_links_do_not_disturb_retention(tmp_path: Path) -> None:
    """Removing a file leaves the snapshot's link, so the snapshot keeps what retention removes."""
    queue = tmp_path / "queue"
    with Actor() as writing, Actor() as reading:
        open_both(writing, reading, queue)
        hard_links(queue, tmp_path / "snapshot")
        writing.do("writer.close()")
        writing.do("writer = open_writer(path, retention=Retention(), _inline_housekeeping=2)")
        writing.do("writer.retain_now()")
        assert writing.do("writer.statistics().segments_deleted") > 0
        assert not segment(queue, 0).exists()
    assert read(tmp_path / "snapshot") == list(range(1000))


@pytest.mark.parametrize("state", ["live", "closed", "killed"])
def test_copies_by_hard_links_are_not_written_to(tmp_path: Path, state: str) -> None:
    """A snapshot can be read but not written: two writers would share the same files."""
    queue, snapshot = tmp_path / "queue", tmp_path / "snapshot"
    with Actor() as writing, Actor() as other:
        writing.do(f"writer = open_writer(path, {SMALL})", path=str(queue))
        fill(writing, 0, 1000)
        if state == "closed":
            writing.do("writer.close()")
        if state == "killed":
            writing.kill()
        hard_links(queue, snapshot)
        failure = other.fails("open_writer(path)", path=str(snapshot))
        assert "ChronicleError" in failure.kinds
        assert str(snapshot) in failure.text
        advice = failure.text.replace(str(snapshot), "")
        assert "link" in advice, failure
        assert "copy" in advice, "it says what to do: make a real one"
        assert read(snapshot) == list(range(1000))
        if state == "live":
            fill(writing, 1000, 100)
            assert writing.do("writer.flush_now()") == 1100
            writing.do("writer.close()")
    with Actor() as again:
        again.do("writer = open_writer(path)", path=str(queue))
        count = 1100 if state == "live" else 1000
        assert again.do("writer.next_seq") == count
        again.do("writer.close()")
    assert kept_aside(queue) == []
    assert read(queue) == list(range(count))


def copy_while_it_grows(queue: Path, copy: Path, writing: Actor, reading: Actor) -> int:
    """Copy in name order; after the last segment is copied, the queue grows and its reader commits.

    Return the number of messages in the copy.
    """
    held = 0

    def go_on(name: str) -> None:
        nonlocal held
        if name != "control.meta":
            return
        held = writing.do("writer.next_seq")
        fill(writing, held, 1000)
        assert writing.do("writer.flush_now()") == held + 1000
        assert take(reading) == list(range(held, held + 1000))
        reading.do("reader.commit()")

    copy_in_name_order(queue, copy, go_on)
    assert (copy / "control.meta").exists()
    assert held
    return held


@pytest.mark.parametrize("segments", ["one", "several"])
def test_copies_in_name_order_are_queues_that_end_where_their_records_end(
    tmp_path: Path, segments: str
) -> None:
    queue, copy = tmp_path / "queue", tmp_path / "copy"
    size = "segment_size=4 << 20" if segments == "one" else SMALL
    with Actor() as writing, Actor() as reading:
        writing.do(f"writer = open_writer(path, {size})", path=str(queue))
        fill(writing, 0, 1000)
        slow = "slow = open_reader(path, 'slow'); slow.read_batch(300); slow.commit(); slow.close()"
        reading.do(slow, path=str(queue))
        reading.do("reader = open_reader(path, 'audit')")
        take(reading)
        held = copy_while_it_grows(queue, copy, writing, reading)
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(copy))
        assert actor.do("writer.next_seq") >= held
        assert actor.do("writer.recovery.corrupt_records") == 0
        assert actor.do("aiochronicle.verify(path).corrupt") == 0
        next_seq = actor.do("writer.next_seq")
        with Actor() as audit, Actor() as slow_one:
            audit.do("reader = open_reader(path, 'audit')", path=str(copy))
            assert take(audit) == []
            slow_one.do("reader = open_reader(path, 'slow')", path=str(copy))
            assert take(slow_one) == list(range(300, held))
            fill(actor, next_seq, 100)
            assert take(audit) == list(range(next_seq, next_seq + 100))
            assert take(slow_one) == list(range(next_seq, next_seq + 100))
        actor.do("writer.close()")
    assert next_seq == held, "nobody has the seqs after it in the copy"
    assert kept_aside(copy) == []
    assert read(copy) == list(range(held + 100))


def test_copies_in_name_order_can_be_read_before_they_are_written_to(tmp_path: Path) -> None:
    queue, copy = tmp_path / "queue", tmp_path / "copy"
    with Actor() as writing, Actor() as reading:
        open_both(writing, reading, queue)
        held = copy_while_it_grows(queue, copy, writing, reading)
    assert read(copy) == list(range(held))


def test_copies_in_name_order_of_a_busy_queue_are_queues(tmp_path: Path, seed: int) -> None:
    """A copy is usable even if the writer appends, rolls and flushes throughout a slow copy."""
    dice = random.Random(seed)
    for number in range(2):
        check_a_busy_copy(tmp_path / f"{number}", dice)


BUSY = f"""
import threading
writer = open_writer(path, {SMALL})
ended = threading.Event()

def work():
    with open_reader(path, 'audit') as reader:
        seq = 0
        while not ended.is_set() and seq < 20_000:
            for _ in range(20):
                writer.append(payload({SALT}, seq))
                seq += 1
            if seq % flush_every < 20:
                writer.flush_now()
            for _ in reader:
                pass
            reader.commit()
            time.sleep(0.0005)

thread = threading.Thread(target=work)
thread.start()
"""


def check_a_busy_copy(root: Path, dice: random.Random) -> None:
    """Copy a queue in use and use the copy; the campaign calls this, too."""
    root.mkdir()
    queue, copy = root / "queue", root / "copy"
    with Actor() as busy:
        busy.do(BUSY, path=str(queue), flush_every=dice.randint(50, 2000))
        at_least = dice.randint(100, 3000)
        busy.do(f"while writer.next_seq < {at_least}: time.sleep(0.001)")
        copy_in_name_order(queue, copy)
        busy.do("ended.set(); thread.join(); writer.close()")
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(copy))
        if actor.do("writer.recovery.corrupt_records") or actor.do(
            "aiochronicle.verify(path).corrupt"
        ):
            raise BrokenPromiseError("a copy in name order is taken for a damaged queue")
        next_seq = actor.do("writer.next_seq")
        with Actor() as audit:
            audit.do("reader = open_reader(path, 'audit')", path=str(copy))
            before = take(audit)
            assert before == list(range(next_seq - len(before), next_seq))
            fill(actor, next_seq, 10)
            assert take(audit) == list(range(next_seq, next_seq + 10))
        actor.do("writer.close()")
    assert read(copy) == list(range(next_seq + 10))
