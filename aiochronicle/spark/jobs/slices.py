"""Divides time, instead of queues, among tasks: for jobs that need the messages of all queues at one
time."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec

from aiochronicle.spark.jobs.inputs import Input
from aiochronicle.spark.source.plan import ROWS_WORTH_SPLITTING, Range

__all__ = ["FOREVER_NS", "TimeSlice", "cut_time", "processors"]

SAMPLES = 64  # times that are sampled to find ranges with about equally many messages
FOREVER_NS = 2**63 - 1


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A range of time over all queues."""

    number: int
    start_ns: int
    end_ns: int

    def range_of(self, given: Input, name: str) -> Range:
        """Return the part of a queue in this range."""
        start, end = given.sources[name].clip(
            given.start[name],
            given.end[name],
            start_ns=self.start_ns if self.start_ns > 0 else None,
            end_ns=self.end_ns if self.end_ns < FOREVER_NS else None,
        )
        return given.range(name, start, end)


def processors() -> int:
    """Return how many processors there are for tasks."""
    return len(os.sched_getaffinity(0))


def cut_time(inputs: Sequence[Input], rows_per_task: int, *, unit_ns: int = 1) -> list[TimeSlice]:
    """Divide time into ranges that begin at whole units and have about equally many messages.

    All processors get the same number of them, if that is worthwhile.
    """
    rows = sum(given.messages(name) for given in inputs for name in given.sources)
    least = max(given.options.partitions_min or 0 for given in inputs)
    wanted = max(least, rows // rows_per_task + 1)
    if rows >= ROWS_WORTH_SPLITTING:
        wanted = -(-wanted // processors()) * processors()
    if any(given.options.timestamp is not None for given in inputs):
        wanted = 1  # a field may go back: only reading all of it shows where
    samples: list[tuple[int, float]] = []
    if wanted > 1:
        per_queue = max(2, 2 * wanted, SAMPLES // sum(len(given.sources) for given in inputs))
        for given in inputs:
            samples += _samples(given, per_queue)
    samples.sort()
    weights = list(accumulate(weight for _, weight in samples))
    units: set[int] = set()
    for number in range(1, wanted):
        position = bisect_left(weights, weights[-1] * number / wanted) if samples else 0
        if position < len(samples):
            units.add(samples[position][0] // unit_ns)
    cuts = [0, *(unit * unit_ns for unit in sorted(units) if unit > 0), FOREVER_NS]
    return [
        TimeSlice(number=number, start_ns=start_ns, end_ns=end_ns)
        for number, (start_ns, end_ns) in enumerate(pairwise(cuts))
    ]


def _samples(given: Input, per_queue: int) -> list[tuple[int, float]]:
    """Return times of messages, and how many messages each of them represents."""
    samples: list[tuple[int, float]] = []
    for name, source in given.sources.items():
        count = given.messages(name)
        numbers = range(min(per_queue, count))
        seqs = [given.seq_after(name, count * number // per_queue) for number in numbers]
        samples += [(time_ns, count / per_queue) for time_ns in source.times_near(seqs)]
    return samples
