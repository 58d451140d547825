"""The meaning of exit statuses."""

import errno

from aiochronicle import errors

__all__ = [
    "BUSY",
    "DAMAGED",
    "DENIED",
    "DISK_FULL",
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "USAGE",
    "Refused",
    "status_of",
]

FAILED = 1  # anything that has no number of its own
USAGE = 2  # the command line makes no sense
NOT_FOUND = 3  # there is no such queue, reader, backup …
BUSY = 4  # another process holds the queue or the reader
DAMAGED = 5  # the data is damaged
DENIED = 6  # no permission
DISK_FULL = 7
INTERRUPTED = 130  # Ctrl-C, as shells count it

_KINDS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((errors.LockedError, errors.ReaderBusy), BUSY),
    ((errors.DiskFull,), DISK_FULL),
    ((errors.AccessDenied, PermissionError), DENIED),
    ((errors.CorruptionError, errors.PositionCorrupt, errors.SchemaError), DAMAGED),
    ((errors.NotAQueue, FileNotFoundError, errors.ReaderNotFound), NOT_FOUND),
    ((errors.InvalidArgument,), USAGE),
)


class Refused(Exception):
    """A command that cannot be carried out as given; the text says why and what to do."""

    def __init__(self, text: str, status: int = USAGE) -> None:
        super().__init__(text)
        self.status = status


def status_of(error: BaseException) -> int:
    """Return the exit status for an exception."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, errors.SchemaNotFound):
        return NOT_FOUND
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # whatever was being written
        return DISK_FULL
    if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DENIED
    return next((status for kinds, status in _KINDS if isinstance(error, kinds)), FAILED)
