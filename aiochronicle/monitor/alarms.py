"""Alarms: which values of one snapshot are beyond their limits."""

from collections.abc import Iterator

import msgspec

from aiochronicle._core.queue import ReaderInfo
from aiochronicle._core.writer_info import WriterInfo
from aiochronicle.cli.units import age
from aiochronicle.monitor.records import Alarm, Level, QueueState, Snapshot

__all__ = ["Limits", "alarms_of", "alarms_of_disk"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something is wrong.

    A message that waits for an open reader for longer than ``max_lag_s`` is a warning, and critical if
    ``lag_is_critical``. Readers that are away are not late: they wait for their programs. So much of
    the file system may be full, as a fraction.
    """

    max_lag_s: float = 60.0
    lag_is_critical: bool = False
    disk_warning: float = 0.90
    disk_critical: float = 0.97


def alarms_of(queue: QueueState, limits: Limits) -> Iterator[Alarm]:
    """Yield the alarms of one queue: of its writer, its readers, and of reading it at all."""
    if queue.problem is not None:
        yield _alarm("critical", queue, f"cannot be read: {queue.problem}")
        return
    if queue.writer is not None:
        yield from _of_writer(queue, queue.writer)
    for reader in queue.readers:
        yield from _of_reader(queue, reader, limits)


def _of_writer(queue: QueueState, writer: WriterInfo) -> Iterator[Alarm]:
    if writer.state == "died":
        yield _alarm(
            "critical",
            queue,
            f"its writer, pid {writer.pid}, ended without closing it; start the program again",
        )
        return
    if writer.state != "open":
        return
    if writer.stopped:
        yield _alarm(
            "warning",
            queue,
            f"its writer, pid {writer.pid}, is stopped, by a signal or a debugger: it appends nothing;"
            f" kill -CONT {writer.pid} lets it go on",
        )
    elif writer.silent_s is not None:
        yield _alarm(
            "warning",
            queue,
            f"its writer, pid {writer.pid}, has given no sign of life for {age(writer.silent_s)}: the"
            " machine is overloaded, its container is paused, or a disk hangs",
        )
    counted = writer.statistics
    if counted is not None and counted.sync_errors:
        yield _alarm(
            "critical", queue, f"{counted.sync_errors:,} syncs failed: {counted.last_error}"
        )
    elif counted is not None and counted.last_error:
        yield _alarm("warning", queue, f"its writer failed at: {counted.last_error}")


def _of_reader(queue: QueueState, reader: ReaderInfo, limits: Limits) -> Iterator[Alarm]:
    if reader.lost:
        yield _alarm(
            "critical",
            queue,
            f"the position of reader {reader.name!r} is not in the queue any more; decide about the"
            " gap, then: aioc readers seek",
        )
        return
    if reader.stopped:
        yield _alarm(
            "warning",
            queue,
            f"the process of reader {reader.name!r}, pid {reader.pid}, is stopped, by a signal or a"
            f" debugger; kill -CONT {reader.pid} lets it go on",
        )
    # Messages of a Java queue have the time at which their file began.
    is_late = queue.format != "java" and reader.live and reader.lag.messages > 0
    if is_late and reader.lag.seconds > limits.max_lag_s:
        yield _alarm(
            "critical" if limits.lag_is_critical else "warning",
            queue,
            f"reader {reader.name!r} is late: its oldest unread message is {age(reader.lag.seconds)}"
            f" old, {reader.lag.messages:,} wait",
        )


def alarms_of_disk(snapshot: Snapshot, limits: Limits) -> Iterator[Alarm]:
    """Yield the alarms of the directory: it cannot be listed, or its file system is nearly full."""
    if snapshot.problem is not None:
        yield Alarm(level="critical", queue=None, name="", text=snapshot.problem)
    if not snapshot.disk_bytes_total:
        return
    used = 1 - snapshot.disk_bytes_free / snapshot.disk_bytes_total
    if used > limits.disk_warning:
        level: Level = "critical" if used > limits.disk_critical else "warning"
        text = f"the file system is {used:.0%} full; see: aioc du, aioc why-kept"
        yield Alarm(level=level, queue=None, name="", text=text)


def _alarm(level: Level, queue: QueueState, text: str) -> Alarm:
    return Alarm(level=level, queue=queue.number, name=queue.name, text=text)
