"""The exceptions of this package.

ChronicleError
├── QueueNotFound            there is no queue at this path            (also FileNotFoundError)
├── NotAQueue                the path is something else
├── UnsupportedVersion       written by a newer or unknown version
├── CorruptionError          bytes on disk violate the format
│   └── SalvageRequired      … and opening would set durable messages aside
├── PositionError            a reader's position cannot be used
│   ├── PositionLost         the position is no longer in the queue
│   ├── PositionRevoked      an operator moved or forgot the reader while it was open
│   └── PositionCorrupt      both slots of a position file are broken
├── DecodeError              a payload does not match its type         (also ValueError)
│   └── UnknownType          … because its type_id is unknown
├── SchemaError              schema.json cannot be used
│   ├── SchemaNotFound       there is none                             (also FileNotFoundError)
│   └── SchemaMismatch       its types differ from the program's
├── LockedError              another live writer holds the queue
├── ReaderBusy               another live reader uses this name
├── ReaderNotFound           the queue has no reader of this name      (also LookupError)
├── GroupInUse               members of the group have other settings
├── DeliveryError            a delivery cannot be acknowledged or given back
│   ├── LeaseLost            the lease of a delivery has ended
│   └── AlreadySettled       the delivery is already acknowledged or given back
├── NotSupported             the format of this queue cannot store it
├── ClosedError              the handle is closed
│   └── ForkedError          … because it belongs to the parent process
├── InvalidArgument          an argument cannot be used                (also ValueError)
│   ├── WrongType            it has the wrong type                     (also TypeError)
│   ├── EncodeError          the object does not fit its type
│   ├── InvalidConfiguration a configuration file has an invalid value
│   ├── InvalidName          not a legal name of a reader or topic
│   ├── MessageTooLarge      does not fit into one segment
│   └── TimestampOrder       older than the last message's, or too far ahead
├── CapacityError
│   ├── QueueFull            the slowest open reader lags by the full capacity
│   └── CapacityTimeout      no reader made room in time               (also TimeoutError)
├── BackupError              a backup cannot be created or used
│   └── BackupNotFound       there is none                             (also FileNotFoundError)
├── ReservationOpen          a reservation is open on this writer
├── ReentrantCall            a signal handler appended to a waiting writer (also RuntimeError)
├── WriterPoisoned           an earlier sync failed
├── JavaNotFound             Spark has no Java to run on
├── RequestError
│   ├── RequestFailed        the responder answered with an error
│   └── RequestTimeout       no answer came in time                    (also TimeoutError)
├── TimestampUnknown         a message of a Java queue has no timestamp (also ValueError)
├── SourceGone               the queue is not attached to the router   (also KeyError)
├── TooManyKeys              more distinct keys than allowed
├── TooManyReaders           the queue takes no more reader names
├── VirtualTimeDeadlock      in virtual time, every task waits forever (also RuntimeError)
└── StorageError             a system call failed                      (also OSError)
    ├── DiskFull             the file system or the quota is full
    ├── AccessDenied         no permission                             (also PermissionError)
    ├── ExportFailed         the file could not be written
    ├── FlushFailed          some of several queues could not be flushed
    ├── NotDurable           appended, but the sync that followed failed
    └── QueueGone            files were truncated, replaced or removed while open

Each has ``path``, ``offset`` and ``errno`` where they apply, and its text says what to do. The text is
always printable; ``path`` is the unescaped name in the file system.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._layout import JAVA_SUFFIX

__all__ = [
    "AccessDenied",
    "AlreadySettled",
    "BackupError",
    "BackupNotFound",
    "CapacityError",
    "CapacityTimeout",
    "ChronicleError",
    "ClosedError",
    "CorruptionError",
    "DecodeError",
    "DeliveryError",
    "DiskFull",
    "EncodeError",
    "ExportFailed",
    "FlushFailed",
    "ForkedError",
    "GroupInUse",
    "InvalidArgument",
    "InvalidConfiguration",
    "InvalidName",
    "JavaNotFound",
    "LeaseLost",
    "LockedError",
    "MessageTooLarge",
    "NotAQueue",
    "NotDurable",
    "NotSupported",
    "PositionCorrupt",
    "PositionError",
    "PositionLost",
    "PositionRevoked",
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

CONTROL_ADVICE = (
    "Nothing was changed, and the messages are still in the segments. Restore control.meta from a backup;"
    " without a backup, copy the control.meta of a new queue with the same segment_size."
)


class ChronicleError(Exception):
    """Base of all errors of this package.

    >>> try:
    ...     raise QueueNotFound("no such directory", path="orders")
    ... except ChronicleError as error:
    ...     print(error)
    orders: no such directory. Check the path. open_writer creates a queue, but not the directories above it.
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
        """Copy and pickle the attributes; the constructor would add the path and advice a second time."""
        state = {**self.__dict__, "args": self.args, "errno": self.errno}
        return _new_without_init, (type(self),), state


