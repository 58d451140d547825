"""Cutting a range of messages into the parts that tasks read.

A part is a range of seqs of one queue. Where segments begin is taken from their seek indexes, so that
tasks rarely share one; but the parts cover the range whatever an index says, because each begins
where the one before it ends.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from aiochronicle.spark.queues import Source

__all__ = ["Range", "plan"]

# Tasks of much less cost more to start than to run; of much more, the last one is waited for.
TASK_BYTES = 128 << 20
ROWS_WORTH_SPLITTING = 100_000

# The head of a segment's index file: up to the seq of the first record in it.
INDEX_HEAD = struct.Struct("<8s H H I Q Q I I Q Q")


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one queue from seq ``start`` to before ``end``."""

    source: Source
    start: int
    end: int


class _Segment(msgspec.Struct, frozen=True):
    first_seq: int
    size_bytes: int


def plan(
    sources: Mapping[str, Source],
    start: Mapping[str, int],
    end: Mapping[str, int],
    *,
    partitions_min: int | None = None,
) -> list[Range]:
    """Cut what lies between the offsets; a queue without a start has nothing to read yet.

    There are at least ``partitions_min`` parts if there are as many messages; by default one for
    each processor, if that is worth it.
    """
    ranges = [
        part
        for name, source in sorted(sources.items())
        if name in start and name in end and start[name] < end[name]
        for part in _by_segments(Range(source=source, start=start[name], end=end[name]))
    ]
    rows = sum(part.end - part.start for part in ranges)
    if partitions_min is None and rows >= ROWS_WORTH_SPLITTING:
        partitions_min = len(os.sched_getaffinity(0))
    if partitions_min is None or partitions_min <= len(ranges):
        return ranges
    rows_per_part = max(1, rows // partitions_min)
    return [piece for part in ranges for piece in _split(part, rows_per_part)]


def _by_segments(whole: Range) -> Iterator[Range]:
    """Cut at beginnings of segments, so that a part has about TASK_BYTES."""
    cuts = [whole.start]
    size_bytes = 0
    for segment in _segments(whole.source):
        if size_bytes >= TASK_BYTES and cuts[-1] < segment.first_seq < whole.end:
            cuts.append(segment.first_seq)
            size_bytes = 0
        if segment.first_seq >= cuts[-1]:
            size_bytes += segment.size_bytes
    for first, last in pairwise([*cuts, whole.end]):
        yield Range(source=whole.source, start=first, end=last)


def _split(part: Range, rows: int) -> Iterator[Range]:
    """Cut into equal pieces of about so many rows; the seek index makes the way to each short."""
    count = max(1, round((part.end - part.start) / rows))
    cuts = [part.start + (part.end - part.start) * i // count for i in range(count + 1)]
    for first, last in pairwise(cuts):
        if first < last:
            yield Range(source=part.source, start=first, end=last)


def _segments(source: Source) -> list[_Segment]:
    """List the segments that have an index, in order."""
    found: list[_Segment] = []
    for part in source.parts():
        for index in sorted(Path(part).glob("*.idx")):
            try:
                with index.open("rb") as file:
                    head = INDEX_HEAD.unpack(file.read(INDEX_HEAD.size))
            except (FileNotFoundError, struct.error):  # retention, or a foreign file
                continue
            segment_size, first_seq = head[5], head[8]
            found.append(_Segment(first_seq, segment_size))
    return found
