"""Opening a queue's reader at the right place: anew, where it failed, or behind what is damaged."""

import os
import time
from typing import Any, NamedTuple

from aiochronicle._smallfile import open_regular
from aiochronicle.errors import ChronicleError, CorruptionError, PositionLost, QueueNotFound
from aiochronicle.position import Position
from aiochronicle.reader import Reader, StartPoint, open_reader
from aiochronicle.registry import Registry
from aiochronicle.writer import CONTROL

__all__ = ["Place", "go_on_behind_loss", "open_source", "place_of"]

_SEGMENT_DATA = 64  # where the first record of a segment stands
_STATE_OFFSET, _STATE_READY = 8, (2).to_bytes(4, "little")  # in control.meta
_PATIENCE_NS = 1_100_000_000  # a little more than the engine's


class Place(NamedTuple):
    """Where a queue was left, to go on there: what was delivered before it is not given again."""

    queue_id: int
    committed: Position
    position: Position
    next_seq: int


def place_of(reader: Reader) -> Place | None:
    """Return where a reader stands; None if it cannot tell."""
    try:
        statistics = reader.statistics()
        return Place(statistics.queue_id, reader.committed, reader.position, statistics.next_seq)
    except ChronicleError:
        return None


def open_source(
    path: str,
    name: str,
    start: StartPoint,
    codec: Registry | None,
    identity: tuple[int, int, int] | None,
    place: Place | None,
    behind: Exception | None,
) -> tuple[Reader, int]:
    """Open a queue, where it was left if it is still the same one; also return how many were lost.

    ``identity`` is that of the directory that was found: QueueGone if another is there by now.
    ``behind`` is the damage to go on behind, which an earlier try raised. Without it, a queue that
    was left at damage raises that again as long as it is there. QueueNotFound while it is being made.
    """
    _refuse_unfinished(path)
    options: dict[str, Any] = {"codec": codec, "_expect": identity}
    if isinstance(behind, PositionLost):
        reader: Reader = open_reader(path, name, start="first", **options)
    elif isinstance(behind, CorruptionError) and place is None:
        reader = open_reader(path, name, start="first", on_corrupt="skip", **options)
    else:
        reader = open_reader(path, name, start=start, **options)
    try:
        return reader, _go_on(reader, place, behind)
    except BaseException:
        reader.close()
        raise


def _refuse_unfinished(path: str) -> None:
    """Raise QueueNotFound instead of waiting, as opening does, until a queue has been made.

    That takes microseconds, or for ever; and of those there may be hundreds.
    """
    try:
        fd = open_regular(os.path.join(path, CONTROL))  # noqa: PTH118
        try:
            state, touched_ns = os.pread(fd, 4, _STATE_OFFSET), os.fstat(fd).st_ctime_ns
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return  # opening it says what is wrong
    is_unfinished = len(state) == len(_STATE_READY) and state != _STATE_READY
    if is_unfinished and time.time_ns() - touched_ns < _PATIENCE_NS:
        raise QueueNotFound("is being made", path=path, advice="It will be tried again.")


def _go_on(reader: Reader, place: Place | None, behind: Exception | None) -> int:
    if isinstance(behind, PositionLost):
        return go_on_behind_loss(reader, behind, 0 if place is None else place.next_seq)
    if place is None or place.queue_id != reader.statistics().queue_id:
        if behind is not None:
            _leave_segment(reader)
        return 0
    if place.committed != reader.committed:  # by an operator, under our name
        reader.seek_position(reader.committed)
        return 0
    reader.seek_position(place.position)
    if behind is not None:
        reader.step_over()
    else:
        reader.poll()  # raises if it is still damaged
        reader.seek_position(place.position)
    return 0


def _leave_segment(reader: Reader) -> None:
    """Go to the segment behind the committed position, whose own cannot be opened."""
    segment = reader.committed.segment + 1
    try:
        reader.seek_position(Position(segment, _SEGMENT_DATA))
    except PositionLost as lost:
        if lost.nearest.segment < segment:
            raise
        reader.seek_position(lost.nearest)


def go_on_behind_loss(reader: Reader, lost: PositionLost, next_seq: int) -> int:
    """Go to the oldest message that was not read yet and is there; return how many are not.

    ``next_seq`` is that of the message to be read next, 0 if that is unknown.
    """
    reader.seek_position(lost.nearest)
    seq = reader.seq_at(lost.nearest)
    return max(seq - next_seq, 1) if seq is not None and next_seq else 1
