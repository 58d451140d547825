"""Reads the answer queue of one requester, even if the queue is removed, replaced or damaged.

The reader has a name, so that retention keeps what it has not read. Closing removes the name, so that nothing
is kept afterwards. Without permission for a name, because another user owns the queue, it reads anonymously.
It reopens a queue that was removed or replaced or cannot be read, with growing pauses.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic

from aiochronicle._base.background import in_background, in_thread, shielded
from aiochronicle._base.printable import printable
from aiochronicle._core.queue import forget_reader
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._hot import Message
from aiochronicle._services.attaching import resume_after_loss
from aiochronicle._services.damage import Verdict, judge
from aiochronicle._typed.registry import Registry
from aiochronicle.codec import T
from aiochronicle.errors import (
    AccessDenied,
    ChronicleError,
    CorruptionError,
    PositionError,
    PositionLost,
    QueueNotFound,
)

__all__ = ["READER_NAME", "Answers"]

READER_NAME = "requester"
_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0

_log = logging.getLogger("aiochronicle.requests")


class Answers(Generic[T]):
    """Reads answers and passes them to ``deliver``, and exceptions to ``fail``."""

    def __init__(
        self,
        path: str,
        codec: Registry | None,
        on_corrupt: Any,
        on_lost: Any,
        deliver: Callable[[Message[T]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.path = path
        self.skipped = self.lost = 0
        self._codec = codec
        self._on_corrupt = on_corrupt
        self._on_lost = on_lost
        self._deliver = deliver
        self._fail = fail
        self._reader: Reader[T] | None = None
        self._last_skipped: tuple[str | None, int | None] | None = None
        self._is_anonymous = False  # without permission to write to the queue
        self._state = "open"  # or "closed"

    def open(self) -> None:
        """Open the queue, or wait for it, to read answers from now on. Blocks."""
        try:
            reader = self._open(READER_NAME, "last")
            with contextlib.suppress(QueueNotFound):  # the reader waits for the queue
                reader.commit()  # a requester that was killed may have left an older position
        except AccessDenied:
            self._is_anonymous = True
            reader = self._open(None, "last")
        self._reader = reader

    def _open(self, name: str | None, start: Any) -> Reader[T]:
        return open_reader(
            self.path,
            name,
            start=start,
            commit="manual" if name is None else "auto",
            wait_for_queue=True,
            codec=self._codec,
        )

    def _reopen(self) -> Reader[T]:
        """Open the queue that is at the path now. Answers may be read again; no request waits for them."""
        if self._is_anonymous:
            return self._open(None, "first")
        try:
            return self._open(READER_NAME, "committed")
        except PositionError:  # an older copy has replaced the queue
            return self._open(READER_NAME, "first")
        except AccessDenied:
            return self._open(None, "first")

    async def follow(self) -> None:
        """Read answers until this is closed. Cancelling loses none."""
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed():
            reader = self._reader
            try:
                if reader is None:
                    reader = await self._reopen_in_thread()
                    if self._is_closed():
                        await in_background(reader.close)
                        return
                    self._reader = reader
                    _log.info("%s: reading answers again", printable(self.path))
                async for reply in reader:
                    pause_s = _FIRST_PAUSE_S
                    self._deliver(reply)
            except Exception as error:  # noqa: BLE001 - later answers must still be read
                if reader is not None and self._can_continue(reader, error):
                    continue
            if self._is_closed():
                return
            self._reader = None
            if reader is not None:
                await in_background(reader.close)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _reopen_in_thread(self) -> Reader[T]:
        opening = in_thread(self._reopen)
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    def _can_continue(self, reader: Reader[T], error: Exception) -> bool:
        """Fail the waiting requests, unless damage is skipped; return whether this reader can continue."""
        if isinstance(error, AccessDenied) and reader.name is not None:
            self._is_anonymous = True  # another user has created the queue
            return False
        _log.warning("cannot read answers: %s", printable(error))
        verdict = self._judge(error)
        if verdict.raised is not None:
            self._fail(verdict.raised)
        return self._skip(reader, error)

    def _judge(self, error: Exception) -> Verdict:
        if isinstance(error, CorruptionError):
            return judge(self._on_corrupt, error)
        if isinstance(error, PositionLost):
            return judge(self._on_lost, error)
        return Verdict(raised=error)

    def _skip(self, reader: Reader[T], error: Exception) -> bool:
        if not isinstance(error, CorruptionError | PositionLost):
            return False
        where = error.path, error.offset
        if self._last_skipped == where:  # skipping it did not help
            self._last_skipped = None
            return False
        try:
            if isinstance(error, PositionLost):
                next_seq = reader.statistics().next_seq
                self.lost += resume_after_loss(reader, error, next_seq)
            else:
                reader.step_over()
                self.skipped += 1
        except ChronicleError:
            return False
        self._last_skipped = where
        return True

    def _is_closed(self) -> bool:
        return self._state == "closed"  # another task or thread may close it at any time

    def close(self) -> None:
        """Stop reading and remove the reader's name. Blocks."""
        self._state = "closed"
        reader, self._reader = self._reader, None
        if reader is None:
            return
        is_named = reader.name is not None
        reader.close()
        if is_named:
            # The queue may be gone, or another requester may use the name now.
            with contextlib.suppress(ChronicleError):
                forget_reader(self.path, READER_NAME)


def _close_opened(opening: "Future[Reader[Any]]") -> None:
    if opening.exception() is None:
        opening.result().close()
