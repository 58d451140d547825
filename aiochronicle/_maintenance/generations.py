"""Manages the directory with the backups of one queue.

::

    DIR/lock        locked exclusively by a backup, shared by a restore
    DIR/000007/     a backup: a queue that can be read like any other, but not written, and backup.json
    DIR/.part/      an incomplete backup, in progress or left by a killed process; never used

A backup gets its number by a rename, when all of it is on disk and verified. Unchanged segments are hard
links to those of the previous backup. Files in a numbered directory are never written again.
"""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._base.printable import printable
from aiochronicle._files import parse_json, read_small_file, sync_directory
from aiochronicle._layout import BACKUP
from aiochronicle.errors import (
    AccessDenied,
    BackupError,
    BackupNotFound,
    StorageError,
    UnsupportedVersion,
)

__all__ = ["Manifest", "Owner", "Stamp", "generations", "locked", "read_manifest", "remove_tree"]

VERSION = 1
MANIFEST = BACKUP
LOCK = "lock"
PART = ".part"
_GOING = ".going"
_MANIFEST_BYTES_MAX = 64 << 20
_NUMBER = re.compile(r"[0-9]{6,}")


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a file that was copied."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Owner and mode of a file. The backup itself belongs to the user who created it."""

    user: int
    group: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Owner":
        """Return the owner and mode of a file."""
        return cls(status.st_uid, status.st_gid, status.st_mode & 0o777)

    def give(self, file: Path) -> None:
        """Set the owner of a file, if this process may, and its mode in any case.

        Something else may have this name now: links are refused, and so are files with a second name.
        """
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                raise AccessDenied("the file has a second name (hard link)", path=str(file))
            if os.geteuid() == 0:
                os.fchown(fd, self.user, self.group)
            os.fchmod(fd, self.mode)
        finally:
            os.close(fd)


@prepared
class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of backup.json."""

    version: int = VERSION
    queue: str
    queue_id: int
    segment_size: int
    created_ns: int
    first_segment: int
    end_segment: int
    end_offset: int
    next_seq: int
    last_timestamp_ns: int
    messages: int
    owner: Owner
    directory_mode: int
    readers_mode: int = 0o700
    readers: dict[str, Owner]
    groups: list[str] = []  # of these, the positions of groups
    left_out: dict[str, str] = {}  # readers whose positions could not be read, and why
    corrupt: int = 0
    segments: dict[int, Stamp]
    format: Literal["native", "cq4"] = "native"
    files: dict[int, str] = {}  # of the cycles of a Java queue
    digests: dict[str, str] = {}  # of these files, which have no checksums
    verified_from: int | None = None  # the first segment that was read back; None: not recorded


@contextmanager
def locked(directory: Path, *, make: bool) -> Generator[None]:
    """Lock the directory of backups: exclusively (``make``) to create a backup, shared to use one.

    With ``make`` the directory is created if it does not exist.
    """
    if make:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if make else os.O_RDONLY)
    try:
        status = directory.stat()
        if status.st_uid not in (0, os.geteuid()):
            detail = f"the directory belongs to uid {status.st_uid}, who could replace its content"
            advice = "Run this as that user, or use a directory of your own."
            raise AccessDenied(detail, path=str(directory), advice=advice)
        fd = os.open(directory / LOCK, flags, 0o600)
    except FileNotFoundError as error:
        raise BackupNotFound("there are no backups", path=str(directory)) from error
    except NotADirectoryError as error:
        detail = "this is not a directory"
        raise StorageError(detail, path=str(directory), errno=error.errno) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_NB | (fcntl.LOCK_EX if make else fcntl.LOCK_SH))
        except BlockingIOError:
            what = "another process is creating or restoring a backup here"
            raise BackupError(
                what, path=str(directory), advice="Try again when it has finished."
            ) from None
        yield
    finally:
        os.close(fd)


def generations(directory: Path) -> list[int]:
    """Return the numbers of the complete backups, oldest first."""
    try:
        names = [path.name for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def path_of(directory: Path, number: int) -> Path:
    """Return the directory of a backup."""
    return directory / f"{number:06d}"


def read_manifest(generation: Path) -> Manifest:
    """Read the manifest of a backup."""
    file = generation / MANIFEST
    try:
        content = read_small_file(str(file), _MANIFEST_BYTES_MAX)
        if content is None:
            raise BackupNotFound("there is no such backup", path=str(generation))
        manifest = parse_json(content, Manifest)
    except ValueError as error:
        raise BackupError(f"cannot be used: {printable(error)}", path=str(file)) from error
    if manifest.version != VERSION:
        raise UnsupportedVersion(
            f"the backup has version {manifest.version}, this program knows {VERSION}",
            path=str(file),
        )
    return manifest


def remove_tree(directory: Path) -> None:
    """Remove a directory that this module created, if it exists."""
    if directory.exists():
        shutil.rmtree(directory)


def sweep(directory: Path) -> None:
    """Remove the directories that a killed process has left."""
    for name in (PART, _GOING):
        remove_tree(directory / name)


def keep_newest(directory: Path, count: int) -> list[int]:
    """Remove all backups except the newest ``count``; return the numbers of those that were removed."""
    removed = generations(directory)[:-count]
    for number in removed:  # renamed first, so that a half-removed backup does not look like one
        path_of(directory, number).rename(directory / _GOING)
        remove_tree(directory / _GOING)
    if removed:
        sync_directory(directory)
    return removed
