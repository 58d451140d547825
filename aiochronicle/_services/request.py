"""Requests and replies: each requester has a queue for its requests and a queue for the answers.

A queue has one writer, so each requester writes its requests to its own queue under one root. The responder
finds the queue there, and answers into a queue of the same name under another root. An answer names its
request as its ``cause`` (queue id and seq); payloads belong to the user.

Both ends can therefore restart. The responder learns from its answers which requests are answered. The
requester reads only answers that arrive after it was opened, and drops those that no task waits for. A
request with a timeout carries its deadline, and is not executed later.
"""

import copy
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import msgspec

from aiochronicle._base.arguments import pathname, refuse_file
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle.codec import T
from aiochronicle.errors import (
    CapacityError,
    ChronicleError,
    InvalidArgument,
    StorageError,
    WriterPoisoned,
)

__all__ = [
    "CANNOT_WRITE",
    "FAILURE_TYPE",
    "Handler",
    "Payload",
    "Request",
    "check_roots",
    "is_expired",
    "reserved_type_id",
    "write_payload",
]

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Payload: TypeAlias = Buffer
else:
    Payload = object  # CPython 3.11 has no type Buffer

FAILURE_TYPE = 0xFFFE  # type_id of an answer with the reason of a failure
_REASON_BYTES_MAX = 2048
CANNOT_WRITE = StorageError, CapacityError, WriterPoisoned  # writing may succeed later


def check_roots(
    requests: str | os.PathLike[str], replies: str | os.PathLike[str]
) -> tuple[Path, Path]:
    """Return both roots as paths."""
    asked, answered = pathname("requests", requests), pathname("replies", replies)
    refuse_file("requests", asked)
    refuse_file("replies", answered)
    return Path(asked), Path(answered)


class Request(Generic[T]):
    """A request. Answer it once, by ``reply`` or ``fail``, in any order and at any time.

    An unanswered request is delivered again after a restart of the responder, unless it has expired.
    """

    def __init__(
        self, message: Message[T], answer: Callable[[Payload | msgspec.Struct, int], None]
    ) -> None:
        self.message = message
        self._answer = answer
        self._answered = False
        self._refused: ChronicleError | None = None  # why its answer could not be written

    @property
    def payload(self) -> bytes:
        """The payload that the requester sent."""
        return self.message.payload

    def decode(self) -> T:
        """Return the payload as an object of the responder's codec; DecodeError if it cannot be decoded.

        A handler of ``serve`` does not need to catch that: the request then fails with the error's text.
        """
        return self.message.decode()

    @property
    def type_id(self) -> int:
        """The type_id that the requester set."""
        return self.message.type_id

    @property
    def requester(self) -> str:
        """Name of the requester."""
        return self.message.source

    @property
    def deadline_ns(self) -> int | None:
        """When the requester stops waiting, in Unix nanoseconds; None: no limit."""
        return self.message.expires_ns

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed, by the clock of this host."""
        return is_expired(self.message)

    @property
    def answered(self) -> bool:
        """Whether the request was answered."""
        return self._answered

    def reply(self, payload: Payload | msgspec.Struct, *, type_id: int = 0) -> None:
        """Answer the request with bytes or an object of the responder's ``reply_codec``.

        Never waits. If the requester's queue was removed, nothing happens. If the answer cannot be written
        now (DiskFull, for example), the requester is set aside until it can be written: ``serve`` then
        calls the handler again, other programs may call this again.
        """
        if type_id == FAILURE_TYPE:
            raise reserved_type_id(type_id)
        self._answer_once(payload, type_id)

    def fail(self, reason: str) -> None:
        """Answer the request with a failure: ``Requester.request`` raises RequestFailed.

        The requester gets the first 2 KiB of the text.
        """
        # The text may quote the request, which can be as long as a segment, or not be text at all.
        encoded = reason.encode("utf-8", "backslashreplace")
        self._answer_once(encoded[:_REASON_BYTES_MAX], FAILURE_TYPE)

    def _answer_once(self, payload: Payload | msgspec.Struct, type_id: int) -> None:
        if self._answered:
            raise InvalidArgument(f"{self!r} already has an answer: a request gets exactly one")
        try:
            self._answer(payload, type_id)
        except CANNOT_WRITE as error:
            self._refused = copy.copy(error)
            raise
        self._answered = True

    def __repr__(self) -> str:
        return f"<Request {self.message.seq} of {self.requester!r} answered={self.answered}>"


Handler = Callable[[Request[T]], Awaitable[Payload | msgspec.Struct | None]]


def write_payload(
    writer: Writer,
    payload: Any,
    type_id: int,
    *,
    timestamp_ns: int | None = None,
    cause: Message | None = None,
    expires_ns: int | None = None,
) -> int:
    if isinstance(payload, msgspec.Struct):
        if type_id != 0:
            raise InvalidArgument(
                f"type_id {type_id} was given for an object, which has the type_id of its type: omit it"
            )
        return writer.send(payload, timestamp_ns=timestamp_ns, cause=cause, expires_ns=expires_ns)
    if expires_ns is not None:
        return writer.append_expiring(payload, expires_ns, type_id=type_id)
    return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)


def is_expired(message: Message) -> bool:
    expires_ns = message.expires_ns
    return expires_ns is not None and time.time_ns() >= expires_ns


def reserved_type_id(type_id: int) -> InvalidArgument:
    return InvalidArgument(
        f"type_id {type_id} is reserved for answers of Request.fail: use another"
    )
