"""Random trades and quotes for the tests of jobs, and queues filled with them."""

import random
from pathlib import Path
from typing import Annotated, Any

import msgspec

import aiochronicle
from aiochronicle import Codec, Width
from aiochronicle.codec import Format

FIRST_NS = 1_700_000_000_000_000_000
SYMBOLS = ("ALFA", "BRAVO", "ECHO")


class Trade(msgspec.Struct, frozen=True):
    symbol: Annotated[str, Width("S8")]
    price: float
    size: float


class Quote(msgspec.Struct, frozen=True):
    symbol: Annotated[str, Width("S8")]
    bid: float
    ask: float


class Recorded(msgspec.Struct, frozen=True):
    """A message as written."""

    source: str
    seq: int
    timestamp_ns: int
    content: Trade | Quote


def record(
    path: Path,
    rng: random.Random,
    messages: int,
    *,
    encoding: Format = "struct",
    step_ns_max: int = 40_000_000,
    quotes: float = 0.5,
    segment_size: int = 1 << 20,
) -> list[Recorded]:
    """Write random trades and quotes; many have the same time as the one before."""
    codecs: list[Codec[Any]] = [Codec(Trade, format=encoding), Codec(Quote, format=encoding)]
    written: list[Recorded] = []
    time_ns = FIRST_NS + rng.randrange(1000)
    with aiochronicle.open_writer(path, codec=codecs, segment_size=segment_size) as writer:
        for _ in range(messages):
            time_ns += rng.choice((0, 1, rng.randrange(step_ns_max)))
            symbol, price = rng.choice(SYMBOLS), rng.randrange(1, 10**6) / 100
            content: Trade | Quote
            if rng.random() < quotes:
                content = Quote(symbol, price, price + 0.01)
            else:
                content = Trade(symbol, price, rng.randrange(1, 500) / 10)
            seq = writer.send(content, timestamp_ns=time_ns)
            written.append(Recorded(path.name, seq, time_ns, content))
    return written


def trades_of(messages: list[Recorded]) -> list[tuple[Recorded, Trade]]:
    return [(m, m.content) for m in messages if isinstance(m.content, Trade)]


def quotes_of(messages: list[Recorded]) -> list[tuple[Recorded, Quote]]:
    return [(m, m.content) for m in messages if isinstance(m.content, Quote)]
