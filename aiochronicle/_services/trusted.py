"""Opening directories below a root where other users may create names: checks owners, refuses links.

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

from aiochronicle._base.system_errors import refusal
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
_REMOVE = "Nothing in it was used. Remove it, or have the right user create it."


def owners_of(root: str | os.PathLike[str]) -> frozenset[int]:
    """Return the users whose names below a root are trusted: this one, root, and its owner."""
    owners = {os.geteuid(), 0}
    with suppress(FileNotFoundError, NotADirectoryError):
        owners.add(_status(root).st_uid)
    return frozenset(owners)


def _status(root: str | os.PathLike[str]) -> os.stat_result:
    try:
        return os.stat(root)  # noqa: PTH116
    except PermissionError as error:
        raise refusal(error, f"cannot be examined: {error.strerror}", str(root)) from error


def directory_mode(file_mode: int) -> int:
    """Return the mode of a directory for such files: users who may read them may search it."""
    return file_mode & 0o777 | (file_mode & 0o444) >> 2


def refuse_foreign(
    path: str | os.PathLike[str],
    status: os.stat_result,
    owners: Collection[int],
    advice: str = _REMOVE,
) -> None:
    """Raise AccessDenied unless it belongs to one of these users."""
    if status.st_uid not in owners:
        what = "is a symbolic link of" if stat.S_ISLNK(status.st_mode) else "belongs to"
        trusted = ", ".join(map(str, sorted(owners)))
        detail = f"{what} user {status.st_uid}; only those of {trusted} are trusted here"
        raise AccessDenied(detail, path=os.fspath(path), advice=advice)


def is_trusted_link(
    path: str | os.PathLike[str], owners: Collection[int], advice: str = _REMOVE
) -> bool:
    """Return whether there is a link; AccessDenied if it belongs to a user other than these."""
    try:
        status = os.lstat(path)
    except OSError:  # opening it raises what is wrong
        return False
    if not stat.S_ISLNK(status.st_mode):
        return False
    refuse_foreign(path, status, owners, advice)
    return True


def make_directories(path: str | os.PathLike[str], mode: int) -> None:
    """Make a directory and those above it that are missing, durably, of this mode.

    What is there already is its user's to name, and may be a link.
    """
    there = Path(path)
    missing: list[str] = []
    while not os.path.isdir(there) and there != there.parent:  # noqa: PTH112  never raises
        missing.insert(0, there.name)
        there = there.parent
    if missing:
        os.close(_made_below(str(there), missing, mode=mode))


def make_trusted_root(path: str, owners: Collection[int], mode: int) -> None:
    """Make a directory unless it is there; it, and the link that it may be, belong to an owner."""
    is_trusted_link(path, owners)
    make_directories(path, mode)
    refuse_foreign(path, _status(path), owners)


@contextmanager
def opened_below(root: str, parts: Sequence[str]) -> Generator[int | None, None, None]:
    """Open a directory below a root for a while, of any owner; None if there is none.

    AccessDenied if one of the names is a link.
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
    """Return whether there is a queue; AccessDenied if that cannot be seen, or only over links."""
    path = os.path.join(root, *parts)  # noqa: PTH118
    with opened_below(root, parts) as fd:
        return fd is not None and any(_has(fd, path, name) for name in (CONTROL, JAVA_TABLE))


def _has(fd: int, path: str, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refusal(error, f"cannot be examined: {error.strerror}", path) from error
    return True


def open_below(
    root: str,
    parts: Sequence[str],
    *,
    owners: Collection[int] | None = None,
    mode: int | None = None,
) -> int:
    """Open a directory below a root, and return a descriptor that stands for it (O_PATH or better).

    AccessDenied if a name on the way is a link; with ``owners`` also if it is in a directory where
    everybody may create, and belongs to another user. With ``mode`` those that are missing are
    made; else FileNotFoundError. NotADirectoryError if there is something else.
    """
    path = root
    fd = _open_root(root)
    try:
        for name in parts:
            above, path = fd, os.path.join(path, name)  # noqa: PTH118
            fd = _open_name(above, name, path, mode)
            try:
                if owners is not None and _is_everybodys(above):
                    refuse_foreign(path, os.fstat(fd), owners)
            finally:
                os.close(above)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _made_below(
    root: str, parts: Sequence[str], *, owners: Collection[int] | None = None, mode: int
) -> int:
    """Do as open_below; what is in the way is an error of ours."""
    try:
        return open_below(root, parts, owners=owners, mode=mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        path = os.path.join(root, *parts)  # noqa: PTH118
        number = errno.EEXIST if isinstance(error, NotADirectoryError) else errno.ENOENT
        detail = f"cannot make the directory: {os.strerror(number)}"
        raise StorageError(detail, path=path, errno=number) from error


def make_below(root: str, parts: Sequence[str], owners: Collection[int], mode: int) -> None:
    """Make a directory below a root, and those above it that are missing, as open_below does."""
    os.close(_made_below(root, parts, owners=owners, mode=mode))


def _open_root(root: str) -> int:
    try:
        return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise refusal(error, f"cannot be opened: {error.strerror}", root) from error


def _is_everybodys(fd: int) -> bool:
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
        raise refusal(error, f"cannot be opened: {error.strerror}", path) from error
    try:
        return _make(above, name, path, mode)
    except FileExistsError:  # by another process, just now
        return _open_name(above, name, path, None)


def _refuse_link(above: int, name: str, path: str) -> None:
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise AccessDenied(
            f"is a symbolic link, made by user {status.st_uid}; links are not followed here",
            path=path,
            advice="Nothing was opened. Remove it, or mount what it points to in its place.",
        )


def _make(above: int, name: str, path: str, mode: int) -> int:
    """Make a directory, durably, whatever the umask says; FileExistsError if there is something."""
    try:
        os.mkdir(name, 0o700, dir_fd=above)
        fd = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=above)
        try:
            made = os.fstat(fd)
            refuse_foreign(path, made, {os.geteuid()})  # it was replaced at once
            os.fchmod(fd, mode | made.st_mode & stat.S_ISGID)
            _sync(above)
        except BaseException:
            os.close(fd)
            raise
    except (FileExistsError, AccessDenied):
        raise
    except OSError as error:
        raise refusal(error, f"cannot make the directory: {error.strerror}", path) from error
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
    """Open the writer of a queue below a root, which has to belong to one of ``owners_of(root)``.

    Directories that are missing are made first, the queue's own as well: in a directory with the
    sticky bit nobody else can replace it from then on. In one without, the writer that was opened is
    compared with what was found, and closed before anything is appended.
    """
    path = os.path.join(root, *parts)  # noqa: PTH118
    owners = owners_of(root)
    make_below(root, parts[:-1], owners, way_mode)
    try:
        fd = open_below(root, parts, mode=directory_mode(mode))
    except NotADirectoryError as error:
        raise NotAQueue("is not a directory", path=path, errno=error.errno) from error
    except FileNotFoundError as error:
        raise QueueGone("was removed while it was opened", path=path, errno=error.errno) from error
    try:
        refuse_foreign(path, os.fstat(fd), owners)
        writer = open_writer(path, mode=mode, **options)
        try:
            if not _is_queue_in(fd, writer):
                raise QueueGone("was replaced while it was opened; nothing was appended", path=path)
        except BaseException:
            writer.close()
            raise
        return writer
    finally:
        os.close(fd)


def _is_queue_in(directory: int, writer: Writer) -> bool:
    """Return whether a writer is that of the queue in this directory."""
    name = CONTROL if writer.format == "native" else JAVA_TABLE
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == writer.identity
