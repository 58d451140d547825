"""Reports changes in directories with watchfiles, in a separate thread.

This uses the documented Rust class of watchfiles rather than ``awatch``, so that importing it, setting
watches and waiting all happen in one thread, which can be stopped. watchfiles gets a list of directories
and does not search their subdirectories, because it would follow links.

watchfiles can only be polled. The thread polls rarely while a faster source reports changes
(``eager=False``), and otherwise every STEP_MS. After any failure it starts watchfiles again, with growing
pauses.
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

# A burst of changes is reported after the first pause of STEP_MS, or after DEBOUNCE_MS. The thread
# wakes up once per step, so a shorter step would cost too much.
STEP_MS = 5
DEBOUNCE_MS = 20
SELDOM_S = 4.0
RETRY_S, RETRY_MAX_S = 0.1, 10.0
DIRECTORIES_MAX = 1 << 14

_log = logging.getLogger("aiochronicle.discovery")

Wanted: TypeAlias = Mapping[str, object]
"""Directories by path, the root first, each with a value that changes if the directory is replaced."""


class Watcher:
    """Calls ``changed`` in the loop with the paths that changed, or None if any path may have changed.

    ``changed`` is a method, and its object is only referenced weakly, because the loop may be closed long
    before the thread checks that.
    """

    def __init__(self, root: str, changed: Callable[[set[str] | None], None]) -> None:
        self._root = root
        self._changed = weakref.WeakMethod(changed)
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {root}", daemon=True)
        self._logged: set[type] = set()
        self._stopped = False
        self._wake = threading.Event()  # set after one of the following has changed
        self._wanted: Wanted = {}
        self._eager = False

    def follow(self, wanted: Wanted, *, eager: bool) -> None:
        """Watch these directories from now on; ``eager`` polls with a short step."""
        if (wanted, eager) != (self._wanted, self._eager):
            self._watching.clear()
            self._wanted, self._eager = wanted, eager
            self._wake.set()
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:  # no more threads; the next call tries again
                self._log_failure(error)
                self._watching.set()

    async def watching(self) -> None:
        """Wait until all later changes are reported, or until watching failed."""
        await self._watching.wait()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped = True
        self._wake.set()

    def join(self) -> None:
        """Wait, in another thread, until the thread has ended; its watches are released soon afterwards."""
        if self._thread.ident is not None:
            self._thread.join()

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without a call of stop
            self._stopped = True

    def _tell_changed(self, paths: set[str] | None) -> None:
        changed = self._changed()
        if changed is not None:
            self._tell(changed, paths)

    def _run(self) -> None:
        """Watch until stopped; a failure only causes a pause."""
        retry_s = RETRY_S
        missed = False
        while not self._stopped:
            try:
                for _ in self._watch(missed=missed):
                    retry_s = RETRY_S
            except BaseException as error:  # noqa: BLE001 - including panics of Rust code
                self._log_failure(error)
            self._tell(self._watching.set)
            missed = True
            if not self._stopped:
                self._wake.wait(retry_s)
                if self._loop.is_closed():
                    self._stopped = True
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _log_failure(self, error: BaseException) -> None:
        if type(error) not in self._logged:  # by type: texts may contain any number of names
            self._logged.add(type(error))
            _log.warning(
                "%s: watchfiles failed and will be restarted: %s: %s",
                printable(self._root),
                type(error).__name__,
                printable(error),
            )

    def _watch(self, *, missed: bool) -> Iterator[None]:
        """Watch the wanted directories; yields after each period without a failure."""
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
                    # Changes since these directories were found were not watched.
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
        # Imported here, because it takes longer than all other imports together.
        from watchfiles._rust_notify import RustNotify

        paths = [path for path in islice(wanted, DIRECTORIES_MAX) if self._is_watchable(path)]
        try:
            return RustNotify(paths, False, False, 0, False, True)
        except Exception as error:
            if len(paths) <= 1:
                raise
            self._log_failure(error)
            return RustNotify(paths[:1], False, False, 0, False, True)  # the root only

    def _is_watchable(self, path: str) -> bool:
        """Return whether watchfiles accepts the path, and it has not become a link."""
        try:
            path.encode()
            mode = (os.stat if path == self._root else os.lstat)(path).st_mode
        except (UnicodeEncodeError, OSError):
            return False
        return stat.S_ISDIR(mode)

    def _await_changes(self, notify: "RustNotify", *, eager: bool) -> None:
        """Return after changes, when woken, or after SELDOM_S."""
        if eager:
            changes = notify.watch(DEBOUNCE_MS, STEP_MS, int(SELDOM_S * 1000), self._wake)
        else:
            self._wake.wait(SELDOM_S)
            changes = notify.watch(1, 1, 1, None)  # changes that are already there
        if isinstance(changes, set):
            self._tell_changed({path for _, path in changes})
        if self._loop.is_closed():
            self._stopped = True
