"""Everything this package raises.

ChronicleError
├── QueueNotFound            there is no queue at this path            (also FileNotFoundError)
├── NotAQueue                something else is there
├── UnsupportedVersion       written by a newer or unknown version
├── CorruptionError          bytes on disk violate the format
│   └── SalvageRequired      … so that opening would set durable messages aside
├── PositionError
│   ├── PositionLost         the reader's position is no longer in the queue
│   └── PositionCorrupt      both slots of a position file are broken
├── DecodeError              a payload is not what its type says       (also ValueError)
│   └── UnknownType          … because nobody said what its type_id means
├── SchemaError              schema.json cannot be used
│   ├── SchemaNotFound       there is none                             (also FileNotFoundError)
│   └── SchemaMismatch       its types are not the program's
├── LockedError              another live writer holds the queue
├── ReaderBusy               another live reader uses this name
├── ReaderNotFound           the queue has no reader of this name      (also LookupError)
├── NotSupported             the format of this queue cannot do it
├── ClosedError              the handle is closed
│   └── ForkedError          … because it belongs to the parent process
├── InvalidArgument          an argument cannot be used                (also ValueError)
│   ├── WrongType            it is something else altogether           (also TypeError)
│   ├── EncodeError          the object does not fit its type
│   ├── InvalidConfiguration a configuration file says something impossible
│   ├── InvalidName          not a legal name of a reader or topic
│   ├── MessageTooLarge      does not fit into one segment
│   └── TimestampOrder       older than the last message's, or too far ahead
├── CapacityError
│   ├── QueueFull            the slowest open reader is a full capacity behind
│   └── CapacityTimeout      no reader made room in time               (also TimeoutError)
├── BackupError              a backup cannot be made or used
│   └── BackupNotFound       there is none                             (also FileNotFoundError)
├── ReservationOpen          a reservation is open on this writer
├── ReentrantCall            a signal handler appends to a writer that is waiting   (also RuntimeError)
├── WriterPoisoned           an earlier sync failed
├── JavaNotFound             Spark has no Java to run on
├── RequestError
│   ├── RequestFailed        the responder answered with an error
│   └── RequestTimeout       no answer came in time                    (also TimeoutError)
├── TimestampUnknown         a Java queue's message does not say its time (also ValueError)
├── SourceGone               the queue is not attached to the router   (also KeyError)
├── TooManyKeys              more distinct keys than allowed
├── TooManyReaders           the queue takes no more reader names
├── VirtualTimeDeadlock      in virtual time, nothing can happen any more
└── StorageError             the operating system refused              (also OSError)
    ├── DiskFull
    ├── AccessDenied         (also PermissionError)
    ├── ExportFailed         the file could not be written
    ├── FlushFailed          some of many queues could not be flushed
    ├── NotDurable           appended, but the sync after it failed
    └── QueueGone            files were cut, replaced or removed under us

Each carries ``path``, ``offset`` and ``errno`` where they apply, and its text says what to do. The
text can be printed and logged whatever the path is; ``path`` is what the file system calls it.
"""

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from errno import EBUSY, ECANCELED, ENOTSUP, ERANGE, EROFS, ETIMEDOUT
from typing import Any, ClassVar

from aiochronicle import _hot
from aiochronicle._printable import printable
from aiochronicle.position import Position

__all__ = [
    "AccessDenied",
    "BackupError",
    "BackupNotFound",
    "CapacityError",
    "CapacityTimeout",
    "ChronicleError",
    "ClosedError",
    "CorruptionError",
    "DecodeError",
    "DiskFull",
    "EncodeError",
    "ExportFailed",
    "FlushFailed",
    "ForkedError",
    "InvalidArgument",
    "InvalidConfiguration",
    "InvalidName",
    "JavaNotFound",
    "LockedError",
    "MessageTooLarge",
    "NotAQueue",
    "NotDurable",
    "NotSupported",
    "PositionCorrupt",
    "PositionError",
    "PositionLost",
    "QueueFull",
    "QueueGone",
    "QueueNotFound",
    "ReaderBusy",
    "ReaderNotFound",
    "ReentrantCall",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "ReservationOpen",
    "SalvageRequired",
    "SchemaError",
    "SchemaMismatch",
    "SchemaNotFound",
    "SourceGone",
    "StorageError",
    "TimestampOrder",
    "TimestampUnknown",
    "TooManyKeys",
    "TooManyReaders",
    "UnknownType",
    "UnsupportedVersion",
    "VirtualTimeDeadlock",
    "WriterPoisoned",
    "WrongType",
]


