"""Each trade with the quote in force at its time, exact to the nanosecond.

Nothing is shuffled: time is divided into ranges, and a task finds the quotes for the trades in several ranges
one after the other. It carries the last quote of every key from one to the next. A first pass over the quotes
finds those that are in force when a task begins, so a busy symbol is spread over all tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, Table, pa, pc
from aiochronicle.spark.jobs.bars import nanoseconds
from aiochronicle.spark.jobs.in_force import InOrder
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.jobs.slices import TimeSlice, cut_time, processors
from aiochronicle.spark.options import (
    SMALLEST_LIKELY_NS,
    Given,
    ReadOptions,
    Roots,
    read_options,
)
from aiochronicle.spark.source.columns import Shape, frame_schema
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.read_task import read_task
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.typed import rows_of_types
from aiochronicle.spark.tasks import run_tasks

__all__ = ["asof", "asof_keys", "options_of_quotes"]

LEFT_OUT = ("type_id", "payload")
PREFIX = "quote_"
OF_TRADES = {"startingtimestamp", "startingoffsets"}
OF_THEIR_QUEUES = {"subscribe", "subscribepattern", "endingoffsets"}
QUEUE = "source"
ROWS_PER_SLICE = 1 << 21  # which a task has in memory
SLICES_PER_TASK = 16
READ_ROWS = 1 << 16
ROWS_PER_BATCH = 1 << 14  # of the result

_SLICE = StructField("slice", IntegerType(), False)
arrow_schema = partial(to_arrow_schema, timezone="UTC")


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """Trades or quotes: their place and their columns."""

    given: Input
    schema: StructType

    def place(self, name: str) -> str | None:
        """Return where a queue is; None if it does not have the type."""
        return self.given.sources[name].place if name in self.given.sources else None

    def shape(self, name: str) -> Shape:
        """Return what makes messages of a queue into rows."""
        return Shape(self.schema, self.given.options, self.given.sources[name])

    def read(self, part: Range) -> list[Batch]:
        """Return what a range has of these messages."""
        return list(read_task(part, self.schema, self.given.options))

    def table(self, batches: Sequence[Batch]) -> Table:
        """Return batches of these messages as one table."""
        return pa.Table.from_batches(batches, arrow_schema(self.schema))


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of time that follow each other, and the quotes in force when the first one begins."""

    slices: list[TimeSlice]
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
    work = _with_carried(spark, _chains(left, right), right, keys)
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


def _groups(keys: Sequence[str], side: _Side) -> list[list[str]]:
    """Return the groups of queues that must be joined together: each queue alone if the key includes it."""
    names = sorted(side.given.sources)
    return [[name] for name in names] if QUEUE in keys else [names]


def _fields(keys: Sequence[str]) -> list[str]:
    """Return the keys but for the queue: of a group they are all of one, or of any."""
    return [key for key in keys if key != QUEUE]


