"""The as-of join gives each trade the quote that a plain search over all quotes finds."""

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import Codec
from aiochronicle.errors import InvalidArgument, UnknownType
from aiochronicle.spark.jobs import asof
from spark.market import FIRST_NS, Quote, Recorded, Trade, quotes_of, record, trades_of
from spark.venues import BookTicker, record_venues
from spark.venues import Trade as VenueTrade


def in_force(trade: Recorded, symbol: str, quotes: list[tuple[Recorded, Quote]]) -> Recorded | None:
    """Return the last quote of the same symbol before the trade."""

    def order(message: Recorded, side: int) -> tuple[int, int, int, str]:
        return (message.timestamp_ns, message.seq, side, message.source)

    before = [
        (order(quote, 0), quote)
        for quote, content in quotes
        if content.symbol == symbol and order(quote, 0) < order(trade, 1)
    ]
    return max(before, key=lambda found: found[0])[1] if before else None


def test_every_trade_has_the_quote_in_force(
    spark: SparkSession, root: Path, rng: random.Random
) -> None:
    """Many times are equal, so the order of seqs and of trades and quotes matters."""
    messages = record(root / "a", rng, 400, step_ns_max=3) + record(
        root / "b", rng, 300, step_ns_max=3
    )
    rows = asof(spark, str(root), by="symbol", options={"minPartitions": "3"}).collect()
    found = {
        (row.source, row.seq): (
            row.symbol,
            row.price,
            row.quote_source,
            row.quote_seq,
            row.quote_bid,
        )
        for row in rows
    }
    quotes = quotes_of(messages)
    expected = {}
    for trade, content in trades_of(messages):
        quote = in_force(trade, content.symbol, quotes)
        bid = quote.content.bid if quote and isinstance(quote.content, Quote) else None
        place = (quote.source, quote.seq) if quote else (None, None)
        expected[trade.source, trade.seq] = (content.symbol, content.price, *place, bid)
    assert found == expected
    assert len(rows) == len(expected)


