"""Bars: open, high, low, close, volume and VWAP of trades, by time, by ticks or by volume.

Each task computes the partial bars of its range with numpy, directly from the payloads; Spark sorts them,
and those of one bar are merged. The result does not depend on how the queues were divided: seq decides open
and close, and sums of floating-point numbers carry their rounding errors, so that the result equals
``math.fsum`` over all trades.

Bars by ticks or volume depend on the trades before a range: a first pass counts these, range by range.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession

from aiochronicle._base.arguments import expect
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, Column, pa
from aiochronicle.spark.jobs.inputs import find_input
from aiochronicle.spark.options import Given, ReadOptions, Roots
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.typed import TypedDecoder, find_type
from aiochronicle.spark.tasks import run_tasks

__all__ = ["bars", "exact_sums", "nanoseconds"]

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_ROWS = 1 << 18  # trades that are turned into bars at a time, about
BATCH_ROWS = 1 << 16  # trades that are read at a time
MERGE_ROWS = 1 << 23  # one task merges the bars of this many trades, which are far fewer
EXPONENT_MIN = -1022  # of the smallest number by which another can be divided
ALL = ""  # the key of bars that are not by a field
SMALLEST_LIKELY_NS = 100_000  # less, as an int, is a number of seconds or of milliseconds

_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_UNITS_NS["d"] = 24 * _UNITS_NS["h"]

_PARTIALS = (
    "source string, key string, bar long, first_seq long, last_seq long, first_ns long,"
    " last_ns long, open double, high double, low double, close double, trades long,"
    " volume array<double>, notional array<double>"
)
_BARS = (
    "source string, key string, bar long, start_ns long, start timestamp, open double,"
    " high double, low double, close double, volume double, vwap double, trades long,"
    " first_ns long, last_ns long"
)
_COUNTS = "part long, key string, amount long"

_KEYS = ("source", "key", "bar")


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a bar and its fields: the parameters of a task."""

    trades: str
    price: str
    size: str
    by: str | None
    every_ns: int | None = None
    ticks: int | None = None
    volume: int | None = None
    lot: float | None = None


def nanoseconds(duration: str | int) -> int:
    """Return a duration like 250ms, 1s, 5m, or an int of nanoseconds, in nanoseconds.

    >>> nanoseconds("1.5s"), nanoseconds(1_500_000_000)
    (1500000000, 1500000000)
    """
    expect("a duration", "a text like 1s, or an int of nanoseconds", (str, int), duration)
    if isinstance(duration, int):
        if not SMALLEST_LIKELY_NS <= duration < 2**63:
            raise InvalidArgument(
                f"a duration of {duration} is in the wrong unit: ints are nanoseconds, texts are like 1s"
            )
        return duration
    value = _nanoseconds_of(duration)
    if value < 1:
        raise InvalidArgument(f"a duration is like 250ms, 1s, 5m, 1h or 1d, not {duration!r}")
    return value


def _nanoseconds_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)", text.strip())
    return round(float(found[1]) * _UNITS_NS[found[2]]) if found else 0


def bars(
    spark: SparkSession,
    root: Roots,
    *,
    every: str | int | None = None,
    ticks: int | None = None,
    volume: float | None = None,
    trades: str = "trade",
    price: str = "price",
    size: str = "size",
    by: str | None = "symbol",
    lot: float | None = None,
    options: Mapping[str, Given] | None = None,
) -> DataFrame:
    """Return the bars of the trades in all queues under a root, one series per queue and ``by``.

    Exactly one of ``every`` (a duration like 1s, or nanoseconds as an int: intervals since 1970 UTC, those
    without trades left out),
    ``ticks`` (trades per bar) and ``volume`` must be given. With ``volume`` a bar ends with the trade by
    which the total volume reaches the next multiple of it: the excess of a large trade counts for the
    following bars, which are smaller or left out. Sizes that are not whole numbers need ``lot``, the size of
    a unit, for bars by volume. ``trades``, ``price``, ``size`` and ``by`` name a type of schema.json and its
    fields; ``by=None`` makes bars of all trades of a queue. ``options`` are those of ``format("chronicle")``.

    >>> bars(spark, "bus/md", every="1s").show()  # doctest: +SKIP
    """
    if sum(way is not None for way in (every, ticks, volume)) != 1:
        raise InvalidArgument("bars are by one of every, ticks and volume")
    for name, value in (("ticks", ticks), ("volume", volume), ("lot", lot)):
        if value is not None and not 0 < value < 2**62:
            raise InvalidArgument(f"{name} must be positive, not {value!r}")
    unit = 1.0 if lot is None else lot
    units = None if volume is None else round(volume / unit)
    if volume is not None and (units == 0 or not math.isclose(volume, (units or 0) * unit)):
        raise InvalidArgument(f"volume {volume} is not a number of lots of {unit:g}")
    rule = _Rule(
        trades=trades,
        price=price,
        size=size,
        by=by,
        every_ns=None if every is None else nanoseconds(every),
        ticks=ticks,
        volume=units,
        lot=lot,
    )
    fields = [price, size, *([] if by is None else [by])]
    given = find_input(root, options, type_name=trades, fields=fields)
    parts = given.parts()
    before = {} if rule.every_ns is not None else _before(spark, parts, rule, given.options)
    jobs = [(part, before.get(number, {})) for number, part in enumerate(parts)]
    partials = run_tasks(spark, jobs, partial(_partial_bars, rule, given.options), _PARTIALS)
    # A single task, where it is enough, saves Spark an exchange, and computing the rows twice to sort them.
    tasks = 1 + sum(part.end - part.start for part in parts) // MERGE_ROWS
    sorted_partials = partials.repartition(tasks, *_KEYS).sortWithinPartitions(*_KEYS, "first_seq")
    ordered = sorted_partials.mapInArrow(partial(_merge, rule), _BARS).orderBy(*_KEYS)
    return ordered.drop("key") if by is None else ordered.withColumnRenamed("key", by)


