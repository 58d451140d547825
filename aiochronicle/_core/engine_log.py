"""Passes the engine's log to Python's logging, as ``aiochronicle.engine``.

The threads of the engine know nothing of Python. They put their entries into a ring buffer (csrc/log.c),
which one Python thread empties. It waits for entries in C, without the interpreter lock, and is a daemon
thread, so a program can end at any time. Opening and closing also empty the buffer, in the caller's thread,
so that their entries are logged before later ones. So does the end of the program.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from aiochronicle._base.printable import printable
from aiochronicle._engine import ffi, lib

__all__ = ["log_waiting", "on_settings", "start"]

_log = logging.getLogger("aiochronicle.engine")

_NO_LIMIT_NS = 2**62
# How long opening and closing wait for another thread that is logging. There is a limit because its
# handler may in turn wait for a lock that the caller holds.
_WAIT_MAX_S = 0.2


class _Log:
    """Empties the ring buffer of this process, in one thread at a time to keep the order."""

    def __init__(self) -> None:
        self._emptying = threading.Lock()
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
                except RuntimeError:  # no more threads, or the interpreter is shutting down
                    return
                self._thread = thread

    def log_waiting(self, wait_max_s: float = _WAIT_MAX_S) -> None:
        if self._owner == threading.get_ident():
            return  # called by a handler of our own entries; the loop below continues after it
        if not self._emptying.acquire(timeout=wait_max_s):
            return
        try:
            self._owner = threading.get_ident()
            entry = ffi.new("ac_log_entry_t *")
            while lib.ac_log_next(entry):
                _emit(entry)
        finally:
            self._owner = None
            self._emptying.release()

    def _run(self) -> None:
        while True:
            lib.ac_log_wait(_NO_LIMIT_NS)
            self.log_waiting(wait_max_s=-1)


_settings_changed: Callable[[str], None] | None = None


def on_settings(changed: Callable[[str], None]) -> None:
    """Register a function to be called with the path of each queue whose settings.toml has changed."""
    global _settings_changed
    _settings_changed = changed


def _emit(entry: Any) -> None:
    """Log one entry. Exceptions of handlers and filters do not reach the caller."""
    queue = os.fsdecode(ffi.string(entry.path))
    path = printable(queue)
    text = printable(ffi.string(entry.text).decode("utf-8", "surrogateescape"))
    try:
        if entry.dropped_before:
            _log.warning(
                "%d entries of the engine were dropped here: the handlers were too slow",
                entry.dropped_before,
            )
        if entry.level == lib.AC_LOG_SETTINGS:
            if _settings_changed is not None:
                _settings_changed(queue)
        else:
            _log.log(entry.level, "%s: %s" if path else "%s%s", path, text)
    except Exception:  # noqa: BLE001, S110  logging the next entry may succeed
        pass


_process_log = _Log()


def _replace_log() -> None:
    """Start again in a forked child, where the thread does not exist and the lock may never be released."""
    global _process_log
    _process_log = _Log()


os.register_at_fork(after_in_child=_replace_log)


def start() -> None:
    """Start logging entries of the engine.

    The engine records debug entries only if they are enabled now, because they could displace failures in
    the ring buffer.
    """
    lib.ac_log_set_level(logging.DEBUG if _log.isEnabledFor(logging.DEBUG) else logging.INFO)
    _process_log.start()


def log_waiting() -> None:
    """Log the waiting entries of the engine. Exceptions of handlers are ignored."""
    _process_log.log_waiting()


atexit.register(
    log_waiting
)  # runs before the exit function of logging, which was registered earlier
