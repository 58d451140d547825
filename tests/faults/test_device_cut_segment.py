"""The active segment is cut, or its disk space is gone, under a live writer.

A flush checks, and never claims what the file does not have. An append fails no later than at the first
missing page, with neither a signal nor a success.
"""

import os
import subprocess
from pathlib import Path

import pytest

from .actor import Actor, Failure
from .device_queues import segment
from .devices import PAGE, Disk, missing, tmpfs

COUNT = 100
PAYLOAD = 1000
RECORD = 1088  # with its header, and padded
END = 64 + COUNT * RECORD
SIZE = 1 << 20

# (name, where the file is cut): the records end at END, in the middle of a page.
CUTS = {
    "behind, at a page": END // PAGE * PAGE - 4 * PAGE,
    "behind, inside a page": END // PAGE * PAGE - 4 * PAGE + 128,
    "inside the last page": END // PAGE * PAGE + 128,
    "ahead, at a page": END // PAGE * PAGE + 3 * PAGE,
    "ahead, inside a page": END // PAGE * PAGE + 3 * PAGE + 128,
}
CUT = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())

FILL = f"""
acknowledged = []
for number in range(count):
    acknowledged.append(writer.append(b'x' * {PAYLOAD}))
"""


def open_and_fill(actor: Actor, queue: Path, options: str = "") -> None:
    actor.do(f"writer = open_writer(path, segment_size={SIZE}{options})", path=str(queue))
    actor.do(FILL, count=COUNT)
    assert actor.do("writer.position.offset") == END
    assert actor.do("writer.flush_now()") == COUNT


def seqs_in(file: Path) -> list[int]:
    """Return the seqs of the records that are really in the file, which may have been cut."""
    found, data, offset = [], file.read_bytes(), 64
    while offset + RECORD <= len(data) and any(data[offset : offset + 4]):
        assert data[offset + 64 : offset + 64 + PAYLOAD] == b"x" * PAYLOAD
        found.append(int.from_bytes(data[offset + 8 : offset + 16], "little"))
        offset += RECORD
    return found


def assert_told(failure: Failure, queue: Path) -> None:
    assert "ChronicleError" in failure.kinds, failure
    assert str(queue) in failure.text, failure


@CUT
@pytest.mark.parametrize("more", [0, 2])
def test_cut_segment_is_found_by_the_next_flush(
    tmp_path: Path, actor: Actor, cut: int, more: int
) -> None:
    """What a flush reports as durable is there, even with nothing new to sync (more=0)."""
    queue = tmp_path / "queue"
    open_and_fill(actor, queue)
    os.truncate(segment(queue, 0), cut)
    appended = actor.attempt(FILL, count=more)
    failure = actor.fails("writer.flush_now()")
    assert_told(failure, queue)
    if isinstance(appended, Failure):
        assert_told(appended, queue)
    assert_told(actor.fails("writer.append(b'more')"), queue)


