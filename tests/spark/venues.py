"""Seeded recordings shaped like a real feed: three markets, nested below one root.

``cm/btc``, ``um/btc`` and ``spot/btc`` each hold trades, depth updates and book tickers of one symbol.
Messages have the time at which they were received, to the nanosecond. The venue's clock is 1.27 s ahead, so
every delay is negative. The levels of depth updates are arrays inside a map.
"""

import random
from pathlib import Path
from typing import Any

import msgspec

import aiochronicle
from aiochronicle import Codec

MARKETS = ("cm/btc", "spot/btc", "um/btc")
SYMBOL = "BTC"
FIRST_NS = 1_763_424_000_123_456_789
VENUE_AHEAD_NS = 1_270_000_000


class Level(msgspec.Struct, frozen=True, array_like=True):
    price: float
    size: float


class Depth(msgspec.Struct, frozen=True, tag_field="e", tag="depthUpdate"):
    symbol: str
    venue_ns: int
    first_id: int
    last_id: int
    bids: list[Level]
    asks: list[Level]


class Trade(msgspec.Struct, frozen=True, tag_field="e", tag="trade"):
    symbol: str
    venue_ns: int
    trade_id: int
    price: float
    size: float
    is_maker: bool


class BookTicker(msgspec.Struct, frozen=True, tag_field="e", tag="bookTicker"):
    symbol: str
    venue_ns: int
    bid: float
    bid_size: float
    ask: float
    ask_size: float


Content = Depth | Trade | BookTicker


class Received(msgspec.Struct, frozen=True):
    """A message as written."""

    source: str
    seq: int
    timestamp_ns: int
    content: Content


def record_venues(
    root: Path,
    seed: int,
    messages: int,
    *,
    markets: tuple[str, ...] = MARKETS,
    gap_ns: int = 2_000_000,
    segment_size: int = 1 << 20,
) -> list[Received]:
    """Write this many messages per market, later markets at higher rates; return all messages."""
    rng = random.Random(seed)
    codecs: list[Codec[Any]] = [Codec(Trade), Codec(Depth), Codec(BookTicker)]
    received: list[Received] = []
    for rank, market in enumerate(markets):
        time_ns, trade_id, update_id = FIRST_NS + rng.randrange(10**6), 1, 1
        price = 90_000.0 + rank * 7
        path = root / market
        path.parent.mkdir(parents=True, exist_ok=True)
        with aiochronicle.open_writer(path, codec=codecs, segment_size=segment_size) as writer:
            for _ in range(messages):
                time_ns += rng.choice((0, 1, rng.randrange(1, 2 * gap_ns // (rank + 1))))
                venue_ns = time_ns + VENUE_AHEAD_NS + rng.randrange(-3_000_000, 1_000_000)
                price = round(price + rng.choice((-0.5, 0.0, 0.5)), 1)
                kind = rng.random()
                content: Content
                if kind < 0.3:
                    content = Trade(
                        SYMBOL, venue_ns, trade_id, price, rng.randrange(1, 500) / 8, kind < 0.15
                    )
                    trade_id += 1
                elif kind < 0.6:
                    levels = [
                        Level(price + step, rng.randrange(100) / 4)
                        for step in range(rng.randrange(6))
                    ]
                    content = Depth(SYMBOL, venue_ns, update_id, update_id + 3, levels, levels[:2])
                    update_id += 4
                else:
                    content = BookTicker(SYMBOL, venue_ns, price, 1.5, price + 0.5, 2.25)
                seq = writer.send(content, timestamp_ns=time_ns)
                received.append(Received(market, seq, time_ns, content))
            writer.mark_ready()
    return received
