"""Turns errors of the operating system into exceptions of this package."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from aiochronicle.errors import AccessDenied, DiskFull, StorageError

__all__ = ["storage_error", "storage_errors"]


def storage_error(error: OSError, detail: str, path: str | os.PathLike[str]) -> StorageError:
    """Return the exception for a system call that failed."""
    kind = StorageError
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # of a copy or a small file, not of an append
        advice = "Free some space, then try again."
        return DiskFull(detail, path=os.fsdecode(path), errno=error.errno, advice=advice)
    if isinstance(error, PermissionError):
        kind = AccessDenied
    return kind(detail, path=os.fsdecode(path), errno=error.errno)


@contextmanager
def storage_errors(
    path: str | os.PathLike[str], *, full: str | os.PathLike[str] | None = None
) -> Generator[None]:
    """Turn errors of the system into exceptions of this package.

    The exception names the file of the OSError, or ``path`` if the system named none. If the disk is full,
    ``full`` replaces ``path``.
    """
    try:
        yield
    except (StorageError, FileNotFoundError):
        raise
    except OSError as error:
        if full is not None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            path = full
        where = path if error.filename is None else error.filename
        raise storage_error(error, error.strerror or str(error), where) from error
