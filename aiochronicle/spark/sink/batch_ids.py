"""Which batches a writer has written, by their ids, which need not be in order.

A stream counts its batches; a nightly job may use dates and fill in a missed day. Ranges store both
compactly. If there are too many ranges, the oldest are forgotten, and the limit below which ids are unknown
is stored.
"""

from bisect import bisect_right

import msgspec

from aiochronicle.errors import InvalidArgument

__all__ = ["BatchIds"]

RANGES_MAX = 4096


class BatchIds(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of ids, each from its first to its last, in order and apart from each other."""

    ranges: tuple[tuple[int, int], ...] = ()
    forgotten_before: int = 0

    def has(self, batch_id: int) -> bool:
        """Return whether a batch was written; InvalidArgument if that was too long ago to know."""
        if batch_id < self.forgotten_before:
            raise InvalidArgument(
                f"whether batch {batch_id} was written is not known: only the last {RANGES_MAX} ranges"
                f" of ids are, from {self.forgotten_before} on; give it another writerId"
            )
        at = bisect_right(self.ranges, batch_id, key=lambda ids: ids[0])
        return at > 0 and batch_id <= self.ranges[at - 1][1]

    def adding(self, batch_id: int) -> "BatchIds":
        """Return the ids after one more batch. O(ranges)."""
        if self.has(batch_id):
            return self
        at = bisect_right(self.ranges, batch_id, key=lambda ids: ids[0])
        before, after = self.ranges[:at], self.ranges[at:]
        first = last = batch_id
        if before and before[-1][1] == batch_id - 1:
            first, before = before[-1][0], before[:-1]
        if after and after[0][0] == batch_id + 1:
            last, after = after[0][1], after[1:]
        ranges = (*before, (first, last), *after)
        if len(ranges) <= RANGES_MAX:
            return BatchIds(ranges=ranges, forgotten_before=self.forgotten_before)
        return BatchIds(ranges=ranges[1:], forgotten_before=ranges[0][1] + 1)
