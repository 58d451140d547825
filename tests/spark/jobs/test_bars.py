"""Bars equal those of a plain loop over the trades, to the last bit."""

import itertools
import math
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import aiochronicle
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.jobs import bars
from aiochronicle.spark.jobs.bars import CHUNK_ROWS, exact_sums
from spark.market import Recorded, Trade, record, trades_of

bars_module = sys.modules[bars.__module__]  # in the package, this name is the function

COLUMNS = ("source", "bar", "start_ns", "open", "high", "low", "close", "volume", "vwap", "trades")


class Expected:
    """A bar that is built trade by trade."""

    def __init__(self) -> None:
        self.trades: list[tuple[Recorded, Trade]] = []

    def row(self, source: str, bar: int, every_ns: int | None) -> tuple[object, ...]:
        prices = [trade.price for _, trade in self.trades]
        volume = math.fsum(trade.size for _, trade in self.trades)
        notional = math.fsum(trade.price * trade.size for _, trade in self.trades)
        start_ns = self.trades[0][0].timestamp_ns if every_ns is None else bar * every_ns
        ohlc = (prices[0], max(prices), min(prices), prices[-1])
        return (source, bar, start_ns, *ohlc, volume, notional / volume, len(prices))


def expected_bars(
    messages: list[Recorded],
    number_of: Callable[[Recorded, list[Trade]], int],
    every_ns: int | None = None,
    *,
    by_symbol: bool = True,
) -> list[tuple[object, ...]]:
    before: dict[tuple[str, str], list[Trade]] = {}
    made: dict[tuple[str, str, int], Expected] = {}
    for message, trade in trades_of(messages):
        key = (message.source, trade.symbol if by_symbol else "")
        seen = before.setdefault(key, [])
        made.setdefault((*key, number_of(message, seen)), Expected()).trades.append(
            (message, trade)
        )
        seen.append(trade)
    return [bar.row(key[0], key[2], every_ns) for key, bar in sorted(made.items())]


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in COLUMNS) for row in frame.collect()]


@pytest.fixture
def messages(root: Path, rng: random.Random) -> list[Recorded]:
    return record(root / "binance", rng, 3000) + record(root / "kraken", rng, 500)


CUT = {"minPartitions": "5"}  # so that bars span tasks
LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
HANDED_OVER = "spark.sql.execution.arrow.maxRecordsPerBatch"


