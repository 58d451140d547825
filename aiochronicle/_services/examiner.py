"""Examines the directories under a root: which of them are queues, and which have been.

Every directory is opened step by step from the root, without following links, and examined only through that
descriptor. A directory that replaces it later is a different directory, and is examined separately. Each
directory is watched before it is examined, so no change is missed.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle._files import open_regular
from aiochronicle._layout import CONTROL, JAVA_TABLE, READY
from aiochronicle._services.directory_watch import DirectoryWatch
from aiochronicle._services.ready import Ready, load_ready

__all__ = ["Attached", "Detached", "Directory", "Examiner"]

QUEUE_ID_OFFSET, QUEUE_ID_BYTES = 32, 8  # in control.meta; zero in other programs' queues
MARKS = (READY, CONTROL, JAVA_TABLE)  # the files of a queue whose changes matter

_REFUSED = (errno.EACCES, errno.EPERM)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)

_log = logging.getLogger("aiochronicle.discovery")

Parts: TypeAlias = tuple[str, ...]
"""The path from the root to a directory, name by name."""

Identity: TypeAlias = tuple[int, int, int]
"""Device, inode and owner of a directory."""


class Attached(msgspec.Struct, frozen=True):
    """A queue is ready.

    ``identity`` is the device, inode and owner (a user id) of the directory that was examined. In a root
    where other users may rename, the path may lead to another directory now.
    """

    path: str
    ready: Ready
    identity: Identity | None = None


class Detached(msgspec.Struct, frozen=True):
    """A queue was removed."""

    path: str


class _QueueIdentity(msgspec.Struct, frozen=True):
    """Distinguishes a queue from another one at the same path; inode numbers alone are reused."""

    identity: Identity
    queue_id: bytes | None  # None: it could not be read

    def is_same(self, other: "_QueueIdentity") -> bool:
        ids = (self.queue_id, other.queue_id)
        return self.identity == other.identity and (None in ids or ids[0] == ids[1])


class Directory(msgspec.Struct, frozen=True):
    """A directory that is worth watching."""

    device: int
    inode: int
    leaf: bool  # not searched for queues: at the maximum depth, or a queue itself


class Examiner:
    """Remembers the queues that were found under a root, and returns the changes.

    Its methods run in one thread at a time, and wait for the disk.
    """

    def __init__(self, root: str, depth: int) -> None:
        self.root = root
        self.watch: DirectoryWatch | None = None
        self.directories: dict[str, Directory] = {}
        self.unwatched: OSError | None = (
            None  # why a directory was not watched in the last full scan
        )
        self._depth = depth
        self._known: dict[str, _QueueIdentity] = {}
        self._warned: dict[str, dict[str, str]] = {}  # by path and kind

    def examine(
        self, paths: set[str] | None, stopped: Callable[[], bool]
    ) -> list[Attached | Detached]:
        """Examine the directories of these paths, or all if None. Return the changes."""
        try:
            root = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return [event for path in sorted(self._everything()) for event in self._forget(path)]
        found: list[Attached | Detached] = []
        try:
            wanted = None if paths is None else {self._parts(path) for path in paths}
            if wanted is None or () in wanted:  # the root itself has changed
                changes = self._examine_all(root)
            else:
                changes = self._examine_some(root, set(filter(None, wanted)))
            for events in changes:
                found.extend(events)
                if stopped():
                    break
        finally:
            os.close(root)
        # Detached first: a renamed queue must release its readers' names before it is attached again.
        return sorted(found, key=lambda event: isinstance(event, Attached))

    def queues(self) -> set[str]:
        """Return the paths of the queues that were ready at the last examination."""
        return set(self._known)

    def is_mark(self, path: str, name: str) -> bool:
        """Return whether a change of this name in a directory requires an examination."""
        directory = self.directories.get(path)
        return directory is None or not directory.leaf or not name or name in MARKS

    def _everything(self) -> set[str]:
        return {*self._known, *self.directories, *self._warned}

    def _parts(self, path: str) -> Parts | None:
        """Return the path from the root, name by name; None if the path is not under the root."""
        if path == self.root:
            return ()
        start = self.root.rstrip("/") + "/"
        return tuple(path[len(start) :].split("/")) if path.startswith(start) else None

    def _path(self, parts: Parts) -> str:
        return os.path.join(self.root, *parts)  # noqa: PTH118

    def _examine_all(self, root: int) -> Iterator[list[Attached | Detached]]:
        self.unwatched = None
        seen: set[str] = set()
        waiting: list[Parts] = [()]
        while waiting:
            parts = waiting.pop()
            seen.add(self._path(parts))
            events, below = self._examine_directory(root, parts)
            yield events
            waiting.extend(sorted(below, reverse=True))
        # A known directory that was not seen may be in a directory that could not be listed.
        for path in sorted(self._everything() - seen):
            if parts_of := self._parts(path):
                yield self._examine_directory(root, parts_of)[0]

    def _examine_some(
        self, root: int, wanted: Collection[Parts]
    ) -> Iterator[list[Attached | Detached]]:
        seen: set[Parts] = set()
        waiting = deque(
            parts[:count]
            for parts in sorted(wanted)
            for count in range(1, min(len(parts), self._depth) + 1)
        )
        while waiting:
            parts = waiting.popleft()
            if parts in seen:
                continue
            seen.add(parts)
            path = self._path(parts)
            before = self.directories.get(path)
            events, below = self._examine_directory(root, parts)
            yield events
            if parts in wanted or self.directories.get(path) != before:
                waiting.extend(sorted(below))
                waiting.extend(self._known_below(path, before))

    def _known_below(self, path: str, before: Directory | None) -> Iterator[Parts]:
        """Yield the directories inside one that was removed or replaced; they have no events of their own."""
        if before is None or before.leaf or self.directories.get(path) == before:
            return
        for lost in sorted(self._everything()):
            if lost.startswith(f"{path}/") and (parts := self._parts(lost)):
                yield parts

    def _examine_directory(
        self, root: int, parts: Parts
    ) -> tuple[list[Attached | Detached], list[Parts]]:
        """Examine one directory. Return the changes, and its subdirectories."""
        path = self._path(parts)
        try:
            with _open_directory(root, parts) as fd:
                self._watch_directory(fd, path)
                leaf, events = self._describe(path, parts, fd)
                return events, [] if leaf else self._list(path, parts, fd)
        except OSError as error:
            if error.errno in _GONE:
                return list(self._forget(path)), []
            self._warn(path, "examine", f"cannot be examined: {error.strerror}")
        except Exception as error:  # noqa: BLE001 - other directories must still be examined
            self._warn(path, "examine", f"cannot be examined: {error!r}")
        return [], []

    def _describe(self, path: str, parts: Parts, fd: int) -> tuple[bool, list[Attached | Detached]]:
        """Return whether the directory is a leaf, and the changes."""
        status = os.fstat(fd)
        queue_id = _read_queue_id(fd) if parts else b""
        leaf = len(parts) >= self._depth or queue_id != b""
        self.directories[path] = Directory(status.st_dev, status.st_ino, leaf)
        if not parts:
            return False, []
        identity = (status.st_dev, status.st_ino, status.st_uid)
        return leaf, self._compare(path, _QueueIdentity(identity, queue_id), fd)

    def _list(self, path: str, parts: Parts, fd: int) -> list[Parts]:
        try:
            return [(*parts, name) for name in _names_of_directories(fd)]
        except OSError as error:
            if not parts or error.errno not in _REFUSED:  # not for directories of other users
                self._warn(path, "list", f"cannot be listed: {error.strerror}")
            return []

    def _watch_directory(self, fd: int, path: str) -> None:
        if self.watch is None:
            return
        number = self.watch.watch(fd, path)
        if number and number not in _REFUSED:  # watchfiles may not watch those either
            self.unwatched = OSError(number, os.strerror(number))

    def _compare(self, path: str, found: _QueueIdentity, fd: int) -> list[Attached | Detached]:
        events: list[Attached | Detached] = []
        known = self._known.get(path)
        if known is not None and not known.is_same(found):
            del self._known[path]
            events.append(Detached(path))
            known = None
        if known is not None:
            self._known[path] = found if found.queue_id is not None else known
        elif (ready := self._read_ready(path, fd)) is not None:
            self._known[path] = found
            events.append(Attached(path, ready, found.identity))
        return events

    def _forget(self, path: str) -> Iterator[Detached]:
        """Forget a directory that no longer exists."""
        self._warned.pop(path, None)
        self.directories.pop(path, None)
        if self.watch is not None:
            self.watch.forget(path)
        if self._known.pop(path, None) is not None:
            yield Detached(path)

    def _read_ready(self, path: str, fd: int) -> Ready | None:
        """Return the content of READY, or None if there is no usable one."""
        try:
            ready = load_ready(fd)
        except ValueError as error:
            self._warn(path, READY, f"{error}; the queue is skipped")
            return None
        self._warned.get(path, {}).pop(READY, None)
        return ready

    def _warn(self, path: str, kind: str, text: str) -> None:
        warned = self._warned.setdefault(path, {})
        if warned.get(kind) != text:  # once, not at every examination
            warned[kind] = text
            _log.warning("%s: %s", printable(path), printable(text))


@contextmanager
def _open_directory(root: int, parts: Parts) -> Generator[int, None, None]:
    """Open a directory below another one; no part of the path may be a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(".", flags, dir_fd=root)
    try:
        for name in parts:
            below = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _names_of_directories(directory: int) -> list[str]:
    """Return the names of the subdirectories, without links to directories."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    finally:
        os.close(fd)


def _read_queue_id(directory: int) -> bytes | None:
    """Return the identity of a queue, empty if there is no queue, None if it cannot be read."""
    try:
        fd = open_regular(CONTROL, directory=directory)
    except (FileNotFoundError, ValueError):
        return _java_id(directory)
    except OSError:
        return None
    try:
        return os.pread(fd, QUEUE_ID_BYTES, QUEUE_ID_OFFSET)
    except OSError:
        return None
    finally:
        os.close(fd)


def _java_id(directory: int) -> bytes:
    """Return the identity of a Java queue, the inode of its table file; empty if there is none."""
    try:
        status = os.stat(JAVA_TABLE, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return b""
    return b"cq4" + status.st_ino.to_bytes(8, "little")
