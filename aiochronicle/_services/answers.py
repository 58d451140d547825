"""Reads the queue of answers of one requester, even if it is removed, replaced or damaged.

The reader has a name, so that retention keeps what it has not read; closing removes the name, so that nothing
is kept for it then. Without permission for a name (the queue is another user's) it reads anonymously. A queue
that is removed, replaced or cannot be read is reopened, with growing pauses.
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
from aiochronicle._services.attaching import go_on_after_loss
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
    """Reads answers and hands them to ``deliver``; what went wrong goes to ``fail``."""

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
        self._stepped_over: tuple[str | None, int | None] | None = None
        self._is_nameless = False  # it may not write to the queue
        self._state = "open"  # or "closed"

    def open(self) -> None:
        """Open the queue, or wait for it, so that what comes from now on is read. Blocks."""
        try:
            reader = self._open(READER_NAME, "last")
            with contextlib.suppress(QueueNotFound):  # it is waited for
                reader.commit()  # a requester that was killed may have left an older position
        except AccessDenied:
            self._is_nameless = True
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

    def _open_again(self) -> Reader[T]:
        """Open what is at the path now. What was read before may come again; nobody waits for it."""
        if self._is_nameless:
            return self._open(None, "first")
        try:
            return self._open(READER_NAME, "committed")
        except PositionError:  # an older copy was put there
            return self._open(READER_NAME, "first")
        except AccessDenied:
            return self._open(None, "first")

    async def follow(self) -> None:
        """Read answers until this is closed. Cancelled, it has lost none."""
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed():
            reader = self._reader
            try:
                if reader is None:
                    reader = await self._opened_again()
                    if self._is_closed():
                        await in_background(reader.close)
                        return
                    self._reader = reader
                    _log.info("%s: answers are read again", printable(self.path))
                async for reply in reader:
                    pause_s = _FIRST_PAUSE_S
                    self._deliver(reply)
            except Exception as error:  # noqa: BLE001 - whatever it is, later answers come
                if reader is not None and self._goes_on(reader, error):
                    continue
            if self._is_closed():
                return
            self._reader = None
            if reader is not None:
                await in_background(reader.close)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _opened_again(self) -> Reader[T]:
        opening = in_thread(self._open_again)
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    def _goes_on(self, reader: Reader[T], error: Exception) -> bool:
        """Fail the waiting requests, unless it is skipped; return whether reading goes on after it."""
        if isinstance(error, AccessDenied) and reader.name is not None:
            self._is_nameless = True  # the queue that was waited for is another user's
            return False
        _log.warning("answers cannot be read: %s", printable(error))
        verdict = self._judge(error)
        if verdict.raised is not None:
            self._fail(verdict.raised)
        return self._step_over(reader, error)

    def _judge(self, error: Exception) -> Verdict:
        if isinstance(error, CorruptionError):
            return judge(self._on_corrupt, error)
        if isinstance(error, PositionLost):
            return judge(self._on_lost, error)
        return Verdict(raised=error)

    def _step_over(self, reader: Reader[T], error: Exception) -> bool:
        if not isinstance(error, CorruptionError | PositionLost):
            return False
        where = error.path, error.offset
        if self._stepped_over == where:  # that was of no use
            self._stepped_over = None
            return False
        try:
            if isinstance(error, PositionLost):
                next_seq = reader.statistics().next_seq
                self.lost += go_on_after_loss(reader, error, next_seq)
            else:
                reader.step_over()
                self.skipped += 1
        except ChronicleError:
            return False
        self._stepped_over = where
        return True

    def _is_closed(self) -> bool:
        return self._state == "closed"  # by another task or thread, at any time

    def close(self) -> None:
        """Stop reading. Blocks: nothing is kept for this reader any more."""
        self._state = "closed"
        reader, self._reader = self._reader, None
        if reader is None:
            return
        is_named = reader.name is not None
        reader.close()
        if is_named:
            with contextlib.suppress(
                ChronicleError
            ):  # it was removed, or another requester uses it now
                forget_reader(self.path, READER_NAME)


def _close_opened(opening: "Future[Reader[Any]]") -> None:
    if opening.exception() is None:
        opening.result().close()
