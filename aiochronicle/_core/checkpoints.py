"""Remembers the positions of all sources of a stream at certain numbers of messages taken from it.

A commit of several queues must resume all of them at the same moment. Otherwise one queue would deliver an
older message of a key again, while another queue does not deliver the newer message of that key again.
Finding such positions afterwards means opening and searching each queue. Remembering them while messages are
taken costs very little, and the commit does not have to wait.

Not every message has a checkpoint: a commit uses the last one before the message that it must not pass. That
is at most a batch of messages too early, or as many messages as there are sources. It is more only if a
message waits for very long, because the number of checkpoints is limited: every other one is dropped when
there are too many.
"""

from bisect import bisect_right
from collections.abc import Mapping

from aiochronicle._base.position import Position

__all__ = ["Checkpoints", "Places"]

Places = Mapping[int, Position]  # by source

_PLACES_MAX = 100_000  # in all checkpoints together: about 20 MB
_CHECKPOINTS = 8, 256  # minimum and maximum, for any number of sources


class Checkpoints:
    """The positions of the sources, by the number of messages taken before."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[Places] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def is_due(self, number: int) -> bool:
        """Return whether a checkpoint is worth its cost: a question to each source."""
        return not self._numbers or number - self._numbers[-1] >= max(1, len(self._places[-1]))

    def add(self, number: int, places: Places, needed: int) -> None:
        """Remember where the sources are; checkpoints before message ``needed`` may be dropped."""
        self._numbers.append(number)
        self._places.append(places)
        unused = bisect_right(self._numbers, needed) - 1
        if unused > 0:
            del self._numbers[:unused], self._places[:unused]
        least, most = _CHECKPOINTS
        if len(self._numbers) > min(most, max(least, _PLACES_MAX // max(1, len(places)))):
            del self._numbers[1::2], self._places[1::2]

    def before(self, number: int) -> Places:
        """Return the positions at the last checkpoint before message ``number`` was taken."""
        return self._places[bisect_right(self._numbers, number) - 1]
