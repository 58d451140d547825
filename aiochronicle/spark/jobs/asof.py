"""Each trade with the quote in force at its time, exact to the nanosecond.

Nothing is shuffled: time is divided into ranges, and each task finds the quotes for the trades in its range.
A first pass over the quotes finds the last one of each range for every key, so that a task knows which quotes
are in force when its range begins. A busy symbol is therefore spread over all tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, Table, pa, pc
from aiochronicle.spark.jobs.bars import nanoseconds
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.jobs.slices import TimeSlice, cut_time
from aiochronicle.spark.options import SMALLEST_LIKELY_NS, Given, Roots, read_options
from aiochronicle.spark.source.columns import frame_schema
from aiochronicle.spark.source.read_task import read_task
from aiochronicle.spark.tasks import run_tasks

__all__ = ["asof", "asof_keys", "options_of_quotes"]

Array = np.ndarray[Any, np.dtype[Any]]

LEFT_OUT = ("type_id", "payload")
PREFIX = "quote_"
OF_TRADES = {"startingtimestamp", "startingoffsets"}
OF_THEIR_QUEUES = {"subscribe", "subscribepattern", "endingoffsets"}
QUEUE = "source"
ROWS_PER_TASK = 1 << 20
SEQS_MAX = 1 << 40  # so that a key's number and one of these fit into 63 bits


_SLICE = StructField("slice", IntegerType(), False)


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """Trades or quotes: their place and their columns."""

    given: Input
    schema: StructType

    def read(self, part: TimeSlice, names: Sequence[str]) -> Table:
        """Return the messages of these queues in a range of time."""
        batches = [
            batch
            for name in names
            for batch in read_task(part.range_of(self.given, name), self.schema, self.given.options)
        ]
        return pa.Table.from_batches(batches, to_arrow_schema(self.schema, timezone="UTC"))


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """A range of time, and the quotes in force when it begins."""

    part: TimeSlice
    carried: Table  # as the quotes are


def asof(
    spark: SparkSession,
    root: Roots,
    *,
    quotes_root: Roots | None = None,
    trades: str = "trade",
    quotes: str = "quote",
    by: str | Sequence[str] = (QUEUE, "symbol"),
    look_back: str | int | None = None,
    options: Mapping[str, Given] | None = None,
) -> DataFrame:
    """Return the trades under a root, in no order, each with the quote in force.

    A quote is in force for the trades that have the same values in the columns ``by`` and follow it in the
    order of (timestamp_ns, seq), until the next one. By default these columns are the queue (``source``) and
    the field ``symbol``; ``by="symbol"`` takes quotes of any queue. If time and seq are equal, which happens
    only between different queues, the quote comes first. The quote's columns are called ``quote_…``, and are
    null for trades before the first quote. ``quotes_root`` is the root of the quotes, if it differs from that
    of the trades; options that select queues then apply to the trades. ``trades`` and ``quotes`` name types
    of schema.json.

    Options for the start apply to the trades. Quotes in force by then are older, so they are read from the
    first one on, or, with ``look_back`` (a duration like 1h, or nanoseconds as an int), from that long before
    the ``startingTimestamp``.

    >>> asof(spark, "bus/md").select("symbol", "price", "quote_bid", "quote_ask")  # doctest: +SKIP
    """
    keys = asof_keys(by)
    left = _side(root, trades, keys, options)
    of_quotes = options_of_quotes(options, elsewhere=quotes_root is not None, look_back=look_back)
    right = _side(quotes_root or root, quotes, keys, of_quotes)
    if QUEUE in keys and not left.given.sources.keys() & right.given.sources.keys():
        raise InvalidArgument(
            f"no queue has both {trades} and {quotes}, which are joined by {', '.join(keys)}: say"
            " by='symbol' to take quotes of other queues"
        )
    slices = cut_time([left.given, right.given], ROWS_PER_TASK)
    work = _with_carried(spark, slices, right, keys)
    added = [
        StructField(PREFIX + field.name, field.dataType, True)
        for field in right.schema.fields
        if field.name not in ({*keys} - {QUEUE}) and field.name != "timestamp"
    ]
    schema = StructType([*left.schema.fields, *added])
    return run_tasks(spark, work, partial(_join, left, right, keys, schema), schema)


def asof_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns that join trades and quotes."""
    keys = (by,) if isinstance(by, str) else tuple(by)
    if not keys or len(set(keys)) < len(keys):
        raise InvalidArgument(f"by is {by!r}, and has to be the names of one or more columns")
    return keys


