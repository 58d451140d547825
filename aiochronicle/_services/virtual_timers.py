"""Timers by whole nanoseconds, for the loop in virtual time.

asyncio stores the times of timers as float seconds. Messages have whole nanoseconds, and a float that is off
by its last bit would put a timer on the wrong side of a message. So a time is converted to whole nanoseconds
once, when the timer is set; floats are not used after that. Timers of the same nanosecond run in the order in
which they were set.

A float of seconds means its nearest nanosecond. A number of nanoseconds n, written as n / 1e9, is off by at
most half a unit in the last place, which is less than half a nanosecond up to 2**23 s. Delays of up to 97
days are therefore exact. If a program adds the floats ``now + delay``, each of the two and their sum may be
off by that much. `ns_between` subtracts ``now`` with the error that it was added with, which leaves two
errors: the result is exact up to 2**22 s, or 48 days, after the start.
"""

import heapq
import math
from asyncio import TimerHandle
from collections.abc import Iterator

__all__ = ["Timers", "ns_between"]

# If one float is at most twice the other, their difference is exact. A short difference in nanoseconds
# is off by less than 0.01, so the fast calculation gives the same result as the exact one.
_SHORT_S = 65536.0
_CANCELLED_MIN = 100  # fewer cancelled timers than this are not worth removing

_Entry = tuple[int, int, TimerHandle]


def ns_between(now: float, then: float) -> int | None:
    """Return the whole nanoseconds from one time in seconds to another; None if it never comes.

    The difference is computed exactly and rounded once. A time that has not passed is at least 1 ns away;
    otherwise a program that waits for the rest of a nanosecond would wait forever.
    """
    if then <= now:
        return 0
    difference = then - now
    if difference < _SHORT_S and (now == 0 or then <= 2 * now):
        return max(1, round(difference * 1e9))
    if math.isnan(then):
        raise ValueError("the time of a timer is not a number (NaN)")
    if math.isinf(then):
        return None
    then_over, then_under = then.as_integer_ratio()
    now_over, now_under = now.as_integer_ratio()
    over = (then_over * now_under - now_over * then_under) * 1_000_000_000
    under = then_under * now_under
    return max(1, (2 * over + under) // (2 * under))


class Timers:
    """The timers that are set, the next one first."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._count = 0  # keeps timers of the same nanosecond in order
        self._cancelled = 0  # cancelled timers that are still in the heap

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ns: int, timer: TimerHandle) -> None:
        """Set a timer."""
        self._count += 1
        heapq.heappush(self._heap, (due_ns, self._count, timer))

    def next_ns(self) -> int | None:
        """Return when the next timer is due, or None."""
        while self._heap and self._heap[0][2].cancelled():
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> Iterator[TimerHandle]:
        """Remove and yield the due timers, in order."""
        while (due_ns := self.next_ns()) is not None and due_ns <= now_ns:
            yield heapq.heappop(self._heap)[2]

    def count_cancelled(self) -> None:
        """Record that a timer is about to be cancelled; drop cancelled ones if they are the majority."""
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled = 1

    def clear(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        self._cancelled = 0
