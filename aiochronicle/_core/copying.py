"""Copies large files without their holes, sharing blocks with the original if the file system can."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from aiochronicle._base.system_errors import storage_errors
from aiochronicle._files import open_regular
from aiochronicle._layout import CONTROL, JAVA_TABLE
from aiochronicle.errors import (
    NotAQueue,
    NotSupported,
    QueueGone,
)

__all__ = ["copy_file", "refuse_java", "write_file"]

_FICLONE = 0x40049409
_PIECE_BYTES = 8 << 20
_NOT_SUPPORTED = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EPERM,
    errno.EBADF,
)


def refuse_java(what: str, queue: Path) -> None:
    """Raise NotSupported for a Java queue; ``what`` names the operation."""
    if not (queue / CONTROL).exists() and (queue / JAVA_TABLE).exists():
        raise NotSupported(
            f"{what} does not apply to Java queues: their next writer completes what a killed one left",
            path=str(queue),
            advice="If verify finds damage, restore the queue from a backup.",
        )


def copy_file(
    source: Path,
    target: Path,
    *,
    mode: int,
    length: int | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> bool:
    """Copy a file, or its first ``length`` bytes, and wait until the copy is on disk.

    ``advance`` is called with the number of bytes after each step. Returns whether the copy shares its blocks
    with the original. FileNotFoundError if there is no such file.
    """
    with storage_errors(source, full=target):
        return _copy_file(source, target, mode, length, advance)


def _copy_file(
    source: Path, target: Path, mode: int, length: int | None, advance: Callable[[int], object]
) -> bool:
    try:
        reading = open_regular(str(source))
    except ValueError as error:
        raise NotAQueue(str(error), path=str(source)) from error
    try:
        size = os.fstat(reading).st_size
        if length is not None and size < length:
            raise QueueGone(
                f"the file was truncated from at least {length} bytes to {size}", path=str(source)
            )
        wanted = size if length is None else length
        writing = _create(target, mode)
        try:
            shared = length is None and _clone(reading, writing)
            if shared:
                advance(wanted)
            else:
                _copy_data(reading, writing, wanted, advance)
            os.fsync(writing)
            os.posix_fadvise(
                writing, 0, 0, os.POSIX_FADV_DONTNEED
            )  # so that verifying reads the disk
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return shared


def write_file(target: Path, content: bytes, *, mode: int) -> None:
    """Write a small new file, and wait until it is on disk."""
    writing = _create(target, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(writing, view) :]
        os.fsync(writing)
    finally:
        os.close(writing)


def _create(target: Path, mode: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(target, flags, 0o600)
    try:
        os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _clone(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return False
        raise
    return True


def _copy_data(reading: int, writing: int, length: int, advance: Callable[[int], object]) -> None:
    """Copy everything except the holes."""
    os.ftruncate(writing, length)
    offset = 0
    while offset < length:
        try:
            data = os.lseek(reading, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                break
            raise
        hole = min(os.lseek(reading, data, os.SEEK_HOLE), length)
        advance(min(data, length) - offset)
        offset = data
        while offset < hole:
            count = _copy_piece(reading, writing, offset, min(hole - offset, _PIECE_BYTES))
            if count == 0:
                raise OSError(errno.EIO, "the file ended while it was copied")
            advance(count)
            offset += count
    advance(length - min(offset, length))


def _copy_piece(reading: int, writing: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(reading, writing, count, offset, offset)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    return os.pwrite(writing, os.pread(reading, count, offset), offset)
