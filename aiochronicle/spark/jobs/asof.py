"""Each trade with the quote that was in force when it happened, exact to the nanosecond.

Trades and quotes are one sequence per symbol, in which each trade takes the last quote before it: a
union and a window. Spark's own as-of join compares every trade of a symbol with every quote.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from aiochronicle.spark.columns import frame_schema
from aiochronicle.spark.jobs.bars import nanoseconds
from aiochronicle.spark.jobs.inputs import find_input
from aiochronicle.spark.options import SMALLEST_LIKELY_NS, Given, read_options
from aiochronicle.spark.scan import read_parts

__all__ = ["asof", "options_of_quotes"]

LEFT_OUT = ("type_id", "payload")
PREFIX = "quote_"
OF_TRADES = {"startingtimestamp", "startingoffsets"}
OF_THEIR_QUEUES = {"subscribe", "subscribepattern", "endingoffsets"}


def asof(
    spark: SparkSession,
    root: str,
    *,
    quotes_root: str | None = None,
    trades: str = "trade",
    quotes: str = "quote",
    by: str = "symbol",
    look_back: str | None = None,
    options: Mapping[str, Given] | None = None,
) -> DataFrame:
    """Return the trades under a root, in no order, each with the quote in force, of whatever queue.

    A quote is in force for the trades of its symbol (field ``by``) that follow it in the order of
    (timestamp_ns, seq), until the next one. Where both are equal, which only different queues can
    have, the quote comes first. The quote's columns are called ``quote_…``, and are null for trades
    before the first quote. ``quotes_root`` is where the quotes are, if not where the trades are; then
    options that choose queues are about those of the trades.
    ``trades`` and ``quotes`` name types of schema.json.

    Where to start, in options, is about the trades. Quotes in force by then are older, so they are read
    from the first one on; or, with ``look_back`` (a duration like 1h), from so long before the
    ``startingTimestamp`` on.

    >>> asof(spark, "bus/md").select("symbol", "price", "quote_bid", "quote_ask")  # doctest: +SKIP
    """
    left, _ = _typed(spark, root, trades, by, options)
    of_quotes = options_of_quotes(options, elsewhere=quotes_root is not None, look_back=look_back)
    right, fields = _typed(spark, quotes_root or root, quotes, by, of_quotes)
    place = [sql.col(name) for name in (by, "timestamp_ns", "seq", "source")]
    trade = sql.struct(*left.columns).alias("trade")
    quote = sql.struct(*(sql.col(name).alias(PREFIX + name) for name in fields)).alias("quote")
    none_yet = sql.lit(None)
    sequence = left.select(*place, sql.lit(1).alias("side"), trade, none_yet.alias("quote")).union(
        right.select(*place, sql.lit(0).alias("side"), none_yet.alias("trade"), quote)
    )
    until_now = (
        Window.partitionBy(by)
        .orderBy("timestamp_ns", "seq", "side", "source")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    in_force = sql.last("quote", ignorenulls=True).over(until_now).alias("in_force")
    return (
        sequence.select("trade", in_force)
        .where("trade is not null")
        .select("trade.*", "in_force.*")
    )


def options_of_quotes(
    options: Mapping[str, Given] | None, *, elsewhere: bool, look_back: str | None = None
) -> dict[str, Given]:
    """Return with which options to read the quotes for trades that are read with these."""
    options = options or {}
    dropped = OF_TRADES | OF_THEIR_QUEUES if elsewhere else OF_TRADES
    kept = {name: value for name, value in options.items() if name.lower() not in dropped}
    start_ns = read_options({"path": ".", **options}).starting_timestamp_ns
    back_ns = None if look_back is None else nanoseconds(look_back)
    if start_ns is not None and back_ns is not None and start_ns - back_ns > SMALLEST_LIKELY_NS:
        kept["startingTimestamp"] = str(start_ns - back_ns)
    return kept


def _typed(
    spark: SparkSession,
    root: str,
    type_name: str,
    by: str,
    options: Mapping[str, Given] | None,
) -> tuple[DataFrame, list[str]]:
    """Return the messages of a type, and its columns other than the one that both sides have."""
    given = {**(options or {}), "type": type_name, "mode": "FAILFAST"}
    found = find_input(root, given, type_name=type_name, fields=[by])
    schema = frame_schema(found.options, found.sources)
    kept = [field for field in schema.fields if field.name not in LEFT_OUT]
    frame = read_parts(spark, found.parts(), StructType(kept), found.options)
    return frame, [name for name in frame.columns if name not in (by, "timestamp")]
