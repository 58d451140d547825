"""Offsets: for each queue the seq of the next message to read. An end is exclusive.

For a Java queue it is an index, as Java's tailers have it, and 0 is the beginning.

In a checkpoint they are the JSON of ``{"queue": seq}``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aiochronicle._base import spans as spans_of
from aiochronicle._base.spans import Span
from aiochronicle.errors import InvalidArgument, PositionLost
from aiochronicle.spark.options import Offsets, ReadOptions
from aiochronicle.spark.source.queues import Source

__all__ = ["ends", "limit", "limit_in_time", "starts"]

PROBES = 32  # times that are looked up together, which costs little more than one
ENOUGH = 0.75  # of the messages that a batch may have; to look for more costs more than it gives

LATEST, EARLIEST = -1, -2  # as in Spark's Kafka source

Resolve = Callable[[Source], int]


def starts(sources: Mapping[str, Source], options: ReadOptions, default: Offsets) -> Resolve:
    """Return a function that finds where reading a queue begins; PositionLost if the queue ends before."""
    wanted = default if options.starting_offsets is None else options.starting_offsets
    asked = _resolve("startingOffsets", sources, wanted, options.starting_timestamp_ns)
    if isinstance(wanted, dict) and options.fail_on_data_loss:
        return partial(_within, asked)
    return asked


def _within(asked: Resolve, source: Source) -> int:
    seq = asked(source)
    if seq > (end := source.latest()):
        raise PositionLost(
            f"startingOffsets of {source.name} is {seq}, but it ends at {end}",
            path=source.place,
            advice="Give a seq up to its end, -1 for that, or option failOnDataLoss=false.",
        )
    if (first := source.first_after_loss(seq)) is not None:
        raise PositionLost(
            f"startingOffsets of {source.name} is {seq}, whose cycle has no file; the next index is {first}",
            path=source.place,
            advice="Give that one, -2 for the first one there is, or option failOnDataLoss=false.",
        )
    return seq


def ends(sources: Mapping[str, Source], options: ReadOptions) -> Resolve:
    """Return the function that finds the end of a queue, at most its present end."""
    wanted = "latest" if options.ending_offsets is None else options.ending_offsets
    asked = _resolve("endingOffsets", sources, wanted, options.ending_timestamp_ns)
    return lambda source: min(asked(source), source.latest())


def _resolve(
    option: str, sources: Mapping[str, Source], wanted: Offsets, moment_ns: int | None
) -> Resolve:
    """Check an option's offsets before any queue is opened."""
    if moment_ns is not None:
        return lambda source: source.at_time(moment_ns)
    if not isinstance(wanted, dict):
        wanted = dict.fromkeys(sources, LATEST if wanted == "latest" else EARLIEST)
    if unknown := sorted(set(wanted) - set(sources)):
        raise InvalidArgument(
            f"{option} names {', '.join(unknown)}, but the queues are {', '.join(sorted(sources))}"
        )
    if missing := sorted(set(sources) - set(wanted)):
        raise InvalidArgument(f"{option} says nothing about {', '.join(missing)}; -2 is earliest")
    for name, seq in wanted.items():
        if seq < EARLIEST:
            raise InvalidArgument(f"{option} of {name} must be a seq, -1 or -2, not {seq}")
    return partial(_resolve_one, wanted)


def _resolve_one(wanted: Mapping[str, int], source: Source) -> int:
    seq = wanted[source.name]
    if seq == LATEST:
        return source.latest()
    return source.earliest() if seq == EARLIEST else seq


def limit(
    start: Mapping[str, int],
    end: Mapping[str, int],
    rows_max: int,
    spans: Mapping[str, Sequence[Span]] | None = None,
) -> dict[str, int]:
    """Limit the ends so that at most ``rows_max`` messages lie between, each queue by its share.

    ``spans`` are those of queues whose seqs have gaps.

    >>> limit({"a": 0, "b": 0}, {"a": 300, "b": 100}, 100)
    {'a': 75, 'b': 25}
    >>> limit({"a": 0}, {"a": 300}, 20, {"a": [Span(0, 10), Span(200, 300)]})
    {'a': 210}
    """
    known = spans or {}
    waiting = {name: max(0, seq - start.get(name, seq)) for name, seq in end.items()}
    waiting |= {name: spans_of.count(found) for name, found in known.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    shares = {name: rows_max * rows // total for name, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for name in sorted(waiting, key=lambda name: (rows_max * waiting[name]) % total, reverse=True):
        if left > 0 and shares[name] < waiting[name]:
            shares[name] += 1
            left -= 1
    return {
        name: seq
        if not waiting[name]
        else spans_of.seq_after(known[name], shares[name])
        if name in known
        else start[name] + shares[name]
        for name, seq in end.items()
    }


def limit_in_time(
    sources: Mapping[str, Source],
    start: Mapping[str, int],
    end: Mapping[str, int],
    rows_max: int,
    spans: Mapping[str, Sequence[Span]] | None = None,
) -> dict[str, int]:
    """Limit the ends at one time, so that at most ``rows_max`` messages lie between.

    Messages read later are never older than those read now, so no watermark overtakes a queue that has more
    messages than others. Only among messages of exactly the same time, queues are limited by number.
    """
    known = spans or {}
    low = {name: start[name] for name, seq in end.items() if start.get(name, seq) < seq}
    high = {name: end[name] for name in low}
    if _messages(start, high, known) <= rows_max:
        return dict(end)
    low_ns = min(sources[name].time_near(seq) for name, seq in low.items())
    high_ns = max(sources[name].time_near(seq - 1) for name, seq in high.items()) + 1
    while low_ns + 1 < high_ns and _messages(start, low, known) < ENOUGH * rows_max:
        step_ns = max(1, (high_ns - low_ns) // PROBES)
        moments_ns = range(low_ns + step_ns, high_ns, step_ns)
        found = {name: sources[name].at_times(moments_ns) for name in low}
        for moment_ns in moments_ns:
            cuts = {name: min(max(found[name][moment_ns], low[name]), high[name]) for name in low}
            if _messages(start, cuts, known) > rows_max:
                high_ns, high = moment_ns, cuts
                break
            low_ns, low = moment_ns, cuts
    if low_ns + 1 >= high_ns:
        between = {
            name: spans_of.clip(found, low[name], high[name])
            for name, found in known.items()
            if name in low
        }
        low = limit(low, high, rows_max - _messages(start, low, known), between)
    return {**end, **low}


def _messages(
    start: Mapping[str, int], end: Mapping[str, int], spans: Mapping[str, Sequence[Span]]
) -> int:
    return sum(
        spans_of.count(spans_of.clip(spans[name], start[name], seq))
        if name in spans
        else seq - start[name]
        for name, seq in end.items()
    )
