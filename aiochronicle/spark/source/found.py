"""Directories as they were found, which are opened again only if they are still the same.

Between finding a queue and reading it, often in another process, its owner can replace it, for example by a
link to a queue that others must not read. So a queue is opened step by step from the root, without following
links, and identified by device, inode and owner. Directories that are opened later are compared with that.

Device numbers depend on the host and its mounts: another host, or a container, has other numbers for the same
file system. There, inode and owner are compared. The owner is what matters: a user cannot create a directory
that belongs to another user.
"""

import errno
import functools
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle._core.queue import QueueInfo, inspect
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.slices import Queue
from aiochronicle._typed.registry import Registry
from aiochronicle.config import Timestamp
from aiochronicle.errors import AccessDenied, ChronicleError, QueueGone, QueueNotFound, StorageError

__all__ = [
    "FoundDirectory",
    "Identity",
    "below",
    "directories_in",
    "has_file",
    "identify",
    "names_in",
    "naming",
    "unreadable",
]

_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def naming(pinned: str, path: str) -> Generator[None]:
    """Use the path in errors, not the descriptor through which it was opened."""
    descriptor = re.compile(re.escape(pinned) + r"(?!\d)")
    try:
        yield
    except ChronicleError as error:
        cause: BaseException | None = error
        while isinstance(cause, ChronicleError):
            cause.args = (descriptor.sub(lambda _: printable(path), str(cause)),)
            cause.detail = descriptor.sub(lambda _: path, cause.detail)
            if cause.path is not None:
                cause.path = descriptor.sub(lambda _: path, cause.path)
            cause = cause.__cause__
        raise


class Identity(msgspec.Struct, frozen=True):
    """The identity of a directory, and the scope of its device number."""

    device: int
    inode: int
    owner: int
    mounts: str


@functools.cache
def _mounts() -> str:
    """Return a value that is equal for processes with the same device numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/mnt')}"  # noqa: PTH115
    except OSError:
        return ""


def identify(directory: int) -> Identity:
    """Return the identity of an open directory."""
    status = os.fstat(directory)
    return Identity(status.st_dev, status.st_ino, status.st_uid, _mounts())


@contextmanager
def below(directory: int, name: str) -> Generator[int]:
    """Open a directory in another one; NotADirectoryError if it is a link."""
    opened = os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=directory)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _list_names(directory: int) -> Generator[Any]:
    opened = os.open(".", _READ, dir_fd=directory)
    try:
        with os.scandir(opened) as entries:
            yield entries
    finally:
        os.close(opened)


def names_in(directory: int) -> list[str]:
    """Return the names in an open directory, sorted."""
    with _list_names(directory) as entries:
        return sorted(entry.name for entry in entries)


def directories_in(directory: int) -> list[str]:
    """Return the names of the directories in an open one, sorted, without links."""
    with _list_names(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def has_file(directory: int, name: str) -> bool:
    """Return whether there is a regular file of this name in an open directory."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


class FoundDirectory(msgspec.Struct, frozen=True):
    """A directory that is opened only if it is the one that was found.

    Without an ``identity`` it is whatever has this path: for a path that was given, and where nothing was
    found. ``timestamp`` is for a Java queue: where the time of its messages is.
    """

    path: str
    identity: Identity | None = None
    timestamp: Timestamp | None = None

    @contextmanager
    def opened(self) -> Generator[int]:
        """Open it; QueueNotFound if it is gone, QueueGone if something else is there."""
        try:
            opened = os.open(self.path, _LOOK | (os.O_NOFOLLOW if self.identity else 0))
        except OSError as error:
            raise self._failure(error) from error
        try:
            if self.identity is not None and not _is_same(self.identity, identify(opened)):
                raise self._replaced_error()
            yield opened
        finally:
            os.close(opened)

    @contextmanager
    def pinned(self) -> Generator[str]:
        """Yield a path that leads into exactly this directory; errors of the package name the real path."""
        with self.opened() as directory:
            pinned = f"/proc/self/fd/{directory}"
            with naming(pinned, self.path):
                yield pinned

    def expected(self) -> dict[str, Any]:
        """Return the argument with which open_reader and Queue open no other directory."""
        expected: dict[str, Any] = {"timestamp": self.timestamp}
        if self.identity is not None:
            with self.opened() as directory:  # its device has a number of its own on this host
                here = identify(directory)
            expected["_expect"] = (here.device, here.inode, here.owner)
        return expected

    def reader(self, name: str | None = None, **options: Any) -> Reader:
        """Open a reader, at the first message unless its options say otherwise."""
        wanted: dict[str, Any] = {"start": "first", **self.expected(), **options}
        return open_reader(self.path, name, **wanted)

    def queue(self, **options: Any) -> Queue:
        """Open it as a Queue, for reading parts of it."""
        return Queue(self.path, **self.expected(), **options)

    def inspect(self) -> QueueInfo:
        """Return the content of its control block."""
        with self.pinned() as path:
            return inspect(path)

    def registry(self) -> Registry:
        """Return the types of its schema.json."""
        with self.pinned() as path:
            return Registry.load(path)

    def has(self, name: str) -> bool:
        """Return whether a regular file of this name can be found in it."""
        with suppress(OSError), self.opened() as directory:
            return has_file(directory, name)
        return False

    def _failure(self, error: OSError) -> StorageError | QueueNotFound:
        if error.errno == errno.ENOENT:
            return QueueNotFound("is gone", path=self.path, errno=error.errno)
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return self._replaced_error()
        return unreadable(self.path, error)

    def _replaced_error(self) -> QueueGone:
        return QueueGone(
            "is not the directory that was found here, which was replaced; nothing in it was touched",
            path=self.path,
            advice="Look for the queues again, if that was meant.",
        )


def unreadable(path: str, error: OSError) -> StorageError:
    """Return the error for a directory that may not be listed."""
    kind = AccessDenied if isinstance(error, PermissionError) else StorageError
    return kind(f"cannot be looked into: {error.strerror}", path=path, errno=error.errno)


def _is_same(found: Identity, here: Identity) -> bool:
    same_numbers = found.mounts == here.mounts != ""
    return (found.inode, found.owner) == (here.inode, here.owner) and (
        not same_numbers or found.device == here.device
    )
