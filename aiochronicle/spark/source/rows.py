"""Reads a range of messages as Arrow batches, and detects missing ones.

Within a queue, or a cycle of a Java queue, seqs are consecutive, so a batch that does not begin where the
last one ended shows that messages are missing: corrupt ones that were skipped, or segments that retention
removed during the query. A segment that has moved to the archive is found there.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple, Self

from aiochronicle._columns.column_reader import Stretch
from aiochronicle._columns.columns import BATCH_ROWS
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    NotAQueue,
    PositionLost,
    QueueGone,
    QueueNotFound,
)
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source.bad_records import BadRecords, keep
from aiochronicle.spark.source.found import FoundDirectory
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.queues import damage_of, restarted

__all__ = ["read_range"]

# Finding a message may need another pass over its segment.
PLACES_MAX = 100

_log = logging.getLogger(__name__)


def read_range(
    part: Range,
    columns: Sequence[str],
    options: ReadOptions,
    *,
    types: Collection[int] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Batch]:
    """Yield the messages of the range, or those of some types.

    Of messages of other types only the headers are read, and checked. What is missing is an error
    (PositionLost), or is left out and logged, as ``failOnDataLoss`` and ``on_corrupt`` say; what is corrupt
    also in ``badRecordsPath``.
    """
    with _Gaps(part, options) as gaps:
        reading = _Reading(columns, options, types, batch_rows, gaps)
        for span in part.gapless:
            yield from _read_gapless(part.part(span.start, span.end), reading)


def _read_gapless(part: Range, reading: "_Reading") -> Iterator[Batch]:
    gaps = reading.gaps
    expected = part.start
    while expected < part.end:
        reached = expected
        for rows, first, end in _everywhere(part, expected, reading):
            if first < reached:
                raise restarted(part.source.place)
            if first > reached and reached > expected:
                break  # look again before reporting a gap
            if first > reached:
                gaps.account_for(reached, first)
            if rows.num_rows:
                yield rows
            reached = end
        if reached == expected:
            gaps.account_for(reached, part.end)
            break
        expected = reached


class _Reading(NamedTuple):
    """The part of a range to read, and the options."""

    columns: Sequence[str]
    options: ReadOptions
    types: Collection[int] | None
    batch_rows: int
    gaps: "_Gaps"


class _Gaps:
    """Handles missing messages of a range, and records those that are skipped."""

    def __init__(self, part: Range, options: ReadOptions) -> None:
        self._part = part
        self._options = options
        self._notes: list[BadRecords] = []

    def account_for(self, first: int, end: int) -> None:
        """Raise PositionLost for the messages from ``first`` up to, but not including, ``end``, or record
        them."""
        part = self._part
        if self._options.skip_corrupt and first >= part.source.earliest():
            self.note(first, end)
            return
        what = f"messages {first} to {end - 1} of {part.source.name} are gone"
        if self._options.fail_on_data_loss:
            raise PositionLost(
                f"{what}: retention removed them, or they were lost in a power cut",
                path=part.source.place,
                advice="Read on without them by option failOnDataLoss=false, or load a new frame.",
            )
        _log.warning("%s: %s", part.source.place, what)

    def note(self, first: int, end: int) -> None:
        """Record messages that the engine has skipped."""
        source = self._part.source
        cause = self._cause(first) if len(self._notes) < PLACES_MAX else None
        self._notes.append(BadRecords.between(source.name, source.place, first, end, cause))

    def _cause(self, seq: int) -> ChronicleError:
        """Determine the error of a message by reading on from the previous one."""
        source = self._part.source
        for directory in source.all_parts():
            try:
                with (
                    directory.reader(on_corrupt="skip") as tolerant,
                    directory.reader() as strict,
                ):
                    tolerant.seek(max(0, seq - 1))  # or to an earlier corrupt one, if there is one
                    seqs = (message.seq for message in tolerant)
                    if next((found for found in seqs if found >= seq - 1), None) == seq - 1:
                        strict.seek_position(tolerant.position)
                    else:
                        strict.seek(seq)
                    strict.poll()
            except (CorruptionError, NotAQueue) as error:
                return error
            except QueueNotFound:
                if (damage := damage_of(directory)) is not None:
                    return damage
            except (PositionLost, QueueGone):
                continue
        return PositionLost("missing: removed, cut off, or lost in a power cut", path=source.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._notes:
            part = self._part
            _log.warning(
                "%s: stepped over %d damaged or missing of messages %d to %d of %s, the first in %s",
                part.source.place,
                sum(note.end_seq - note.first_seq for note in self._notes),
                part.start,
                part.end - 1,
                part.source.name,
                self._notes[0].place,
            )
            if self._options.bad_records_path is not None:
                keep(self._options.bad_records_path, f"{part.start}-{part.end}", self._notes)


def _everywhere(part: Range, start: int, reading: _Reading) -> Iterator[Stretch]:
    """Read on from ``start`` in each directory of the queue, oldest first."""
    for directory in part.source.parts():
        try:
            for stretch in _stretches(directory, start, part.end, reading):
                yield stretch
                start = stretch.end_seq
        except (PositionLost, QueueGone, QueueNotFound):
            continue  # removed or moved while it was read: the gap will tell
        if start >= part.end:
            return


def _stretches(
    directory: FoundDirectory, start: int, end: int, reading: _Reading
) -> Iterator[Stretch]:
    """Read one directory; what the engine skips on the way counts as covered."""
    options = reading.options
    on_corrupt: Literal["raise", "skip"] = "skip" if options.skip_corrupt else "raise"
    reached: int | None = None
    with directory.queue(verify=options.verify, on_corrupt=on_corrupt) as queue:
        part = queue.slice(start, end)
        for stretch in part._stretches(reading.batch_rows, reading.columns, reading.types):  # pyright: ignore[reportPrivateUsage]
            if reached is not None and stretch.first_seq > reached:
                reading.gaps.note(reached, stretch.first_seq)
                stretch = stretch._replace(first_seq=reached)
            yield stretch
            reached = stretch.end_seq