def _chains(*sides: _Side) -> list[list[TimeSlice]]:
    """Cut time into ranges that fit into memory, and these into what tasks do one after the other."""
    inputs = [side.given for side in sides]
    least = max(given.options.partitions_min or 0 for given in inputs)
    slices = cut_time(inputs, ROWS_PER_SLICE)
    tasks = -(-len(slices) // SLICES_PER_TASK)
    tasks = max(least, -(-tasks // processors()) * processors())
    cuts = [len(slices) * number // tasks for number in range(tasks + 1)]
    return [slices[first:end] for first, end in pairwise(cuts) if first < end]


def _with_carried(
    spark: SparkSession, chains: Sequence[list[TimeSlice]], quotes: _Side, keys: Sequence[str]
) -> list[_Work]:
    """Add to the ranges of time of each task the last quote of each key before them."""
    carried = quotes.table([])
    if len(chains) == 1:
        return [_Work(slices=chains[0], carried=carried)]
    schema = StructType([_SLICE, *quotes.schema.fields])
    find = partial(_last_quotes, quotes, keys, schema)
    before = [part for chain in chains[:-1] for part in chain]
    found: Table = run_tasks(spark, before, find, schema).toArrow()
    numbers = found.column("slice").to_numpy()  # in order, as the tasks are
    ended = found.drop_columns(["slice"]).cast(carried.schema)
    work: list[_Work] = []
    for chain in chains:
        work.append(_Work(slices=chain, carried=carried))
        first, end = np.searchsorted(numbers, [chain[0].number, chain[-1].number + 1]).tolist()
        more = pa.concat_tables([carried, ended.slice(first, end - first)])
        carried = _last_of_each(more, keys)
    return work


def _last_quotes(
    quotes: _Side, keys: Sequence[str], schema: StructType, part: TimeSlice
) -> Iterator[Batch]:
    """Yield the last quote of each key in a range of time."""
    target = arrow_schema(schema)
    for group in _groups(keys, quotes):
        rows = [batch for name in group for batch in quotes.read(part.range_of(quotes.given, name))]
        is_one_queue = len(group) == 1
        last = _last_of_each(quotes.table(rows), _fields(keys), is_one_queue=is_one_queue)
        numbers = pa.array(np.full(last.num_rows, part.number, np.int32))
        yield from last.add_column(0, "slice", numbers).cast(target).combine_chunks().to_batches()


def _last_of_each(quotes: Table, keys: Sequence[str], *, is_one_queue: bool = False) -> Table:
    nothing = quotes.slice(0, 0)
    return quotes.take(InOrder(quotes, nothing, keys, is_one_queue=is_one_queue).find_last())


def _join(
    left: _Side, right: _Side, keys: Sequence[str], schema: StructType, work: _Work
) -> Iterator[Batch]:
    """Yield the trades of some ranges of time, each with its quote."""
    for group in _groups(keys, left):
        carried = work.carried
        if QUEUE in keys:
            carried = carried.filter(pc.equal(carried.column(QUEUE), group[0]))
        is_one_queue = QUEUE in keys and left.place(group[0]) == right.place(group[0])
        for part in work.slices:
            trades, fresh = _read_both(left, right, part, group, keys)
            quotes = pa.concat_tables([carried, fresh])
            in_order = InOrder(quotes, trades, _fields(keys), is_one_queue=is_one_queue)
            if trades.num_rows:
                joined = _side_by_side(trades, quotes.take(in_order.find_quotes()), schema)
                yield from joined.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
            if part is not work.slices[-1]:
                carried = quotes.take(in_order.find_last())


def _read_both(
    left: _Side, right: _Side, part: TimeSlice, group: Sequence[str], keys: Sequence[str]
) -> tuple[Table, Table]:
    """Return the trades of these queues in a range of time, and the quotes that may belong to them."""
    of_trades = {name: part.range_of(left.given, name) for name in group}
    of_quotes = {
        name: part.range_of(right.given, name)
        for name in (group if QUEUE in keys else sorted(right.given.sources))
        if name in right.given.sources
    }
    trades: list[Batch] = []
    quotes: list[Batch] = []
    for name, ours in of_trades.items():
        if of_quotes.get(name) == ours:  # then one look at the messages is enough
            shapes = (left.shape(name), right.shape(name))
            for of_left, of_right in _read_two(ours, left.given.options, *shapes):
                trades.append(of_left)
                quotes.append(of_right)
            del of_quotes[name]
        else:
            trades += left.read(ours)
    quotes += [batch for theirs in of_quotes.values() for batch in right.read(theirs)]
    return left.table(trades), right.table(quotes)


def _read_two(
    part: Range, options: ReadOptions, first: Shape, second: Shape
) -> Iterator[tuple[Batch, Batch]]:
    """Yield the messages of two types."""
    columns = list(dict.fromkeys([*first.columns, *second.columns, "type_id"]))
    types = [shape.types or frozenset[int]() for shape in (first, second)]
    wanted = types[0] | types[1]
    for batch in read_range(part, columns, options, types=wanted, batch_rows=READ_ROWS):
        yield first.fit(rows_of_types(batch, types[0])), second.fit(rows_of_types(batch, types[1]))


def _side_by_side(trades: Table, quotes: Table, schema: StructType) -> Table:
    """Return trades with their quotes, which are null where there is none."""
    added = schema.names[len(trades.column_names) :]
    columns = [*trades.columns, *(quotes.column(name.removeprefix(PREFIX)) for name in added)]
    return pa.Table.from_arrays(columns, names=schema.names).cast(arrow_schema(schema))
