"""Runs the collector in the background of an event loop, and gives each new frame to all clients.

It looks once a second, less often if a look takes long, and at once when a writer or reader process ends.
All clients get the same bytes. A slow client gets the newest frame and misses those in between, so nothing
is queued for it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiochronicle.monitor.collector import Collector
from aiochronicle.monitor.latencies import Latencies, Prober
from aiochronicle.monitor.records import QueueState, Snapshot
from aiochronicle.monitor.view import Views, detail_of, kept_because, last_messages

__all__ = ["Watching"]

_log = logging.getLogger(__name__)

LOOK_S = 1.0
LOOK_MAX_S = 5.0
_SHARE_MAX = 0.02  # of a core goes into looking: where a look takes longer, the next comes later
_LOOK_MIN_S = 0.2  # between two looks, however many processes end


class Watching:
    """Keeps the newest snapshot of a collector while ``running``. ``failure`` says why a look failed."""

    def __init__(self, collector: Collector, *, probe: bool = True) -> None:
        self.collector = collector
        self.latencies = Latencies()
        self.snapshot: Snapshot | None = None
        self.failure: str | None = None
        self._prober = Prober(self.latencies) if probe else None
        self._views = Views()
        self._frame = b""
        self._focus: Counter[int] = Counter()
        self._details: dict[int, bytes] = {}
        self._clients = 0
        self._fresh = asyncio.Event()
        self._wanted = asyncio.Event()
        # The collector belongs to one thread; reading messages must not hold it up.
        self._looking = ThreadPoolExecutor(1, "aioc-look")
        self._reading = ThreadPoolExecutor(1, "aioc-read")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Look in the background until the block ends. On entry the first look is done."""
        await self._look()
        tasks = [asyncio.create_task(self._go_on())]
        if self._prober is not None:
            tasks.append(asyncio.create_task(self._prober.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(self._looking, self.collector.close)
            self._looking.shutdown()
            self._reading.shutdown(wait=False)

    async def frames(self, queue: int | None) -> AsyncIterator[tuple[bytes, bytes | None]]:
        """Yield each new frame, and the details of a queue if one is given. Cancelled, it stops."""
        self._clients += 1
        if queue is not None:
            self._focus[queue] += 1
        self._wanted.set()
        try:
            while True:
                await self._fresh.wait()
                yield self._frame, None if queue is None else self._details.get(queue)
        finally:
            self._clients -= 1
            if queue is not None:
                self._focus[queue] -= 1
                self._focus += Counter()  # drops what nobody looks at
                if queue not in self._focus:
                    self._details.pop(queue, None)

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_MIN_S)
            loop.add_reader(self.collector.fileno(), self._wanted.set)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s() - _LOOK_MIN_S):
                        await self._wanted.wait()
            finally:
                loop.remove_reader(self.collector.fileno())
            self._wanted.clear()
            await self._look()

    def _pause_s(self) -> float:
        took_s = 0.0 if self.snapshot is None else self.snapshot.took_s
        return min(max(LOOK_S, took_s / _SHARE_MAX), LOOK_MAX_S)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            snapshot = await loop.run_in_executor(
                self._looking, self.collector.look, frozenset(self._focus)
            )
            self.failure = None
        except Exception as error:  # noqa: BLE001 - the page goes on, and says so
            _log.exception("the look at %s failed", self.collector.root)
            self.failure = f"the monitor itself failed: {type(error).__name__}: {error}"
            return
        self.snapshot = snapshot
        self.latencies.close_interval(snapshot)
        if self._prober is not None:
            self._prober.aim(snapshot, self._focus)
        if self._clients:
            await self._publish(snapshot)

    async def _publish(self, snapshot: Snapshot) -> None:
        events = list(self.collector.events)
        self._frame = self._views.frame(snapshot, events, self.collector.history, self.latencies)
        for queue in snapshot.queues:
            if queue.number in self._focus:
                self._details[queue.number] = await self._detail(queue)
        fresh, self._fresh = self._fresh, asyncio.Event()
        fresh.set()

    async def _detail(self, queue: QueueState) -> bytes:
        loop = asyncio.get_running_loop()

        def read() -> tuple[list[str], list[dict[str, Any]]]:
            if queue.problem is not None:
                return [], []
            return last_messages(queue.path), kept_because(queue.path)

        messages, kept = await loop.run_in_executor(self._reading, read)
        return detail_of(queue, self.collector.history, self.latencies, messages, kept)
