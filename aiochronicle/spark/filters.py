"""The option ``filter``: a condition that limits what a frame reads, set when the frame is created.

Names, seqs and times become narrower ranges, found through the seek indexes; of messages of other types only
the headers are read. The condition is part of the frame, so every query over it sees the same rows. (Spark
4.1 to 4.3 can push the filters of a query down to a Python source, but applies the first query's filters to
all queries over the frame.)
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, pa, pc

__all__ = ["Bounds", "Narrowing", "parse_filter"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEYOND = 2**63
_COLUMNS = ("source", "seq", "timestamp_ns", "timestamp", "type_id")
_ADVICE = "; other conditions are for where(), which Spark evaluates row by row"

_TOKEN = re.compile(
    r"\s*(?:(?P<time>timestamp\s*'[^']*')|(?P<word>[a-z_]\w*)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<number>-?\d+)|(?P<sign><=|>=|==|[<>=(),]))",
    re.IGNORECASE,
)

Value = int | str | datetime


@prepared
class Bounds(msgspec.Struct, frozen=True):
    """Whole numbers from ``start`` to before ``end``."""

    start: int = -_BEYOND
    end: int = _BEYOND

    def within(self, other: "Bounds") -> "Bounds":
        """Return the intersection."""
        return Bounds(max(self.start, other.start), min(self.end, other.end))

    @property
    def is_open(self) -> bool:
        """Whether nothing is left out."""
        return self.start <= -_BEYOND and self.end >= _BEYOND

    @property
    def start_ns(self) -> int | None:
        """The start of the range of times; None if there is no start."""
        return self.start if self.start > 0 else None

    @property
    def end_ns(self) -> int | None:
        """The end of the range; None if there is no end."""
        return self.end if self.end < _BEYOND else None


@prepared
class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """All conditions of a filter together."""

    seq: Bounds = Bounds()
    time_ns: Bounds = Bounds()
    names: frozenset[str] | None = None
    types: frozenset[int] | None = None

    def wants(self, name: str) -> bool:
        """Return whether messages of the queue of this name may pass."""
        return self.names is None or name in self.names

    @property
    def columns(self) -> list[str]:
        """The columns that ``sift`` needs."""
        wanted = {
            "seq": not self.seq.is_open,
            "timestamp_ns": not self.time_ns.is_open,
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]

    def types_of(self, wanted: frozenset[int] | None) -> frozenset[int] | None:
        """Return which of the wanted type_ids may pass; None if all may."""
        if self.types is None or wanted is None:
            return wanted if self.types is None else self.types
        return wanted & self.types

    def sift(self, batch: Batch) -> Batch:
        """Return the rows that pass; ``columns`` must be in the batch."""
        for name, bounds in (("seq", self.seq), ("timestamp_ns", self.time_ns)):
            if not bounds.is_open:
                batch = _between(batch, name, bounds)
        return batch


def _between(batch: Batch, name: str, bounds: Bounds) -> Batch:
    column = batch.column(name)
    passing = None
    if bounds.start > -_BEYOND:
        passing = pc.greater_equal(column, pa.scalar(min(bounds.start, _BEYOND - 1), pa.int64()))
        if bounds.start >= _BEYOND:
            return batch.slice(0, 0)
    if bounds.end < _BEYOND:
        before = pc.less(column, pa.scalar(max(bounds.end, -_BEYOND), pa.int64()))
        passing = before if passing is None else pc.and_(passing, before)
    return batch if passing is None or passing.true_count == len(column) else batch.filter(passing)


def parse_filter(text: str) -> Narrowing:
    """Parse a condition; InvalidArgument if a frame cannot be narrowed down by it.

    >>> parse_filter("seq >= 5 AND type_id IN (1, 2)").seq
    Bounds(start=5, end=9223372036854775808)
    """
    parsed = _Parser(text)
    found = Narrowing()
    while True:
        found = parsed.condition(found)
        if parsed.is_at_end:
            return found
        parsed.expect("AND")


class _Parser:
    """A parser of conditions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[tuple[str, str]]:
        place = 0
        while self._text[place:].strip():
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise self._error(f"{self._text[place:].strip()!r} is not understood")
            kind = found.lastgroup or ""
            yield kind, found[kind]
            place = found.end()

    def _error(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"filter {self._text!r}: {what}. A filter is made of AND and comparisons (=, <, <=, >, >=,"
            f" BETWEEN, IN) of {', '.join(_COLUMNS)} with values{_ADVICE}"
        )

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    def _take(self, *kinds: str) -> tuple[str, str]:
        if self.is_at_end:
            raise self._error("it ends too early")
        kind, text = self._tokens[self._at]
        if kind not in kinds:
            raise self._error(f"{text!r} is not expected there")
        self._at += 1
        return kind, text

    def expect(self, word: str) -> None:
        """Step over a word."""
        _, text = self._take("word", "sign")
        if text.upper() != word:
            raise self._error(f"{text!r} is not expected there")

    def condition(self, before: Narrowing) -> Narrowing:
        """Parse one comparison, and narrow the given filter down by it."""
        column = self._take("word")[1].lower()
        if column not in _COLUMNS:
            raise self._error(f"{column!r} is not a column that it knows")
        operator = self._take("word", "sign")[1].upper()
        values = self._values(operator)
        if column in ("source", "type_id"):
            return self._chosen(before, column, operator, values)
        extent = _EXTENTS[column]
        try:
            extents = [extent(value) for value in values]
        except TypeError as error:
            raise self._error(f"{column} is compared with another kind of value") from error
        bounds = self._bounds(operator, extents)
        if column == "seq":
            return msgspec.structs.replace(before, seq=before.seq.within(bounds))
        return msgspec.structs.replace(before, time_ns=before.time_ns.within(bounds))

    def _values(self, operator: str) -> list[Value]:
        if operator == "BETWEEN":
            low = self._value()
            self.expect("AND")
            return [low, self._value()]
        if operator != "IN":
            return [self._value()]
        self.expect("(")
        values = [self._value()]
        while self._take("sign")[1] == ",":
            values.append(self._value())
        return values

    def _value(self) -> Value:
        kind, text = self._take("number", "text", "time")
        if kind == "number":
            return int(text)
        content = text[text.index("'") + 1 : -1].replace("''", "'")
        if kind == "text":
            return content
        try:
            moment = datetime.fromisoformat(content)
        except ValueError as error:
            raise self._error(f"{content!r} is no time") from error
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def _chosen(
        self, before: Narrowing, column: str, operator: str, values: Sequence[Value]
    ) -> Narrowing:
        if operator not in ("=", "==", "IN"):
            raise self._error(f"{column} can be compared by = and IN only")
        if column == "source":
            names = frozenset(value for value in values if isinstance(value, str))
            if len(names) < len(set(values)):
                raise self._error("source is compared with a text")
            chosen = names if before.names is None else names & before.names
            return msgspec.structs.replace(before, names=chosen)
        types = frozenset(value for value in values if isinstance(value, int))
        if len(types) < len(set(values)) or any(not 0 <= number < 2**31 for number in types):
            raise self._error("type_id is compared with a number from 0 to 2147483647")
        kept = types if before.types is None else types & before.types
        return msgspec.structs.replace(before, types=kept)

    def _bounds(self, operator: str, extents: Sequence[tuple[int, int]]) -> Bounds:
        first, end = extents[0]
        match operator:
            case "=" | "==":
                return Bounds(first, end)
            case ">":
                return Bounds(start=end)
            case ">=":
                return Bounds(start=first)
            case "<":
                return Bounds(end=first)
            case "<=":
                return Bounds(end=end)
            case "BETWEEN":
                return Bounds(first, extents[1][1])
            case _:
                raise self._error(f"{operator!r} is not for numbers and times")


def _number(value: Value) -> tuple[int, int]:
    if not isinstance(value, int):
        raise TypeError
    return value, value + 1


def _microsecond(moment: Value) -> tuple[int, int]:
    """Return the nanoseconds that a timestamp stands for."""
    if not isinstance(moment, datetime):
        raise TypeError
    whole = moment - _EPOCH
    first = ((whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds) * 1000
    return first, first + 1000


_EXTENTS: dict[str, Callable[[Value], tuple[int, int]]] = {
    "seq": _number,
    "timestamp_ns": _number,
    "timestamp": _microsecond,
}
