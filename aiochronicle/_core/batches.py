"""Batches of messages as an asynchronous iterator.

Nothing is taken from the reader before a batch is complete: waiting looks, taking is one
synchronous step. So a cancelled ``__anext__`` has lost nothing, and the iterator can be used again
(an async generator would be finished by the cancellation).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, Self

from aiochronicle._base.arguments import positive, seconds
from aiochronicle._hot import Message
from aiochronicle.codec import T
from aiochronicle.errors import ClosedError

__all__ = ["Batches", "check_limits", "collect_batch"]

# How late a batch may be noticed to be full. Being woken by each message would cost far more.
_LOOK_EVERY_S = 0.002
_HEADER_BYTES = 64


def check_limits(max_messages: int, max_bytes: int | None, max_wait: float | None = None) -> None:
    """Raise InvalidArgument if a batch cannot have these limits."""
    positive("max_messages", max_messages)
    if max_bytes is not None:
        positive("max_bytes", max_bytes)
    if max_wait is not None:
        seconds("max_wait", max_wait, zero=True)


class Batches(Generic[T]):
    """Made by ``batches`` of a Reader, FanIn or Replay. An empty batch is the end."""

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
        """Do nothing, for ``contextlib.aclosing``: the reader stays as it is."""


class _Lag(Protocol):
    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class _Live(Protocol[T]):
    """A reader or a fan-in: it goes on, so that waiting for more makes sense."""

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
    """Wait for a batch of a reader or a fan-in, and take it; an empty one means that it was closed."""
    try:
        # Before waiting: a writer may be waiting for just that to have room for the next message.
        reader._commit_due()  # pyright: ignore[reportPrivateUsage]
        while await reader._ready():  # pyright: ignore[reportPrivateUsage]
            if max_wait_s:
                await _fill(reader, max_messages, max_bytes, max_wait_s)
            batch = reader.read_batch(max_messages, max_bytes)
            if batch:  # another task may have been quicker
                return batch
    except ClosedError:  # by another thread, in the middle of this
        if not reader.closed:  # one source of a fan-in was
            raise
    return []


async def _fill(
    reader: _Live[T], max_messages: int, max_bytes: int | None, max_wait_s: float
) -> None:
    """Return when a full batch is there, or the time is over.

    Payloads are known by the size of their records only, which is rounded up to 64 bytes: a batch
    may be taken for full a little before it is.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait_s
    pause_s = min(max_wait_s / 16, _LOOK_EVERY_S)
    while not reader.closed:
        lag = reader.lag
        payload_bytes = lag.bytes - lag.messages * _HEADER_BYTES
        enough_bytes = max_bytes is not None and payload_bytes >= max_bytes
        left = deadline - loop.time()
        if lag.messages >= max_messages or enough_bytes or left <= 0:
            return
        await asyncio.sleep(min(pause_s, left))
