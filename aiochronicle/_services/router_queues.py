"""A router's state of each queue: attached, or set aside."""

import threading
import time
from concurrent.futures import Future
from typing import Any

from aiochronicle import _hot
from aiochronicle._base.background import in_thread
from aiochronicle._base.position import Position
from aiochronicle._core.reader import Reader
from aiochronicle._core.writer import Writer
from aiochronicle._services.attaching import Place, commit_without_reader
from aiochronicle._services.examiner import Identity

__all__ = ["Aside", "Counts", "Known", "Source", "close_opened"]


class Counts:
    """Damage in one queue, summed over all times that it was attached."""

    def __init__(self) -> None:
        self.skipped = self.lost = 0


class Known:
    """A queue that was announced: its current or last reader, and the writer of replies to it."""

    def __init__(self, reader: Reader | None) -> None:
        self.reader: Reader[Any] | None = reader
        self.reply: Future[Writer] | None = None

    def has_sent(self, message: _hot.Message) -> bool:
        """Return whether a message is from this queue."""
        return self.reader is not None and self.reader._is_of(message)

    def has_no_reply(self) -> bool:
        """Return whether the writer of replies was not opened yet, or opening failed."""
        return self.reply is None or (self.reply.done() and self.reply.exception() is not None)

    def dead_reply(self) -> Writer | None:
        """Return the writer of replies if its owner closed it, or its queue was removed."""
        if self.reply is None or not self.reply.done() or self.has_no_reply():
            return None
        writer = self.reply.result()
        return writer if writer.closed or writer.gone else None


class Source(Known):
    """An attached queue."""

    reader: Reader[Any]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, source: int, reader: Reader) -> None:
        super().__init__(reader)
        self.id = source
        self.attached_s = time.monotonic()


class Aside(Known):
    """A queue that was set aside: why, and when it is retried."""

    def __init__(self, error: Exception, pause_s: float) -> None:
        super().__init__(None)
        self.error = error
        self.pause_s = pause_s
        self.due_s = time.monotonic() + pause_s
        self.place: Place | None = None
        self.closing: Future[None] | None = None  # of its reader, whose name is in use until then
        self.skip: Exception | None = None  # the damage that opening skips
        self.done: _hot.Message | Position | None = None  # committed since then, but not stored yet
        self.storing = threading.RLock()  # held while a reader of this name is open
        self.cannot_store = False  # until it is attached again

    def inherit(self, before: "Aside") -> None:
        """Take over the state of an earlier entry for the same queue."""
        self.pause_s, self.due_s = before.pause_s, time.monotonic() + before.pause_s
        self.closing, self.reply = before.closing, before.reply
        self.reader, self.done = before.reader, before.done

    def store(self, path: str, name: str, identity: Identity | None) -> None:
        """Store the commits since it was set aside, if any. Blocks."""
        if self.closing is not None:
            self.closing.result()
        with self.storing:
            while (done := self.done) is not None:
                committed = commit_without_reader(path, name, identity, done)
                if self.place is not None:  # so that this does not look like an operator's commit
                    self.place = self.place._replace(committed=committed)
                if self.done is done:
                    self.done = None


def close_opened(reply: "Future[Writer]") -> None:
    if reply.exception() is None:
        in_thread(reply.result().close)
