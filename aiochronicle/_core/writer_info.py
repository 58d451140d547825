"""Describes the current or last writer of a queue, from any process.

A writer publishes its counters in the queue's statistics.meta about once a second (csrc/writer_published.h).
Reading them costs the writer nothing and takes no lock.
"""

import os
import time
from typing import Any, Literal

import msgspec

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.printable import printable
from aiochronicle._core.live_settings import LiveSettings, from_engine
from aiochronicle._core.writer_statistics import WriterStatistics, recovery_of, statistics_of
from aiochronicle.config import Batch, Capacity, Retention

__all__ = [
    "RecentError",
    "Sample",
    "SlowAppend",
    "SlowTotal",
    "WriterInfo",
    "failing_retention",
    "recent_errors",
    "writer_of",
]

SlowCause = Literal["unknown", "page fault", "roll", "lock", "sync", "scheduler", "capacity"]

_CAUSES: dict[int, SlowCause] = {
    lib.AC_SLOW_UNKNOWN: "unknown",
    lib.AC_SLOW_PAGE_FAULT: "page fault",
    lib.AC_SLOW_ROLL: "roll",
    lib.AC_SLOW_LOCK: "lock",
    lib.AC_SLOW_SYNC: "sync",
    lib.AC_SLOW_SCHEDULER: "scheduler",
    lib.AC_SLOW_CAPACITY: "capacity",
}
_STATES: dict[int, Literal["open", "closed", "died"]] = {
    lib.AC_WRITER_OPEN: "open",
    lib.AC_WRITER_CLOSED: "closed",
    lib.AC_WRITER_DIED: "died",
}

_RATE_NS = 5 * 10**9  # rates are computed over this time, or over all samples
_SHORT_NS = 5 * 10**8  # too short for a rate
_RECENT_NS = 60 * 10**9  # lasting failures are counted again about once a second
_STALE_NS = 3 * 10**9  # a writer that has not published for this long is not running
_SILENT_S = 5.0  # a writer publishes about once a second, less often on a busy machine


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at one moment; two samples give a rate. ``monotonic_ns`` is from CLOCK_MONOTONIC."""

    monotonic_ns: int
    time_ns: int
    messages: int
    record_bytes: int
    wakeups: int
    syncs: int


class SlowAppend(msgspec.Struct, frozen=True, kw_only=True):
    """An append that took 100 microseconds or more off the fast path; 10 ms with ``flush="sync"``.

    ``seq`` is that of its first message. ``cause`` is what took most of the time, as far as the writer knows.
    An append that is preempted on the fast path is not detected.
    """

    time_ns: int
    duration_ns: int
    seq: int
    cause: SlowCause
    minor_faults: int
    major_faults: int
    switches: int


class SlowTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All slow appends of one cause since the writer was opened."""

    count: int
    total_ns: int
    longest_ns: int


