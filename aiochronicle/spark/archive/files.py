"""Files of an archive on this machine: opened once, locked, and named in errors by the paths that users
know."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aiochronicle._files import open_regular
from aiochronicle.errors import AccessDenied, CorruptionError, ExportFailed, LockedError
from aiochronicle.spark.private_files import Location
from aiochronicle.spark.source.found import naming

__all__ = ["Target", "failed", "lock_in", "regular"]


class Target(msgspec.Struct):
    """Where a new file is written on this machine, and what errors call it."""

    path: Path
    shown: str


def failed(path: str, error: OSError) -> ExportFailed:
    """Return the error of a write."""
    return ExportFailed(error.strerror or str(error), path=path, errno=error.errno or errno.EIO)


@contextmanager
def regular(path: Path, advice: str) -> Generator[Path]:
    """Open a file once; yield a path to exactly that file, which is a regular file and not a link."""
    try:
        opened = open_regular(str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptionError("is gone", path=str(path), advice=advice) from error
    except ValueError as error:
        raise CorruptionError(str(error), path=str(path), advice=advice) from error
    try:
        pinned = f"/proc/self/fd/{opened}"
        with naming(pinned, str(path)):
            yield Path(pinned)
    finally:
        os.close(opened)


@contextmanager
def lock_in(location: Location, name: str, archive: str) -> Generator[None]:
    """Hold a lock in a directory of this user; LockedError if another job has it.

    AccessDenied if others could have changed what is in the directory.
    """
    try:
        with location.make() as directory:
            lock = directory.open_lock(name)
    except AccessDenied:
        raise
    except OSError as error:
        raise failed(archive, error) from error
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError("another job is archiving there", path=archive) from error
        yield