def _printable_lines(detail: str) -> str:
    """Return the detail, which may have several lines, without control characters."""
    if detail.isprintable():
        return detail
    lines = detail.split("\n")
    return "\n".join(line if line.isprintable() else printable(line) for line in lines)


def _new_without_init(kind: type[ChronicleError]) -> ChronicleError:
    return kind.__new__(kind)


class QueueNotFound(ChronicleError, FileNotFoundError):
    """There is no queue at this path."""

    advice = "Check the path. open_writer creates a queue, but not the directories above it."


class NotAQueue(ChronicleError):
    """The path is not a queue."""

    advice = "Give the directory of a queue, or a path that does not exist yet."


class UnsupportedVersion(ChronicleError):
    """The files were written by a newer or unknown version of the format."""

    advice = "Use the version of aiochronicle that wrote the files, or a newer one."


class CorruptionError(ChronicleError):
    """Bytes on disk violate the format."""

    advice = (
        'Nothing was changed. Read on with on_corrupt="skip", or restore the file from a backup.'
        " open_reader, Router, Responder and Requester take on_corrupt; Reader.step_over steps over"
        " one damaged place."
    )


class SalvageRequired(CorruptionError):
    """Opening for writing would set aside messages that may have been durable.

    A segment is missing, in the middle or at the end. Nothing was changed.
    """

    advice = "Nothing was changed."


class PositionError(ChronicleError):
    """A reader's stored position cannot be used."""


class PositionLost(PositionError):
    """The reader's position is no longer in the queue. Nothing was skipped.

    ``wanted`` is the reader's Position, ``nearest`` the closest one that exists.
    """

    advice = (
        'Decide what to do about the gap, then open the reader with start="first", "last" or a seq, '
        "or let the open reader seek."
    )

    wanted = Position(0, 0)
    nearest = Position(0, 0)


class PositionRevoked(PositionError):
    """An operator moved or removed this reader's position while the reader was open; see seek_reader.

    The reader's commits have no effect. ``commit`` raises this, and so does reading at the end of the queue;
    messages before the end may still be delivered.
    """

    advice = "Close the reader and open it again: it continues where the operator moved it."


class PositionCorrupt(PositionError):
    """Both slots of a position file are broken."""

    advice = "Remove it with forget_reader; the reader then starts like a new one."


class DecodeError(ChronicleError, ValueError):
    """A payload does not match its type. ``seq`` is that of the message, None if it is not from a queue.

    The reader is past the message: reading continues with the next one.
    """

    def __init__(
        self,
        detail: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        seq: int | None = None,
    ) -> None:
        java = path is not None and path.endswith(JAVA_SUFFIX)  # Java users read indexes in hex
        where = "" if seq is None else f"message {seq:#x}: " if java else f"message {seq}: "
        super().__init__(where + detail, path=path, offset=offset)
        self.seq = seq


class UnknownType(DecodeError):
    """Neither the reader's codec nor the queue's schema has this type_id."""


