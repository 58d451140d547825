"""Turns error records of the engine into exceptions: the class by code, the advice by path and errno."""

import os
import stat
from datetime import UTC, datetime
from errno import EBUSY, ECANCELED, ENOTSUP, ERANGE, EROFS, ETIME, ETIMEDOUT

from aiochronicle import _hot
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._layout import CONTROL, JAVA_SUFFIX, JAVA_TABLE, READERS
from aiochronicle.errors import (
    CONTROL_ADVICE,
    AccessDenied,
    CapacityTimeout,
    ChronicleError,
    ClosedError,
    CorruptionError,
    DiskFull,
    ForkedError,
    GroupInUse,
    InvalidArgument,
    InvalidName,
    LockedError,
    MessageTooLarge,
    NotAQueue,
    NotDurable,
    NotSupported,
    PositionCorrupt,
    PositionLost,
    PositionRevoked,
    QueueFull,
    QueueGone,
    QueueNotFound,
    ReaderBusy,
    ReaderNotFound,
    ReentrantCall,
    ReservationOpen,
    SalvageRequired,
    StorageError,
    TimestampOrder,
    TimestampUnknown,
    TooManyReaders,
    UnsupportedVersion,
    WriterPoisoned,
)

__all__ = [
    "GRANT_ADVICE",
    "JAVA_LOCK_ADVICE",
    "POSITIONS_ADVICE",
    "READABLE_ADVICE",
    "READ_ONLY_ADVICE",
    "TAILER_ADVICE",
    "from_engine",
]

# By the engine's codes, AC_E_* in csrc/aiochronicle.h.
_BY_CODE: dict[int, type[ChronicleError]] = {
    -1: StorageError,
    -2: DiskFull,
    -3: QueueNotFound,
    -4: NotAQueue,
    -5: UnsupportedVersion,
    -6: CorruptionError,
    -7: LockedError,
    -8: ReaderBusy,
    -9: ClosedError,
    -10: ForkedError,
    -11: MessageTooLarge,
    -12: TimestampOrder,
    -13: PositionLost,
    -14: PositionCorrupt,
    -15: InvalidName,
    -16: QueueFull,
    -17: CapacityTimeout,
    -18: WriterPoisoned,
    -19: ReservationOpen,
    -20: InvalidArgument,
    -21: QueueGone,
    -22: AccessDenied,
    -25: NotDurable,
    -26: TooManyReaders,
    -27: SalvageRequired,
    -28: ReentrantCall,
    -29: ReaderNotFound,
    -30: NotSupported,
    -31: TimestampUnknown,
    -32: GroupInUse,
    -33: PositionRevoked,
}


METADATA_ADVICE = (
    "Nothing was changed, and the messages are still in the .cq4 files. Restore metadata.cq4t from a backup;"
    " readers cannot skip it."
)
TAILER_ADVICE = (
    "Nothing was changed. Writers of a Java queue normally hold its lock for microseconds only: check that"
    " process, then open the reader again. A reader without a name, or with an existing one, needs no lock."
)
JAVA_LOCK_ADVICE = (
    "Nothing was appended. Writers of a Java queue normally hold its lock for microseconds only: check that"
    " process. lock_timeout sets how long an append waits."
)
AHEAD_ADVICE = (
    "Nothing was written. Check that the timestamp is in nanoseconds since 1970 and that the clock is right,"
    " or raise max_ahead_s."
)
READ_ONLY_ADVICE = "The file system is mounted read-only; a reader without a name can read it."
POSITIONS_ADVICE = "A reader without a name needs no permission there."
READABLE_ADVICE = "It is readable but not writable, which is enough for a reader without a name."
GRANT_ADVICE = (
    "Its owner can grant access: open_writer(mode=...) for the queue, chmod for the directories above"
    " it."
)


def _permission_advice(path: str, errno: int) -> str:
    """Return advice that names the file's owner and mode, and what is still possible."""
    if errno == EROFS:
        return READ_ONLY_ADVICE
    place, found = _find_visible_parent(path)
    if found is None:
        return AccessDenied.advice
    owner = (
        f"{'It' if place == path else printable(place)} belongs to uid {found.st_uid}, gid {found.st_gid},"
        f" with mode 0{stat.S_IMODE(found.st_mode):o}; this process is uid {os.geteuid()}."
    )
    if _is_about_positions(path):
        return f"{owner} {POSITIONS_ADVICE}"
    if place == path and _can_read(path, found.st_mode):
        return f"{owner} {READABLE_ADVICE}"
    return f"{owner} {GRANT_ADVICE}"


