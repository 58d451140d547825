"""The state of the run: the newest reports, and rates computed from them."""

import time
from collections import deque

from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.reports import Report, Role

__all__ = ["Board", "Process"]

WINDOW_S = 1.0


class Process:
    """A process: its state, its newest report, its rate, and its latencies."""

    def __init__(self, role: Role, name: str) -> None:
        self.role: Role = role
        self.name = name
        self.state = "starting"
        self.report: Report | None = None
        self.latencies = Histogram()
        self._samples: deque[tuple[float, int]] = deque()
        self._recent: deque[tuple[float, dict[int, int]]] = deque()

    def update(self, report: Report, now_s: float) -> None:
        """Take a report."""
        self.report = report
        self.state = "running"
        self.latencies.merge(report.times)
        self._samples.append((now_s, report.done))
        while len(self._samples) > 2 and self._samples[1][0] < now_s - WINDOW_S:
            self._samples.popleft()
        self._recent.append((now_s, report.times))
        while self._recent[0][0] < now_s - WINDOW_S:
            self._recent.popleft()

    def restart(self, state: str) -> None:
        """Forget what the process had reported before it was killed."""
        self.state = state
        self._samples.clear()
        self._recent.clear()

    @property
    def done(self) -> int:
        """How many messages it has handled."""
        return self.report.done if self.report else 0

    @property
    def lag(self) -> int:
        """How many messages wait for it."""
        return self.report.lag if self.report else 0

    def rate(self) -> float:
        """Return messages per second; 0 if it reported nothing for a second."""
        if len(self._samples) < 2 or self._samples[-1][0] < time.monotonic() - WINDOW_S:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def recent(self) -> Histogram:
        """Return the latencies of the last second."""
        histogram = Histogram()
        for _, counts in self._recent:
            histogram.merge(counts)
        return histogram


class Board:
    """All processes, and the events so far."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.events: list[tuple[float, str]] = []
        self.started_s: float | None = None

    def add(self, role: Role, name: str) -> Process:
        """Add a process."""
        self.processes[name] = Process(role, name)
        return self.processes[name]

    def of(self, role: str) -> list[Process]:
        """Return the processes of a role."""
        return [process for process in self.processes.values() if process.role == role]

    def apply(self, report: Report) -> None:
        """Take a report."""
        self.processes[report.name].update(report, time.monotonic())

    def start_clock(self) -> None:
        """Start the clock: all processes are at work."""
        self.started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock started."""
        return 0.0 if self.started_s is None else time.monotonic() - self.started_s

    def note(self, text: str) -> None:
        """Record an event with its time."""
        self.events.append((self.elapsed_s, text))
