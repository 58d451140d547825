"""Opens directories below a root in which other users may create names: checks owners, refuses links.

A directory is opened step by step from its root, by name in the descriptor of its parent, so a directory that
replaces it later is not mistaken for it. The path of the root itself is trusted, and may contain links.
"""

import errno
import os
import stat
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiochronicle._base.system_errors import storage_error
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._layout import CONTROL, JAVA_TABLE
from aiochronicle.errors import AccessDenied, NotAQueue, QueueGone, StorageError

__all__ = [
    "directory_mode",
    "has_queue",
    "is_trusted_link",
    "make_below",
    "make_directories",
    "make_trusted_root",
    "open_trusted_writer",
    "opened_below",
    "owners_of",
    "refuse_foreign",
]

_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVE = "Nothing in it was used. Remove it, or let the right user create it."


def owners_of(root: str | os.PathLike[str]) -> frozenset[int]:
    """Return the users that are trusted to create names below a root: this one, root, and its owner."""
    owners = {os.geteuid(), 0}
    with suppress(FileNotFoundError, NotADirectoryError):
        owners.add(_status(root).st_uid)
    return frozenset(owners)


def _status(root: str | os.PathLike[str]) -> os.stat_result:
    try:
        return os.stat(root)  # noqa: PTH116
    except PermissionError as error:
        raise storage_error(error, f"cannot be examined: {error.strerror}", str(root)) from error


def directory_mode(file_mode: int) -> int:
    """Return the mode of a directory for files of a mode: users who may read them may search it."""
    return file_mode & 0o777 | (file_mode & 0o444) >> 2


def refuse_foreign(
    path: str | os.PathLike[str],
    status: os.stat_result,
    owners: Collection[int],
    advice: str = _REMOVE,
) -> None:
    """Raise AccessDenied unless a file or directory belongs to one of these users."""
    if status.st_uid not in owners:
        what = "is a symbolic link of" if stat.S_ISLNK(status.st_mode) else "belongs to"
        trusted = " and ".join(f"user {owner}" for owner in sorted(owners))
        detail = f"{what} user {status.st_uid}; only {trusted} may own it"
        raise AccessDenied(detail, path=os.fspath(path), advice=advice)


def is_trusted_link(
    path: str | os.PathLike[str], owners: Collection[int], advice: str = _REMOVE
) -> bool:
    """Return whether the path is a link; AccessDenied if the link belongs to another user."""
    try:
        status = os.lstat(path)
    except OSError:  # opening it will raise the right error
        return False
    if not stat.S_ISLNK(status.st_mode):
        return False
    refuse_foreign(path, status, owners, advice)
    return True


def make_directories(path: str | os.PathLike[str], mode: int) -> None:
    """Create a directory and its missing parents, durably, with this mode.

    Existing parents are trusted, and may be links.
    """
    existing = Path(path)
    missing: list[str] = []
    while not os.path.isdir(existing) and existing != existing.parent:  # noqa: PTH112  never raises
        missing.insert(0, existing.name)
        existing = existing.parent
    if missing:
        os.close(_open_or_create(str(existing), missing, mode=mode))


def make_trusted_root(path: str, owners: Collection[int], mode: int) -> None:
    """Create a directory if it is missing; AccessDenied if it, or a link to it, belongs to another user."""
    is_trusted_link(path, owners)
    make_directories(path, mode)
    refuse_foreign(path, _status(path), owners)


@contextmanager
def opened_below(root: str, parts: Sequence[str]) -> Generator[int | None, None, None]:
    """Yield a descriptor of a directory below a root, of any owner; None if there is none.

    AccessDenied if part of the path is a link.
    """
    try:
        fd = open_below(root, parts)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def has_queue(root: str, parts: Sequence[str]) -> bool:
    """Return whether there is a queue; AccessDenied without permission, or if part of the path is a link."""
    path = os.path.join(root, *parts)  # noqa: PTH118
    with opened_below(root, parts) as fd:
        return fd is not None and any(_has(fd, path, name) for name in (CONTROL, JAVA_TABLE))


def _has(fd: int, path: str, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, f"cannot be examined: {error.strerror}", path) from error
    return True


