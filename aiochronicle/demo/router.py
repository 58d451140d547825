"""The router: forwards the orders of all strategies, whenever they join, and returns the fills.

It is the process that the demo kills. Every message it writes names its cause, so its successor knows which
orders were routed and which fills were delivered.
"""

import asyncio
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.following import batches_until
from aiochronicle.demo.orders import FILLS, ORDERS, Fill
from aiochronicle.demo.reports import Report, Spec, Stop, reporting

__all__ = ["work"]

REPLY_SEGMENT_BYTES = 1 << 20


class Desk:
    """The running router: orders in one direction, fills in the other, and counters."""

    def __init__(
        self,
        router: aiochronicle.Router[Any],
        routed: aiochronicle.Writer,
        fills: aiochronicle.Reader[Any],
        opened_ms: float,
    ) -> None:
        self._router = router
        self._routed = routed
        self._fills = fills
        self._opened_ms = opened_ms
        self._done = routed.last_causes()
        self._delivered: WeakKeyDictionary[aiochronicle.Writer, aiochronicle.Causes] = (
            WeakKeyDictionary()
        )
        self._fills_delivered = 0
        self._times = Histogram()

    async def route(self, stop: Stop) -> None:
        """Pass every order on to the gateway, once."""
        async for batch in batches_until(stop, self._router):
            now_ns = time.time_ns()
            for order in batch:
                self._times.add(now_ns - order.timestamp_ns)
                if not self._done.covers(order):
                    self._routed.append(order.payload, type_id=order.type_id, cause=order)
                    self._done.add(order)
            if batch:
                self._router.commit()

    async def deliver(self, stop: Stop) -> None:
        """Give every fill to the strategy whose order it fills, once."""
        async for batch in batches_until(stop, self._fills):
            for message in batch:
                fill: Fill = message.decode()
                reply = await self._reply_to(fill.order.strategy)
                if not self._delivered[reply].covers(message):
                    reply.append(message.payload, type_id=message.type_id, cause=message)
                    self._delivered[reply].add(message)
            if batch:
                self._fills_delivered += len(batch)
                self._fills.commit()

    async def _reply_to(self, strategy: str) -> aiochronicle.Writer:
        source = next(
            source for source, path in self._router.paths().items() if Path(path).name == strategy
        )
        reply = await self._router.reply(source)
        if reply not in self._delivered:
            self._delivered[reply] = reply.last_causes()
        return reply

    def report(self) -> Report:
        """Return the counters so far."""
        return Report(
            name="router",
            done=self._routed.next_seq,
            lag=self._router.lag.messages + self._fills.lag.messages,
            times=self._times.take(),
            fills=self._fills_delivered,
            sources=sorted(Path(path).name for path in self._router.paths().values()),
            opened_ms=self._opened_ms,
        )


async def work(spec: Spec, stop: Stop) -> None:
    """Route until asked to stop."""
    root = Path(spec.root)
    before_s = time.perf_counter()
    async with (
        aiochronicle.aopen_writer(
            root / "routed", segment_size=spec.segment_bytes, codec=ORDERS
        ) as routed,
        aiochronicle.aopen_reader(root / "fills", "router", codec=FILLS) as fills,
        aiochronicle.Router(
            root / "orders",
            name="router",
            reply_segment_size=REPLY_SEGMENT_BYTES,
            reply_codec=FILLS,
        ) as router,
    ):
        desk = Desk(router, routed, fills, (time.perf_counter() - before_s) * 1e3)
        async with reporting(desk.report), asyncio.TaskGroup() as group:
            group.create_task(desk.route(stop))
            group.create_task(desk.deliver(stop))
