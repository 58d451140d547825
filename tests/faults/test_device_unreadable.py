"""A page that cannot be read is not the end of a queue.

A process that meets one reports path, offset and errno and changes nothing. When the disk can be read again,
with another controller or from another copy of the block, every message is there.
"""

import errno
from pathlib import Path

import pytest

from .actor import Actor, Failure
from .device_queues import SALT, kept_aside, make_killed, offset_of, read, segment
from .devices import PAGE, Disk, content
from .oracle import PAYLOAD_MAX

COUNT = 5_000
ONE_SEGMENT = "segment_size=4 << 20"
MANY_SEGMENTS = "segment_size=256 << 10"
RECORD_MAX = PAYLOAD_MAX + 128


def assert_names_the_page(failure: Failure, file: Path, page: int) -> None:
    """Accept either offset: a record that reaches into the page begins a little before it."""
    assert "ChronicleError" in failure.kinds, failure
    assert failure.errno == errno.EIO, failure
    assert str(file) in failure.text, failure
    assert failure.path == str(file), failure
    assert failure.offset is not None
    assert page - RECORD_MAX <= failure.offset < page + PAGE, failure


def assert_nothing_changes(disk: Disk, queue: Path, file: Path, offset: int = 0) -> None:
    """Open for writing while a page is unreadable, and again when it is readable."""
    page = offset // PAGE * PAGE
    before = content(queue)
    disk.drop_caches()
    with Actor() as actor, disk.unreadable(file, page):
        outcome = actor.attempt("writer = open_writer(path)", path=str(queue)) or "it opened"
        actor.kill()
    disk.drop_caches()
    after = content(queue)
    assert sorted(after) == sorted(before), outcome
    assert [name for name in before if before[name] != after[name]] == [], outcome
    assert isinstance(outcome, Failure), outcome
    assert_names_the_page(outcome, file, page)
    assert_all_there(queue)