class ChronicleError(Exception):
    """Base of all errors of this package.

    >>> try:
    ...     raise QueueNotFound("no such directory", path="orders")
    ... except ChronicleError as error:
    ...     print(error)
    orders: no such directory. Check the path; open_writer creates a queue, but no directories above it.
    """

    advice: ClassVar[str] = ""

    path: str | None
    offset: int | None
    errno: int | None

    def __init__(
        self,
        detail: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        errno: int | None = None,
        advice: str | None = None,
    ) -> None:
        shown = None if path is None else printable(path)
        where = "" if shown is None else shown if not offset else f"{shown} at offset {offset}"
        text = f"{where}: {_printable_lines(detail)}" if where else _printable_lines(detail)
        advice = self.advice if advice is None else advice
        separator = "\n" if "\n" in detail else " " if detail.endswith("?") else ". "
        super().__init__(f"{text}{separator}{advice}" if advice else text)
        self.detail = detail
        self.path = path
        self.offset = offset
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle what was made, instead of making it again out of its own text."""
        state = {**self.__dict__, "args": self.args, "errno": self.errno}
        return _bare, (type(self),), state


def _printable_lines(detail: str) -> str:
    """Return the detail, which may have several lines, without what a terminal would act on."""
    if detail.isprintable():
        return detail
    lines = detail.split("\n")
    return "\n".join(line if line.isprintable() else printable(line) for line in lines)


def _bare(kind: type[ChronicleError]) -> ChronicleError:
    return kind.__new__(kind)


class QueueNotFound(ChronicleError, FileNotFoundError):
    """There is no queue at this path."""

    advice = "Check the path; open_writer creates a queue, but no directories above it."


class NotAQueue(ChronicleError):
    """Something else than a queue is there."""

    advice = "Give the directory of a queue, or a new one to create a queue in."


class UnsupportedVersion(ChronicleError):
    """The files were written by a newer or unknown version of the format."""

    advice = "Read it with the version of aiochronicle that wrote it, or a newer one."


class CorruptionError(ChronicleError):
    """Bytes on disk violate the format."""

    advice = (
        'Nothing was changed. Read on with on_corrupt="skip", or restore the file from a backup.'
        " open_reader, Router, Responder and Requester take on_corrupt; Reader.step_over steps over"
        " this one place."
    )


class SalvageRequired(CorruptionError):
    """Opening for writing would set aside messages that may have been durable.

    A segment is missing in the middle, or at the end. Nothing was changed.
    """

    advice = "Nothing was changed."


class PositionError(ChronicleError):
    """A reader's stored position cannot be used."""


class PositionLost(PositionError):
    """The reader's position is no longer in the queue; nothing was skipped in silence.

    ``wanted`` is the Position the reader stood at, ``nearest`` the closest that exists.
    """

    advice = (
        'Decide what to do about the gap, then go on with start="first", "last" or a seq, '
        "or seek the open reader."
    )

    wanted = Position(0, 0)
    nearest = Position(0, 0)


class PositionCorrupt(PositionError):
    """Both slots of a position file are broken."""

    advice = "forget_reader removes it; the reader is then a new one."


class DecodeError(ChronicleError, ValueError):
    """A payload is not what its type says. ``seq`` is the message's, if it came from a queue.

    The reader has passed the message: reading goes on with the next one.
    """

    def __init__(
        self,
        detail: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        seq: int | None = None,
    ) -> None:
        java = path is not None and path.endswith(".cq4")  # whose indexes are read in hex
        where = "" if seq is None else f"message {seq:#x}: " if java else f"message {seq}: "
        super().__init__(where + detail, path=path, offset=offset)
        self.seq = seq


class UnknownType(DecodeError):
    """Neither the reader nor the queue's schema says what this type_id means."""


