"""Changes in directories, reported by watchfiles in a separate thread.

This uses the documented Rust class of watchfiles rather than ``awatch``, so that the import, setting watches
and waiting all happen in one thread, which ends when it is stopped. watchfiles gets a list of directories
without their subdirectories, because it would follow links on its way down.

watchfiles cannot be waited for, only polled. That happens rarely while a faster source reports changes
(``eager=False``), and otherwise every STEP_MS. After any failure it is restarted, with growing pauses.
"""

import asyncio
import logging
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from aiochronicle._base.printable import printable

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

__all__ = ["Watcher"]

# A burst of changes is reported after the first pause of STEP_MS, or after DEBOUNCE_MS. The
# thread wakes up once per step, so a shorter one would cost more than it is worth.
STEP_MS = 5
DEBOUNCE_MS = 20
SELDOM_S = 4.0
RETRY_S, RETRY_MAX_S = 0.1, 10.0
DIRECTORIES_MAX = 1 << 14

_log = logging.getLogger("aiochronicle.discovery")

Wanted: TypeAlias = Mapping[str, object]
"""Directories by path, the root first, with something that is another if the directory is."""


class Watcher:
    """Calls ``changed`` in the loop with the paths that changed, None if that may be any.

    A method, whose object it does not keep: a loop may be closed and everything in it forgotten long
    before the thread looks whether it is.
    """

    def __init__(self, root: str, changed: Callable[[set[str] | None], None]) -> None:
        self._root = root
        self._changed = weakref.WeakMethod(changed)
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {root}", daemon=True)
        self._logged: set[type] = set()
        self._stopped = False
        self._wake = threading.Event()  # set after one of these has changed:
        self._wanted: Wanted = {}
        self._eager = False

    def follow(self, wanted: Wanted, *, eager: bool) -> None:
        """Watch these directories from now on; ``eager``: with a short step."""
        if (wanted, eager) != (self._wanted, self._eager):
            self._watching.clear()
            self._wanted, self._eager = wanted, eager
            self._wake.set()
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:  # no more threads; the next call tries again
                self._complain(error)
                self._watching.set()

    async def watching(self) -> None:
        """Wait until nothing that changes from now on is missed, or until it failed."""
        await self._watching.wait()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped = True
        self._wake.set()

    def join(self) -> None:
        """Wait for the thread to end, in another one; its watches are gone soon after."""
        if self._thread.ident is not None:
            self._thread.join()

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without stopping us
            self._stopped = True

    def _tell_changed(self, paths: set[str] | None) -> None:
        changed = self._changed()
        if changed is not None:
            self._tell(changed, paths)

    def _run(self) -> None:
        """Watch until stopped, whatever happens."""
        retry_s = RETRY_S
        missed = False
        while not self._stopped:
            try:
                for _ in self._watch(missed=missed):
                    retry_s = RETRY_S
            except BaseException as error:  # noqa: BLE001 - among them the panics of Rust
                self._complain(error)
            self._tell(self._watching.set)
            missed = True
            if not self._stopped:
                self._wake.wait(retry_s)
                if self._loop.is_closed():
                    self._stopped = True
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _complain(self, error: BaseException) -> None:
        if type(error) not in self._logged:  # its text may hold a name, and names are endless
            self._logged.add(type(error))
            _log.warning(
                "%s: watchfiles failed and is started again: %s: %s",
                printable(self._root),
                type(error).__name__,
                printable(error),
            )

    def _watch(self, *, missed: bool) -> Iterator[None]:
        """Watch what is wanted; yields each time that this has worked for a while."""
        watched: Wanted | None = None
        notify: RustNotify | None = None
        try:
            while not self._stopped:
                self._wake.clear()
                wanted, eager = self._wanted, self._eager
                if notify is None or wanted != watched:
                    if notify is not None:
                        notify.close()
                    notify = self._notify(wanted)
                    # Whatever changed between the look that found these and now was not watched.
                    if missed or (eager and watched is not None):
                        self._tell_changed(None)
                    watched, missed = wanted, False
                self._tell(self._watching.set)
                self._await_changes(notify, eager=eager)
                yield
        finally:
            if notify is not None:
                notify.close()

    def _notify(self, wanted: Wanted) -> "RustNotify":
        # Here, because it takes longer to import than everything else together.
        from watchfiles._rust_notify import RustNotify

        paths = [path for path in islice(wanted, DIRECTORIES_MAX) if self._is_watchable(path)]
        try:
            return RustNotify(paths, False, False, 0, False, True)
        except Exception as error:
            if len(paths) <= 1:
                raise
            self._complain(error)
            return RustNotify(paths[:1], False, False, 0, False, True)  # the root; better than none

    def _is_watchable(self, path: str) -> bool:
        """Leave out what would make watchfiles refuse all, and what has become a link."""
        try:
            path.encode()
            mode = (os.stat if path == self._root else os.lstat)(path).st_mode
        except (UnicodeEncodeError, OSError):
            return False
        return stat.S_ISDIR(mode)

    def _await_changes(self, notify: "RustNotify", *, eager: bool) -> None:
        """Return after changes, when woken, or after a while."""
        if eager:
            changes = notify.watch(DEBOUNCE_MS, STEP_MS, int(SELDOM_S * 1000), self._wake)
        else:
            self._wake.wait(SELDOM_S)
            changes = notify.watch(1, 1, 1, None)  # what there is
        if isinstance(changes, set):
            self._tell_changed({path for _, path in changes})
        if self._loop.is_closed():
            self._stopped = True
