"""A feed: the process that writes one queue. The demo starts it, with a FeedSpec."""

import random
import sys
import time

import msgspec

import aiochronicle
from aiochronicle.demo.market import TYPES, Market
from aiochronicle.demo.reports import FeedReport, FeedSpec, Reporter, Stop
from aiochronicle.histogram import Histogram

__all__ = ["main"]

TICK_S = 0.0005
BURST_MAX = 4096


class Pace:
    """How many messages are due: ``rate_hz`` on average, now livelier, now calmer."""

    def __init__(self, rate_hz: int, seed: int) -> None:
        self._rate_hz = rate_hz
        self._random = random.Random(seed)
        self._last_s = time.monotonic()
        self._mood = 0.0
        self._owed = 0.0

    def due(self) -> int:
        """Return how many messages to write now."""
        if self._rate_hz == 0:
            return BURST_MAX
        now_s = time.monotonic()
        self._mood = 0.995 * self._mood + 0.03 * self._random.gauss()
        activity = min(2.0, max(0.25, 1.0 + self._mood))
        self._owed += (now_s - self._last_s) * self._rate_hz * activity
        self._last_s = now_s
        count = min(int(self._owed), BURST_MAX)
        self._owed -= count
        return count


def _write_some(
    writer: aiochronicle.Writer, market: Market, count: int, append_times: Histogram
) -> None:
    clock = time.perf_counter_ns
    for _ in range(count):
        type_id, payload = market.next_message()
        before_ns = clock()
        writer.append(payload, type_id=type_id)
        append_times.add(clock() - before_ns)


def _report(
    spec: FeedSpec, writer: aiochronicle.Writer, append_times: Histogram, opened_ms: float
) -> FeedReport:
    now = writer.statistics()
    return FeedReport(
        queue=spec.queue,
        next_seq=now.next_seq,
        segment=now.segment,
        append_times=append_times.take(),
        opened_ms=opened_ms,
        records_scanned=now.recovery.records_scanned,
        torn_records=now.recovery.torn_records,
    )


def main(argument: str) -> None:
    """Write until standard input ends."""
    spec = msgspec.json.decode(argument, type=FeedSpec)
    stop = Stop()
    reporter = Reporter()
    before_s = time.perf_counter()
    with aiochronicle.open_writer(
        spec.path, segment_size=spec.segment_bytes, codec=TYPES
    ) as writer:
        opened_ms = (time.perf_counter() - before_s) * 1e3
        market = Market(seed=spec.seed, first_number=writer.next_seq)
        pace = Pace(spec.rate_hz, spec.seed)
        append_times = Histogram()
        while not stop.is_set():
            _write_some(writer, market, pace.due(), append_times)
            if reporter.is_due():
                reporter.send(_report(spec, writer, append_times, opened_ms))
            if spec.rate_hz:
                stop.wait(TICK_S)
        reporter.send(_report(spec, writer, append_times, opened_ms))


if __name__ == "__main__":
    main(sys.argv[1])
