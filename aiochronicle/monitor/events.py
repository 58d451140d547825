"""Events: what changed between two looks at a queue.

Writers and readers do not report events. An event is a difference between two states, so what began and ended
between two looks is not seen.
"""

from collections.abc import Iterator

from aiochronicle._core.queue import QueueInfo, ReaderInfo
from aiochronicle._core.writer_info import WriterInfo
from aiochronicle.monitor.records import EventKind, QueueState

__all__ = ["ROUTINE", "Change", "changes"]

# What a busy queue does all the time: those soon after each other are reported as one.
ROUTINE: frozenset[EventKind] = frozenset(("rolled", "retained", "slow append", "error"))

Change = tuple[EventKind, int, str, int]
"""Kind, time in nanoseconds or 0 for now, a sentence, and how many."""

_COMMAND_MAX = 60

_CAUSES = {
    "unknown": "of unknown cause",
    "page fault": "in page faults",
    "roll": "in rolling to a new segment",
    "lock": "waiting for a lock",
    "sync": "in a sync",
    "scheduler": "without a processor",
    "capacity": "waiting for readers (capacity)",
}


def changes(before: QueueState, after: QueueState, ended: set[int]) -> Iterator[Change]:
    """Yield the events between two states: kind, time, text, count. ``ended`` has the pids that ended."""
    if after.problem is not None:
        if before.problem != after.problem:
            yield "unreadable", 0, after.problem, 1
        return
    if before.problem is not None:
        yield "readable", 0, "can be read again", 1
    if after.info is None or before.info is after.info:
        return
    if before.info is None:  # the first look: what its writer says of the past
        yield from _of_writer(None, after.writer)
        return
    yield from _of_segments(before.info, after.info)
    yield from _of_writer(before.writer, after.writer)
    groups = {group.name for group in after.groups}
    yield from _of_readers(before.readers, after.readers, ended, groups)


def _of_segments(before: QueueInfo, after: QueueInfo) -> Iterator[Change]:
    if after.queue_id != before.queue_id:
        yield "appeared", 0, "was recreated", 1
        return
    rolled = after.current_segment - before.current_segment
    if rolled > 0:
        yield "rolled", 0, f"to segment {after.current_segment}", rolled
    removed = after.first_segment - before.first_segment
    if removed > 0:
        yield "retained", 0, f"segments before {after.first_segment} were removed", removed


def _of_writer(before: WriterInfo | None, after: WriterInfo | None) -> Iterator[Change]:
    if after is None:
        return
    is_same = before is not None and (before.pid, before.since_ns) == (after.pid, after.since_ns)
    if not is_same:
        yield "opened", after.since_ns, f"for writing by {_process(after.pid, after.command)}", 1
        yield from _of_recovery(after)
    if (before is None or not is_same or before.state == "open") and after.state != "open":
        if after.state == "closed":
            yield "closed", after.closed_ns or 0, f"by pid {after.pid}", 1
        else:
            seen_ns = after.heartbeat_ns if before is None else 0
            yield (
                "killed",
                seen_ns,
                f"{_process(after.pid, after.command)} ended without closing it",
                1,
            )
    was_stopped = before is not None and is_same and before.stopped
    if after.stopped and not was_stopped:
        yield "stopped", 0, f"{_process(after.pid, after.command)}, by a signal or a debugger", 1
    elif was_stopped and not after.stopped and after.state == "open":
        yield "continued", 0, f"{_process(after.pid, after.command)} runs again", 1
    yield from _of_slow_appends(before if is_same else None, after)
    yield from _of_errors(before if is_same else None, after)


def _of_recovery(writer: WriterInfo) -> Iterator[Change]:
    if writer.statistics is None or writer.statistics.recovery.clean:
        return
    found = writer.statistics.recovery
    parts = [f"{found.records_scanned:,} records checked"]
    if found.torn_records:
        parts.append(f"{found.torn_records:,} half-written ones dropped")
    if found.corrupt_records:
        parts.append(f"{found.corrupt_records:,} damaged ones found")
    if found.bytes_set_aside:
        parts.append(f"{found.bytes_set_aside:,} bytes set aside")
    yield "recovered", writer.since_ns, ", ".join(parts), 1


def _of_slow_appends(before: WriterInfo | None, after: WriterInfo) -> Iterator[Change]:
    seen_ns = max((one.time_ns for one in before.slow_appends), default=0) if before else 0
    fresh = [one for one in after.slow_appends if one.time_ns > seen_ns]
    if fresh:
        worst = max(fresh, key=lambda one: one.duration_ns)
        text = f"seq {worst.seq:,} took {worst.duration_ns / 1e6:,.1f} ms, {_CAUSES[worst.cause]}"
        yield "slow append", worst.time_ns, text, len(fresh)


def _of_errors(before: WriterInfo | None, after: WriterInfo) -> Iterator[Change]:
    known = {(one.first_ns, one.text): one.count for one in before.errors} if before else {}
    for one in after.errors:
        fresh = one.count - known.get((one.first_ns, one.text), 0)
        if fresh > 0:
            yield "error", one.last_ns, one.text, fresh


def _of_readers(
    before: tuple[ReaderInfo, ...],
    after: tuple[ReaderInfo, ...],
    ended: set[int],
    groups: set[str],
) -> Iterator[Change]:
    old = {one.name: one for one in before}
    for name in old.keys() - {one.name for one in after}:
        yield "reader forgotten", 0, f"reader {name!r} has no position any more", 1
    for one in after:
        was = old.get(one.name)
        # The position of a group has the pid of the member that committed last.
        is_another = was is None or not was.live or (was.pid != one.pid and one.name not in groups)
        if one.live and is_another:
            by = "" if one.pid is None else f" by {_process(one.pid, one.command)}"
            yield "reader opened", 0, f"reader {one.name!r}{by}", 1
        if was is not None and was.live and not one.live:
            killed = was.pid in ended
            how = f"was open in pid {was.pid}, which ended" if killed else "was closed"
            yield "reader killed" if killed else "reader closed", 0, f"reader {one.name!r} {how}", 1
        if one.lost and (was is None or not was.lost):
            yield "reader lost", 0, f"the position of reader {one.name!r} is not in the queue", 1


def _process(pid: int, command: str | None) -> str:
    """Name a process by its program, without the directory, and the beginning of its arguments."""
    program, _, arguments = (command or "").partition(" ")
    shown = f"{program.rpartition('/')[2]} {arguments}".strip()
    if len(shown) > _COMMAND_MAX:
        shown = f"{shown[: _COMMAND_MAX - 1]}…"
    return f"pid {pid} ({shown})" if shown else f"pid {pid}"
