"""The common base of readers, fan-ins and replays: waiting, batches, and the latest message per key.

A subclass provides ``_next``, ``_ready``, ``_commit_due``, ``read_batch``, ``lag`` and ``_feed``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.closing import Closing
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.batches import Batches, check_limits, collect_batch
from aiochronicle._core.conflate import Conflation, Feed, take_snapshot, take_snapshot_now
from aiochronicle._hot import Message
from aiochronicle._typed.dispatch import Dispatching
from aiochronicle.codec import T_co

__all__ = ["Lag", "Stream"]

K = TypeVar("K", bound=Hashable)


class Lag(HtmlStruct, frozen=True):
    """How far a reader lags behind the newest message; ``seconds`` is the age of the oldest unread one."""

    messages: int
    bytes: int
    seconds: float


class Stream(Dispatching, Closing, Generic[T_co]):
    """Messages of one or more queues, in order. The base of Reader, FanIn and Replay."""

    if TYPE_CHECKING:  # the subclass, or its other base class, has them

        @property
        def lag(self) -> Lag: ...
        def read_batch(
            self, max_messages: int = ..., max_bytes: int | None = ...
        ) -> list[Message[T_co]]: ...
        def _next(self) -> Coroutine[Any, Any, Message[T_co]]: ...
        def _ready(self) -> Awaitable[bool]: ...
        def _commit_due(self) -> None: ...
        def _feed(self) -> Feed: ...

    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, Message[T_co]]:
        """Wait for the next message.

        TimeoutError after ``timeout`` seconds, ClosedError if it is closed or a replay has ended. If it is
        cancelled or times out, it has taken nothing.
        """
        limit_s = checked_timeout(timeout)
        return self._next() if limit_s is None else self._next_within(limit_s)

    async def _next_within(self, timeout_s: float) -> Message[T_co]:
        async with asyncio.timeout(timeout_s):
            return await self._next()

    def batches(
        self,
        max_messages: int = 1024,
        max_bytes: int | None = None,
        max_wait: float | None = None,
    ) -> Batches[T_co]:
        """Iterate over lists of messages: ``async for batch in reader.batches()``.

        A batch has at least one message and at most ``max_messages``. A message that would make its payloads
        larger than ``max_bytes`` goes into the next batch, except the first message of a batch. Without
        ``max_wait`` a batch is returned as soon as there is a message. With ``max_wait`` (seconds) it is
        returned when it is full, or when its first message has waited that long. A reader checks every 2 ms
        whether the batch is full, and counts each payload rounded up to 64 bytes. In a replay ``max_wait`` is
        recorded time, so that a consumer that keeps up gets the same batches at every speed. If cancelled, it
        has taken nothing.
        """
        check_limits(max_messages, max_bytes, max_wait)
        return Batches(partial(self._next_batch, max_messages, max_bytes, max_wait))

    async def _next_batch(
        self, max_messages: int, max_bytes: int | None, max_wait_s: float | None
    ) -> list[Message[T_co]]:
        """Return the next batch; an empty list at the end."""
        return await collect_batch(self, max_messages, max_bytes, max_wait_s)

    def conflate(
        self, key: Callable[[Message[T_co]], K], *, max_keys: int = 65536
    ) -> Conflation[K, T_co]:
        """Iterate over the latest message per key: ``async for quote in reader.conflate(symbol)``.

        For a consumer that may be slower than the feed: it never gets an outdated message, and
        ``Conflation.skipped`` counts the messages that were replaced. With several queues, the latest message
        is the one that the merge delivers last. Commit with ``Conflation.commit``. At most ``max_keys`` keys
        wait at a time; messages of further keys stay in the queue until then. If the key function raises, the
        iteration raises that exception, and continues with the next message.

        >>> with open_reader(queue) as reader:
        ...     [message.payload for message in reader.conflate(lambda message: message.type_id)]
        [b'hello']
        """
        return Conflation(self._feed(), key, max_keys)

    async def snapshot(
        self, key: Callable[[Message[T_co]], K], *, max_keys: int = 65536
    ) -> dict[K, Message[T_co]]:
        """Read up to the current end and return the latest message per key, in order of arrival.

        For a consumer that joins late: reading continues after the snapshot, without a gap.
        TooManyKeys if there are more than ``max_keys``. If it fails or is cancelled, the position is
        unchanged.
        """
        return await take_snapshot(self._feed(), key, max_keys)

    def snapshot_now(
        self, key: Callable[[Message[T_co]], K], *, max_keys: int = 65536
    ) -> dict[K, Message[T_co]]:
        """Do the same as ``snapshot``, for programs without an event loop.

        >>> with open_reader(queue) as reader:
        ...     reader.snapshot_now(lambda message: message.type_id)[0].payload
        b'hello'
        """
        return take_snapshot_now(self._feed(), key, max_keys)
