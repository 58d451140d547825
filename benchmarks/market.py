"""A recording like a venue's feed, made from a seed: three markets, each with one queue for all messages.

Trades, best quotes and updates of the book have the fields that Binance sends, with its short names, as
MessagePack. A trade comes with about four quotes and one update of the book, which has 2 to 18 levels on
each side, 10 on average; times of receipt are irregular and have nanoseconds. No two messages are the same.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

import aiochronicle
from aiochronicle import Registry

__all__ = ["MARKETS", "BookTicker", "Depth", "Level", "Trade", "record"]

MARKETS = {"cm/btc": 0.15, "spot/btc": 0.35, "um/btc": 0.5}  # share of the messages
SYMBOLS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")
OFTEN = (0.5, 0.25, 0.15, 0.1)
KINDS = (0.17, 0.65, 0.18)  # trades, quotes, updates of the book
FIRST_NS = 1_763_424_000_123_456_789
MEAN_GAP_NS = 500_000
CHUNK = 1 << 16
MS_NS = 1_000_000


class Level(msgspec.Struct, frozen=True, array_like=True):
    price: float
    quantity: float


class Trade(
    msgspec.Struct,
    frozen=True,
    tag_field="e",
    tag="trade",
    rename={
        "event_ms": "E",
        "symbol": "s",
        "trade_id": "t",
        "price": "p",
        "quantity": "q",
        "trade_ms": "T",
        "is_buyer_maker": "m",
    },
):
    event_ms: int
    symbol: str
    trade_id: int
    price: float
    quantity: float
    trade_ms: int
    is_buyer_maker: bool


class BookTicker(
    msgspec.Struct,
    frozen=True,
    tag_field="e",
    tag="bookTicker",
    rename={
        "update_id": "u",
        "event_ms": "E",
        "symbol": "s",
        "bid": "b",
        "bid_quantity": "B",
        "ask": "a",
        "ask_quantity": "A",
    },
):
    update_id: int
    event_ms: int
    symbol: str
    bid: float
    bid_quantity: float
    ask: float
    ask_quantity: float


class Depth(
    msgspec.Struct,
    frozen=True,
    tag_field="e",
    tag="depthUpdate",
    rename={
        "event_ms": "E",
        "symbol": "s",
        "first_id": "U",
        "last_id": "u",
        "bids": "b",
        "asks": "a",
    },
):
    event_ms: int
    symbol: str
    first_id: int
    last_id: int
    bids: list[Level]
    asks: list[Level]


def record(root: Path, messages: int, *, typed: bool = True, seed: int = 7) -> None:
    """Write this many messages in total; without ``typed`` the same messages without their types."""
    for number, (market, share) in enumerate(MARKETS.items()):
        rng = np.random.default_rng(seed + number)
        path = root / market
        path.parent.mkdir(parents=True, exist_ok=True)
        types = Registry({1: Trade, 2: BookTicker, 3: Depth})
        with aiochronicle.open_writer(path, codec=types if typed else None) as writer:
            encode = msgspec.msgpack.Encoder().encode
            for time_ns, kind, content in _messages(rng, round(messages * share), share):
                writer.append(encode(content), type_id=kind + 1, timestamp_ns=time_ns)
            writer.mark_ready()


def _messages(
    rng: np.random.Generator, count: int, share: float
) -> Iterator[tuple[int, int, Trade | BookTicker | Depth]]:
    time_ns, next_id = FIRST_NS, 10**9
    mid = np.array([90_000.0, 3_000.0, 140.0, 2.2])
    for first in range(0, count, CHUNK):
        rows = min(CHUNK, count - first)
        times = time_ns + np.cumsum(rng.exponential(MEAN_GAP_NS / share, rows)).astype(np.int64)
        time_ns = int(times[-1])
        kinds = rng.choice(3, rows, p=KINDS).tolist()
        which = rng.choice(len(SYMBOLS), rows, p=OFTEN)
        steps = rng.choice((-1, 0, 0, 1), rows)
        prices = np.empty(rows)
        for symbol in range(len(SYMBOLS)):
            places = which == symbol
            tick = mid[symbol] / 1e5
            prices[places] = mid[symbol] + np.cumsum(steps[places]) * tick
            mid[symbol] = prices[places][-1] if places.any() else mid[symbol]
        prices = prices.round(4)
        sizes = rng.lognormal(-2, 1.5, (rows, 2)).round(3).tolist()
        levels = rng.integers(2, 19, (rows, 2)).tolist()
        amounts = rng.lognormal(-1, 1.5, 64).round(3).tolist()
        rest = zip(
            times.tolist(), kinds, which.tolist(), prices.tolist(), sizes, levels, strict=True
        )
        for at_ns, kind, symbol, price, (size, other), (bids, asks) in rest:
            next_id += 1
            name, event_ms = SYMBOLS[symbol], at_ns // MS_NS
            tick = price / 1e5
            content: Trade | BookTicker | Depth
            if kind == 0:
                maker = bool(next_id & 1)
                content = Trade(event_ms, name, next_id, price, size, event_ms - 1, maker)
            elif kind == 1:
                ask = round(price + tick, 4)
                content = BookTicker(next_id, event_ms, name, price, size, ask, other)
            else:
                content = Depth(
                    event_ms,
                    name,
                    next_id,
                    next_id + 5,
                    [
                        Level(round(price - n * tick, 4), amounts[(next_id + n) % 64])
                        for n in range(bids)
                    ],
                    [
                        Level(round(price + n * tick, 4), amounts[(next_id - n) % 64])
                        for n in range(asks)
                    ],
                )
            yield at_ns, kind, content
