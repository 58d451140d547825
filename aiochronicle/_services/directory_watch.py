"""Which directories changed, through a descriptor that an event loop waits for.

The engine's watch (``ac_watch_*``): nothing runs while nothing changes. It takes one inotify
instance and one watch per directory; when there are none left, its users go on without.
"""

import os
import weakref

from aiochronicle._base.binding import ffi, lib, new_error

__all__ = ["Nudge"]

CHANGES_MAX = 1024
DIRECTORIES_MAX = 1 << 16


class Nudge:
    """Watches directories, each by the descriptor that the caller has open; OSError if a watch cannot be had.

    ``watch`` and ``forget`` may run in one thread and ``take`` in another.
    """

    def __init__(self) -> None:
        self._fd: int = -1
        error = new_error()
        self._fd = lib.ac_watch_open(error)
        if self._fd < 0:
            raise OSError(error.sys_errno, os.strerror(error.sys_errno))
        _open.add(self)
        self._changes = ffi.new("ac_change_t[]", CHANGES_MAX)
        self._paths: dict[int, str] = {}  # by watch
        self._watches: dict[str, int] = {}

    def fileno(self) -> int:
        """Return the descriptor: readable when something changed."""
        return self._fd

    def watch(self, directory: int, path: str) -> int:
        """Watch a directory, also if it is watched already; an errno if that is impossible, else 0."""
        if len(self._paths) >= DIRECTORIES_MAX and path not in self._watches:
            return 0  # the full scan has to do
        error = new_error()
        watch = lib.ac_watch_add(self._fd, directory, error)
        if watch < 0:
            return int(error.sys_errno)
        if self._watches.get(path) != watch:
            self.forget(path)
        # A directory that was moved here keeps the watch that it had.
        self._paths[watch] = path
        self._watches[path] = watch
        return 0

    def forget(self, path: str) -> None:
        """End the watch of a directory, if it has one and was not watched by another path since."""
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.get(watch) == path:
            del self._paths[watch]
            lib.ac_watch_remove(self._fd, watch)  # of a directory that was removed, it is gone

    def take(self) -> list[tuple[str, str]] | None:
        """Return what changed, as path of the directory and name in it; None if that is not known.

        An empty name is the directory itself.
        """
        changed: dict[tuple[str, str], None] = {}
        for index in range(lib.ac_watch_read(self._fd, self._changes, CHANGES_MAX)):
            change = self._changes[index]
            if change.watch < 0:
                return None
            # A watch that is not known yet is about to be: its directory is scanned after that.
            if (path := self._paths.get(change.watch)) is not None:
                changed[path, os.fsdecode(ffi.string(change.name))] = None
        return list(changed)

    def close(self) -> None:
        """Release the descriptor and all watches, which may take the kernel 10 ms."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()  # of an event loop that was closed before its discovery


_open: "weakref.WeakSet[Nudge]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child has no use for them, and would keep the watches for as long as it lives."""
    for nudge in list(_open):
        nudge.close()


os.register_at_fork(after_in_child=_close_in_child)
