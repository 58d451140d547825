"""Finds where the newest messages of a queue begin, for ``aioc tail``.

In a native queue that is a subtraction. The indexes of a Java queue jump where a cycle begins, so its
messages are counted from the newest cycle back, over more and more cycles until there are enough.
"""

import os
from typing import Literal

from aiochronicle._core.queue import inspect
from aiochronicle._core.slices import Queue

__all__ = ["start_of_newest"]


def start_of_newest(
    path: str | os.PathLike[str], count: int, *, on_corrupt: Literal["raise", "skip"] = "raise"
) -> int:
    """Return the seq of the first of the newest ``count`` messages, or of all if there are fewer.

    >>> with open_writer(queue) as writer:
    ...     _ = writer.append_many([b"1", b"2", b"3"])
    >>> start_of_newest(queue, 2), start_of_newest(queue, 10)
    (2, 0)
    """
    info = inspect(path)
    with Queue(path, on_corrupt=on_corrupt) as whole:
        if info.format == "cq4":
            return _start_in_cycles(whole, info.next_seq, info.current_segment, count)
        end = info.next_seq
        lacks_end = info.current_segment > info.last_segment
        if (
            end == 0 or lacks_end
        ):  # the queue is empty, or its newest records are damaged or missing
            end = max((message.seq + 1 for message in whole.slice()), default=0)
        return max(0, end - count)


def _start_in_cycles(whole: Queue, end: int, cycle: int, count: int) -> int:
    """Return the same for a Java queue, whose next index ``end`` is in this cycle."""
    shift = max(0, end.bit_length() - cycle.bit_length())
    back = 0 if cycle and end >> shift == cycle else cycle  # in doubt, all cycles at once
    while True:
        first = max(0, cycle - back) << shift
        spans = whole.spans(first, end) or ()
        left = count
        for span in reversed(spans):
            if left <= span.end - span.start:
                return span.end - left
            left -= span.end - span.start
        if first == 0:
            return spans[0].start if spans else end
        back = max(1, back * 2)