class RecentError(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of background work, and how often it occurred."""

    first_ns: int
    last_ns: int
    count: int
    errno: int
    text: str


class WriterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The current or last writer of a queue.

    ``state`` is "open" (its process is alive), "closed", or "died" (killed, or lost power). An open writer
    is ``stopped`` while its process is stopped, by SIGSTOP or a debugger: it holds the queue and appends
    nothing. ``silent_s`` is the time since its last sign of life, or None if that was less than 5 seconds
    ago. A writer that is silent but not stopped has a background thread that does not run. ``command`` is
    empty if unknown.

    The fields after ``published_ns`` are of that time. They are None or empty if the writer published
    nothing, which is the case for other programs. ``rate`` and ``rate_bytes`` are messages and bytes of
    records per second, over the last five seconds. ``retention``, ``capacity`` and ``flush`` are the
    settings in force. The texts are untrusted: any process that may write to the queue can change them.
    """

    state: Literal["open", "closed", "died"]
    stopped: bool
    silent_s: float | None
    pid: int
    command: str
    since_ns: int
    heartbeat_ns: int
    published_ns: int | None
    user: int | None
    closed_ns: int | None
    rate: float
    rate_bytes: float
    statistics: WriterStatistics | None
    retention: Retention | None
    capacity: int | Capacity | None
    flush: Literal["async", "sync"] | Batch
    samples: tuple[Sample, ...]
    slow_appends: tuple[SlowAppend, ...]
    slow_totals: dict[SlowCause, SlowTotal]
    errors: tuple[RecentError, ...]


def writer_of(path: str | os.PathLike[str]) -> WriterInfo | None:
    """Return the current or last writer of the queue; None if unknown."""
    found = ffi.new("ac_queue_writer_t *")
    error = new_error()
    check(lib.ac_queue_writer(encode_path(path), found, error), error)
    if found.state == lib.AC_WRITER_NONE:
        return None
    state = _STATES[found.state]
    samples = tuple(_copy(Sample, found.sample[i]) for i in range(found.samples))
    running = state == "open" and bool(samples)
    rate, rate_bytes = _rates(samples) if running else (0.0, 0.0)
    settings = from_engine(found.settings) if found.published else LiveSettings()
    return WriterInfo(
        state=state,
        stopped=bool(found.stopped),
        silent_s=_silent_s(found.published_ns, samples[-1]) if running else None,
        pid=found.pid,
        command=_text(found.command),
        since_ns=found.since_ns,
        heartbeat_ns=found.heartbeat_ns,
        published_ns=found.published_ns if found.published else None,
        user=found.user if found.published else None,
        closed_ns=found.closed_ns or None,
        rate=rate,
        rate_bytes=rate_bytes,
        statistics=_statistics(found) if found.published else None,
        retention=settings.retention,
        capacity=settings.capacity,
        flush=settings.flush,
        samples=samples,
        slow_appends=tuple(_slow_append(found.slow_append[i]) for i in range(found.slow_appends)),
        slow_totals={
            name: _copy(SlowTotal, found.slow_total[cause])
            for cause, name in _CAUSES.items()
            if found.slow_total[cause].count
        },
        errors=tuple(_recent_error(found.error[i]) for i in range(found.errors)),
    )


def recent_errors(writer: WriterInfo) -> list[RecentError]:
    """Return the recent failures of an open writer, newest last. The writer retries all of them."""
    if writer.state != "open":
        return []
    check_s = 0.0 if writer.retention is None else writer.retention.check_interval_s
    since_ns = time.time_ns() - max(_RECENT_NS, round(3e9 * check_s))
    found = [one for one in writer.errors if one.last_ns >= since_ns]
    return sorted(found, key=lambda one: one.last_ns)


def failing_retention(writer: WriterInfo) -> RecentError | None:
    """Return why the retention of an open writer fails; None if it does not fail, or if that is unknown."""
    counts = writer.statistics
    if writer.retention is None or counts is None or not counts.retention_errors:
        return None
    found = recent_errors(writer)
    if counts.sync_errors or counts.seal_errors or counts.prealloc_errors or counts.populate_errors:
        archive = writer.retention.archive  # the texts do not name the task that failed
        found = [one for one in found if archive and os.fspath(archive) in one.text]
    return found[-1] if found else None


def _silent_s(published_ns: int, newest: Sample) -> float | None:
    """Return for how long a writer has published nothing, by both clocks: one may be set, or sleep."""
    silent_s = min(time.time_ns() - published_ns, time.monotonic_ns() - newest.monotonic_ns) / 1e9
    return silent_s if silent_s > _SILENT_S else None


def _statistics(found: Any) -> WriterStatistics:
    return statistics_of(found.statistics, recovery_of(found.recovery))


def _copy(kind: Any, struct: Any) -> Any:
    return kind(**{name: getattr(struct, name) for name in kind.__struct_fields__})


def _text(chars: Any) -> str:
    return printable(ffi.string(chars).decode("utf-8", "surrogateescape"))


def _slow_append(entry: Any) -> SlowAppend:
    return SlowAppend(
        time_ns=entry.time_ns,
        duration_ns=entry.duration_ns,
        seq=entry.seq,
        cause=_CAUSES[entry.cause],
        minor_faults=entry.minor_faults,
        major_faults=entry.major_faults,
        switches=entry.switches,
    )


def _recent_error(entry: Any) -> RecentError:
    return RecentError(
        first_ns=entry.first_ns,
        last_ns=entry.last_ns,
        count=entry.count,
        errno=entry.sys_errno,
        text=_text(entry.text),
    )


def _rates(samples: tuple[Sample, ...]) -> tuple[float, float]:
    newest = samples[-1]
    if time.monotonic_ns() - newest.monotonic_ns > _STALE_NS:
        return 0.0, 0.0
    recent = [s for s in samples if 0 < newest.monotonic_ns - s.monotonic_ns <= _RATE_NS]
    if not recent or newest.monotonic_ns - recent[0].monotonic_ns < _SHORT_NS:
        return 0.0, 0.0
    elapsed_s = (newest.monotonic_ns - recent[0].monotonic_ns) / 1e9
    messages = max(0, newest.messages - recent[0].messages)
    record_bytes = max(0, newest.record_bytes - recent[0].record_bytes)
    return messages / elapsed_s, record_bytes / elapsed_s
