"""How fast is Spark on queues, compared with Parquet files, with rows and with its own methods?

All comparisons use the same rows in one session, the best of several rounds, in real time, because the JVM
and its Python workers do the work. ``a : b`` is how many times as fast a is as b, ``a / b`` how many times
as long a takes.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

import aiochronicle
from aiochronicle import Codec, Width
from aiochronicle.codec import Format
from benchmarks.measure import PAYLOAD, Best, Result, skip

__all__ = ["PARTS", "QUICK", "answer", "run"]

QUESTION = "spark"
FIRST_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
SYMBOLS = tuple(f"SYM{number}" for number in range(64))


class Trade(msgspec.Struct, frozen=True):
    symbol: Annotated[str, Width("S8")]
    price: float
    size: int
    filler: Annotated[bytes, Width("S76")] = b"x" * 76  # 100 bytes in all


class Quote(msgspec.Struct, frozen=True):
    symbol: Annotated[str, Width("S8")]
    bid: float
    ask: float


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows of each part, and of rounds."""

    rows: int
    large_rows: int  # for results that must not depend on the size
    slow_rows: int  # for comparisons with row-by-row Python
    trades: int
    quotes: int
    messages: int  # of the market recording
    rounds: int


# The parts of the comparison, and the queues that each part needs.
NEEDED = {
    "reading": ("raw", "few"),
    "jobs": ("fixed", "market"),
    "typed": ("fixed", "packed", "packed-fixed"),
    "writing": ("raw", "few"),
    "streaming": ("raw",),
    "large": ("large", "few"),
    "market": (),
}
PARTS = tuple(NEEDED)

QUICK = Sizes(
    rows=20_000,
    large_rows=40_000,
    slow_rows=5_000,
    trades=500,
    quotes=1_000,
    messages=3_000,
    rounds=1,
)
FULL = Sizes(
    rows=8_000_000,
    large_rows=56_000_000,  # 10 GiB
    slow_rows=2_000_000,
    trades=500_000,
    quotes=2_000_000,
    messages=13_000_000,
    rounds=3,
)


def run(
    directory: Path, quick: bool, parts: Sequence[str] = PARTS, messages: int | None = None
) -> Iterator[Result]:
    """Answer the question, line by line; ``messages`` is the size of the market recording."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        skip(QUESTION, "Spark", 'needs pip install "aiochronicle[spark]"')
        return
    from aiochronicle.spark import session

    spark = session("benchmarks", config={"spark.log.level": "OFF"})
    sizes = QUICK if quick else FULL
    if messages is not None:
        sizes = msgspec.structs.replace(sizes, messages=messages)
    try:
        yield from answer(spark, directory, sizes, parts)
    finally:
        spark.stop()


def answer(
    spark: Any, directory: Path, sizes: Sizes, parts: Sequence[str] = PARTS
) -> Iterator[Result]:
    """Answer the question, or parts of it, in an existing session."""
    from benchmarks import spark_market, spark_parts

    makers: dict[str, Callable[[Path], None]] = {
        "raw": lambda path: _fill_raw(path, sizes.rows),
        "few": lambda path: _fill_raw(path, sizes.slow_rows),
        "fixed": lambda path: _fill_trades(path, sizes.rows, "struct"),
        "packed": lambda path: _fill_trades(path, sizes.slow_rows, "msgpack"),
        "packed-fixed": lambda path: _fill_trades(path, sizes.slow_rows, "struct"),
        "market": lambda path: _fill_market(path, sizes),
        "large": lambda path: _fill_raw(path, sizes.large_rows),
    }
    spark.dataSource.register(spark_parts.Rows)
    for part in parts:
        if part in ("large", "market"):  # need room, also in the page cache
            for name in ("raw", "raw.parquet", "fixed", "large", "large.parquet"):
                if name not in NEEDED[part]:
                    shutil.rmtree(directory / name, ignore_errors=True)
        for name in NEEDED[part]:
            if not (directory / name).exists():
                makers[name](directory / name)
        if part == "market":
            yield from spark_market.market(spark, directory, sizes.messages, 2 * sizes.rounds - 1)
        else:
            yield from getattr(spark_parts, part)(spark, directory, sizes)


def take_turns(
    contestants: Mapping[str, Callable[[], int]],
    rounds: int,
    *,
    between: Callable[[], None] = lambda: None,
) -> Best:
    """Let the contestants take turns, in real time; the best of several rounds is a warm round.

    ``between`` removes what one contestant leaves; its time is not measured.
    """
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, contestant in contestants.items():
            between()
            started_ns = time.perf_counter_ns()
            operations = contestant()
            best[name] = min(best[name], (time.perf_counter_ns() - started_ns) / operations)
    return Best(best)


def _fill_raw(path: Path, rows: int) -> None:
    with aiochronicle.open_writer(path) as writer:
        for first in range(0, rows, 1000):
            numbers = range(first, min(first + 1000, rows))
            payloads = [number.to_bytes(8, "little") + PAYLOAD[8:] for number in numbers]
            times_ns = [FIRST_NS + number * STEP_NS for number in numbers]
            writer.append_many(payloads, timestamps_ns=times_ns)


def _trades(rows: int) -> Iterator[Trade]:
    for number in range(rows):
        yield Trade(SYMBOLS[number % 64], 100 + number % 997 / 100, 1 + number % 500)


def _fill_trades(path: Path, rows: int, encoding: Format) -> None:
    codec: Codec[Trade] = Codec(Trade, format=encoding)
    with aiochronicle.open_writer(path, codec=codec) as writer:
        for number, trade in enumerate(_trades(rows)):
            writer.append(codec.encode(trade), type_id=1, timestamp_ns=FIRST_NS + number * STEP_NS)


def _fill_market(path: Path, sizes: Sizes) -> None:
    codecs: list[Codec[Any]] = [Codec(Trade, format="struct"), Codec(Quote, format="struct")]
    every = max(1, sizes.quotes // sizes.trades)
    with aiochronicle.open_writer(path, codec=codecs) as writer:
        for number, trade in enumerate(_trades(sizes.quotes)):
            time_ns = FIRST_NS + number * STEP_NS
            quote = Quote(trade.symbol, trade.price - 0.01, trade.price + 0.01)
            writer.send(quote, timestamp_ns=time_ns)
            if number % every == 0:
                writer.send(trade, timestamp_ns=time_ns + 1)