class SchemaError(ChronicleError):
    """The queue's schema.json cannot be used."""

    advice = "Nothing was changed. Restore the file, or read without a codec."


class SchemaNotFound(SchemaError, FileNotFoundError):
    """The queue has no schema.json."""

    advice = "It is written by open_writer(path, codec=...)."


class SchemaMismatch(SchemaError):
    """The types of the program are not those of the queue; ``differences`` has a line for each."""

    advice = (
        "A type may only gain fields with defaults. To read, take the queue's own types, which"
        " Registry.load gives; to write others, give them another name, or a queue of their own."
    )

    def __init__(self, detail: str, differences: Sequence[str], *, path: str | None = None) -> None:
        lines = map(printable, (f"{detail}:", *differences))  # with names that others have chosen
        super().__init__("\n  ".join(lines), path=path)
        self.differences = tuple(differences)


class LockedError(ChronicleError):
    """Another live writer holds the queue.

    ``pid`` and ``command`` are of the process that holds it, ``since`` is when it was opened; None
    if that is not known, as for a process in another container.
    """

    advice = (
        "A queue has one writer at a time: close that one, wait for it with lock_timeout, or write to"
        " a queue of your own."
    )

    pid: int | None = None
    command: str | None = None
    since: datetime | None = None


class ReaderBusy(ChronicleError):
    """Another live reader uses this name; the text names its process."""


class ReaderNotFound(ChronicleError, LookupError):
    """The queue has no reader of this name."""

    advice = "list_readers names those that it has."


class TimestampUnknown(ChronicleError, ValueError):
    """The ``timestamp`` that a reader was opened with cannot tell the time of a message.

    The field is missing or says no time, or the function raised: its exception is the cause. The
    reader stays at the message.
    """

    advice = (
        "step_over() passes the message (in a fan-in: detach the reader, step_over, attach it again);"
        " a function given as timestamp= can say what the time of such messages is."
    )


class NotSupported(ChronicleError):
    """The format of this queue has no place for it: see docs/guide/java.md. Nothing was changed."""

    advice = "Leave it out, or write to a queue of aiochronicle's own format."


class ClosedError(ChronicleError):
    """The handle is closed."""


class ForkedError(ClosedError):
    """The handle was opened before fork and belongs to the parent process."""


class InvalidArgument(ChronicleError, ValueError):
    """An argument cannot be used; nothing was changed."""


class WrongType(InvalidArgument, TypeError):
    """An argument is something else altogether than what it must be."""


class EncodeError(InvalidArgument):
    """The object is not of the codec's type, or one of its values does not fit."""


class InvalidConfiguration(InvalidArgument):
    """A configuration file says something impossible; ``key`` is where, None if it is no TOML."""

    key: str | None = None


class InvalidName(InvalidArgument):
    """Not a legal name of a reader or topic."""


class MessageTooLarge(InvalidArgument):
    """The message or batch does not fit into one segment."""


class TimestampOrder(InvalidArgument):
    """The timestamp is older than the last message's, or ahead by more than ``max_ahead_s``."""

    advice = "Timestamps of one queue never decrease; write late data to a queue of its own."


class CapacityError(ChronicleError):
    """The writer is a full capacity ahead of its slowest live reader."""


class QueueFull(CapacityError):
    """The slowest reader that is open is a full capacity behind; the text names it."""

    advice = "Wait for it (await writer.drain()), or raise the capacity."


class CapacityTimeout(CapacityError, TimeoutError):
    """The slowest reader that is open did not make room in time; the text names it."""


class BackupError(ChronicleError):
    """A backup cannot be made or used; nothing was changed."""


class BackupNotFound(BackupError, FileNotFoundError):
    """There is no backup in this directory."""

    advice = "Check the path; backup makes one."


class ReservationOpen(ChronicleError):
    """A reservation is open on this writer."""


class ReentrantCall(ChronicleError, RuntimeError):
    """A signal handler appends to the writer whose waiting call it interrupted."""

    advice = (
        "Nothing was appended. In a handler, close the writer, or note what to append and do it"
        " after the call that was interrupted."
    )


class WriterPoisoned(ChronicleError):
    """An earlier sync failed, so nobody knows what is on disk."""


