"""Watches directories through a descriptor that an event loop waits for.

It uses the engine's watch (``ac_watch_*``), so nothing runs while nothing changes. It needs one inotify
instance, and one inotify watch per directory. Callers work without it when the system has none left.
"""

import os
import weakref

from aiochronicle._base.binding import ffi, lib, new_error

__all__ = ["DirectoryWatch"]

CHANGES_MAX = 1024
DIRECTORIES_MAX = 1 << 16


class DirectoryWatch:
    """Watches directories, given by open descriptors; OSError if the system has no inotify instance left.

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
        """Return the descriptor, which is readable when something has changed."""
        return self._fd

    def watch(self, directory: int, path: str) -> int:
        """Watch a directory, which may already be watched; return 0 or an errno."""
        if len(self._paths) >= DIRECTORIES_MAX and path not in self._watches:
            return 0  # the periodic full scan must suffice
        error = new_error()
        watch = lib.ac_watch_add(self._fd, directory, error)
        if watch < 0:
            return int(error.sys_errno)
        if self._watches.get(path) != watch:
            self.forget(path)
        # A directory that was moved here keeps its watch.
        self._paths[watch] = path
        self._watches[path] = watch
        return 0

    def forget(self, path: str) -> None:
        """End the watch of a directory, unless the same watch now belongs to another path."""
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.get(watch) == path:
            del self._paths[watch]
            lib.ac_watch_remove(self._fd, watch)  # fails if the directory was removed

    def take(self) -> list[tuple[str, str]] | None:
        """Return changes as (path of the directory, name in it); None if changes were lost.

        An empty name means the directory itself.
        """
        changed: dict[tuple[str, str], None] = {}
        for index in range(lib.ac_watch_read(self._fd, self._changes, CHANGES_MAX)):
            change = self._changes[index]
            if change.watch < 0:
                return None
            # An unknown watch is being added: its directory is scanned afterwards.
            if (path := self._paths.get(change.watch)) is not None:
                changed[path, os.fsdecode(ffi.string(change.name))] = None
        return list(changed)

    def close(self) -> None:
        """Release the descriptor and all watches, which may take the kernel 10 ms."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()  # if an event loop was closed before its discovery


_open: "weakref.WeakSet[DirectoryWatch]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Release the watches in a forked child, which does not use them."""
    for directory_watch in list(_open):
        directory_watch.close()


os.register_at_fork(after_in_child=_close_in_child)