def test_bars_by_time(spark: SparkSession, root: Path, messages: list[Recorded]) -> None:
    frame = bars(spark, str(root), every="1s", options=CUT)
    expected = expected_bars(messages, lambda m, _: m.timestamp_ns // 10**9, 10**9)
    assert rows(frame) == expected
    assert frame.columns[:4] == ["source", "symbol", "bar", "start_ns"]


def test_bars_of_more_trades_than_one_task_merges(
    spark: SparkSession, root: Path, messages: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_several(frame: Any) -> bool:
        return "rangepartitioning" in frame._jdf.queryExecution().toString()

    assert not has_several(bars(spark, str(root), every="1s", options=CUT))
    monkeypatch.setattr(bars_module, "MERGE_ROWS", 500)
    frame = bars(spark, str(root), every="1s", options=CUT)
    assert has_several(frame)
    assert rows(frame) == expected_bars(messages, lambda m, _: m.timestamp_ns // 10**9, 10**9)


def test_bars_go_on_from_batch_to_batch(
    spark: SparkSession, root: Path, messages: list[Recorded]
) -> None:
    """A bar is assembled from partial bars, however small the batches are in which Spark passes them."""
    before = spark.conf.get(HANDED_OVER) or ""
    expected = expected_bars(messages, lambda m, _: m.timestamp_ns // (60 * 10**9), 60 * 10**9)
    try:
        for count in (1, 2, 5):
            spark.conf.set(HANDED_OVER, count)
            frame = bars(spark, str(root), every="1m", options={"minPartitions": "12"})
            assert rows(frame) == expected
    finally:
        spark.conf.set(HANDED_OVER, before)


def test_bars_by_ticks(spark: SparkSession, root: Path, messages: list[Recorded]) -> None:
    frame = bars(spark, str(root), ticks=7, options=CUT)
    assert rows(frame) == expected_bars(messages, lambda _, seen: len(seen) // 7)


def test_bars_by_volume(spark: SparkSession, root: Path, messages: list[Recorded]) -> None:
    def number(_: Recorded, seen: list[Trade]) -> int:
        return sum(round(trade.size * 10) for trade in seen) // 5000

    frame = bars(spark, str(root), volume=500, lot=0.1, options=CUT)
    assert rows(frame) == expected_bars(messages, number)


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_bars_of_a_queue_in_another_format(
    spark: SparkSession, root: Path, rng: random.Random, encoding: Format
) -> None:
    messages = record(root / "a", rng, 500, encoding=encoding)
    frame = bars(spark, str(root / "a"), every="2s", by=None, options=CUT)
    expected = expected_bars(
        messages, lambda m, _: m.timestamp_ns // (2 * 10**9), 2 * 10**9, by_symbol=False
    )
    assert rows(frame) == expected
    assert "symbol" not in frame.columns


class Deal(msgspec.Struct):
    symbol: int
    price: Decimal
    size: int | None


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_bars_of_decimals_and_numbered_symbols(
    spark: SparkSession, root: Path, encoding: Format
) -> None:
    with aiochronicle.open_writer(root / "a", codec=Codec(Deal, encoding)) as writer:
        for number in range(4):
            writer.send(Deal(7 + number % 2, Decimal("1.1") + number, 10), timestamp_ns=number + 1)
    every_second = partial(bars, spark, str(root), every="1s", trades="Deal")
    found = [(row.symbol, row.open, row.close, row.volume) for row in every_second().collect()]
    assert found == [("7", 1.1, 3.1, 20.0), ("8", 2.1, 4.1, 20.0)]
    with aiochronicle.open_writer(root / "a", codec=Codec(Deal, encoding)) as writer:
        writer.send(Deal(7, Decimal(1), None))
    with pytest.raises(PySparkException, match="the Deal with seq 4 has no size"):
        every_second().collect()


def test_bars_need_a_rule_a_type_and_its_fields(
    spark: SparkSession, root: Path, rng: random.Random
) -> None:
    record(root / "a", rng, 10)
    with aiochronicle.open_writer(root / "untyped", segment_size=1 << 20) as writer:
        writer.append(b"x")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "one of every, ticks and volume"),
        ({"every": "1s", "ticks": 5}, "one of every, ticks and volume"),
        ({"every": "fast"}, "a duration is like 250ms"),
        ({"every": 60}, "a duration of 60 is in the wrong unit"),
        ({"every": 1.5}, "a duration must be a text like 1s, or an int of nanoseconds, not 1.5"),
        ({"ticks": 0}, "ticks must be positive"),
        ({"volume": 0.25, "lot": 0.1}, "not a number of lots"),
        ({"every": "1s", "trades": "Trades"}, "there are Quote, Trade"),
        ({"every": "1s", "trades": "x"}, "there are Quote, Trade"),
        ({"every": "1s", "by": "venue"}, "no field 'venue': choose from symbol, price, size"),
    ]
    for arguments, message in wrong:
        with pytest.raises(aiochronicle.ChronicleError) as raised:
            bars(spark, str(root), **arguments)
        assert message in str(raised.value)


def test_bars_say_which_message_is_not_a_trade(
    spark: SparkSession, root: Path, rng: random.Random
) -> None:
    record(root / "a", rng, 10)
    with aiochronicle.open_writer(root / "a") as writer:
        writer.append(b"short", type_id=1)
    with pytest.raises(
        Exception, match="message 10: not a Trade: Trade has 24 bytes, the payload has 5"
    ):
        bars(spark, str(root), every="1s").collect()


def test_sums_in_parts_are_those_of_all(rng: random.Random) -> None:
    """The sum of the parts equals fsum over all values, however the values are split."""
    makers: list[Callable[[], float]] = [
        lambda: rng.randrange(10**6) / 100 * (rng.randrange(500) / 10),
        lambda: rng.uniform(-1, 1) * 10 ** rng.randrange(-8, 8),
        lambda: float(rng.randrange(500)),
        lambda: rng.random() * 1e-300,
        lambda: 0.0,
    ]
    for make in makers:
        for _ in range(20):
            values = [make() for _ in range(rng.randrange(1, 2000))]
            starts = sorted({0, *(rng.randrange(len(values)) for _ in range(5))})
            sums = exact_sums(np.array(values), np.array(starts)).to_pylist()
            for first, end, parts in zip(starts, [*starts[1:], len(values)], sums, strict=True):
                assert math.fsum(parts) == math.fsum(values[first:end])
            assert math.fsum(itertools.chain(*sums)) == math.fsum(values)
    with pytest.raises(InvalidArgument, match="not a finite number"):
        exact_sums(np.array([1.0, math.nan]), np.array([0]))


@pytest.mark.parametrize("stretch", [1000, CHUNK_ROWS])
@pytest.mark.parametrize("exponent", [18, 25, 100])
def test_sums_of_a_whole_chunk_are_exact_however_far_apart_its_values_are(
    rng: random.Random, stretch: int, exponent: int
) -> None:
    """Large values cancel out, so every bit of the small values counts."""
    values: list[float] = []
    while len(values) < CHUNK_ROWS:
        large = [rng.random() * 10**exponent for _ in range(stretch // 4)]
        small = [rng.random() for _ in range(stretch - 2 * len(large))]
        mixed = [*large, *(-value for value in large), *small]
        rng.shuffle(mixed)
        values += mixed
    starts = np.arange(0, len(values), stretch)
    sums = exact_sums(np.array(values), starts).to_pylist()
    expected = [math.fsum(values[start : start + stretch]) for start in starts]
    assert [math.fsum(parts) for parts in sums] == expected


def test_bars_with_large_variable_types(
    spark: SparkSession, root: Path, messages: list[Recorded]
) -> None:
    """With this Spark setting, strings arrive with 64-bit offsets."""
    spark.conf.set(LARGE_TYPES, True)
    try:
        frame = bars(spark, str(root), every="1s", options=CUT)
        assert rows(frame) == expected_bars(messages, lambda m, _: m.timestamp_ns // 10**9, 10**9)
    finally:
        spark.conf.unset(LARGE_TYPES)
