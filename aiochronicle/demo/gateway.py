"""The gateway: executes what the router sends, and acknowledges every order with a fill."""

import time
from pathlib import Path

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.following import batches_until
from aiochronicle.demo.orders import FILLS, ORDERS, Fill, Order
from aiochronicle.demo.reports import Report, Spec, Stop, reporting

__all__ = ["work"]


async def work(spec: Spec, stop: Stop) -> None:
    """Fill orders until asked to stop."""
    root = Path(spec.root)
    times = Histogram()
    async with (
        aiochronicle.aopen_writer(
            root / "fills", segment_size=spec.segment_bytes, codec=FILLS
        ) as fills,
        aiochronicle.aopen_reader(root / "routed", "gateway", codec=ORDERS) as routed,
    ):
        done = fills.last_causes()

        def report() -> Report:
            return Report(
                name="gateway",
                done=fills.next_seq,
                lag=routed.lag.messages,
                times=times.take(),
            )

        async with reporting(report):
            async for batch in batches_until(stop, routed):
                now_ns = time.time_ns()
                for message in batch:
                    times.add(now_ns - message.timestamp_ns)
                    if not done.covers(message):
                        order: Order = message.decode()
                        fills.send(Fill(order, order.price), cause=message)
                        done.add(message)
                if batch:
                    routed.commit()