def _find_visible_parent(path: str) -> tuple[str, os.stat_result | None]:
    """Return the path, or the nearest directory above it, whose owner and mode can be seen."""
    while True:
        try:
            return path, os.lstat(path)
        except OSError:
            above = os.path.dirname(path) or "."  # noqa: PTH120 - any bytes, and no normalising
            if above == path:
                return path, None
            path = above


def _is_about_positions(path: str) -> bool:
    """Return whether this is the directory ``readers/`` of a queue, or a file in it."""
    above, name = os.path.split(path)
    if name != READERS:
        above, name = os.path.split(above)
    return name == READERS and os.path.lexists(os.path.join(above, CONTROL))  # noqa: PTH118


def _can_read(path: str, mode: int) -> bool:
    wanted = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return os.access(path, wanted, effective_ids=True)


def _advice(kind: type[ChronicleError], path: str, errno: int) -> str | None:
    """Return the advice for this path and errno; None to use the advice of the class."""
    if kind is TimestampOrder and errno == ERANGE:
        return AHEAD_ADVICE
    if kind is TimestampOrder and errno == ETIME:  # of a Java queue: no message has a timestamp
        return "Nothing was appended."
    if kind is LockedError and errno in (ETIMEDOUT, EBUSY):
        return JAVA_LOCK_ADVICE if errno == ETIMEDOUT else TAILER_ADVICE
    if kind is NotSupported and errno != ENOTSUP:  # there is no argument to omit
        return ""
    if kind is QueueFull and path.endswith(JAVA_SUFFIX):
        return "Nothing was appended. Java cannot append either until the next cycle begins."
    if kind is AccessDenied:
        return _permission_advice(path, errno)
    if kind is CorruptionError and os.path.basename(path) == JAVA_TABLE:  # noqa: PTH119
        return METADATA_ADVICE
    if os.path.basename(path) != CONTROL:  # noqa: PTH119
        return None
    if kind is CorruptionError:
        return CONTROL_ADVICE
    return f"{kind.advice} If it is a queue: {CONTROL_ADVICE}" if kind is NotAQueue else None


def from_engine(
    code: int,
    errno: int,
    path_bytes: bytes,
    offset: int,
    detail_bytes: bytes,
    wanted: tuple[int, int],
    nearest: tuple[int, int],
    seq: int,
    holder: tuple[int, bytes, int] = (0, b"", 0),
) -> ChronicleError:
    """Return the exception for an error record of the engine; ``holder`` is pid, command and start time."""
    kind = _BY_CODE.get(code, ChronicleError)
    path = os.fsdecode(path_bytes)
    detail = detail_bytes.decode("utf-8", "surrogateescape")  # it may contain file names
    detail = detail if detail.isprintable() else printable(detail)  # the engine's text is one line
    if issubclass(kind, PositionLost):
        detail = (
            f"{detail}: segment {wanted[0]}, offset {wanted[1]};"
            f" nearest is segment {nearest[0]}, offset {nearest[1]}"
        )
    advice = _advice(kind, path, errno)
    error = kind(detail, path=path or None, offset=offset, errno=errno or None, advice=advice)
    if isinstance(error, PositionLost):
        error.wanted = Position(*wanted)
        error.nearest = Position(*nearest)
    if isinstance(error, NotDurable):
        error.seq = seq
    if isinstance(error, LockedError | ReaderBusy) and holder[0]:
        error.pid = holder[0]
        error.command = holder[1].decode("utf-8", "replace") or None
    if isinstance(error, LockedError) and holder[0]:
        error.since = datetime.fromtimestamp(holder[2] // 10**9, UTC) if holder[2] else None
    if isinstance(error, TimestampUnknown) and errno == ECANCELED:
        error.__cause__ = failure = _hot.timestamp_failure()
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # KeyboardInterrupt, for example
    return error