class JavaNotFound(ChronicleError):
    """There is no Java that Spark could run on."""

    advice = (
        'Install one (pip install "aiochronicle[spark]" brings one along), put it on the PATH,'
        " or set JAVA_HOME."
    )


class RequestError(ChronicleError):
    """A request was not answered, or not with a result."""


class RequestFailed(RequestError):
    """The responder answered with an error; ``detail`` is what it said."""


class RequestTimeout(RequestError, TimeoutError):
    """No answer came in time. The request stays in its queue and may be answered yet."""

    advice = "Check that the responder runs; its late answer will be dropped."


class SourceGone(ChronicleError, KeyError):
    """The queue is not attached to the router, or not any more."""

    advice = "Its directory was removed, or it failed: then Router.problems tells why."

    def __str__(self) -> str:
        """Return the text, of which a KeyError would show the repr."""
        return Exception.__str__(self)


class TooManyKeys(ChronicleError):
    """There are more distinct keys than ``max_keys`` allows."""

    advice = "Nothing was taken. Raise max_keys, or choose a coarser key."


class TooManyReaders(ChronicleError):
    """The queue has 4096 reader names, used or not, and takes no new one."""

    advice = (
        "Give a reader the same name each time it is started, without a date or a pid; or none, if"
        " it need not resume. forget_reader removes those that will not come back."
    )


class VirtualTimeDeadlock(ChronicleError, RuntimeError):
    """In virtual time, every task waits for something that cannot happen any more."""

    advice = (
        "Let these tasks end with the replay, or feed what they wait for from it: virtual time"
        " does not wait for files, sockets or other processes."
    )


class StorageError(ChronicleError, OSError):
    """The operating system refused; ``errno`` says why."""


class DiskFull(StorageError):
    """The file system is full, or the quota is used up."""

    advice = (
        "Free some space or move old segments. An append that was refused wrote nothing and can be"
        " tried again."
    )


class AccessDenied(StorageError, PermissionError):
    """No permission; the text has the owner and mode of what was refused, where they can be seen."""

    advice = "Check the owner, group and mode of it and of the directories above it."


class ExportFailed(StorageError):
    """The file could not be written; ``errno`` says why."""

    advice = (
        "What was there before is unchanged. Check the directory and its space, then try again."
    )


class FlushFailed(StorageError):
    """Some of many queues could not be flushed; the others were.

    ``failures`` has the error of each by topic. Their writers are poisoned.
    """

    advice = "Close these writers and open them again, which looks at what is really on disk."

    def __init__(self, failures: dict[str, ChronicleError]) -> None:
        what = "; ".join(f"{topic}: {error.detail}" for topic, error in failures.items())
        first = next(iter(failures.values()))
        super().__init__(f"cannot flush {what}", path=first.path, errno=first.errno)
        self.failures = failures


class NotDurable(StorageError):
    """A message was appended, and readers may have it, but the sync after it failed.

    From ``append`` and its like in the modes ``"sync"`` and ``Batch``. ``seq`` is the message's, or
    the first of a batch. The writer is poisoned.
    """

    advice = (
        "Do not append it again yet: close the writer and open a new one, whose next_seq tells"
        " whether it is in the queue."
    )
    seq = 0


class QueueGone(StorageError):
    """Files were cut, replaced or removed while the queue was open."""

    advice = "Close this handle and open the queue again."


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
}


CONTROL_ADVICE = (
    "Nothing was changed, and the messages are in the segments. Restore control.meta from a backup; if"
    " there is none, that of a new queue with the same segment_size lets them be read."
)


METADATA_ADVICE = (
    "Nothing was changed, and the messages are in the .cq4 files. Restore metadata.cq4t from a backup; no"
    " reader can step over it."
)
TAILER_ADVICE = (
    "Nothing was changed. Writers of a Java queue hold its lock for microseconds: see what that process"
    " does, then open the reader again. A reader without a name, or with one that the queue has, needs no"
    " lock."
)
JAVA_LOCK_ADVICE = (
    "Nothing was appended. Writers of a Java queue hold its lock for microseconds: see what that process"
    " does; lock_timeout says how long an append waits."
)
AHEAD_ADVICE = (
    "Nothing was written. Check that it is in nanoseconds since 1970, and the clock that it is from; or raise"
    " max_ahead_s."
)


