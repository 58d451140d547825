"""Heartbeats of writers that have nothing to append: one thread for all of them.

A promise must not overtake a message that is being stamped at the same moment. Appending to a
writer and its heartbeat exclude each other already (the interpreter's lock, or the writer's own
where that is given up), so a thread that calls ``Writer.heartbeat`` is all that is needed, and
appending costs nothing more. A writer that is in the middle of a call, or waiting for room, is not
waited for: the heartbeats of all others would stop. One whose queue was removed has its last turn:
strict fan-ins find the removal themselves, and its owner, who may be idle for long, learns it from the
log.
"""

import logging
import os
import threading
import time
import weakref
from typing import Protocol

from aiochronicle.errors import ChronicleError

__all__ = ["keep_beating"]

_log = logging.getLogger("aiochronicle.writer")


class _Beating(Protocol):
    @property
    def closed(self) -> bool: ...
    def _try_heartbeat(self) -> object: ...


class _Heart:
    """Writers by the time of their next heartbeat, and the thread that gives it."""

    def __init__(self) -> None:
        from sortedcontainers import SortedList  # here: most programs have no heartbeats

        self._changed = threading.Condition()
        self._due: SortedList[tuple[float, int, weakref.ref[_Beating], float]] = SortedList()
        self._count = 0
        self._thread: threading.Thread | None = None

    def add(self, writer: _Beating, interval_s: float) -> None:
        with self._changed:
            self._count += 1  # breaks ties, since references cannot be compared
            entry = (time.monotonic(), self._count, weakref.ref(writer), interval_s)
            self._due.add(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                due_s, number, reference, interval_s = self._due[0]
                left_s = due_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                following = (time.monotonic() + interval_s, number, reference, interval_s)
                del self._due[0]
                self._due.add(following)
            if not _beat(reference):
                with self._changed:
                    self._due.remove(following)


def _beat(reference: weakref.ref[_Beating]) -> bool:
    """Return False when the writer is no more."""
    writer = reference()
    if writer is None or writer.closed:
        return False
    try:
        # One that is busy now has its next turn.
        writer._try_heartbeat()  # pyright: ignore[reportPrivateUsage]
    except ChronicleError as error:
        if not writer.closed:  # its own calls will say so too, but nobody may be making any
            _log.warning("the automatic heartbeats end: %s", error)
        return False
    return True


_heart: _Heart | None = None
_making = threading.Lock()


def _renew() -> None:
    """In a forked child neither the thread nor the writers are usable."""
    global _heart, _making
    _heart, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_renew)


def keep_beating(writer: _Beating, interval_s: float) -> None:
    """Call the writer's heartbeat at this interval, until it is closed."""
    global _heart
    with _making:
        if _heart is None:
            _heart = _Heart()
    _heart.add(writer, interval_s)