def assert_all_there(queue: Path, count: int = COUNT) -> None:
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        assert actor.do("writer.next_seq") == count
        assert actor.do("writer.recovery.corrupt_records") == 0
        actor.do("writer.close()")
    assert kept_aside(queue) == []
    assert read(queue) == list(range(count))


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_unreadable_page_in_the_middle_of_the_active_segment_stops_the_opening(
    disk: Disk, flush: str
) -> None:
    queue = disk.path / "queue"
    make_killed(queue, COUNT, f"{ONE_SEGMENT}, flush={flush!r}")
    number, offset = offset_of(queue, COUNT // 2)
    assert_nothing_changes(disk, queue, segment(queue, number), offset)


@pytest.mark.parametrize("seq", [0, 700, COUNT - 1])
def test_unreadable_page_of_the_segment_stops_the_opening_wherever_it_is(
    disk: Disk, seq: int
) -> None:
    """The first page holds the segment's header, the last one the end of the queue."""
    queue = disk.path / "queue"
    make_killed(queue, COUNT, ONE_SEGMENT)
    number, offset = offset_of(queue, seq)
    assert_nothing_changes(disk, queue, segment(queue, number), offset)


def test_unreadable_page_of_the_last_sealed_segment_stops_the_opening(disk: Disk) -> None:
    queue = disk.path / "queue"
    make_killed(queue, COUNT, f"{MANY_SEGMENTS}, _inline_housekeeping=2")
    active, _ = offset_of(queue, COUNT - 1)
    assert active >= 2
    assert_nothing_changes(disk, queue, segment(queue, active - 1), 128 << 10)


@pytest.mark.parametrize("name", ["control.meta", "index.meta", "readers/audit.meta"])
def test_unreadable_small_file_stops_the_opening(disk: Disk, name: str) -> None:
    queue = disk.path / "queue"
    then = "reader = open_reader(path, 'audit'); reader.read_batch(100); reader.commit()"
    make_killed(queue, COUNT, ONE_SEGMENT, then)
    assert_nothing_changes(disk, queue, queue / name)


@pytest.mark.parametrize("name", ["control.meta", "readers/audit.meta", "000000000.q"])
def test_unreadable_page_stops_a_reader_that_goes_on_when_it_can_be_read(
    disk: Disk, name: str
) -> None:
    """An unreadable page is no damage: no advice to remove the position, and nothing is skipped."""
    queue = disk.path / "queue"
    then = "reader = open_reader(path, 'audit'); reader.read_batch(100); reader.commit()"
    make_killed(queue, COUNT, ONE_SEGMENT, then)
    page = offset_of(queue, 3000)[1] // PAGE * PAGE if name.endswith(".q") else 0
    step = "[message.seq for message in open_reader(path, 'audit', on_corrupt='skip')]"
    disk.drop_caches()
    with disk.unreadable(queue / name, page), Actor() as actor:
        failure = actor.fails(step, path=str(queue))
        actor.kill()
    assert_names_the_page(failure, queue / name, page)
    assert "remove the file" not in failure.text
    disk.drop_caches()
    assert read(queue, "audit") == list(range(100, COUNT))


def test_unreadable_page_is_told_by_verify(disk: Disk) -> None:
    queue = disk.path / "queue"
    make_killed(queue, COUNT, MANY_SEGMENTS, "writer.close()")
    before = content(queue)
    number, offset = offset_of(queue, 2000)
    page = offset // PAGE * PAGE
    disk.drop_caches()
    with disk.unreadable(segment(queue, number), page), Actor() as actor:
        failure = actor.fails("aiochronicle.verify(path)", path=str(queue))
    assert_names_the_page(failure, segment(queue, number), page)
    disk.drop_caches()
    assert content(queue) == before
    with Actor() as actor:
        assert actor.do("aiochronicle.verify(path).records", path=str(queue)) == COUNT


def test_unreadable_page_of_a_checked_queue_stops_the_opening(disk: Disk) -> None:
    """With verify=True, opening reads even segments that recovery does not need."""
    queue = disk.path / "queue"
    make_killed(queue, COUNT, MANY_SEGMENTS, "writer.close()")
    before = content(queue)
    disk.drop_caches()
    with disk.unreadable(segment(queue, 1), 128 << 10), Actor() as actor:
        failure = actor.fails("open_writer(path, verify=True)", path=str(queue))
    disk.drop_caches()
    assert content(queue) == before
    assert_names_the_page(failure, segment(queue, 1), 128 << 10)
    assert_all_there(queue)


@pytest.mark.parametrize("what", ["segment", "position"])
@pytest.mark.parametrize("archive", [False, True])
def test_unreadable_page_keeps_retention_from_removing(
    disk: Disk, tmp_path: Path, what: str, archive: bool
) -> None:
    """With the archive on another file system, moving a segment means reading it."""
    queue = disk.path / "queue"
    then = "reader = open_reader(path, 'audit'); reader.read_batch(10_000); reader.commit()"
    make_killed(queue, COUNT, MANY_SEGMENTS, f"{then}; reader.close(); writer.close()")
    segments = {path.name for path in queue.glob("*.q")}
    file, page = (
        (segment(queue, 0), 128 << 10)
        if what == "segment"
        else (queue / "readers" / "audit.meta", 0)
    )
    if what == "segment" and not archive:
        segment(queue, 0).with_suffix(".idx").unlink()  # so that its records have to be read
    options = f"Retention(archive={str(tmp_path / 'archive')!r})" if archive else "Retention()"
    disk.drop_caches()
    with disk.unreadable(file, page), Actor() as actor:
        step = f"open_writer(path, retention={options}, _inline_housekeeping=2)"
        opened = actor.attempt(f"writer = {step}", path=str(queue))
        if what == "segment":
            assert opened is None, opened
        if opened is None:  # opening may already fail at a position
            failure = actor.fails("writer.retain_now()")
            assert actor.do("writer.statistics().segments_deleted") == 0
            assert actor.do("writer.statistics().segments_archived") == 0
            actor.do("writer.close()")
        else:
            failure = opened
        assert failure.errno == errno.EIO, failure
        assert str(file) in failure.text, failure
    disk.drop_caches()
    assert segments <= {path.name for path in queue.glob("*.q")}
    assert [path.name for path in (tmp_path / "archive").rglob("*.q*")] == []
    assert read(queue) == list(range(COUNT))


def test_unreadable_page_leaves_a_segment_without_an_index(disk: Disk) -> None:
    """Indexing the segment reports the unreadable page; no index leaves messages out.

    Whether the writer continues or stops, every acknowledged message is there.
    """
    queue = disk.path / "queue"
    first = 600
    make_killed(queue, first, MANY_SEGMENTS, "writer.close()")
    number, offset = offset_of(queue, 300)
    assert number == 0
    disk.drop_caches()
    with disk.unreadable(segment(queue, 0), offset), Actor() as actor:
        opening = "acknowledged = 0; writer = open_writer(path, _inline_housekeeping=1)"
        step = f"""
for seq in range({first}, {COUNT}):
    acknowledged = writer.append(payload({SALT}, seq)) + 1
"""
        stopped = actor.attempt(opening, path=str(queue)) or actor.attempt(step)
        if stopped is None:
            assert actor.do("writer.statistics().seal_errors") >= 1
            assert actor.do("writer.statistics().last_error_errno") == errno.EIO
            report = actor.do("writer.statistics().last_error")
        else:
            assert stopped.errno == errno.EIO, stopped
            report = stopped.text
        acknowledged = actor.do("acknowledged")
        actor.attempt("writer.close()")
    assert str(segment(queue, 0)) in report
    assert not segment(queue, 0).with_suffix(".idx").exists()
    disk.drop_caches()
    found = read(queue)
    assert found == list(range(len(found)))
    assert len(found) >= max(first, acknowledged)
    with Actor() as actor:
        actor.do("reader = open_reader(path)", path=str(queue))
        for seq in (0, 299, 300, 301, first - 1):
            actor.do(f"reader.seek({seq})")
            assert actor.do("reader.poll().seq") == seq
