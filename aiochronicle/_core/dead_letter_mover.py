"""Moves messages that failed too often to a group's dead-letter queue.

A member appends the message there, with its history, and then acknowledges it. Its process may die in
between. The member that gets the message next sees one attempt more than allowed. It then checks the causes
of the records in the dead-letter queue, so that the message is there only once.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Container
from pathlib import Path
from typing import Any

from aiochronicle._base.background import in_thread
from aiochronicle._base.binding import encode_path, lib
from aiochronicle._base.printable import printable, utf8_name
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.reader import open_reader
from aiochronicle._core.root_of_queues import refuse_root_of_queues
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._hot import Delivery, Message
from aiochronicle.errors import ChronicleError, InvalidArgument

__all__ = ["DeadLetter", "DeadLetterMover", "check_place", "fingerprint", "is_known"]

_log = logging.getLogger("aiochronicle.dead_letters")

_ERROR_MAX = 4096
_ERRORS_MAX = 1024
_LOCK_WAIT_S = 10.0


class DeadLetter(HtmlStruct, frozen=True, kw_only=True):
    """A message that was moved to a dead-letter queue, and why.

    ``queue``, ``queue_id``, ``seq``, ``timestamp_ns`` and ``type_id`` are those of the message. ``attempts``
    is how often ``group`` delivered it. ``error`` is its last error, None if no member gave one: the lease
    ended, or the process died. ``died_ns`` is when it was moved. ``queue_path`` is the path as bytes if it is
    not UTF-8; ``queue`` then has the other bytes escaped.
    """

    queue: str
    queue_id: int
    seq: int
    timestamp_ns: int
    type_id: int
    group: str
    attempts: int
    error: str | None
    died_ns: int
    payload: bytes
    queue_path: bytes | None = None

    @property
    def place(self) -> str:
        """The path of the queue, to open it."""
        return self.queue if self.queue_path is None else os.fsdecode(self.queue_path)


def check_place(dead_letter: str | os.PathLike[str], queue: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a dead-letter queue.

    InvalidArgument if it is the queue itself, or if no queue can be there: failed messages would then wait
    until somebody reads the log. NotAQueue if it is a topic with many writers, or a directory of queues.
    """
    place = Path(os.path.realpath(os.fsdecode(encode_path(dead_letter))))
    if place == Path(os.path.realpath(os.fsdecode(encode_path(queue)))):
        raise InvalidArgument(
            f"dead_letter {printable(str(place))} is the queue itself, which would deliver failed messages"
            " forever: choose another directory"
        )
    refuse_root_of_queues(place)
    if not _can_be_queue(place):
        raise InvalidArgument(
            f"dead_letter {printable(str(place))} cannot be a queue: its parent directory does not exist,"
            " or something else has this name"
        )
    return place


def _can_be_queue(place: Path) -> bool:
    try:
        return (place if place.exists() else place.parent).is_dir()
    except OSError:  # moving a message will report it
        return True


def fingerprint(place: Path) -> int:
    """Return a hash of the path, never 0. All members must have the same."""
    text = os.fsencode(place)
    return int(lib.ac_checksum(text, len(text))) << 32 | len(text) << 1 | 1