class SchemaError(ChronicleError):
    """The queue's schema.json cannot be used."""

    advice = "Nothing was changed. Restore the file, or read without a codec."


class SchemaNotFound(SchemaError, FileNotFoundError):
    """The queue has no schema.json."""

    advice = "open_writer(path, codec=...) writes it."


class SchemaMismatch(SchemaError):
    """The types of the program differ from those of the queue; ``differences`` has a line for each."""

    advice = (
        "A type may only gain fields with defaults. To read, use the queue's own types: Registry.load."
        " To write different types, give them other names or use another queue."
    )

    def __init__(self, detail: str, differences: Sequence[str], *, path: str | None = None) -> None:
        lines = map(printable, (f"{detail}:", *differences))  # names chosen by other programs
        super().__init__("\n  ".join(lines), path=path)
        self.differences = tuple(differences)


class LockedError(ChronicleError):
    """Another live writer holds the queue.

    ``pid`` and ``command`` identify that writer's process; ``since`` is when it opened the queue. They are
    None if unknown, as for a process in another container.
    """

    advice = (
        "A queue has one writer at a time: close that one, wait for it with lock_timeout, or write to"
        " another queue."
    )

    pid: int | None = None
    command: str | None = None
    since: datetime | None = None


class ReaderBusy(ChronicleError):
    """Another live reader uses this name.

    ``pid`` and ``command`` identify that reader's process. They are None if unknown, as for a process in
    another container.
    """

    pid: int | None = None
    command: str | None = None


class ReaderNotFound(ChronicleError, LookupError):
    """The queue has no reader of this name."""

    advice = "list_readers lists the readers of the queue."


class GroupInUse(ChronicleError):
    """The group has members with other settings, or with another clock."""


class DeliveryError(ChronicleError):
    """A delivery of a group cannot be acknowledged or given back."""


class LeaseLost(DeliveryError):
    """The lease of the delivery has ended, and another member gets the message.

    The message may be processed twice: delivery is at least once.
    """


class AlreadySettled(DeliveryError):
    """The delivery is already acknowledged or given back."""


class TimestampUnknown(ChronicleError, ValueError):
    """The ``timestamp`` option of a reader gives no time for a message.

    The field is missing or holds no time, or the function raised an exception, which is the ``__cause__``.
    The reader stays at the message.
    """

    advice = (
        "step_over() skips the message (in a fan-in: detach the reader, step_over, attach it again);"
        " a function given as timestamp= can return a time for such messages."
    )


class NotSupported(ChronicleError):
    """The format of this queue cannot store it: see docs/guide/java.md. Nothing was changed."""

    advice = "Omit it, or use a queue of the native format."


class ClosedError(ChronicleError):
    """The handle is closed."""


class ForkedError(ClosedError):
    """The handle was opened before fork and belongs to the parent process."""


class InvalidArgument(ChronicleError, ValueError):
    """An argument cannot be used; nothing was changed."""


class WrongType(InvalidArgument, TypeError):
    """An argument has the wrong type."""


class EncodeError(InvalidArgument):
    """The object is not of the codec's type, or one of its values does not fit."""


class InvalidConfiguration(InvalidArgument):
    """A configuration file has an invalid value; ``key`` is where, None if the file is not TOML."""

    key: str | None = None


class InvalidName(InvalidArgument):
    """Not a legal name of a reader or topic."""


class MessageTooLarge(InvalidArgument):
    """The message or batch does not fit into one segment."""


class TimestampOrder(InvalidArgument):
    """The timestamp is older than the last message's, or ahead by more than ``max_ahead_s``."""

    advice = "Timestamps of one queue never decrease; write late data to another queue."


class CapacityError(ChronicleError):
    """The slowest open reader lags by the full capacity."""


class QueueFull(CapacityError):
    """The slowest open reader lags by the full capacity; the text names it."""

    advice = "Wait for it (await writer.drain()), or raise the capacity."


class CapacityTimeout(CapacityError, TimeoutError):
    """The slowest open reader did not make room in time; the text names it."""


