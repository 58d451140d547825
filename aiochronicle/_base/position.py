"""The type of a place in a queue, for messages, readers, writers and errors."""

from typing import NamedTuple

from aiochronicle import _hot

__all__ = ["Position"]


class Position(NamedTuple):
    """The place of a record in a queue, or of the next record. Positions sort in queue order.

    >>> Position(0, 64) < Position(0, 128) < Position(1, 64)
    True
    """

    segment: int
    offset: int


_hot.set_position_type(Position)