class DeadLetterMover:
    """Moves messages of a member to the dead-letter queue, in a thread and in batches.

    It opens and closes the queue for each batch, because members in other processes need it, too.
    """

    def __init__(self, place: Path, queue: Path, group: str, max_deliver: int, mode: int) -> None:
        self._place = place
        self._queue = queue
        self._group = group
        self._max_deliver = max_deliver
        self._mode = mode
        self._waiting: deque[tuple[Delivery[Any], str | None]] = deque()
        self._not_moved: dict[
            int, str
        ] = {}  # why they failed, of those that are tried again; by seq
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def put(self, delivery: Delivery[Any], error: str | None) -> None:
        """Accept a message that must not be delivered again. Never blocks."""
        with self._lock:
            known = self._not_moved.pop(delivery.seq, None)
            text = known if error is None else str(error)[:_ERROR_MAX]
            self._waiting.append((delivery, text))
            starts = self._idle.is_set()
            self._idle.clear()
        if starts:
            in_thread(self._run)

    def finish(self) -> None:
        """Wait until every message was moved or given back."""
        self._idle.wait()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._move(batch)
            except Exception:  # noqa: BLE001 - a message that was not moved comes again later
                _log.exception("%s: dead letters were not moved", printable(str(self._queue)))

    def _next_batch(self) -> list[tuple[Delivery[Any], str | None]]:
        with self._lock:
            batch = list(self._waiting)
            self._waiting.clear()
            if not batch:
                self._idle.set()
            return batch

    def _move(self, batch: list[tuple[Delivery[Any], str | None]]) -> None:
        moved: set[int] = set()
        try:
            with open_writer(
                self._place, codec=DeadLetter, lock_timeout=_LOCK_WAIT_S, mode=self._mode
            ) as writer:
                known = self._known_causes(batch)
                for delivery, error in batch:
                    # Extend the lease first: waiting for the lock of this queue may have taken long.
                    if delivery._hold() and not is_known(delivery.message, known):
                        self._append(writer, delivery, error)
                    moved.add(delivery.seq)
                writer.flush_now()
        except ChronicleError as failure:
            moved.clear()
            _log.error(
                "%s: %d messages of group %r cannot be moved to %s and will be tried again: %s",
                printable(str(self._queue)),
                len(batch),
                self._group,
                printable(str(self._place)),
                printable(failure),  # the exception itself would keep the messages
            )
        for delivery, error in batch:
            if (
                delivery.seq not in moved
                and error is not None
                and len(self._not_moved) < _ERRORS_MAX
            ):
                self._not_moved[delivery.seq] = error
            _acknowledge(delivery, delivery.seq in moved)

    def _known_causes(self, batch: list[tuple[Delivery[Any], str | None]]) -> set[tuple[int, int]]:
        """Return the causes of the dead letters of this group, if one of the batch may be among them.

        Other groups may use the same dead-letter queue for their own failures.
        """
        if all(delivery.attempt <= self._max_deliver for delivery, _ in batch):
            return set()
        with open_reader(self._place, start="first", on_corrupt="skip", codec=DeadLetter) as reader:
            return {
                message.cause
                for message in reader
                if message.cause is not None and message.decode().group == self._group
            }

    def _append(self, writer: Writer, delivery: Delivery[Any], error: str | None) -> None:
        message = delivery.message
        path = str(self._queue)
        queue = utf8_name(path)
        letter = DeadLetter(
            queue=queue,
            queue_path=None if queue == path else os.fsencode(path),
            queue_id=message.queue_id,
            seq=message.seq,
            timestamp_ns=message.timestamp_ns,
            type_id=message.type_id,
            group=self._group,
            attempts=min(delivery.attempt, self._max_deliver),
            error=error and error.encode("utf-8", "backslashreplace").decode(),
            died_ns=time.time_ns(),
            payload=message.payload,
        )
        seq = writer.send(letter, cause=message, key=message.key, headers=message.headers)
        _log.warning(
            "%s: message %d failed %d times in group %r and is dead letter %d: %s",
            printable(str(self._queue)),
            message.seq,
            letter.attempts,
            self._group,
            seq,
            printable(error or "its lease ended, or its process died"),
        )


def is_known(message: Message[Any], known: Container[tuple[int, int]]) -> bool:
    """Return whether a record has this message as its cause."""
    return (message.queue_id, message.seq) in known


def _acknowledge(delivery: Delivery[Any], moved: bool) -> None:
    try:
        delivery._move(moved)
    except (
        ChronicleError
    ) as error:  # another member has the message now, and will find the dead letter
        _log.info("%s", error)
