"""Risk: follows all fills and keeps the position per symbol."""

import time
from collections import Counter
from pathlib import Path

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.following import batches_until
from aiochronicle.demo.orders import FILLS, Fill
from aiochronicle.demo.reports import Report, Spec, Stop, reporting

__all__ = ["work"]


async def work(spec: Spec, stop: Stop) -> None:
    """Add up positions until asked to stop. A restart adds up everything again."""
    positions: Counter[str] = Counter()
    seen = 0
    times = Histogram()
    async with aiochronicle.aopen_reader(
        Path(spec.root) / "fills", start="first", codec=FILLS
    ) as fills:

        def report() -> Report:
            return Report(
                name="risk",
                done=seen,
                lag=fills.lag.messages,
                times=times.take(),
                positions=dict(positions),
            )

        async with reporting(report):
            async for batch in batches_until(stop, fills):
                now_ns = time.time_ns()
                for message in batch:
                    fill: Fill = message.decode()
                    order = fill.order
                    times.add(now_ns - order.tick_ns)
                    positions[order.symbol] += order.side * order.size
                    seen += 1
