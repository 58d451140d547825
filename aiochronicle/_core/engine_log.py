"""The engine's log, passed to Python's logging as ``aiochronicle.engine``.

The threads of the engine know nothing of Python. Their entries wait in a ring (csrc/log.c) for one Python
thread. It sleeps in C, without the interpreter lock, until there is an entry, and does not keep a program
from ending. Opening and closing also empty the ring, in the caller's thread, so that their entries are logged
before later ones. The end of the program empties it, too.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from aiochronicle._base.printable import printable
from aiochronicle._engine import ffi, lib

__all__ = ["hand_over", "on_settings", "start"]

_log = logging.getLogger("aiochronicle.engine")

_NO_LIMIT_NS = 2**62
# How long opening and closing wait for another thread that is logging. Its handler may in turn be
# waiting for a lock that is held by the caller.
_PATIENCE_S = 0.2


class _Log:
    """Empties the ring of this process: one thread at a time, to keep the order."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._owner: int | None = None
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._start:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="aiochronicle-log", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread to be had, or the interpreter is about to end
                    return
                self._thread = thread

    def hand_over(self, patience_s: float = _PATIENCE_S) -> None:
        if self._owner == threading.get_ident():
            return  # called by a handler of our own entries; the loop below goes on after it
        if not self._turn.acquire(timeout=patience_s):
            return
        try:
            self._owner = threading.get_ident()
            entry = ffi.new("ac_log_entry_t *")
            while lib.ac_log_next(entry):
                _emit(entry)
        finally:
            self._owner = None
            self._turn.release()

    def _run(self) -> None:
        while True:
            lib.ac_log_wait(_NO_LIMIT_NS)
            self.hand_over(patience_s=-1)


_settings_changed: Callable[[str], None] | None = None


def on_settings(changed: Callable[[str], None]) -> None:
    """Have this called with the path of each queue whose settings.toml has changed."""
    global _settings_changed
    _settings_changed = changed


def _emit(entry: Any) -> None:
    """Log one entry. What a handler or filter raises does not reach the caller."""
    named = os.fsdecode(ffi.string(entry.path))
    path = printable(named)
    text = printable(ffi.string(entry.text).decode("utf-8", "surrogateescape"))
    try:
        if entry.dropped_before:
            _log.warning(
                "%d entries were dropped here: the engine had more to say than handlers could take",
                entry.dropped_before,
            )
        if entry.level == lib.AC_LOG_SETTINGS:
            if _settings_changed is not None:
                _settings_changed(named)
        else:
            _log.log(entry.level, "%s: %s" if path else "%s%s", path, text)
    except Exception:  # noqa: BLE001, S110  the next entry may fare better
        pass


_of_process = _Log()


def _renew() -> None:
    """In a forked child the thread does not exist, and the lock may be held forever."""
    global _of_process
    _of_process = _Log()


os.register_at_fork(after_in_child=_renew)


def start() -> None:
    """Start logging entries of the engine.

    The engine records ordinary events only if a handler accepts them now: they would take the place of
    failures.
    """
    lib.ac_log_set_level(logging.DEBUG if _log.isEnabledFor(logging.DEBUG) else logging.INFO)
    _of_process.start()


def hand_over() -> None:
    """Log the waiting entries of the engine. Never raises what a handler raises."""
    _of_process.hand_over()


atexit.register(hand_over)  # before logging's own, which was registered earlier
