"""The expected output of a fan-in, in plain Python: the oracle for csrc/fanin.c.

A source is a growing list of timestamps and a promise. The merge keeps the heads of all sources in a
SortedKeyList and delivers the smallest. In strict order it does so only if every source without a message
has promised to deliver nothing earlier. It checks everything at every step, so it needs no optimisation.
"""

from collections import deque
from typing import NamedTuple

from sortedcontainers import SortedKeyList

__all__ = ["CLOSED", "Delivered", "ReferenceMerge"]

CLOSED = 2**64 - 1


class Delivered(NamedTuple):
    """One message as the fan-in should deliver it."""

    timestamp_ns: int
    source: int
    seq: int
    late: bool


class _Source:
    def __init__(self, source: int, promise_ns: int) -> None:
        self.id = source
        self.waiting: deque[tuple[int, int]] = deque()  # (timestamp, seq)
        self.promise_ns = promise_ns
        self.last_ns = 0

    @property
    def bound(self) -> tuple[int, int]:
        """The key before which no more messages can come."""
        return max(self.promise_ns, self.last_ns), self.id


class ReferenceMerge:
    """Merges sources whose every event it receives as a call."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.sources: dict[int, _Source] = {}
        self._heads: SortedKeyList[tuple[int, int, int], tuple[int, int]] = SortedKeyList(
            key=lambda head: head[:2]
        )
        self._newest = (0, 0)

    def attach(self, source: int, waiting: list[tuple[int, int]], promise_ns: int) -> None:
        """Add a source whose next messages are these (timestamp, seq) pairs."""
        self.sources[source] = _Source(source, promise_ns)
        for timestamp_ns, seq in waiting:
            self.append(source, timestamp_ns, seq)

    def detach(self, source: int) -> list[tuple[int, int]]:
        """Remove a source; return what it did not deliver."""
        gone = self.sources.pop(source)
        if gone.waiting:
            self._heads.remove((gone.waiting[0][0], source, gone.waiting[0][1]))
        return list(gone.waiting)

    def append(self, source: int, timestamp_ns: int, seq: int) -> None:
        """Add one message to a source."""
        waiting = self.sources[source].waiting
        waiting.append((timestamp_ns, seq))
        if len(waiting) == 1:
            self._heads.add((timestamp_ns, source, seq))

    def promise(self, source: int, timestamp_ns: int) -> None:
        """Record that nothing older will come from a source; CLOSED means nothing at all."""
        self.sources[source].promise_ns = timestamp_ns

    def poll(self) -> Delivered | None:
        """Return the next message, or None if it must not be delivered yet."""
        if not self._heads:
            return None
        timestamp_ns, source, seq = self._heads[0]
        key = timestamp_ns, source
        silent = [s for s in self.sources.values() if not s.waiting]
        if self.strict and any(s.bound < key for s in silent):
            return None
        self._heads.pop(0)
        waiting = self.sources[source].waiting
        waiting.popleft()
        self.sources[source].last_ns = timestamp_ns
        if waiting:
            self._heads.add((waiting[0][0], source, waiting[0][1]))
        late = key < self._newest
        self._newest = max(self._newest, key)
        return Delivered(timestamp_ns, source, seq, late)

    def blockers(self) -> set[int]:
        """Return the sources that strict order is waiting for."""
        if not self._heads:
            return set()
        key = self._heads[0][:2]
        return {s.id for s in self.sources.values() if not s.waiting and s.bound < key}