def _merge(rule: _Rule, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Merge sorted partial bars; the last one may continue in the next batch."""
    rest: Batch | None = None
    for batch in batches:
        if rest is not None:
            (batch,) = pa.Table.from_batches([rest, batch]).combine_chunks().to_batches()
        starts = _starts(*(_codes(batch.column(name)) for name in _KEYS))
        last = int(starts[-1])
        if last:
            yield _merge_bars(rule, batch.slice(0, last), starts[:-1])
        rest = batch.slice(last)
    if rest is not None:
        yield _merge_bars(rule, rest, np.zeros(1, np.int64))


def _codes(column: Column) -> Array:
    """Return numbers that are equal where the values are equal."""
    same = column if pa.types.is_integer(column.type) else column.dictionary_encode().indices
    codes: Array = same.to_numpy()
    return codes


def _starts(*columns: Array) -> Array:
    """Return the starts of runs in which no column changes."""
    changes = np.zeros(len(columns[0]), np.bool_)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def _merge_bars(rule: _Rule, partials: Batch, starts: Array) -> Batch:
    """Merge the partial bars from each start to the next into one row; sums are rounded once, here."""
    ends = np.append(starts[1:], partials.num_rows)
    first, last = partials.take(pa.array(starts)), partials.take(pa.array(ends - 1))
    if rule.every_ns is None:
        start_ns = first.column("first_ns")
    else:
        start_ns = pa.array(first.column("bar").to_numpy() * rule.every_ns)
    start_us = pa.array(start_ns.to_numpy() // 1000).cast(pa.timestamp("us", "UTC"))
    volume = _round(partials.column("volume"), starts, ends)
    notional = _round(partials.column("notional"), starts, ends)
    vwap = [a / b if b else None for a, b in zip(notional, volume, strict=True)]
    return pa.record_batch(
        {
            **{name: first.column(name) for name in _KEYS},
            "start_ns": start_ns,
            "start": start_us,
            "open": first.column("open"),
            "high": pa.array(np.maximum.reduceat(partials.column("high").to_numpy(), starts)),
            "low": pa.array(np.minimum.reduceat(partials.column("low").to_numpy(), starts)),
            "close": last.column("close"),
            "volume": pa.array(volume, pa.float64()),
            "vwap": pa.array(vwap, pa.float64()),
            "trades": pa.array(np.add.reduceat(partials.column("trades").to_numpy(), starts)),
            "first_ns": first.column("first_ns"),
            "last_ns": last.column("last_ns"),
        }
    )


def _round(column: Column, starts: Array, ends: Array) -> list[float]:
    """Return the sum of all numbers in the lists from each start to its end."""
    assert isinstance(column, pa.ListArray)
    offsets = column.offsets.to_numpy()
    numbers = column.values.to_pylist()
    cuts = zip(offsets[starts].tolist(), offsets[ends].tolist(), strict=True)
    return [math.fsum(numbers[first:end]) for first, end in cuts]


class _Chunk(msgspec.Struct, frozen=True):
    """Trades in the order of the queue, as arrays; ``keys`` are positions in ``names``."""

    seq: Array
    timestamp_ns: Array
    price: Array
    size: Array
    keys: Array
    names: list[str]

    def units(self, rule: _Rule) -> Array:
        """Return the sizes as whole numbers."""
        lot = rule.lot or 1.0
        units = np.rint(self.size / lot)
        if not np.allclose(units * lot, self.size, rtol=1e-9, atol=0):
            raise InvalidArgument(
                f"{rule.size} is not always a multiple of {lot:g}; lot says what a unit is"
            )
        whole: Array = units.astype(np.int64)
        return whole


class _Trades:
    """Extracts the trades from the batches of a range, and collects them into chunks."""

    COLUMNS = ("seq", "timestamp_ns", "payload")

    def __init__(self, part: Range, rule: _Rule) -> None:
        entry = find_type(part.source, rule.trades)
        if entry is None:  # it existed when the job began
            raise InvalidArgument(f"{part.source.name} has lost its type {rule.trades!r}")
        self._rule = rule
        self._place = part.source.place
        wanted = {rule.price: pa.float64(), rule.size: pa.float64()}
        if rule.by is not None:
            wanted[rule.by] = pa.dictionary(pa.int32(), pa.utf8())
        self._decoder = TypedDecoder(entry, wanted, permissive=False)
        self.types = self._decoder.types
        self._ids: dict[str, int] = {}
        self._waiting: list[tuple[Array, ...]] = []
        self._rows = 0

    def add(self, trades: Batch) -> bool:
        """Add a batch; True if there are enough trades for a chunk."""
        seq = trades.column("seq")
        fields, _ = self._decoder.decode_rows(trades, self._place)
        rule = self._rule
        for name, column in fields.items():
            if column.null_count:
                row = column.is_null().index(True).as_py()
                raise InvalidArgument(
                    f"the {rule.trades} with seq {seq[row]} has no {name}", path=self._place
                )
        self._waiting.append(
            (
                seq.to_numpy(),
                trades.column("timestamp_ns").to_numpy(),
                fields[rule.price].to_numpy(),
                fields[rule.size].to_numpy(),
                self._keys(None if rule.by is None else fields[rule.by], trades.num_rows),
            )
        )
        self._rows += trades.num_rows
        return self._rows >= CHUNK_ROWS

    def _keys(self, column: Column | None, rows: int) -> Array:
        if column is None:
            self._ids.setdefault(ALL, 0)
            return np.zeros(rows, np.int64)
        assert isinstance(column, pa.DictionaryArray)
        names: list[str] = column.dictionary.to_pylist()
        ids = np.array([self._ids.setdefault(name, len(self._ids)) for name in names], np.int64)
        keys: Array = ids[column.indices.to_numpy()]
        return keys

    def take(self) -> _Chunk | None:
        """Return the trades collected since the last call."""
        if not self._rows:
            return None
        seq, times_ns, price, size, keys = map(_join, zip(*self._waiting, strict=True))
        self._waiting, self._rows = [], 0
        return _Chunk(seq, times_ns, price, size, keys, list(self._ids))


def _join(pieces: tuple[Array, ...]) -> Array:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _chunks(part: Range, rule: _Rule, options: ReadOptions) -> Iterator[_Chunk]:
    """Yield the trades of a range in chunks."""
    trades = _Trades(part, rule)
    columns, types = trades.COLUMNS, trades.types
    for batch in read_range(part, columns, options, types=types, batch_rows=BATCH_ROWS):
        if trades.add(batch) and (chunk := trades.take()) is not None:
            yield chunk
    if (chunk := trades.take()) is not None:
        yield chunk


def _before(
    spark: SparkSession, parts: list[Range], rule: _Rule, options: ReadOptions
) -> dict[int, dict[str, int]]:
    """Return for each part the amount of each key in the parts before it."""
    counted = run_tasks(spark, list(enumerate(parts)), partial(_count, rule, options), _COUNTS)
    amounts: dict[int, dict[str, int]] = {}
    for row in counted.collect():
        amounts.setdefault(row.part, {})[row.key] = row.amount
    before: dict[int, dict[str, int]] = {}
    running: dict[tuple[str, str], int] = {}
    for number, part in enumerate(parts):  # in the order of the queue
        source = part.source.name
        before[number] = {}
        for key, amount in amounts.get(number, {}).items():
            before[number][key] = running.get((source, key), 0)
            running[source, key] = before[number][key] + amount
    return before


def _count(rule: _Rule, options: ReadOptions, numbered: tuple[int, Range]) -> Iterator[Batch]:
    number, part = numbered
    totals: dict[str, int] = {}
    for chunk in _chunks(part, rule, options):
        weights = None if rule.ticks is not None else chunk.units(rule)
        for key, amount in enumerate(_amounts(chunk, weights)):
            name = chunk.names[key]
            totals[name] = totals.get(name, 0) + amount
    yield pa.record_batch(
        {
            "part": pa.array([number] * len(totals), pa.int64()),
            "key": pa.array(list(totals), pa.utf8()),
            "amount": pa.array(list(totals.values()), pa.int64()),
        }
    )


def _amounts(chunk: _Chunk, weights: Array | None) -> list[int]:
    """Return the number of trades, or the sum of their units, by key."""
    totals = np.zeros(len(chunk.names), np.int64)
    np.add.at(totals, chunk.keys, 1 if weights is None else weights)
    return [int(total) for total in totals]


def _partial_bars(
    rule: _Rule, options: ReadOptions, job: tuple[Range, Mapping[str, int]]
) -> Iterator[Batch]:
    part, before = job
    running = dict(before)
    for chunk in _chunks(part, rule, options):
        # Groups trades by key, in the order of the queue: each bar is then one run.
        order = np.argsort(_narrow(chunk.keys, len(chunk.names)), kind="stable")
        keys = chunk.keys[order]
        if rule.every_ns is not None:
            bar = chunk.timestamp_ns[order] // rule.every_ns
        else:
            bar = _number_bars(chunk, rule, order, keys, running)
        yield _reduce(chunk, part.source.name, order, keys, bar)


def _narrow(keys: Array, count: int) -> Array:
    """Return the keys in a type for which numpy uses a counting sort."""
    return keys.astype(np.uint16) if count <= 1 << 16 else keys


def _number_bars(
    chunk: _Chunk, rule: _Rule, order: Array, keys: Array, running: dict[str, int]
) -> Array:
    """Return the bar number of each trade, from the amount of its key before it."""
    weights = np.ones(len(order), np.int64) if rule.ticks is not None else chunk.units(rule)[order]
    size = rule.ticks or rule.volume or 1
    bar = np.empty(len(order), np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for first, end in pairwise(cuts):
        name = chunk.names[int(keys[first])]
        traded = running.get(name, 0) + np.cumsum(weights[first:end])
        bar[first:end] = (traded - weights[first:end]) // size
        running[name] = int(traded[-1])
    return bar


def _reduce(chunk: _Chunk, source: str, order: Array, keys: Array, bar: Array) -> Batch:
    """Reduce each run to one row."""
    starts = _starts(keys, bar)
    lengths = np.diff(starts, append=len(order))
    first, last = order[starts], order[starts + lengths - 1]
    price, size = chunk.price[order], chunk.size[order]
    names = [chunk.names[int(key)] for key in keys[starts]]
    columns: dict[str, Column] = {
        "source": pa.repeat(pa.scalar(source, pa.utf8()), len(starts)),
        "key": pa.array(names, pa.utf8()),
        "bar": pa.array(bar[starts]),
        "first_seq": pa.array(chunk.seq[first]),
        "last_seq": pa.array(chunk.seq[last]),
        "first_ns": pa.array(chunk.timestamp_ns[first]),
        "last_ns": pa.array(chunk.timestamp_ns[last]),
        "open": pa.array(chunk.price[first]),
        "high": pa.array(np.maximum.reduceat(price, starts)),
        "low": pa.array(np.minimum.reduceat(price, starts)),
        "close": pa.array(chunk.price[last]),
        "trades": pa.array(lengths),
        "volume": exact_sums(size, starts),
        "notional": exact_sums(price * size, starts),
    }
    return pa.record_batch(columns)


def exact_sums(values: Array, starts: Array) -> Column:
    """Return each run's sum as several numbers, which together are exact.

    Sums of whole numbers below 2**53 are exact as they are. Otherwise values are rounded to whole multiples
    of a power of two, so large that no sum of a stretch needs more than 53 bits, and what is left is
    rounded in finer units, until nothing is left; below 1e-307 that would need units that are no numbers.
    """
    largest = float(max(values.max(), -values.min()))
    if not math.isfinite(largest):
        raise InvalidArgument("a price or size is not a finite number")
    if largest * len(values) < 2.0**53 and (np.rint(values) == values).all():
        return _lists([np.add.reduceat(values, starts)])
    bits = int(np.diff(starts, append=len(values)).max()).bit_length()
    exponent = math.frexp(largest)[1] + bits - 52
    sums: list[Array] = []
    left = values
    while left.any():
        exponent = max(exponent, EXPONENT_MIN)
        part = _multiples(left, 2.0**exponent)
        left = left - part
        sums.append(np.add.reduceat(part, starts))
        if exponent == EXPONENT_MIN:
            sums.append(np.add.reduceat(left, starts))
            break
        exponent -= 51 - bits
    return _lists(sums)


def _multiples(values: Array, unit: float) -> Array:
    """Round to whole multiples of a power of two."""
    whole: Array = values * (1.0 / unit)
    np.rint(whole, out=whole)
    whole *= unit
    return whole


def _lists(sums: list[Array]) -> Column:
    """Return a list for each run, with its number from each array."""
    count = len(sums[0])
    offsets = pa.array(np.arange(0, len(sums) * count + 1, len(sums), dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(np.column_stack(sums).ravel()))
