"""Where the sources of a stream were after a given number of messages had been taken from it.

For a commit of many queues at once: the places to resume at must all be of the same moment, or one
queue brings back an older message of something whose newer one another queue does not bring again.
Finding such places in the queues means to open and search each of them. Noting them while messages
are taken costs next to nothing, and a commit has then nothing to wait for.

Noted is not every message: a commit goes back to the last checkpoint before what it must not pass.
That is a batch of messages at most, or as many messages as there are sources. Only while something
waits for very long is it more: the number of checkpoints is limited, and every other one is given
up when there are too many.
"""

from bisect import bisect_right
from collections.abc import Mapping

from aiochronicle._base.position import Position

__all__ = ["Checkpoints", "Places"]

Places = Mapping[int, Position]  # by source

_PLACES_MAX = 100_000  # in all checkpoints together: some 20 MB
_CHECKPOINTS = 8, 256  # at least and at most, whatever the number of sources


class Checkpoints:
    """The places of the sources, by the number of messages taken before."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[Places] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def is_due(self, number: int) -> bool:
        """Return whether the next one is worth its cost, which is that of asking each source."""
        return not self._numbers or number - self._numbers[-1] >= max(1, len(self._places[-1]))

    def add(self, number: int, places: Places, needed: int) -> None:
        """Note where the sources are; what is before the message ``needed`` may be forgotten."""
        self._numbers.append(number)
        self._places.append(places)
        unused = bisect_right(self._numbers, needed) - 1
        if unused > 0:
            del self._numbers[:unused], self._places[:unused]
        least, most = _CHECKPOINTS
        if len(self._numbers) > min(most, max(least, _PLACES_MAX // max(1, len(places)))):
            del self._numbers[1::2], self._places[1::2]

    def before(self, number: int) -> Places:
        """Return the places at the last checkpoint before message ``number`` was taken."""
        return self._places[bisect_right(self._numbers, number) - 1]