def test_a_task_carries_quotes_from_one_range_of_time_to_the_next(
    spark: SparkSession, root: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few tasks each process many time ranges; the quotes come from another market."""
    monkeypatch.setattr(sys.modules[asof.__module__], "ROWS_PER_SLICE", 64)
    (root / "cm").mkdir()
    messages = record(root / "cm/btc", rng, 700, quotes=0.1) + record(root / "btc", rng, 500)
    messages = [  # nested queues are named by their paths
        msgspec.structs.replace(one, source=name)
        for name, some in (("cm/btc", messages[:700]), ("btc", messages[700:]))
        for one in some
    ]
    for by in ("symbol", ("source", "symbol")):
        frame = asof(spark, str(root), by=by)
        assert frame.rdd.getNumPartitions() < 5
        found = {
            (row.source, row.seq): (row.quote_source, row.quote_seq) for row in frame.collect()
        }
        expected = {}
        for trade, content in trades_of(messages):
            of_key = [
                one
                for one in quotes_of(messages)
                if by == "symbol" or one[0].source == trade.source
            ]
            quote = in_force(trade, content.symbol, of_key)
            place = (quote.source, quote.seq) if quote else (None, None)
            expected[trade.source, trade.seq] = place
        assert found == expected


@pytest.mark.parametrize("by", [None, "symbol"])
@pytest.mark.parametrize("slices", [1, 7])
def test_by_default_a_quote_is_of_the_trade_s_own_venue(
    spark: SparkSession, root: Path, by: str | None, slices: int
) -> None:
    """One busy symbol on three venues in many time ranges, some of them without a quote."""
    received = record_venues(root, 6, 200)
    options: dict[str, Any] = {} if by is None else {"by": by}
    frame = asof(
        spark,
        str(root),
        trades="Trade",
        quotes="BookTicker",
        options={"minPartitions": slices},
        **options,
    )
    assert frame.rdd.getNumPartitions() == slices
    found = {(row.source, row.seq): (row.quote_source, row.quote_seq) for row in frame.collect()}
    expected: dict[tuple[str, int], tuple[str | None, int | None]] = {}
    last: dict[str, tuple[str | None, int | None]] = {}
    in_order = sorted(
        received,
        key=lambda e: (e.timestamp_ns, e.seq, isinstance(e.content, VenueTrade), e.source),
    )
    for each in in_order:
        key = each.source if by is None else "any"
        if isinstance(each.content, BookTicker):
            last[key] = (each.source, each.seq)
        elif isinstance(each.content, VenueTrade):
            expected[each.source, each.seq] = last.get(key, (None, None))
    assert found == expected


def test_queues_without_quotes_of_their_own_are_told(
    spark: SparkSession, root: Path, rng: random.Random
) -> None:
    record(root / "trades", rng, 5, quotes=0.0)
    codecs: list[Codec[Any]] = [Codec(Quote, format="struct")]
    with aiochronicle.open_writer(root / "quotes", codec=codecs, segment_size=1 << 20) as writer:
        writer.send(Quote("ALFA", 1.0, 2.0))
    with pytest.raises(InvalidArgument, match="say by='symbol'"):
        asof(spark, str(root / "trades"), quotes_root=str(root / "quotes"))


def test_quotes_may_lie_elsewhere(spark: SparkSession, root: Path, rng: random.Random) -> None:
    trades = record(root / "trades", rng, 20, quotes=0.0)
    quotes = record(root / "quotes", rng, 20, quotes=1.0, encoding="msgpack")
    record(root / "more", rng, 20, quotes=0.0)
    for name in ("trades", "more"):
        (root / "t").mkdir(exist_ok=True)
        (root / name).rename(root / "t" / name)
    frame = asof(
        spark,
        str(root / "t"),
        quotes_root=str(root / "quotes"),
        by="symbol",
        options={"subscribe": "trades", "endingOffsets": '{"trades": 20}'},
    )
    expected = {
        trade.seq: quote.seq if quote else None
        for trade, content in trades_of(trades)
        for quote in [in_force(trade, content.symbol, quotes_of(quotes))]
    }
    assert {row.seq: row.quote_seq for row in frame.collect()} == expected


def test_quotes_in_force_at_the_start_are_older_than_it(spark: SparkSession, root: Path) -> None:
    codecs: list[Codec[Any]] = [Codec(Trade, format="struct"), Codec(Quote, format="struct")]
    with aiochronicle.open_writer(root / "a", codec=codecs, segment_size=1 << 20) as writer:
        writer.send(Quote("ALFA", 1.0, 2.0), timestamp_ns=FIRST_NS)
        writer.send(Trade("ALFA", 1.1, 1.0), timestamp_ns=FIRST_NS)
        for seconds in (5, 6):
            writer.send(Trade("ALFA", 1.5, 1.0), timestamp_ns=FIRST_NS + seconds * 10**9)
    for option, start in (
        ("startingTimestamp", str(FIRST_NS + 10**9)),
        ("STARTINGOFFSETS", '{"a": 2}'),
    ):
        rows = asof(spark, str(root), options={option: start}).collect()
        assert [(row.price, row.quote_bid) for row in rows] == [(1.5, 1.0)] * 2
    options = {"startingTimestamp": str(FIRST_NS + 10**9)}
    for look_back, bid in (("100000d", 1.0), ("1s", 1.0), ("999999999ns", None)):
        rows = asof(spark, str(root), look_back=look_back, options=options).collect()
        assert [row.quote_bid for row in rows] == [bid] * 2


def test_unknown_types_are_told(spark: SparkSession, root: Path, rng: random.Random) -> None:
    record(root / "a", rng, 5)
    with pytest.raises(UnknownType, match="no queue has a type 'bid'; there are Quote, Trade"):
        asof(spark, str(root), quotes="bid")
