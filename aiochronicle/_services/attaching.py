"""Opens a queue's reader at the right place: at its start point, where it failed, or after damage."""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from aiochronicle._base.binding import lib
from aiochronicle._base.position import Position
from aiochronicle._core.reader import Reader, StartPoint, open_reader
from aiochronicle._files import open_regular
from aiochronicle._hot import Message
from aiochronicle._layout import CONTROL
from aiochronicle._services.examiner import Identity
from aiochronicle._typed.registry import Registry
from aiochronicle.errors import ChronicleError, CorruptionError, PositionLost, QueueNotFound

__all__ = [
    "Place",
    "commit_to",
    "commit_without_reader",
    "open_anywhere",
    "open_source",
    "place_of",
    "resume_after_loss",
]

_SEGMENT_DATA = 64  # offset of the first record of a segment
_STATE_OFFSET, _STATE_READY = 8, (2).to_bytes(4, "little")  # in control.meta
_CREATION_MAX_NS = 1_100_000_000  # slightly longer than the engine waits


class Place(NamedTuple):
    """Where reading stopped and resumes: messages before it are not delivered again."""

    queue_id: int
    committed: Position
    position: Position
    next_seq: int


def place_of(reader: Reader) -> Place | None:
    """Return the place of a reader; None if that is unknown."""
    try:
        statistics = reader.statistics()
        return Place(statistics.queue_id, reader.committed, reader.position, statistics.next_seq)
    except ChronicleError:
        return None


def open_source(
    path: str,
    name: str | None,
    start: StartPoint,
    codec: Registry | None,
    identity: tuple[int, int, int] | None,
    place: Place | None,
    damage: Exception | None,
    **more: Any,
) -> tuple[Reader, int]:
    """Open a queue, at ``place`` if it is still the same queue; also return how many messages were lost.

    ``identity`` is that of the directory that was found: QueueGone if another one is there now. ``damage`` is
    the exception of an earlier attempt, which this one skips. Without it, a queue that was left at damage
    raises that again as long as the damage exists. QueueNotFound while a program is creating the queue. A
    ``timestamp`` is for Java queues, and ignored for native ones.
    """
    _refuse_unfinished(path)
    options: dict[str, Any] = {**more, "codec": codec, "_expect": identity}
    if options.get("timestamp") is not None and _is_native(path):
        options["timestamp"] = None
    if isinstance(damage, PositionLost):
        reader: Reader = open_reader(path, name, start="first", **options)
    elif isinstance(damage, CorruptionError):
        reader = open_anywhere(path, name, **options)
    else:
        reader = open_reader(path, name, start=start, **options)
    try:
        return reader, _resume(reader, place, damage)
    except BaseException:
        reader.close()
        raise


def _refuse_unfinished(path: str) -> None:
    """Raise QueueNotFound if a program is creating the queue now; opening would wait for it.

    Creating takes microseconds, or never ends, and there may be hundreds of such queues.
    """
    try:
        fd = open_regular(os.path.join(path, CONTROL))  # noqa: PTH118
        try:
            state, touched_ns = os.pread(fd, 4, _STATE_OFFSET), os.fstat(fd).st_ctime_ns
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return  # opening will raise the right error
    is_unfinished = len(state) == len(_STATE_READY) and state != _STATE_READY
    if is_unfinished and time.time_ns() - touched_ns < _CREATION_MAX_NS:
        detail = "a program is creating the queue"
        raise QueueNotFound(detail, path=path, advice="Opening it will be tried again.")


def _is_native(path: str) -> bool:
    """Return whether the queue has a control block, which makes it a native one for the engine."""
    return os.path.lexists(os.path.join(path, CONTROL))  # noqa: PTH118


def open_anywhere(path: str, name: str | None, **options: Any) -> Reader:
    """Open a queue at any segment that can be opened; the caller then moves the reader.

    The reader raises damage that it meets afterwards.
    """
    reader: Reader = open_reader(path, name, start="first", on_corrupt="skip", **options)
    lib.ac_reader_report_corrupt(reader._handle)  # pyright: ignore[reportPrivateUsage]
    return reader


def commit_without_reader(
    path: str, name: str, identity: Identity | None, done: Message | Position
) -> Position:
    """Commit to a queue that has no reader open, and return where a reader would resume."""
    with open_anywhere(path, name, _expect=identity) as reader:
        commit_to(reader, done)
        return reader.committed


def commit_to(reader: Reader, done: Message | Position) -> None:
    """Commit up to and including a message, or up to a position."""
    if isinstance(done, Message):
        reader.commit(done)
    else:
        reader.commit_position(done)


def _resume(reader: Reader, place: Place | None, damage: Exception | None) -> int:
    if isinstance(damage, PositionLost):
        return resume_after_loss(reader, damage, 0 if place is None else place.next_seq)
    if place is None or place.queue_id != reader.statistics().queue_id:
        if damage is not None:
            _leave_segment(reader, damage)
    elif place.committed != reader.committed:  # an operator moved the reader
        reader.seek_position(reader.committed)
    elif damage is not None:
        _skip(reader, place.position, damage)
    else:
        reader.seek_position(place.position)
        reader.poll()  # raises if it is still damaged
        reader.seek_position(place.position)
    return 0


def _skip(reader: Reader, position: Position, damage: Exception) -> None:
    try:
        reader.seek_position(position)
    except (CorruptionError, PositionLost):
        _leave_segment(reader, damage)
    else:
        reader.step_over()


def _leave_segment(reader: Reader, damage: Exception) -> None:
    """Move to the segment after the one that cannot be opened."""
    segment = _segment_of(damage, reader.committed.segment) + 1
    try:
        reader.seek_position(Position(segment, _SEGMENT_DATA))
    except PositionLost as lost:
        if lost.nearest.segment < segment:
            raise
        reader.seek_position(lost.nearest)


def _segment_of(damage: Exception, otherwise: int) -> int:
    """Return the number of the segment that an exception names."""
    path = damage.path if isinstance(damage, ChronicleError) else None
    number = Path(path or "").stem
    return int(number) if number.isdecimal() else otherwise


def resume_after_loss(reader: Reader, lost: PositionLost, next_seq: int) -> int:
    """Move to the oldest unread message that still exists; return how many messages were lost.

    ``next_seq`` is that of the message that would have been read next, 0 if unknown.
    """
    reader.seek_position(lost.nearest)
    seq = reader.seq_at(lost.nearest)
    return max(seq - next_seq, 1) if seq is not None and next_seq else 1
