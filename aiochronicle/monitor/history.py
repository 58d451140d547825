"""Rates and lags of the last minutes, for charts and sparklines, in a fixed amount of memory."""

from collections import deque
from typing import Literal

import msgspec

from aiochronicle.monitor.records import QueueState, Snapshot

__all__ = ["MEASURES", "POINTS", "QUEUES_MAX", "History", "Measure", "Series"]

POINTS = 300
QUEUES_MAX = 500

Measure = Literal["rate", "rate_bytes", "lag_messages", "lag_s"]
MEASURES: tuple[Measure, ...] = ("rate", "rate_bytes", "lag_messages", "lag_s")


class Series(msgspec.Struct, frozen=True):
    """Values of one measure, the oldest first; NaN where the queue was not there or not readable."""

    times_ns: list[int]
    values: list[float]


class History:
    """The last ``points`` looks at up to ``queues`` queues, and the sums over all of them.

    What does not fit is counted in the sums only.
    """

    def __init__(self, *, points: int = POINTS, queues: int = QUEUES_MAX) -> None:
        self.points = points
        self._queues = queues
        self._times: deque[int] = deque(maxlen=points)
        self._values: dict[int | None, dict[Measure, deque[float]]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the values of one look."""
        before = len(self._times)
        full = before == self.points
        self._times.append(snapshot.time_ns)
        there = {queue.number for queue in snapshot.queues}
        for number in [n for n in self._values if n is not None and n not in there]:
            del self._values[number]
        totals = dict.fromkeys(MEASURES, 0.0)
        for queue in snapshot.queues:
            measured = _measure(queue)
            for measure, value in measured.items():
                if measure == "lag_s":
                    totals[measure] = max(totals[measure], value)
                elif value == value:
                    totals[measure] += value
            self._note(queue.number, measured, before, full)
        self._note(None, totals, before, full)

    def _note(
        self, number: int | None, measured: dict[Measure, float], before: int, full: bool
    ) -> None:
        if number not in self._values:
            if number is not None and len(self._values) > self._queues:
                return
            missing = [float("nan")] * (before - full)
            self._values[number] = {
                measure: deque(missing, maxlen=self.points) for measure in MEASURES
            }
        for measure, value in measured.items():
            self._values[number][measure].append(value)

    def series(self, measure: Measure, queue: int | None = None) -> Series:
        """Return the values of one queue by number. None: of all queues, as sums, and the largest age."""
        values = self._values.get(queue, {}).get(measure, ())
        return Series(list(self._times)[-len(values) :] if values else [], list(values))

    def last(self, measure: Measure) -> float:
        """Return the newest value over all queues; 0 before the first look."""
        values = self._values.get(None, {}).get(measure)
        return values[-1] if values else 0.0


def _measure(queue: QueueState) -> dict[Measure, float]:
    if queue.problem is not None:
        return dict.fromkeys(MEASURES, float("nan"))
    # Readers that are away wait for their programs; nobody knows whether a tailer of Java's is open.
    live = [one for one in queue.readers if one.live or queue.format == "java"]
    return {
        "rate": queue.rate,
        "rate_bytes": queue.rate_bytes,
        "lag_messages": float(max((one.lag.messages for one in live), default=0)),
        "lag_s": max((one.lag.seconds for one in live if one.live), default=0.0),
    }