def options_of_quotes(
    options: Mapping[str, Given] | None, *, elsewhere: bool, look_back: str | int | None = None
) -> dict[str, Given]:
    """Return the options for the quotes, given those for the trades."""
    options = options or {}
    dropped = OF_TRADES | OF_THEIR_QUEUES if elsewhere else OF_TRADES
    kept = {name: value for name, value in options.items() if name.lower() not in dropped}
    start_ns = read_options({"path": ".", **options}).starting_timestamp_ns
    back_ns = None if look_back is None else nanoseconds(look_back)
    if start_ns is not None and back_ns is not None and start_ns - back_ns > SMALLEST_LIKELY_NS:
        kept["startingTimestamp"] = str(start_ns - back_ns)
    return kept


def _side(
    root: Roots, type_name: str, keys: Sequence[str], options: Mapping[str, Given] | None
) -> _Side:
    fields = [key for key in keys if key != QUEUE]
    given = {**(options or {}), "type": type_name, "mode": "FAILFAST"}
    found = find_input(root, given, type_name=type_name, fields=fields)
    schema = frame_schema(found.options, found.sources)
    kept = [field for field in schema.fields if field.name not in LEFT_OUT]
    return _Side(given=found, schema=StructType(kept))


def _groups(keys: Sequence[str], *sides: _Side) -> list[list[str]]:
    """Return the groups of queues that must be joined together: each queue alone if the key includes it."""
    names = sorted({name for side in sides for name in side.given.sources})
    return [[name] for name in names] if QUEUE in keys else [names]


def _with_carried(
    spark: SparkSession, slices: Sequence[TimeSlice], quotes: _Side, keys: Sequence[str]
) -> list[_Work]:
    """Add to each range of time the last quote of each key before it."""
    nothing = to_arrow_schema(quotes.schema, timezone="UTC").empty_table()
    if len(slices) == 1:
        return [_Work(part=slices[0], carried=nothing)]
    schema = StructType([_SLICE, *quotes.schema.fields])
    find = partial(_last_quotes, quotes, keys, schema)
    found: Table = run_tasks(spark, slices[:-1], find, schema).toArrow()
    work: list[_Work] = []
    carried = nothing
    for part in slices:
        work.append(_Work(part=part, carried=carried))
        ended = found.filter(pc.equal(found.column("slice"), part.number)).drop_columns(["slice"])
        carried = _last_of_each(pa.concat_tables([carried, ended.cast(nothing.schema)]), keys)
    return work


def _last_quotes(
    quotes: _Side, keys: Sequence[str], schema: StructType, part: TimeSlice
) -> Iterator[Batch]:
    """Yield the last quote of each key in a range of time."""
    for names in _groups(keys, quotes):
        known = [name for name in names if name in quotes.given.sources]
        last = _last_of_each(quotes.read(part, known), keys)
        numbers = pa.array(np.full(last.num_rows, part.number, np.int32))
        table = last.add_column(0, "slice", numbers)
        yield from table.cast(to_arrow_schema(schema, timezone="UTC")).combine_chunks().to_batches()


def _last_of_each(rows: Table, keys: Sequence[str]) -> Table:
    """Return the last row of each key, in the order in which quotes are in force."""
    if rows.num_rows == 0:
        return rows
    codes = _codes(rows.select(list(keys)))
    order = np.lexsort(
        (_names_in_order(rows), _numbers(rows, "seq"), _numbers(rows, "timestamp_ns"))
    )
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes[order]] = order  # the last of several assignments wins
    return rows.take(np.unique(last[np.unique(codes)]))


