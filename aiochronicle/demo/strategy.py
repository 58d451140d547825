"""A strategy: merges all venues in the order of their timestamps, sends orders, takes the fills.

An order names the trade that it answers as its cause. After a kill, a strategy reads from its own queue of
orders which trades it has answered, and sends no order twice.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.demo.following import BATCH, WAIT_S, batches_until
from aiochronicle.demo.market import TRADE, TYPES
from aiochronicle.demo.orders import ORDERS, decide
from aiochronicle.demo.reports import Report, Spec, Stop, reporting

__all__ = ["work"]


class Strategy:
    """A running strategy: its two tasks, and their counters."""

    def __init__(
        self,
        name: str,
        ticks: aiochronicle.FanIn[Any],
        orders: aiochronicle.Writer,
    ) -> None:
        self._name = name
        self._ticks = ticks
        self._orders = orders
        self._answered = orders.last_causes()
        self._read = 0
        self._fills = 0
        self._times = Histogram()

    async def trade(self, stop: Stop) -> None:
        """Answer the venues' trades, to the end."""
        async for batch in batches_until(stop, self._ticks):
            now_ns = time.time_ns()
            for tick in batch:
                self._times.add(now_ns - tick.timestamp_ns)
                if tick.type_id == TRADE and not self._answered.covers(tick):
                    self._answer(tick)
            if batch:
                self._read += len(batch)
                self._ticks.commit()

    def _answer(self, tick: aiochronicle.Message[Any]) -> None:
        order = decide(self._name, tick.source, tick.decode(), tick.timestamp_ns)
        if order is not None:
            self._orders.send(order, cause=tick)

    async def take_fills(
        self, replies: aiochronicle.Reader[Any], trading: asyncio.Task[None]
    ) -> None:
        """Count the fills until every order has one."""
        while not trading.done() or self._fills < self._orders.next_seq:
            self._fills += len(replies.read_batch(BATCH))
            with contextlib.suppress(TimeoutError):
                await replies.next(timeout=WAIT_S)
                self._fills += 1

    def report(self) -> Report:
        """Return the counters so far."""
        return Report(
            name=self._name,
            done=self._read,
            lag=self._ticks.lag.messages,
            times=self._times.take(),
            orders=self._orders.next_seq,
            fills=self._fills,
        )


async def work(spec: Spec, stop: Stop) -> None:
    """Trade until asked to stop, and then until every order has its fill."""
    root = Path(spec.root)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ticks = await enter(aiochronicle.FanIn(order="strict"))
        for venue in spec.venues:
            path = root / "market" / venue
            reader = await enter(aiochronicle.aopen_reader(path, spec.name, codec=TYPES))
            ticks.attach(reader)
        path = root / "orders" / spec.name
        orders = await enter(
            aiochronicle.aopen_writer(
                path, segment_size=spec.segment_bytes, codec=ORDERS, ready=True
            )
        )
        # The router creates this queue with its first fill.
        path = root / "orders.replies" / spec.name
        replies = await enter(aiochronicle.aopen_reader(path, start="first", wait_for_queue=True))
        strategy = Strategy(spec.name, ticks, orders)
        async with reporting(strategy.report), asyncio.TaskGroup() as group:
            trading = group.create_task(strategy.trade(stop))
            group.create_task(strategy.take_fills(replies, trading))