class BackupError(ChronicleError):
    """A backup cannot be created or used; nothing was changed."""


class BackupNotFound(BackupError, FileNotFoundError):
    """There is no backup in this directory."""

    advice = "Check the path; backup() creates one."


class ReservationOpen(ChronicleError):
    """A reservation is open on this writer."""


class ReentrantCall(ChronicleError, RuntimeError):
    """A signal handler appended to the writer whose waiting call it interrupted."""

    advice = (
        "Nothing was appended. In a signal handler, close the writer, or store the message and append"
        " it after the interrupted call."
    )


class WriterPoisoned(ChronicleError):
    """An earlier sync failed, so the state on disk is unknown."""


class JavaNotFound(ChronicleError):
    """Spark found no Java to run on."""

    advice = (
        'Install one (pip install "aiochronicle[spark]" includes one), put it on the PATH,'
        " or set JAVA_HOME."
    )


class RequestError(ChronicleError):
    """A request got no answer, or an error as its answer."""


class RequestFailed(RequestError):
    """The responder answered with an error; ``detail`` is its text."""


class RequestTimeout(RequestError, TimeoutError):
    """No answer came in time. The request stays in its queue and may still be answered."""

    advice = "Check that the responder is running; a late answer is dropped."


class SourceGone(ChronicleError, KeyError):
    """The queue is not, or no longer, attached to the router."""

    advice = "Its directory was removed, or the queue failed: see Router.problems."

    def __str__(self) -> str:
        """Return the text; KeyError would return its repr."""
        return Exception.__str__(self)


class TooManyKeys(ChronicleError):
    """There are more distinct keys than ``max_keys`` allows."""

    advice = "No message was taken. Raise max_keys, or choose a coarser key."


class TooManyReaders(ChronicleError):
    """The queue has 4096 reader names, used or not, which is the maximum."""

    advice = (
        "Give a reader the same name at each start, without a date or a pid, or no name if it does not"
        " need to resume. forget_reader removes names that are no longer used."
    )


class VirtualTimeDeadlock(ChronicleError, RuntimeError):
    """In virtual time, every task waits for something that can never happen."""

    advice = (
        "End these tasks with the replay, or feed them from it: virtual time does not wait for files,"
        " sockets or other processes."
    )


class StorageError(ChronicleError, OSError):
    """A system call failed; ``errno`` says why."""


class DiskFull(StorageError):
    """The file system is full, or the quota is used up."""

    advice = (
        "Free some space or move old segments. A refused append wrote nothing and can be repeated."
    )


class AccessDenied(StorageError, PermissionError):
    """No permission. The text names the owner and mode of the file or directory, if they can be read."""

    advice = "Check owner, group and mode of the file and of the directories above it."


class ExportFailed(StorageError):
    """The file could not be written; ``errno`` says why."""

    advice = (
        "An existing file is unchanged. Check the directory and its free space, then try again."
    )


class FlushFailed(StorageError):
    """Some of several queues could not be flushed; the others were.

    ``failures`` has the errors by topic. The writers of these topics are poisoned.
    """

    advice = "Close these writers and open them again: opening checks what is on disk."

    def __init__(self, failures: dict[str, ChronicleError]) -> None:
        what = "; ".join(f"{topic}: {error.detail}" for topic, error in failures.items())
        first = next(iter(failures.values()))
        super().__init__(f"cannot flush {what}", path=first.path, errno=first.errno)
        self.failures = failures


class NotDurable(StorageError):
    """A message was appended, and readers may have it, but the sync that followed failed.

    ``append`` and similar methods raise this in the modes ``"sync"`` and ``Batch``. ``seq`` is that of
    the message, or of the first one of a batch. The writer is poisoned.
    """

    advice = (
        "Do not append it again yet: close the writer and open a new one. If its next_seq is greater"
        " than seq, the message is in the queue."
    )
    seq = 0


class QueueGone(StorageError):
    """Files were truncated, replaced or removed while the queue was open."""

    advice = "Close this handle and open the queue again."
