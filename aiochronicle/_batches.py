"""Batches of a reader or a fan-in as an asynchronous iterator.

Nothing is taken from the reader before a batch is complete: waiting looks, taking is one
synchronous step. So a cancelled ``__anext__`` has lost nothing, and the iterator can be used again
(an async generator would be finished by the cancellation).
"""

import asyncio
from typing import TYPE_CHECKING, Generic, Self

from aiochronicle._hot import Message
from aiochronicle.codec import T
from aiochronicle.errors import InvalidArgument

if TYPE_CHECKING:
    from aiochronicle.fanin import FanIn
    from aiochronicle.reader import Reader

__all__ = ["Batches"]

# How late a batch may be noticed to be full. Being woken by each message would cost far more.
_LOOK_EVERY_S = 0.002
_HEADER_BYTES = 64


class Batches(Generic[T]):
    """Made by Reader.batches and FanIn.batches."""

    def __init__(
        self,
        reader: "Reader[T] | FanIn",
        max_messages: int,
        max_bytes: int | None,
        max_wait: float | None,
    ) -> None:
        if max_messages < 1:
            raise InvalidArgument(f"max_messages must be positive, not {max_messages!r}")
        if max_bytes is not None and max_bytes < 1:
            raise InvalidArgument(f"max_bytes must be positive, not {max_bytes!r}")
        if max_wait is not None and max_wait < 0:
            raise InvalidArgument(f"max_wait must not be negative, but is {max_wait!r}")
        self._reader = reader
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_wait = max_wait

    def __aiter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Do nothing, for ``contextlib.aclosing``: the reader stays as it is."""

    async def __anext__(self) -> list[Message[T]]:
        while True:
            if not await self._reader._ready():
                raise StopAsyncIteration
            if self._max_wait:
                await self._fill(self._max_wait)
            if self._reader.closed:
                raise StopAsyncIteration
            batch = self._reader.read_batch(self._max_messages, self._max_bytes)
            if batch:  # another task may have been quicker
                return batch

    async def _fill(self, max_wait: float) -> None:
        """Return when a full batch is there, or the time is over.

        Payloads are known by the size of their records only, which is rounded up to 64 bytes: a
        batch may be taken for full a little before it is.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait
        pause_s = min(max_wait / 16, _LOOK_EVERY_S)
        while not self._reader.closed:
            lag = self._reader.lag
            payload_bytes = lag.bytes - lag.messages * _HEADER_BYTES
            enough_bytes = self._max_bytes is not None and payload_bytes >= self._max_bytes
            left = deadline - loop.time()
            if lag.messages >= self._max_messages or enough_bytes or left <= 0:
                return
            await asyncio.sleep(min(pause_s, left))
