"""What is known about the run: the newest reports, and rates worked out from them."""

import time
from collections import deque
from pathlib import Path

from aiochronicle.demo.reports import FeedReport, ReaderReport, Report
from aiochronicle.histogram import Histogram

__all__ = ["Board", "Feed", "Meter", "Reader"]

WINDOW_S = 1.0
HISTORY = 24


class Meter:
    """A counter and its rate over the last second."""

    def __init__(self) -> None:
        self.value = 0
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, value: int, now_s: float) -> None:
        """Take a new reading."""
        self.value = value
        self._samples.append((now_s, value))
        while len(self._samples) > 2 and self._samples[1][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def rate(self, now_s: float) -> float:
        """Return the increase per second; 0 if nothing was heard for a second."""
        if len(self._samples) < 2 or self._samples[-1][0] < now_s - WINDOW_S:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class Feed:
    """A queue and the process that writes it."""

    def __init__(self, queue: str, path: Path, first_seq: int) -> None:
        self.queue = queue
        self.path = path
        self.first_seq = first_seq
        self.report: FeedReport | None = None
        self.messages = Meter()
        self.append_times = Histogram()
        self.state = "starting"

    def update(self, report: FeedReport, now_s: float) -> None:
        """Take a report."""
        self.report = report
        self.state = "writing"
        self.append_times.merge(report.append_times)
        self.messages.update(report.next_seq - self.first_seq, now_s)


class Reader:
    """A reader, with its latencies of the whole run and of the last second."""

    def __init__(self, queue: str, name: str) -> None:
        self.queue = queue
        self.name = name
        self.report: ReaderReport | None = None
        self.messages = Meter()
        self.payload_bytes = Meter()
        self.latencies = Histogram()
        self._recent: deque[tuple[float, dict[int, int]]] = deque()

    def update(self, report: ReaderReport, now_s: float) -> None:
        """Take a report."""
        self.report = report
        self.messages.update(report.messages, now_s)
        self.payload_bytes.update(report.payload_bytes, now_s)
        self.latencies.merge(report.latencies)
        self._recent.append((now_s, report.latencies))
        while self._recent[0][0] < now_s - WINDOW_S:
            self._recent.popleft()

    def recent(self) -> Histogram:
        """Return the latencies of the last second."""
        histogram = Histogram()
        for _, counts in self._recent:
            histogram.merge(counts)
        return histogram


class Board:
    """All feeds, all readers, and what happened."""

    def __init__(self) -> None:
        self.feeds: dict[str, Feed] = {}
        self.readers: dict[tuple[str, str], Reader] = {}
        self.events: list[tuple[float, str]] = []
        self.started_s: float | None = None
        self.written_history: deque[float] = deque(maxlen=HISTORY)

    def apply(self, report: Report) -> None:
        """Take a report of whatever kind."""
        now_s = time.monotonic()
        if isinstance(report, FeedReport):
            self.feeds[report.queue].update(report, now_s)
        else:
            self.readers[report.queue, report.name].update(report, now_s)

    def start_clock(self) -> None:
        """Everybody is there: from now on it counts."""
        self.started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was started."""
        return 0.0 if self.started_s is None else time.monotonic() - self.started_s

    def note(self, text: str) -> None:
        """Remember that something happened, and when."""
        self.events.append((self.elapsed_s, text))

    def readers_of(self, queue: str) -> list[Reader]:
        """Return the readers of one queue."""
        return [reader for reader in self.readers.values() if reader.queue == queue]

    def written_rate(self) -> float:
        """Return messages per second, of all feeds."""
        now_s = time.monotonic()
        return sum(feed.messages.rate(now_s) for feed in self.feeds.values())

    def read_rate(self) -> float:
        """Return messages per second, of all readers."""
        now_s = time.monotonic()
        return sum(reader.messages.rate(now_s) for reader in self.readers.values())

    def read_byte_rate(self) -> float:
        """Return payload bytes per second, of all readers."""
        now_s = time.monotonic()
        return sum(reader.payload_bytes.rate(now_s) for reader in self.readers.values())
