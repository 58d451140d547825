"""Wake latencies that the probe measured, as a series of medians and as histograms."""

import asyncio
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Container
from contextlib import suppress

import msgspec

from aiochronicle._base.histogram import Histogram, value_of
from aiochronicle.monitor.history import POINTS, QUEUES_MAX
from aiochronicle.monitor.records import Snapshot

__all__ = ["BUCKETS_S", "Latencies", "Point", "Prober"]

BUCKETS_S = (
    *(digit * 10.0**power for power in range(-6, 0) for digit in (1.0, 2.5, 5.0)),
    *(1.0, 2.5, 5.0, 10.0),
)
_RECENT = 1024


class Point(msgspec.Struct, frozen=True):
    """Median and longest of the latencies between two looks."""

    time_ns: int
    median_s: float
    longest_s: float


class _OfQueue:
    def __init__(self) -> None:
        self.histogram = Histogram()
        self.sum_s = 0.0
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.recent_ns: list[int] = []

    def add(self, taken_ns: int) -> None:
        self.histogram.add(taken_ns)
        self.sum_s += taken_ns / 1e9
        if len(self.recent_ns) < _RECENT:
            self.recent_ns.append(taken_ns)

    def close_interval(self, time_ns: int) -> None:
        if self.recent_ns:
            values = sorted(self.recent_ns)
            median_s = values[len(values) // 2] / 1e9
            self.points.append(Point(time_ns, median_s, values[-1] / 1e9))
            self.recent_ns.clear()


class Latencies:
    """Wake latencies per queue number, and over all queues under None."""

    def __init__(self) -> None:
        self._queues: dict[int | None, _OfQueue] = {None: _OfQueue()}

    def add(self, queue: int, taken_ns: int) -> None:
        """Add one measured latency."""
        self._queues[None].add(taken_ns)
        if queue in self._queues or len(self._queues) <= QUEUES_MAX:
            self._queues.setdefault(queue, _OfQueue()).add(taken_ns)

    def close_interval(self, snapshot: Snapshot) -> None:
        """Turn what was added since the last call into one point per queue, and drop removed queues."""
        there = {queue.number for queue in snapshot.queues}
        for number in [one for one in self._queues if one is not None and one not in there]:
            del self._queues[number]
        for queue in self._queues.values():
            queue.close_interval(snapshot.time_ns)

    def measured(self) -> list[int]:
        """Return the numbers of the queues that have a latency."""
        return [number for number in self._queues if number is not None]

    def points(self, queue: int | None = None) -> list[Point]:
        """Return the points of the last minutes, the oldest first."""
        return list(self._queues[queue].points) if queue in self._queues else []

    def cumulative(self, queue: int | None = None) -> tuple[list[tuple[float, int]], float]:
        """Return the cumulative histogram, a count per upper bound in seconds, and the sum."""
        if queue not in self._queues:
            return [(bound_s, 0) for bound_s in (*BUCKETS_S, float("inf"))], 0.0
        counts = [0] * (len(BUCKETS_S) + 1)
        for bucket, count in self._queues[queue].histogram.counts.items():
            counts[bisect_left(BUCKETS_S, value_of(bucket) / 1e9)] += count
        seen = 0
        found: list[tuple[float, int]] = []
        for bound_s, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
            seen += count
            found.append((bound_s, seen))
        return found, self._queues[queue].sum_s


class Prober:
    """Runs the probe (``probe.py``) as a child process. If it cannot be started, no latencies are shown."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies = latencies
        self._process: asyncio.subprocess.Process | None = None
        self._sent: list[tuple[int, str]] = []

    async def run(self) -> None:
        """Collect its measurements until cancelled. The child ends with this process, even by SIGKILL."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "aiochronicle.monitor.probe",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                number, taken_ns = map(int, line.split())
                self._latencies.add(number, taken_ns)
        finally:
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def aim(self, snapshot: Snapshot, focus: Container[int] = ()) -> None:
        """Tell it which queues to measure: native ones with traffic, those in focus first."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        moving = [
            (queue.number, queue.path)
            for queue in snapshot.queues
            if queue.rate > 0 and queue.format == "native" and queue.path.isprintable()
        ]
        moving.sort(key=lambda target: target[0] not in focus)
        if moving != self._sent:
            self._sent = moving
            process.stdin.write(msgspec.json.encode(moving) + b"\n")