@CUT
def test_cut_segment_is_found_by_the_append_that_reaches_it(
    tmp_path: Path, actor: Actor, cut: int
) -> None:
    """At most one page of acknowledged messages is lost: the page in which the file ends."""
    queue = tmp_path / "queue"
    open_and_fill(actor, queue)
    os.truncate(segment(queue, 0), cut)
    failure = actor.fails(FILL, count=500)
    assert_told(failure, queue)
    next_page = -(-cut // PAGE) * PAGE
    last_possible = max(0, next_page - END) // RECORD
    assert actor.do("len(acknowledged)") <= last_possible
    if cut % PAGE == 0 and cut > END:
        assert seqs_in(segment(queue, 0)) == list(range(COUNT + actor.do("len(acknowledged)")))
    assert_told(actor.fails("writer.flush_now()"), queue)


@CUT
@pytest.mark.parametrize("flush", ["'sync'", "Batch(3000, 0.01)"])
def test_cut_segment_costs_no_acknowledged_flush(
    tmp_path: Path, actor: Actor, cut: int, flush: str
) -> None:
    queue = tmp_path / "queue"
    open_and_fill(actor, queue, f", flush={flush}")
    os.truncate(segment(queue, 0), cut)
    durable = actor.do("writer.statistics().durable_seq")
    assert_told(actor.fails(FILL, count=500), queue)
    if actor.do("writer.statistics().durable_seq") > durable:
        found = seqs_in(segment(queue, 0))
        assert found[-1] + 1 >= actor.do("writer.statistics().durable_seq")


def test_cut_segment_is_told_by_an_idle_writer_within_seconds(tmp_path: Path, actor: Actor) -> None:
    """Without a flush, the housekeeper's check once a second makes appends fail."""
    queue = tmp_path / "queue"
    open_and_fill(actor, queue)
    os.truncate(segment(queue, 0), CUTS["inside the last page"])
    wait = """
deadline = time.monotonic() + 5
while not writer.statistics().last_error and time.monotonic() < deadline:
    time.sleep(0.01)
"""
    actor.do(wait)
    assert_told(actor.fails("writer.append(b'more')"), queue)


def punch(file: Path, offset: int, length: int) -> None:
    command = ["fallocate", "--punch-hole", "--offset", str(offset), "--length", str(length)]
    subprocess.run([*command, str(file)], check=True)


def test_cut_segment_by_a_full_file_system_is_an_error_of_append(
    tmp_path: Path, actor: Actor
) -> None:
    """If a page of the segment has lost its block and the disk is full, an append fails without a signal."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with tmpfs(tmp_path / "small", "8m") as small:
        queue = small / "queue"
        open_and_fill(actor, queue)
        hole = END // PAGE * PAGE + 8 * PAGE
        with (small / "ballast").open("wb", buffering=0) as ballast:
            actor.do("time.sleep(0.2)")  # by now the next segment is prepared
            punch(segment(queue, 0), hole, 4 * PAGE)
            with pytest.raises(OSError, match="space"):
                while True:
                    ballast.write(bytes(64 << 10))
            with pytest.raises(OSError, match="space"):
                while True:
                    ballast.write(bytes(PAGE))
        assert_told(actor.fails(FILL, count=500), queue)
        appended = COUNT + actor.do("len(acknowledged)")
        assert appended <= (hole - 64) // RECORD
        assert_told(actor.fails("writer.flush_now()"), queue)
        assert seqs_in(segment(queue, 0)) == list(range(appended))
        actor.kill()
        (small / "ballast").unlink()
        with Actor() as second:
            second.do("writer = open_writer(path)", path=str(queue))
            assert second.do("writer.next_seq") == appended
            second.do(FILL, count=500)
            assert second.do("writer.flush_now()") == appended + 500
            second.do("writer.close()")


@pytest.mark.parametrize("flush", ["'async'", "'sync'"])
def test_cut_segment_is_not_what_an_unreadable_page_ahead_makes_of_it(
    disk: Disk, flush: str
) -> None:
    """An append overwrites a bad page after the end as a whole, or raises."""
    queue = disk.path / "queue"
    with Actor() as actor:
        open_and_fill(actor, queue)
        actor.do("writer.close()")
    file = segment(queue, 0)
    with file.open("r+b") as tail:  # as in a segment that recovery has cleared
        tail.seek(END)
        tail.write(bytes(SIZE - END))
        os.fsync(tail.fileno())
    disk.drop_caches()
    bad = END // PAGE * PAGE + 8 * PAGE
    with disk.unreadable(file, bad), Actor() as actor:
        actor.do(f"writer = open_writer(path, flush={flush})", path=str(queue))
        stopped = actor.attempt(FILL, count=500)
        appended = COUNT + actor.do("len(acknowledged)")
        if isinstance(stopped, Failure):
            assert_told(stopped, queue)
            assert appended <= (bad - 64) // RECORD
        actor.kill()
    disk.drop_caches()
    assert seqs_in(file)[:appended] == list(range(appended))
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        assert actor.do("writer.next_seq") >= appended
        actor.do("writer.close()")
