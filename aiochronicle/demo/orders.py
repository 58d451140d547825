"""The strategies' orders, and the fills that answer them.

Each rule depends on a single trade only. So the proof at the end can derive from the
market's queues which orders must exist.
"""

from typing import NamedTuple

import msgspec

from aiochronicle import Codec, Registry
from aiochronicle._base.prepared import prepared
from aiochronicle.demo.market import Trade

__all__ = ["FILLS", "ORDERS", "RULES", "Fill", "Order", "decide"]

ORDER = 3
FILL = 4


@prepared
class Order(msgspec.Struct, frozen=True):
    """An order. ``venue`` and ``number`` name the trade that it answers."""

    strategy: str
    venue: str
    number: int
    symbol: str
    side: int
    size: int
    price: float
    tick_ns: int


@prepared
class Fill(msgspec.Struct, frozen=True):
    """The gateway's acknowledgement: the order was executed at this price."""

    order: Order
    price: float


ORDERS = Registry({ORDER: Codec(Order)})
FILLS = Registry({FILL: Codec(Fill)})


class Rule(NamedTuple):
    """Answers trades of at least this size, on the same side (1) or the other side (-1)."""

    size_min: int
    direction: int


# Trades have sizes from 1 to 1,024. The last strategy joins while the others run.
RULES = {
    "momentum": Rule(896, 1),
    "reversion": Rule(896, -1),
    "scalper": Rule(768, 1),
}


def decide(strategy: str, venue: str, trade: Trade, tick_ns: int) -> Order | None:
    """Return the order with which the strategy answers the trade, if it does."""
    rule = RULES[strategy]
    if trade.size < rule.size_min:
        return None
    return Order(
        strategy=strategy,
        venue=venue,
        number=trade.number,
        symbol=trade.symbol,
        side=trade.side * rule.direction,
        size=trade.size // 64,
        price=trade.price,
        tick_ns=tick_ns,
    )
