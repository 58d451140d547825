"""How the demo's processes talk: JSON lines upwards, the end of standard input downwards.

A child works until its standard input ends. That happens when the parent asks for it, and also when
the parent is gone, however it died; so no child outlives it.
"""

import os
import sys
import threading
import time

import msgspec

from aiochronicle._prepared import prepared

__all__ = ["FeedReport", "FeedSpec", "ReaderReport", "ReaderSpec", "Report", "Reporter", "Stop"]

REPORT_INTERVAL_S = 0.1
GRACE_S = 20.0


@prepared
class FeedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed is told."""

    queue: str
    path: str
    rate_hz: int
    segment_bytes: int
    seed: int


@prepared
class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader is told."""

    queue: str
    name: str
    path: str
    first_seq: int


@prepared
class FeedReport(msgspec.Struct, frozen=True, kw_only=True, tag="feed"):
    """State of a feed: the queue's next seq, and what this process did.

    ``append_times`` are the buckets counted since the report before.
    """

    queue: str
    next_seq: int
    segment: int
    append_times: dict[int, int]
    opened_ms: float
    records_scanned: int
    torn_records: int


@prepared
class ReaderReport(msgspec.Struct, frozen=True, kw_only=True, tag="reader"):
    """State of a reader. ``latencies`` are the buckets counted since the report before."""

    queue: str
    name: str
    messages: int
    payload_bytes: int
    gaps: int
    wrong: int
    lag: int
    latencies: dict[int, int]


Report = FeedReport | ReaderReport


class Reporter:
    """Writes reports to standard output, a few times per second."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Tell whether it is time for the next report."""
        return time.monotonic() >= self._due_s

    def send(self, report: Report) -> None:
        """Write the report."""
        self._due_s = time.monotonic() + REPORT_INTERVAL_S
        sys.stdout.buffer.write(self._encoder.encode(report) + b"\n")
        sys.stdout.buffer.flush()


class Stop(threading.Event):
    """Set when standard input ends."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=self._watch, daemon=True, name="stdin").start()

    def _watch(self) -> None:
        while os.read(0, 4096):
            pass
        self.set()
        # Whatever keeps the process from ending in its own time, it does not stay for good.
        time.sleep(GRACE_S)
        os._exit(3)
