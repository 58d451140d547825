"""Ranges of seqs with gaps.

The seqs of a native queue have no gaps. Those of a Java queue are its indexes, which jump where a new cycle
begins; a tuple of spans describes them, one span for each cycle.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Span", "Spans", "clip", "count", "seq_after"]


class Span(NamedTuple):
    """Seqs without a gap, from ``start`` up to but excluding ``end``, and the bytes of their records."""

    start: int
    end: int
    size_bytes: int = 0


Spans: TypeAlias = tuple[Span, ...]


def clip(spans: Sequence[Span], start: int, end: int) -> Spans:
    """Return the spans cut to the seqs from ``start`` up to but excluding ``end``.

    >>> clip([Span(0, 10, 100), Span(50, 60)], 5, 55)
    (Span(start=5, end=10, size_bytes=50), Span(start=50, end=55, size_bytes=0))
    """
    clipped = [(span, max(span.start, start), min(span.end, end)) for span in spans]
    return tuple(
        Span(first, last, span.size_bytes * (last - first) // (span.end - span.start))
        for span, first, last in clipped
        if first < last
    )


def count(spans: Sequence[Span]) -> int:
    """Return the number of messages in the spans.

    >>> count([Span(0, 10), Span(50, 60)])
    20
    """
    return sum(span.end - span.start for span in spans)


def seq_after(spans: Sequence[Span], messages: int) -> int:
    """Return the seq this many messages after the first; the end of the last span if there are fewer.

    >>> [seq_after([Span(0, 10), Span(50, 60)], messages) for messages in (0, 9, 10, 20, 99)]
    [0, 9, 50, 60, 60]
    """
    for span in spans:
        if messages < span.end - span.start:
            return span.start + messages
        messages -= span.end - span.start
    return spans[-1].end
