"""Offsets: for each queue the seq of the next message to read. An end is exclusive.

In a checkpoint they are the JSON of ``{"queue": seq}``.
"""

from collections.abc import Mapping

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.options import Offsets, ReadOptions
from aiochronicle.spark.queues import Source

__all__ = ["ends", "limit", "starts"]

LATEST, EARLIEST = -1, -2  # as they are written for Kafka


def starts(sources: Mapping[str, Source], options: ReadOptions, default: Offsets) -> dict[str, int]:
    """Resolve where reading begins."""
    wanted = default if options.starting_offsets is None else options.starting_offsets
    return _resolve("startingOffsets", sources, wanted, options.starting_timestamp_ns)


def ends(sources: Mapping[str, Source], options: ReadOptions) -> dict[str, int]:
    """Resolve where reading ends: never behind what is there now."""
    wanted = "latest" if options.ending_offsets is None else options.ending_offsets
    asked = _resolve("endingOffsets", sources, wanted, options.ending_timestamp_ns)
    return {name: min(asked[name], source.latest()) for name, source in sources.items()}


def _resolve(
    option: str, sources: Mapping[str, Source], wanted: Offsets, moment_ns: int | None
) -> dict[str, int]:
    if moment_ns is not None:
        return {name: source.at_time(moment_ns) for name, source in sources.items()}
    if not isinstance(wanted, dict):
        wanted = dict.fromkeys(sources, LATEST if wanted == "latest" else EARLIEST)
    if unknown := sorted(set(wanted) - set(sources)):
        raise InvalidArgument(
            f"{option} names {', '.join(unknown)}, but the queues are {', '.join(sorted(sources))}"
        )
    if missing := sorted(set(sources) - set(wanted)):
        raise InvalidArgument(f"{option} says nothing about {', '.join(missing)}; -2 is earliest")
    return {name: _resolve_one(option, sources[name], seq) for name, seq in wanted.items()}


def _resolve_one(option: str, source: Source, seq: int) -> int:
    if seq == LATEST:
        return source.latest()
    if seq == EARLIEST:
        return source.earliest()
    if seq < 0:
        raise InvalidArgument(f"{option} of {source.name} must be a seq, -1 or -2, not {seq}")
    return seq


def limit(start: Mapping[str, int], end: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """Cut the ends so that no more than ``rows_max`` messages lie between, each queue by its share.

    >>> limit({"a": 0, "b": 0}, {"a": 300, "b": 100}, 100)
    {'a': 75, 'b': 25}
    """
    waiting = {name: max(0, seq - start.get(name, seq)) for name, seq in end.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    shares = {name: rows_max * rows // total for name, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for name in sorted(waiting, key=lambda name: (rows_max * waiting[name]) % total, reverse=True):
        if left > 0 and shares[name] < waiting[name]:
            shares[name] += 1
            left -= 1
    return {name: start[name] + shares[name] if waiting[name] else seq for name, seq in end.items()}
