"""Filters that Spark pushes down, and what they leave to read.

Names, seqs and times become narrower ranges, found through the seek indexes; types are filtered batch
by batch. Spark evaluates every filter once more, so a filter may always be understood more widely
than it is meant, and never more narrowly.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from aiochronicle.spark.arrow import Batch, pa, pc
from aiochronicle.spark.queues import Source

__all__ = ["Narrowing", "narrow"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEYOND = 2**63


class Bounds(msgspec.Struct, frozen=True):
    """Whole numbers from ``start`` to before ``end``."""

    start: int = 0
    end: int = _BEYOND

    def within(self, other: "Bounds") -> "Bounds":
        return Bounds(max(self.start, other.start), min(self.end, other.end))


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """All pushed filters together."""

    seq: Bounds = Bounds()
    time_ns: Bounds = Bounds()
    names: tuple[Filter, ...] = ()
    types: frozenset[int] | None = None

    def wants(self, name: str) -> bool:
        """Tell whether messages of the queue of this name may pass."""
        return all(_name_passes(name, condition) for condition in self.names)

    def clip(self, source: Source, start: int, end: int) -> tuple[int, int]:
        """Return what remains of a range of seqs.

        A field with the time of messages of a Java queue may have gone back, so it narrows nothing.
        """
        start, end = max(start, self.seq.start), min(end, self.seq.end)
        if self.time_ns.start >= self.time_ns.end:  # before 1970, or after what a queue can hold
            return start, start
        if source.timestamp is not None:
            return start, end
        return source.clip(
            start,
            end,
            start_ns=self.time_ns.start if self.time_ns.start > 0 else None,
            end_ns=self.time_ns.end if self.time_ns.end < _BEYOND else None,
        )

    def sift(self, batch: Batch) -> Batch:
        """Drop the rows of other types; ``type_id`` must be a column if types are filtered."""
        if self.types is None:
            return batch
        wanted = pa.array(sorted(self.types), pa.int32())
        return batch.filter(pc.is_in(batch.column("type_id"), value_set=wanted))


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """Understand what can be understood of the filters, all of which must hold."""
    seq, time_ns = Bounds(), Bounds()
    names: list[Filter] = []
    types: frozenset[int] | None = None
    for condition in filters:
        match getattr(condition, "attribute", None):
            case ("seq",):
                seq = seq.within(_bounds(condition, _number))
            case ("timestamp_ns",):
                time_ns = time_ns.within(_bounds(condition, _number))
            case ("timestamp",):
                time_ns = time_ns.within(_bounds(condition, _microsecond))
            case ("source",):
                names.append(condition)
            case ("type_id",) if (found := _values(condition)) is not None:
                chosen = frozenset(found)
                types = chosen if types is None else types & chosen
            case _:
                pass
    return Narrowing(seq=seq, time_ns=time_ns, names=tuple(names), types=types)


def _number(value: Any) -> tuple[int, int]:
    return value, value + 1


def _microsecond(moment: Any) -> tuple[int, int]:
    """Return the nanoseconds that a timestamp stands for; a naive one is in UTC, as sessions are."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = aware - _EPOCH
    first = ((whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds) * 1000
    return first, first + 1000


def _bounds(condition: Filter, extent: Callable[[Any], tuple[int, int]]) -> Bounds:
    """Return the numbers that can pass; ``extent`` gives those that a value of the column stands for."""
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            return Bounds(*extent(value))
        case In(value=values) if values and all(value is not None for value in values):
            extents = [extent(value) for value in values]
            return Bounds(min(e[0] for e in extents), max(e[1] for e in extents))
        case GreaterThan(value=value):
            return Bounds(start=extent(value)[1])
        case GreaterThanOrEqual(value=value):
            return Bounds(start=extent(value)[0])
        case LessThan(value=value):
            return Bounds(end=extent(value)[0])
        case LessThanOrEqual(value=value):
            return Bounds(end=extent(value)[1])
        case _:
            return Bounds()


def _values(condition: Filter) -> tuple[Any, ...] | None:
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return (value,)
        case In(value=values):
            return tuple(value for value in values if value is not None)
        case _:
            return None


def _name_passes(name: str, condition: Filter) -> bool:
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return bool(name == value)
        case In(value=values):
            return name in values
        case StringStartsWith(value=value):
            return name.startswith(value)
        case StringEndsWith(value=value):
            return name.endswith(value)
        case StringContains(value=value):
            return value in name
        case _:
            return True
