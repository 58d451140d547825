"""Cutting a range of messages into the parts that tasks read.

A part is a range of seqs of one queue. Where segments end is taken from their seek indexes, so that
many tasks rarely share one; but the parts cover the range whatever an index says, because each begins
where the one before it ends.
"""

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec

from aiochronicle._prepared import prepared
from aiochronicle._smallfile import open_regular
from aiochronicle.errors import ChronicleError
from aiochronicle.spark.found import names_in
from aiochronicle.spark.queues import Source

__all__ = ["Range", "plan"]

# A task of so much takes under a second, and some hundredths of it to start and to end, in which its
# processor idles; of much more, the last one is waited for.
TASK_BYTES = 512 << 20
ROWS_WORTH_SPLITTING = 100_000
# With fewer tasks than so many for each processor, it matters that they are of the same length.
FEW_PER_PROCESSOR = 4

# The head of a segment's index file: up to the seqs of its first and last record.
INDEX_HEAD = struct.Struct("<8s H H I Q Q I I Q Q")


@prepared
class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one queue from seq ``start`` to before ``end``."""

    source: Source
    start: int
    end: int


class _Segment(msgspec.Struct, frozen=True):
    end_seq: int
    size_bytes: int


def plan(
    sources: Mapping[str, Source],
    start: Mapping[str, int],
    end: Mapping[str, int],
    *,
    partitions_min: int | None = None,
) -> list[Range]:
    """Cut what lies between the offsets; a queue without a start has nothing to read yet.

    There are at least ``partitions_min`` parts if there are as many messages; by default as many of
    the same length as the processors can share evenly, if that is worth it.
    """
    ranges = [
        Range(source=source, start=start[name], end=end[name])
        for name, source in sorted(sources.items())
        if name in start and name in end and start[name] < end[name]
    ]
    parts = [part for whole in ranges for part in _by_segments(whole)]
    rows = sum(whole.end - whole.start for whole in ranges)
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
        for piece in _split(whole, -(-(whole.end - whole.start) * partitions_min // rows))
    ]


def _by_segments(whole: Range) -> Iterator[Range]:
    """Cut at ends of segments, so that a part has about TASK_BYTES."""
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


def _split(whole: Range, count: int) -> Iterator[Range]:
    """Cut into so many equal pieces; the seek index makes the way to each short."""
    rows = whole.end - whole.start
    cuts = [whole.start + rows * i // count for i in range(count + 1)]
    for first, last in pairwise(cuts):
        if first < last:
            yield Range(source=whole.source, start=first, end=last)


def _segments(source: Source) -> list[_Segment]:
    """List the segments that have an index, in order."""
    found: list[_Segment] = []
    for part in source.parts():
        # Gone, or not to be read: those who read the queue tell.
        with contextlib.suppress(ChronicleError, PermissionError), part.opened() as directory:
            indexes = (name for name in names_in(directory) if name.endswith(".idx"))
            segments = [_segment(directory, index) for index in indexes]
            found += [segment for segment in segments if segment is not None]
    return found


def _segment(directory: int, index: str) -> _Segment | None:
    """Return what an index says; None if it is not one, or retention has removed it."""
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