def _join(
    left: _Side, right: _Side, keys: Sequence[str], schema: StructType, work: _Work
) -> Iterator[Batch]:
    """Yield the trades of a range of time, each with its quote."""
    target = to_arrow_schema(schema, timezone="UTC")
    carried_of = work.carried.column(QUEUE)
    for names in _groups(keys, left):
        trades = left.read(work.part, names)
        if trades.num_rows == 0:
            continue
        from_queues = names if QUEUE in keys else sorted(right.given.sources)
        known = [name for name in from_queues if name in right.given.sources]
        carried = work.carried
        if QUEUE in keys:
            carried = carried.filter(pc.equal(carried_of, names[0]))
        quotes = pa.concat_tables([carried, right.read(work.part, known)])
        places = {
            side.given.sources[name].place
            for side in (left, right)
            for name in known
            if name in side.given.sources
        }
        has_one_queue = QUEUE in keys and len(places) <= 1
        chosen = _quotes_in_force(trades, quotes, keys, has_one_queue=has_one_queue)
        columns = [trades.column(field.name) for field in left.schema.fields]
        columns += [
            quotes.column(name.removeprefix(PREFIX)).take(chosen)
            for name in target.names[len(columns) :]
        ]
        joined = pa.Table.from_arrays(columns, names=target.names).cast(target)
        yield from joined.combine_chunks().to_batches(max_chunksize=1 << 14)


def _quotes_in_force(
    trades: Table, quotes: Table, keys: Sequence[str], *, has_one_queue: bool
) -> pa.Array:
    """Return for each trade the quote in force; null if there is none."""
    both = pa.concat_tables([quotes.select(list(keys)), trades.select(list(keys))])
    codes = _codes(both)
    ranks = _ranks(quotes, trades, has_one_queue=has_one_queue)
    count = quotes.num_rows
    order = np.lexsort((ranks[:count], codes[:count]))
    # One number for key and rank: the next smaller one of a quote is of the same key, or there is none.
    width = int(ranks.max(initial=0)) + 1
    of_quotes = codes[:count][order] * width + ranks[:count][order]
    of_trades = codes[count:] * width + ranks[count:]
    places = np.searchsorted(of_quotes, of_trades, side="left") - 1
    is_found = places >= 0
    is_found[is_found] = codes[:count][order[places[is_found]]] == codes[count:][is_found]
    chosen = np.zeros(len(places), np.int64)
    chosen[is_found] = order[places[is_found]]
    return pa.array(chosen, mask=~is_found)


def _ranks(quotes: Table, trades: Table, *, has_one_queue: bool) -> Array:
    """Return the places of quotes, then trades, in their common order, from 0 on.

    Within a queue that is the order of seqs.
    """
    seqs = np.concatenate([_numbers(quotes, "seq"), _numbers(trades, "seq")])
    if has_one_queue and seqs.max() - seqs.min() < SEQS_MAX:
        ranks: Array = seqs - seqs.min()
        return ranks
    times_ns = np.concatenate([_numbers(quotes, "timestamp_ns"), _numbers(trades, "timestamp_ns")])
    sides = np.zeros(len(seqs), np.int8)
    sides[quotes.num_rows :] = 1
    sources = _names_in_order(pa.concat_tables([quotes.select([QUEUE]), trades.select([QUEUE])]))
    order = np.lexsort((sources, sides, seqs, times_ns))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _codes(keys: Table) -> Array:
    """Return a number for each row, the same for equal rows; null equals null."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    return np.unique(codes, return_inverse=True)[1] if len(keys.columns) > 1 else codes


def _numbers(rows: Table, name: str) -> Array:
    numbers: Array = rows.column(name).to_numpy()
    return numbers


def _names_in_order(rows: Table) -> Array:
    """Return numbers that are in the order of the names of the queues."""
    encoded = rows.column(QUEUE).combine_chunks().dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    rank = {name: number for number, name in enumerate(sorted(names))}
    ranks: Array = np.array([rank[name] for name in names], np.int64)[encoded.indices.to_numpy()]
    return ranks
