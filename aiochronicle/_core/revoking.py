"""Revokes the position of a reader while the reader is open.

1. The position file is replaced by a rename, or removed, and the directory is synced. From then on the reader
stores into a file without a name, so its commits cannot undo the operator's change.
2. The old file, which the reader has mapped, is marked. The reader checks the mark at each commit and when it
reaches the end of the queue, and raises PositionRevoked.

If this process is killed in between, the reader detects the change at a commit, which checks the name of its
file.
"""

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiochronicle._base.position import Position
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.position_files import FILE_BYTES, Slot, decode_position, encode_position
from aiochronicle._layout import READERS, position_name
from aiochronicle.errors import AccessDenied, PositionCorrupt, ReaderNotFound

__all__ = ["revoke"]

_MARK = b"REVOKED\0"  # AC_POSITION_REVOKED of csrc/position.h


def revoke(queue: str, name: str, instead: Position | None) -> None:
    """Replace a reader's position, or remove it if ``instead`` is None, even if a process has it open."""
    path = Path(queue, READERS, position_name(name))
    with storage_errors(path), _readers_of(queue, name) as readers:
        try:
            old = os.open(path.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=readers)
        except FileNotFoundError:
            raise _unknown(queue, name) from None
        try:
            status = os.fstat(old)
            generation = _generation_of(old, status, path)
            if instead is None:
                os.unlink(path.name, dir_fd=readers)
                with suppress(FileNotFoundError):
                    os.unlink(f"{name}.efd", dir_fd=readers)
            else:
                slot = Slot(instead, time.time_ns(), generation + 1, 0)
                _replace(readers, path, encode_position(slot), status)
            os.fsync(readers)
            os.pwrite(old, _MARK, FILE_BYTES)
        finally:
            os.close(old)


@contextmanager
def _readers_of(queue: str, name: str) -> Generator[int]:
    """Lock the directory of positions, so that only one operator changes them, and yield its descriptor."""
    try:
        fd = os.open(
            Path(queue, READERS), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except FileNotFoundError:
        raise _unknown(queue, name) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _unknown(queue: str, name: str) -> ReaderNotFound:
    return ReaderNotFound(f"the queue has no reader {name!r}", path=queue)


def _generation_of(fd: int, status: os.stat_result, path: Path) -> int:
    """Return the generation of the newest slot; PositionCorrupt if the file is not a position."""
    slot = decode_position(os.pread(fd, FILE_BYTES, 0))
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or slot is None:
        raise PositionCorrupt("this is not the position of a reader", path=str(path))
    return slot.generation


def _replace(readers: int, path: Path, content: bytes, status: os.stat_result) -> None:
    """Replace a position file with one of the same owner and mode."""
    if os.geteuid() not in (0, status.st_uid):
        detail = (
            f"the position belongs to uid {status.st_uid}, who could not use a file of this user"
        )
        raise AccessDenied(
            detail, path=str(path), advice="Move the reader as that user or as root."
        )
    temporary = f"{path.name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=readers)
    try:
        os.write(fd, content)
        if os.geteuid() == 0:
            os.fchown(fd, status.st_uid, status.st_gid)
        os.fchmod(fd, stat.S_IMODE(status.st_mode))
        os.fsync(fd)
        os.rename(temporary, path.name, src_dir_fd=readers, dst_dir_fd=readers)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=readers)
        raise
    finally:
        os.close(fd)
