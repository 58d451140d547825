"""A venue: the process that writes the quotes and trades of one market."""

import asyncio
import random
import time
from pathlib import Path

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.market import TYPES, Market
from aiochronicle.demo.reports import Report, Spec, Stop, reporting

__all__ = ["work"]

TICK_S = 0.001
BURST_MAX = 4096
# The heartbeat interval of a venue without messages, for strict fan-ins.
HEARTBEAT_S = 0.005


class Pace:
    """Computes how many messages are due: ``rate_hz`` on average, with bursts and pauses."""

    def __init__(self, rate_hz: int, seed: int) -> None:
        self._rate_hz = rate_hz
        self._random = random.Random(seed)
        self._last_s = time.monotonic()
        self._mood = 0.0
        self._owed = 0.0

    def due(self) -> int:
        """Return how many messages to write now."""
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


async def work(spec: Spec, stop: Stop) -> None:
    """Write until asked to stop."""
    before_s = time.perf_counter()
    path = Path(spec.root) / "market" / spec.name
    async with aiochronicle.aopen_writer(
        path, segment_size=spec.segment_bytes, codec=TYPES, heartbeat=HEARTBEAT_S
    ) as writer:
        opened_ms = (time.perf_counter() - before_s) * 1e3
        market = Market(seed=spec.seed, first_number=writer.next_seq)
        pace = Pace(spec.rate_hz, spec.seed)
        append_times = Histogram()

        def report() -> Report:
            return Report(
                name=spec.name,
                done=writer.next_seq,
                times=append_times.take(),
                opened_ms=opened_ms,
            )

        async with reporting(report):
            while not stop.is_set():
                _write_some(writer, market, pace.due(), append_times)
                await asyncio.sleep(TICK_S)