def open_below(
    root: str,
    parts: Sequence[str],
    *,
    owners: Collection[int] | None = None,
    mode: int | None = None,
) -> int:
    """Open a directory below a root, and return a descriptor of it, with O_PATH or for reading.

    AccessDenied if part of the path is a link. With ``owners`` also if part of it is in a directory where
    every user may create names, and belongs to another user. With ``mode`` missing directories are created;
    otherwise FileNotFoundError. NotADirectoryError if something else is there.
    """
    path = root
    fd = _open_root(root)
    try:
        for name in parts:
            above, path = fd, os.path.join(path, name)  # noqa: PTH118
            fd = _open_name(above, name, path, mode)
            try:
                if owners is not None and _is_world_writable(above):
                    refuse_foreign(path, os.fstat(fd), owners)
            finally:
                os.close(above)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_or_create(
    root: str, parts: Sequence[str], *, owners: Collection[int] | None = None, mode: int
) -> int:
    """Do the same as open_below, but raise StorageError if something else is there."""
    try:
        return open_below(root, parts, owners=owners, mode=mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        path = os.path.join(root, *parts)  # noqa: PTH118
        number = errno.EEXIST if isinstance(error, NotADirectoryError) else errno.ENOENT
        detail = f"cannot create the directory: {os.strerror(number)}"
        raise StorageError(detail, path=path, errno=number) from error


def make_below(root: str, parts: Sequence[str], owners: Collection[int], mode: int) -> None:
    """Create a directory below a root, and its missing parents, like open_below."""
    os.close(_open_or_create(root, parts, owners=owners, mode=mode))


def _open_root(root: str) -> int:
    try:
        return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise storage_error(error, f"cannot be opened: {error.strerror}", root) from error


def _is_world_writable(fd: int) -> bool:
    return bool(os.fstat(fd).st_mode & stat.S_IWOTH)


def _open_name(above: int, name: str, path: str, mode: int | None) -> int:
    try:
        return os.open(name, os.O_PATH | _FLAGS, dir_fd=above)
    except FileNotFoundError:
        if mode is None:
            raise
    except NotADirectoryError:
        _refuse_link(above, name, path)
        raise
    except OSError as error:
        raise storage_error(error, f"cannot be opened: {error.strerror}", path) from error
    try:
        return _create(above, name, path, mode)
    except FileExistsError:  # another process has just created it
        return _open_name(above, name, path, None)


def _refuse_link(above: int, name: str, path: str) -> None:
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise AccessDenied(
            f"is a symbolic link of user {status.st_uid}; links are not followed here",
            path=path,
            advice="Nothing was opened. Remove the link, or bind-mount its target there instead.",
        )


def _create(above: int, name: str, path: str, mode: int) -> int:
    """Create a directory durably, whatever the umask; FileExistsError if the name exists."""
    try:
        os.mkdir(name, 0o700, dir_fd=above)
        fd = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=above)
        try:
            status = os.fstat(fd)
            refuse_foreign(path, status, {os.geteuid()})  # another user may have replaced it
            os.fchmod(fd, mode | status.st_mode & stat.S_ISGID)
            _sync(above)
        except BaseException:
            os.close(fd)
            raise
    except (FileExistsError, AccessDenied):
        raise
    except OSError as error:
        raise storage_error(
            error, f"cannot create the directory: {error.strerror}", path
        ) from error
    return fd


def _sync(directory: int) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_trusted_writer(
    root: str, parts: Sequence[str], *, way_mode: int, mode: int, **options: Any
) -> Writer:
    """Open the writer of a queue below a root; the queue must belong to one of ``owners_of(root)``.

    Missing directories are created first, including the queue's own: in a directory with the sticky bit, no
    other user can replace it afterwards. Without a sticky bit, the open writer is compared with the directory
    that was found, and closed before anything is appended if they differ.
    """
    path = os.path.join(root, *parts)  # noqa: PTH118
    owners = owners_of(root)
    make_below(root, parts[:-1], owners, way_mode)
    try:
        fd = open_below(root, parts, mode=directory_mode(mode))
    except NotADirectoryError as error:
        raise NotAQueue("this is not a directory", path=path, errno=error.errno) from error
    except FileNotFoundError as error:
        detail = "the queue was removed while it was being opened"
        raise QueueGone(detail, path=path, errno=error.errno) from error
    try:
        refuse_foreign(path, os.fstat(fd), owners)
        writer = open_writer(path, mode=mode, **options)
        try:
            if not _is_queue_in(fd, writer):
                detail = "the queue was replaced while it was being opened; nothing was appended"
                raise QueueGone(detail, path=path)
        except BaseException:
            writer.close()
            raise
        return writer
    finally:
        os.close(fd)


def _is_queue_in(directory: int, writer: Writer) -> bool:
    """Return whether a writer belongs to the queue in this directory."""
    name = CONTROL if writer.format == "native" else JAVA_TABLE
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == writer.identity
