"""Many queues as one stream, in timestamp order.

The merge itself is in C (csrc/fanin.c); here are its construction and what can be asked about it.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from aiochronicle import _hot
from aiochronicle._binding import check, ffi, lib, new_error
from aiochronicle.errors import InvalidArgument
from aiochronicle.reader import Reader

__all__ = ["FanIn", "FanInStatistics", "SourceStatistics"]

_NEVER = 2**64 - 1


class SourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a fan-in: what it delivered, and how far it is behind."""

    id: int
    source: str
    delivered: int
    late: int
    last_timestamp_ns: int
    lag_messages: int
    lag_bytes: int
    watermark_ns: int
    has_message: bool
    attended: bool


class FanInStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A fan-in as a whole. ``blocked_by`` is the source that strict order waits for, or None."""

    sources: int
    idle: int
    delivered: int
    late: int
    last_timestamp_ns: int
    blocked_by: int | None
    blocked_s: float


class FanIn(_hot.FanIn):
    """Merges readers by (timestamp, source); sources come and go while it runs.

    ``order="available"`` gives the oldest of what is there now. ``order="strict"`` gives a message
    only when no attached source can still deliver an older one: each has a message waiting, has
    promised so by ``Writer.heartbeat``, or was closed. The result is then the same whatever the
    arrival pattern. With ``max_wait`` (seconds) strict order waits no longer than that for a silent
    source; what it delivers afterwards is marked ``late``.

    While a reader is attached, read from the fan-in, not from the reader. Cancelling a task
    anywhere in ``async for`` or ``next`` loses nothing.

    >>> with open_reader(queue) as reader, FanIn([reader]) as fan_in:
    ...     [message.payload for message in fan_in]
    [b'hello']
    """

    def __init__(
        self,
        readers: Iterable[Reader] = (),
        *,
        order: Literal["available", "strict"] = "available",
        max_wait: float | None = None,
        burst: int = 256,
        poll_max_us: int = 2000,
    ) -> None:
        if order not in ("available", "strict"):
            raise InvalidArgument(f'order must be "available" or "strict", not {order!r}')
        if max_wait is not None and not 0 <= max_wait < 1e9:
            raise InvalidArgument(f"max_wait must not be negative, but is {max_wait!r}")
        if not 1 <= burst < 1 << 31:
            raise InvalidArgument(f"burst must be positive, not {burst!r}")
        limit = _NEVER if max_wait is None else round(max_wait * 1e9)
        super().__init__(order == "strict", limit, burst, 0, poll_max_us * 1000)
        self.order = order
        for reader in readers:
            self.attach(reader)

    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, _hot.Message]:
        """Wait for the next message; TimeoutError after ``timeout`` s, ClosedError if closed."""
        return self._next() if timeout is None else self._next_within(timeout)

    async def _next_within(self, timeout: float) -> _hot.Message:
        async with asyncio.timeout(timeout):
            return await self._next()

    def read_batch(self, max_messages: int = 1024) -> list[_hot.Message]:
        """Return what may go out now, at most so many messages. Never waits."""
        batch: list[_hot.Message] = []
        while len(batch) < max_messages and (message := self.poll()) is not None:
            batch.append(message)
        return batch

    async def batches(self, max_messages: int = 1024) -> Any:
        """Iterate over lists of messages, each as soon as it has at least one."""
        while await self._ready():
            if self.closed:
                return
            if batch := self.read_batch(max_messages):
                yield batch

    @property
    def _handle(self) -> Any:
        return ffi.cast("ac_fanin_t *", self._address)

    def statistics(self) -> FanInStatistics:
        """Return the counters of the fan-in as a whole."""
        stats = ffi.new("ac_fanin_stats_t *")
        lib.ac_fanin_stats(self._handle, stats)
        return FanInStatistics(
            sources=stats.sources,
            idle=stats.idle,
            delivered=stats.delivered,
            late=stats.late,
            last_timestamp_ns=stats.last_timestamp_ns,
            blocked_by=stats.blocked_by if stats.blocked else None,
            blocked_s=stats.blocked_ns / 1e9,
        )

    def source_statistics(self, source: int) -> SourceStatistics:
        """Return the counters of one source."""
        stats = ffi.new("ac_source_stats_t *")
        error = new_error()
        slot = self._slot(source)
        check(lib.ac_fanin_source_stats(self._handle, slot, stats, error), error)
        return SourceStatistics(
            id=stats.id,
            source=self.sources()[source].source,
            delivered=stats.delivered,
            late=stats.late,
            last_timestamp_ns=stats.last_timestamp_ns,
            lag_messages=stats.lag_messages,
            lag_bytes=stats.lag_bytes,
            watermark_ns=stats.watermark_ns,
            has_message=bool(stats.has_message),
            attended=bool(stats.attended),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        statistics = self.statistics()
        state = "closed" if self.closed else f"sources={statistics.sources}"
        return f"<FanIn order={self.order!r} {state} delivered={statistics.delivered}>"
