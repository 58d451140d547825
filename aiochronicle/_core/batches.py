"""An asynchronous iterator over batches of messages.

It takes nothing from the reader until a batch is complete: it waits without taking, then takes the batch
in one synchronous step. A cancelled ``__anext__`` therefore loses nothing, and the iterator stays usable.
(Cancellation would end an async generator.)
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, Self

from aiochronicle._base.arguments import positive, seconds
from aiochronicle._hot import Message
from aiochronicle.codec import T
from aiochronicle.errors import ClosedError

__all__ = ["Batches", "check_limits", "collect_batch"]

# How often to check whether a batch is full. A wake-up for each message would cost far more.
_CHECK_INTERVAL_S = 0.002
_HEADER_BYTES = 64


def check_limits(max_messages: int, max_bytes: int | None, max_wait: float | None = None) -> None:
    """Raise InvalidArgument if a batch cannot have these limits."""
    positive("max_messages", max_messages)
    if max_bytes is not None:
        positive("max_bytes", max_bytes)
    if max_wait is not None:
        seconds("max_wait", max_wait, zero=True)


class Batches(Generic[T]):
    """Returned by ``batches`` of a Reader, FanIn or Replay. Ends when ``collect`` returns an empty batch."""

    def __init__(self, collect: Callable[[], Awaitable[list[Message[T]]]]) -> None:
        self._collect = collect

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message[T]]:
        batch = await self._collect()
        if not batch:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Do nothing. It exists for ``contextlib.aclosing``; the reader stays open."""


class _Lag(Protocol):
    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class _Live(Protocol[T]):
    """A reader or a fan-in, to which messages are still added."""

    @property
    def closed(self) -> bool: ...
    @property
    def lag(self) -> _Lag: ...
    def read_batch(
        self, max_messages: int = ..., max_bytes: int | None = ..., /
    ) -> list[Message[T]]: ...
    def _commit_due(self) -> None: ...
    def _ready(self) -> Awaitable[bool]: ...


async def collect_batch(
    reader: _Live[T],
    max_messages: int,
    max_bytes: int | None,
    max_wait_s: float | None,
) -> list[Message[T]]:
    """Wait for a batch of a reader or a fan-in, and take it; empty if it was closed."""
    try:
        # Commit before waiting: a full queue's writer may be waiting for this commit.
        reader._commit_due()  # pyright: ignore[reportPrivateUsage]
        while await reader._ready():  # pyright: ignore[reportPrivateUsage]
            if max_wait_s:
                await _fill(reader, max_messages, max_bytes, max_wait_s)
            batch = reader.read_batch(max_messages, max_bytes)
            if batch:  # another task may have taken the messages
                return batch
    except ClosedError:  # another thread closed it meanwhile
        if not reader.closed:  # then it closed one source of a fan-in
            raise
    return []


async def _fill(
    reader: _Live[T], max_messages: int, max_bytes: int | None, max_wait_s: float
) -> None:
    """Return when a full batch is available, or the time is over.

    Only the sizes of the records are known, which are rounded up to 64 bytes. A batch may therefore count
    as full slightly too early.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait_s
    pause_s = min(max_wait_s / 16, _CHECK_INTERVAL_S)
    while not reader.closed:
        lag = reader.lag
        payload_bytes = lag.bytes - lag.messages * _HEADER_BYTES
        enough_bytes = max_bytes is not None and payload_bytes >= max_bytes
        left = deadline - loop.time()
        if lag.messages >= max_messages or enough_bytes or left <= 0:
            return
        await asyncio.sleep(min(pause_s, left))
