"""A market that never was: quotes and trades of a few instruments on random walks."""

import random
import struct

__all__ = ["QUOTE", "TRADE", "Market", "number_of"]

QUOTE = 1
TRADE = 2

# Both begin with the number of the message, by which a reader can tell that it got the right bytes.
_QUOTE = struct.Struct("<Q8sqqII")  # number, symbol, bid, ask, bid size, ask size
_TRADE = struct.Struct("<Q8sqIi")  # number, symbol, price, size, +1 bought or -1 sold
_NUMBER = struct.Struct("<Q")

_SYMBOLS = ("ALFA", "BRAVO", "CHRLI", "DELTA", "ECHO", "FOX", "GOLF", "HOTEL")
_TICK = 100  # prices are in 1/10,000


class Market:
    """Makes the messages of one feed, one after the other.

    >>> market = Market(seed=1, first_number=7)
    >>> type_id, payload = market.next_message()
    >>> type_id in (QUOTE, TRADE), number_of(payload)
    (True, 7)
    """

    def __init__(self, *, seed: int, first_number: int) -> None:
        self._random = random.Random(seed)
        self._number = first_number
        self._symbols = [name.encode().ljust(8) for name in _SYMBOLS]
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
            return QUOTE, _QUOTE.pack(number, symbol, mid - spread, mid + spread, size, size)
        return TRADE, _TRADE.pack(number, symbol, mid, size, 1 if dice >> 24 & 1 else -1)


def number_of(payload: bytes) -> int:
    """Return the number that the feed gave the message."""
    number: int = _NUMBER.unpack_from(payload)[0]
    return number
