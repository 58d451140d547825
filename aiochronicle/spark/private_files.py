"""Files that Spark's jobs store next to queues, in directories that only their owner can change.

A user who may write to the parent directory can put anything there first: a link, or another directory with
files. So a directory is opened name by name without following links, and is refused unless it belongs to this
user and nobody else may write to it. All work in it goes through its descriptor: even if the name is replaced
later, the files are those of the directory that was checked. Other users cannot put anything into it, so its
content needs no further checks.

The user chooses the root: it may be a link and belong to anyone.
"""

import atexit
import contextlib
import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from aiochronicle._files import make_directory, read_small_file
from aiochronicle.errors import AccessDenied

__all__ = [
    "DIRECTORY_MODE",
    "FILE_MODE",
    "Location",
    "PrivateDirectory",
    "directory_mode",
    "is_out_of_reach",
    "made_below",
    "refuse_links_of_others",
    "replacing",
    "safe_path",
    "temporary_directory",
]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
OTHERS_WRITE = 0o022

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_mode(file_mode: int) -> int:
    """Return the mode of directories that gives readers of files of this mode access, without the right to
    write.

    >>> oct(directory_mode(0o640))
    '0o750'
    """
    readable = (file_mode | FILE_MODE) & ~OTHERS_WRITE
    return readable | (readable & 0o444) >> 2


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """Yield a new file that takes the name when it is complete; a link of that name is itself replaced.

    For files that users request by path: the umask decides who may read them. FileExistsError for a pipe or
    a device.
    """
    with contextlib.suppress(FileNotFoundError):
        kind = path.lstat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind) or stat.S_ISDIR(kind)):
            raise FileExistsError(errno.EEXIST, "is not a regular file", str(path))
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_EXCL | _CREATE, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def temporary_directory() -> Path:
    """Create a directory that is removed when this process ends."""
    directory, owner = Path(tempfile.mkdtemp(prefix="aiochronicle-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a fork ends
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def is_out_of_reach(path: Path) -> bool:
    """Return whether only root can replace this directory by another one."""
    for place in (path, *path.parents):
        found = place.lstat()
        if found.st_uid not in (0, os.geteuid()):
            return False
        if found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            return False
    return True


def refuse_links_of_others(root: Path, names: Iterable[str]) -> None:
    """Raise AccessDenied if the path below a root leads over another user's link."""
    path = root
    for name in names:
        path /= name
        try:
            found = path.lstat()
        except OSError:  # missing, or impossible: creating it will show
            return
        if stat.S_ISLNK(found.st_mode):
            _check_link(found, path)


def _check_link(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (0, os.geteuid()):
        what = f"is a link of user {found.st_uid}"
        raise _deny(what, path, "Remove it, if it should not be there.")


@contextlib.contextmanager
def made_below(root: Path, names: Iterable[str]) -> Generator[int]:
    """Open a directory below a root, name by name; create missing ones, durably.

    Other users may own directories on the way, but AccessDenied for a link that is not ours.
    """
    opened, path = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), root
    try:
        for name in names:
            path /= name
            above, opened = opened, -1
            try:
                opened = _step(above, name, path)
            finally:
                os.close(above)
        yield opened
    finally:
        if opened >= 0:
            os.close(opened)


def _step(above: int, name: str, path: Path) -> int:
    if _made(above, name, DIRECTORY_MODE):
        _sync(above)
    found = os.open(name, _LOOK, dir_fd=above)
    try:
        status = os.fstat(found)
        if not stat.S_ISLNK(status.st_mode):
            return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
        _check_link(status, path)
        # The target of the link that was checked, even if another file has its name by now.
        to = os.readlink("", dir_fd=found)
        return os.open(to, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(found)


def _sync(looked_at: int) -> None:
    directory = os.open(".", _READ, dir_fd=looked_at)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def safe_path(directory: int) -> str:
    """Return a path that leads to exactly this directory while it is open.

    It is the usual path, if no other user can replace the directory.
    """
    pinned = f"/proc/self/fd/{directory}"
    path = os.readlink(pinned)  # noqa: PTH115
    with contextlib.suppress(OSError):  # removed since
        if is_out_of_reach(Path(path)):
            return path
    return pinned


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A directory some levels below a root; only this user can change any of these levels."""

    root: str
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        return Path(self.root, *self.names)

    def child(self, name: str) -> "Location":
        """Return the location of a directory in this one."""
        return Location(root=self.root, names=(*self.names, name))

    def open(self) -> "PrivateDirectory":
        """Open the directory; FileNotFoundError, or AccessDenied if others could have changed it."""
        return self._open(None)

    def make(self, mode: int = DIRECTORY_MODE, *, tighten: bool = False) -> "PrivateDirectory":
        """Open the directory; create missing levels, durably.

        Users with read access by this mode also get access to existing levels. ``tighten`` is for callers
        that check each file: other users lose the right to change a directory of ours.
        """
        make_directory(Path(self.root), mode)
        return self._open(mode, tighten)

    def _open(self, mode: int | None, tighten: bool = False) -> "PrivateDirectory":
        opened = os.open(self.root, _READ)
        path = Path(self.root)
        for name in self.names:
            path /= name
            above, opened = opened, -1
            try:
                opened = _enter(above, name, path, mode, tighten)
            finally:
                os.close(above)
        return PrivateDirectory(opened, path)


def _enter(above: int, name: str, path: Path, mode: int | None, tighten: bool) -> int:
    """Open a directory for reading, after checking it; create it if a mode is given."""
    is_new = mode is not None and _made(above, name, mode)
    looked_at = os.open(name, _LOOK, dir_fd=above)
    try:
        found = os.fstat(looked_at)
        if not stat.S_ISDIR(found.st_mode):
            raise _deny("is a link, or no directory", path, "Remove it, if it should not be there.")
        _check_owner(found, path)
        kept = stat.S_IMODE(found.st_mode) & ~(OTHERS_WRITE if tighten else 0)
        if kept & OTHERS_WRITE:
            raise _deny(
                f"can be changed by other users (mode {kept:o})",
                path,
                f"If all that is in it is yours, keep them out: chmod -R go-w {path}",
            )
        if mode is not None and (wanted := kept | mode) != stat.S_IMODE(found.st_mode):
            # Not by the descriptor, because a directory without any permission cannot be opened.
            Path(f"/proc/self/fd/{looked_at}").chmod(wanted)
        if is_new:
            os.fsync(above)
        return os.open(".", _READ, dir_fd=looked_at)
    finally:
        os.close(looked_at)


def _made(above: int, name: str, mode: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        return False
    return True


def _check_owner(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid():
        raise _deny(
            f"belongs to user {found.st_uid}, and this process is of user {os.geteuid()}",
            path,
            "Write as that user, or to another directory.",
        )


def _deny(what: str, path: Path, advice: str) -> AccessDenied:
    return AccessDenied(what, path=str(path), advice=f"Nothing of it was used or changed. {advice}")


class PrivateDirectory:
    """An open directory that only this user can change."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def pinned(self, *names: str) -> str:
        """Return a path that leads into exactly this directory while it is open."""
        return "/".join((f"/proc/self/fd/{self.descriptor}", *names))

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        with os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def find(self, name: str) -> os.stat_result | None:
        """Return the status of a file or directory; for a link, that of the link itself."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def check_file(self, name: str) -> None:
        """Raise AccessDenied unless the name is a file of this user."""
        if (found := self.find(name)) is not None:
            if not stat.S_ISREG(found.st_mode):
                what = "is a link, or not a regular file"
                raise _deny(what, self.path / name, "Remove it, if it should not be there.")
            _check_owner(found, self.path / name)

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a file, None if there is none; ValueError if it must not be used."""
        found = self.find(name)
        if found is not None and stat.S_ISREG(found.st_mode):
            _check_owner(found, self.path / name)
        return read_small_file(self.pinned(name), max_bytes)

    def create(self, name: str, mode: int = FILE_MODE) -> BinaryIO:
        """Open a new file for writing; FileExistsError if the name exists."""
        descriptor = os.open(name, os.O_WRONLY | os.O_EXCL | _CREATE, mode, dir_fd=self.descriptor)
        os.fchmod(descriptor, mode)  # regardless of the umask
        return os.fdopen(descriptor, "wb")

    def open_lock(self, name: str) -> int:
        """Open a file for locking, and return its descriptor."""
        self.check_file(name)
        descriptor = os.open(name, os.O_RDWR | _CREATE, FILE_MODE, dir_fd=self.descriptor)
        os.fchmod(descriptor, FILE_MODE)
        return descriptor

    def replace(self, name: str, content: bytes, mode: int = FILE_MODE) -> None:
        """Write a file that replaces an existing one when it is complete and on disk."""
        fresh = f"{name}.new"
        self.remove(fresh)  # left by a killed process
        try:
            with self.create(fresh, mode) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.rename(fresh, name)
            self.sync()
        except OSError:
            with contextlib.suppress(OSError):
                self.remove(fresh)
            raise

    def rename(self, name: str, to: str) -> None:
        """Rename an entry of this directory."""
        os.rename(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Delete a file, or a link itself, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Delete a directory and everything in it without following links; what cannot be deleted stays."""
        shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Delete a directory, unless it has entries."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Sync the names in it to disk."""
        os.fsync(self.descriptor)
