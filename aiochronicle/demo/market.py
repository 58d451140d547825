"""An invented market: quotes and trades of a few instruments on random walks."""

import random
import struct
from typing import Annotated

import msgspec

from aiochronicle import Codec, Registry, Width
from aiochronicle.codec import I4, U4, U8

__all__ = ["QUOTE", "TRADE", "TYPES", "Market", "number_of"]

QUOTE = 1
TRADE = 2

# Both begin with the number of the message, which lets a reader check that it got the right bytes.


class Quote(msgspec.Struct, frozen=True):
    """The best bid and ask prices."""

    number: U8
    symbol: Annotated[str, Width("S8")]
    bid: float
    ask: float
    bid_size: U4
    ask_size: U4


class Trade(msgspec.Struct, frozen=True):
    """A trade; ``side`` is +1 if the buyer was the aggressor, else -1."""

    number: U8
    symbol: Annotated[str, Width("S8")]
    price: float
    size: U4
    side: I4


TYPES = Registry({QUOTE: Codec(Quote, "struct"), TRADE: Codec(Trade, "struct")})

# The same layouts for direct packing: a feed that writes as fast as it can creates no objects.
_QUOTE = struct.Struct("<Q8sddII")
_TRADE = struct.Struct("<Q8sdIi")
_NUMBER = struct.Struct("<Q")

_SYMBOLS = ("ALFA", "BRAVO", "CHRLI", "DELTA", "ECHO", "FOX", "GOLF", "HOTEL")
_UNIT = 10_000
_TICK = 100  # in units of 1/10,000


class Market:
    """Generates the messages of one feed, one after the other.

    >>> market = Market(seed=1, first_number=7)
    >>> type_id, payload = market.next_message()
    >>> type_id in (QUOTE, TRADE), number_of(payload)
    (True, 7)
    """

    def __init__(self, *, seed: int, first_number: int) -> None:
        self._random = random.Random(seed)
        self._number = first_number
        self._symbols = [name.encode() for name in _SYMBOLS]
        self._mids = [self._random.randrange(200_000, 4_000_000, _TICK) for _ in _SYMBOLS]

    def next_message(self) -> tuple[int, bytes]:
        """Return (type_id, payload) of the next quote or trade."""
        dice = self._random.getrandbits(32)
        which = dice & 7
        step = (dice >> 3 & 7) - 3  # mostly small moves, and a slight way upwards …
        mid = max(
            20 * _TICK, self._mids[which] + step * _TICK - (dice >> 6 & 1) * _TICK
        )  # … or not
        self._mids[which] = mid
        number = self._number
        self._number = number + 1
        size = 1 + (dice >> 8 & 1023)
        symbol = self._symbols[which]
        if dice >> 20 & 7:
            spread = _TICK + (dice >> 24 & 3) * _TICK
            bid, ask = (mid - spread) / _UNIT, (mid + spread) / _UNIT
            return QUOTE, _QUOTE.pack(number, symbol, bid, ask, size, size)
        return TRADE, _TRADE.pack(number, symbol, mid / _UNIT, size, 1 if dice >> 24 & 1 else -1)


def number_of(payload: bytes) -> int:
    """Return the number that the feed gave the message."""
    number: int = _NUMBER.unpack_from(payload)[0]
    return number
