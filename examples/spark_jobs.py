"""A day in Spark: archive the messages of two venues, compute bars and spreads, restore the queues.

Needs `pip install "aiochronicle[spark]"`.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import avg

import aiochronicle
from aiochronicle import Codec, Width
from aiochronicle.spark import count, session
from aiochronicle.spark.jobs import archive, archived, asof, audit, bars, replay

MESSAGES = 20_000
OPENING_NS = 1_714_640_400 * 10**9


class Quote(msgspec.Struct):
    symbol: Annotated[str, Width("S8")]
    bid: float
    ask: float


class Trade(msgspec.Struct):
    symbol: Annotated[str, Width("S8")]
    price: float
    size: int


def record(path: Path, seed: int) -> None:
    """Write quotes, and sometimes a trade."""
    dice = random.Random(seed)
    time_ns, mid = OPENING_NS, 100.0
    codecs = (Codec(Quote, format="struct"), Codec(Trade, format="struct"))
    with aiochronicle.open_writer(path, codec=codecs, segment_size=4 << 20) as writer:
        for number in range(MESSAGES):
            time_ns += dice.randrange(10**6)
            mid += dice.choice((-0.01, 0.01))
            if number % 10:
                writer.send(Quote("ALFA", mid - 0.01, mid + 0.01), timestamp_ns=time_ns)
            else:
                writer.send(Trade("ALFA", mid, dice.randrange(1, 100)), timestamp_ns=time_ns)


def analyse(spark: SparkSession, root: str, work: Path) -> None:
    done = archive(spark, root, str(work / "archive"))
    print(f"{sum(queue.rows for queue in done)} messages archived and verified, of {count(root)}")
    trades = archived(spark, str(work / "archive"), type="Trade")
    trades.groupBy("source", "symbol").avg("size").show()
    bars(spark, root, every="1s").show(4)
    spreads = asof(spark, root).selectExpr("source", "quote_ask - quote_bid as spread")
    spreads.groupBy("source").agg(avg("spread")).show()
    replay(spark, str(work / "archive"), str(work / "again"))
    same = audit(spark, str(work / "again")).digest == audit(spark, root).digest
    print(f"replayed from the archive: {'the same' if same else 'ANOTHER'} stream")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        root = work / "md"
        root.mkdir()
        for seed, venue in enumerate(("nasdaq", "xetra")):
            record(root / venue, seed)
        spark = session("example")
        try:
            analyse(spark, str(root), work)
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