def _permission_advice(path: str, errno: int) -> str:
    """Say whose file it is that was refused, and what would be allowed."""
    if errno == EROFS:
        return "The file system is mounted read-only: a reader without a name works there."
    place, found = _nearest_that_shows(path)
    if found is None:
        return AccessDenied.advice
    owner = (
        f"{'It' if place == path else printable(place)} belongs to uid {found.st_uid}, gid {found.st_gid},"
        f" with mode 0{stat.S_IMODE(found.st_mode):o}; this process is uid {os.geteuid()}."
    )
    if _is_about_positions(path):
        return f"{owner} A reader without a name needs no permission there."
    if place == path and _can_read(path, found.st_mode):
        return f"{owner} It may be read, not written: a reader without a name needs no more."
    return (
        f"{owner} Its owner can allow more: by the mode= that a queue is written with, by chmod for"
        " the directories above."
    )


def _nearest_that_shows(path: str) -> tuple[str, os.stat_result | None]:
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
    """Tell whether this is the readers/ of a queue, or a file in it."""
    above, name = os.path.split(path)
    if name != "readers":
        above, name = os.path.split(above)
    return name == "readers" and os.path.lexists(os.path.join(above, "control.meta"))  # noqa: PTH118


def _can_read(path: str, mode: int) -> bool:
    wanted = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return os.access(path, wanted, effective_ids=True)


def _advice(kind: type[ChronicleError], path: str, errno: int) -> str | None:
    """Return what to do where the advice of the kind does not serve; else None.

    No reader can step over a damaged control block.
    """
    if kind is TimestampOrder and errno == ERANGE:
        return AHEAD_ADVICE
    if kind is LockedError and errno in (ETIMEDOUT, EBUSY):
        return JAVA_LOCK_ADVICE if errno == ETIMEDOUT else TAILER_ADVICE
    if kind is NotSupported and errno != ENOTSUP:  # no argument that could be left out
        return ""
    if kind is QueueFull and path.endswith(".cq4"):
        return (
            "Nothing was appended, by Java neither; there is room again when the next cycle begins."
        )
    if kind is AccessDenied:
        return _permission_advice(path, errno)
    if kind is CorruptionError and os.path.basename(path) == "metadata.cq4t":  # noqa: PTH119
        return METADATA_ADVICE
    if os.path.basename(path) != "control.meta":  # noqa: PTH119
        return None
    if kind is CorruptionError:
        return CONTROL_ADVICE
    return f"{kind.advice} If it is one: {CONTROL_ADVICE}" if kind is NotAQueue else None


def from_engine(
    code: int,
    errno: int,
    path: str,
    offset: int,
    detail: str,
    wanted: tuple[int, int],
    nearest: tuple[int, int],
    seq: int,
    holder: tuple[int, bytes, int] = (0, b"", 0),
) -> ChronicleError:
    """Make the exception for an error record of the engine; the holder is pid, command and start."""
    kind = _BY_CODE.get(code, ChronicleError)
    detail = detail if detail.isprintable() else printable(detail)  # the engine says one line
    if issubclass(kind, PositionLost):
        detail = (
            f"{detail}: segment {wanted[0]}, offset {wanted[1]};"
            f" nearest is segment {nearest[0]}, offset {nearest[1]}"
        )
    advice = _advice(kind, path, errno)
    error = kind(
        detail, path=os.fspath(path) or None, offset=offset, errno=errno or None, advice=advice
    )
    if isinstance(error, PositionLost):
        error.wanted = Position(*wanted)
        error.nearest = Position(*nearest)
    if isinstance(error, NotDurable):
        error.seq = seq
    if isinstance(error, LockedError) and holder[0]:
        error.pid = holder[0]
        error.command = holder[1].decode("utf-8", "replace") or None
        error.since = datetime.fromtimestamp(holder[2] // 10**9, UTC) if holder[2] else None
    if isinstance(error, TimestampUnknown) and errno == ECANCELED:
        error.__cause__ = failure = _hot.timestamp_failure()
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # KeyboardInterrupt and the like
    return error
