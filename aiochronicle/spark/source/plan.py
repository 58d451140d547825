"""Divides a range of messages into parts for tasks.

A part is a range of seqs of one queue. The ends of segments come from their seek indexes, so that tasks
rarely share a segment. The parts cover the range even if an index is wrong, because each begins where the
previous one ends. The indexes of a Java queue have gaps, so a part of it says which there are.
"""

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._base.spans import Span, Spans, clip, count, seq_after
from aiochronicle._files import open_regular
from aiochronicle._layout import INDEX_HEAD
from aiochronicle.errors import ChronicleError
from aiochronicle.spark.source.found import names_in
from aiochronicle.spark.source.queues import Source

__all__ = ["ROWS_WORTH_SPLITTING", "Range", "plan"]

# A task of this size takes under a second, of which starting and ending take some hundredths, with an idle
# processor; with much larger ones, the last task takes too long.
TASK_BYTES = 512 << 20
ROWS_WORTH_SPLITTING = 100_000
# With fewer tasks than this per processor, it matters that they have the same length.
FEW_PER_PROCESSOR = 4

# The head of a segment's index file: up to the seqs of its first and last record.


@prepared
class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one queue from seq ``start`` to before ``end``; ``spans``, if these seqs have gaps."""

    source: Source
    start: int
    end: int
    spans: Spans | None = None

    @property
    def gapless(self) -> Spans:
        """Its ranges of consecutive seqs."""
        return (Span(self.start, self.end),) if self.spans is None else self.spans

    @property
    def messages(self) -> int:
        """The number of its messages."""
        return count(self.gapless)

    def part(self, start: int, end: int) -> "Range":
        """Return the part of it between two seqs."""
        spans = None if self.spans is None else clip(self.spans, start, end)
        return Range(source=self.source, start=start, end=end, spans=spans)


class _Segment(msgspec.Struct, frozen=True):
    end_seq: int
    size_bytes: int


def plan(
    sources: Mapping[str, Source],
    start: Mapping[str, int],
    end: Mapping[str, int],
    *,
    spans: Mapping[str, Spans | None] | None = None,
    partitions_min: int | None = None,
) -> list[Range]:
    """Divide the messages between the offsets; a queue without a start has nothing to read yet.

    ``spans`` are those of a snapshot, of at least this range; by default the queues are asked.

    There are at least ``partitions_min`` parts if there are as many messages; by default as many of
    the same length as the processors can share evenly, if that is worth it.
    """
    ranges = [
        _whole(source, start[name], end[name], spans)
        for name, source in sorted(sources.items())
        if name in start and name in end and start[name] < end[name]
    ]
    ranges = [whole for whole in ranges if whole.messages]
    parts = [part for whole in ranges for part in _by_bytes(whole)]
    rows = sum(whole.messages for whole in ranges)
    processors = len(os.sched_getaffinity(0))
    if partitions_min is not None:
        partitions_min = min(partitions_min, rows)
        evenly = len(parts) < partitions_min
    else:
        evenly = rows >= ROWS_WORTH_SPLITTING and len(parts) < FEW_PER_PROCESSOR * processors
        partitions_min = -(-len(parts) // processors) * processors
    if not evenly:
        return parts
    return [
        piece
        for whole in ranges
        for piece in _split(whole, -(-whole.messages * partitions_min // rows))
    ]


def _whole(source: Source, start: int, end: int, spans: Mapping[str, Spans | None] | None) -> Range:
    known = source.spans(start, end) if spans is None else spans[source.name]
    return Range(source=source, start=start, end=end, spans=known).part(start, end)


def _by_bytes(whole: Range) -> Iterator[Range]:
    """Divide into parts of about TASK_BYTES."""
    return _by_segments(whole) if whole.spans is None else _by_cycles(whole, whole.spans)


def _by_cycles(whole: Range, spans: Sequence[Span]) -> Iterator[Range]:
    """Divide at ends of cycles, and larger cycles, which may have any size, in between."""
    first = whole.start
    size_bytes = 0
    for span in spans:
        size_bytes += span.size_bytes
        pieces = size_bytes // TASK_BYTES
        if pieces:
            for number in range(1, pieces + 1):
                cut = span.start + (span.end - span.start) * number // pieces
                if first < cut < whole.end:
                    yield whole.part(first, cut)
                    first = cut
            size_bytes = 0
    yield whole.part(first, whole.end)


def _by_segments(whole: Range) -> Iterator[Range]:
    """Divide at ends of segments."""
    cuts = [whole.start]
    size_bytes = 0
    for segment in _segments(whole.source):
        if segment.end_seq > cuts[-1]:
            size_bytes += segment.size_bytes
        if size_bytes >= TASK_BYTES and cuts[-1] < segment.end_seq < whole.end:
            cuts.append(segment.end_seq)
            size_bytes = 0
    for first, last in pairwise([*cuts, whole.end]):
        yield Range(source=whole.source, start=first, end=last)


def _split(whole: Range, pieces: int) -> Iterator[Range]:
    """Divide into this many equal pieces; the seek index makes finding each of them fast."""
    cuts = [seq_after(whole.gapless, whole.messages * i // pieces) for i in range(pieces + 1)]
    for first, last in pairwise(cuts):
        if first < last:
            yield whole.part(first, last)


def _segments(source: Source) -> list[_Segment]:
    """List the segments that have an index, in order."""
    found: list[_Segment] = []
    for part in source.parts():
        # Missing or unreadable: reading the queue will report it.
        with contextlib.suppress(ChronicleError, PermissionError), part.opened() as directory:
            indexes = (name for name in names_in(directory) if name.endswith(".idx"))
            segments = [_segment(directory, index) for index in indexes]
            found += [segment for segment in segments if segment is not None]
    return found


def _segment(directory: int, index: str) -> _Segment | None:
    """Return the content of an index; None if it is invalid, or retention has removed it."""
    try:
        opened = open_regular(index, directory=directory)
        try:
            head = INDEX_HEAD.unpack(os.read(opened, INDEX_HEAD.size))
        finally:
            os.close(opened)
    except (OSError, ValueError, struct.error):
        return None
    segment_size, last_seq = head[5], head[9]
    return _Segment(last_seq + 1, segment_size)
