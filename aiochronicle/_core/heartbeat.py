"""Sends the automatic heartbeats of all writers, in one thread.

A heartbeat must not overtake a message that gets its timestamp at the same moment. An append and a
heartbeat of the same writer already exclude each other (by the interpreter lock, or by the writer's own
lock while that is released), so a thread that calls ``Writer.heartbeat`` is enough, and appending costs
nothing more. The thread does not wait for a writer that is inside a call or blocked by its capacity,
because that would stop the heartbeats of all others.

If a queue was removed, the thread drops its writer and logs a warning: strict fan-ins detect the removal
themselves, but the program may not use the writer for a long time.
"""

import logging
import os
import threading
import time
import weakref
from typing import Protocol

from aiochronicle.errors import ChronicleError

__all__ = ["start_heartbeats"]

_log = logging.getLogger("aiochronicle.writer")


class _Writer(Protocol):
    @property
    def closed(self) -> bool: ...
    def _try_heartbeat(self) -> object: ...


class _HeartbeatThread:
    """The writers by the time of their next heartbeat, and the thread that sends them."""

    def __init__(self) -> None:
        from sortedcontainers import SortedList  # here, because most programs have no heartbeats

        self._changed = threading.Condition()
        self._due: SortedList[tuple[float, int, weakref.ref[_Writer], float]] = SortedList()
        self._count = 0
        self._thread: threading.Thread | None = None

    def add(self, writer: _Writer, interval_s: float) -> None:
        with self._changed:
            self._count += 1  # breaks ties, because references cannot be compared
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
            if not _send_heartbeat(reference):
                with self._changed:
                    self._due.remove(following)


def _send_heartbeat(reference: weakref.ref[_Writer]) -> bool:
    """Send a writer's heartbeat; False if the writer needs no more heartbeats."""
    writer = reference()
    if writer is None or writer.closed:
        return False
    try:
        # A busy writer is skipped until its next heartbeat.
        writer._try_heartbeat()  # pyright: ignore[reportPrivateUsage]
    except ChronicleError as error:
        if not writer.closed:  # the writer's own calls will raise this, too, but there may be none
            _log.warning("automatic heartbeats end: %s", error)
        return False
    return True


_thread: _HeartbeatThread | None = None
_creating = threading.Lock()


def _forget_thread() -> None:
    """Start again in a forked child, where neither the thread nor the writers are usable."""
    global _thread, _creating
    _thread, _creating = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)


def start_heartbeats(writer: _Writer, interval_s: float) -> None:
    """Call the writer's heartbeat at this interval until the writer is closed."""
    global _thread
    with _creating:
        if _thread is None:
            _thread = _HeartbeatThread()
    _thread.add(writer, interval_s)
