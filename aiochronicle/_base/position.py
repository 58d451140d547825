"""A place in a queue: one type for messages, readers, writers and errors."""

from typing import NamedTuple

from aiochronicle import _hot

__all__ = ["Position"]


class Position(NamedTuple):
    """A place in a queue: where a record is, or the next one goes. Ordered as the queue is.

    >>> Position(0, 64) < Position(0, 128) < Position(1, 64)
    True
    """

    segment: int
    offset: int


_hot.set_position_type(Position)
