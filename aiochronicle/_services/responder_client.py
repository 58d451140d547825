"""The responder's state of one requester: which requests wait, and which have an answer."""

import contextlib
import threading
import time
from typing import NamedTuple

from aiochronicle._base.position import Position
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle._services.attaching import open_anywhere
from aiochronicle.errors import ChronicleError, CorruptionError

__all__ = ["AnsweredUpTo", "AnswersSince", "Client", "not_before"]


class AnsweredUpTo(NamedTuple):
    """The end of the requests that have an answer."""

    place: Message | Position
    seq: int  # of the first request without an answer


class Client:
    """One requester, as the responder sees it."""

    def __init__(self, reader: Reader, replies: Writer, answered: set[tuple[int, int]]) -> None:
        self.reader = reader
        self.replies = replies
        self.answered = answered  # seq and epoch: answered before it was attached, not committed
        self.uncommitted: set[tuple[int, int]] = (
            set()
        )  # seq and epoch: answered since, not committed
        self.outstanding: dict[int, Message] = {}  # in order
        self.newest: Message | None = None
        self.lost_answers: ChronicleError | None = None  # their requests must be delivered again

    def attach(self, reader: Reader, replies: Writer, answered: set[tuple[int, int]]) -> None:
        """Continue with another reader of the same queue; outstanding requests stay."""
        self.reader, self.replies, self.answered = reader, replies, answered
        self.newest = self.lost_answers = None

    def note_answer(self, message: Message) -> None:
        """Record that a request has its answer, or needs none. Thread-safe."""
        self.uncommitted.add((message.seq, message.epoch))

    def accept(self, message: Message) -> bool:
        """Accept the next request; False if it already has an answer, or is being processed."""
        self.newest = message
        outstanding = self.outstanding.get(message.seq)
        if outstanding is not None and outstanding.epoch == message.epoch:
            return False
        # After a power cut a seq may be used twice. Epoch 0: the answer does not tell whose it was.
        this = (message.seq, message.epoch)
        if this in self.uncommitted or not self.answered.isdisjoint({this, (message.seq, 0)}):
            return False
        self.outstanding[message.seq] = message
        return True

    def answered_up_to(self) -> AnsweredUpTo | None:
        """Return the last request if all have an answer, otherwise the place of the first without one."""
        waiting = list(self.outstanding.values())  # a copy, because other threads may answer
        first = min(waiting, key=lambda message: message.seq, default=None)
        if first is not None:
            return AnsweredUpTo(first.position, first.seq)
        newest = self.newest
        return None if newest is None else AnsweredUpTo(newest, newest.seq + 1)

    def commit(self, end: AnsweredUpTo | None) -> None:
        """Commit up to what ``answered_up_to`` returned; nothing if the queue was removed."""
        if self.reader.closed or end is None:
            return
        with contextlib.suppress(ChronicleError):  # reading the queue will raise it
            if isinstance(end.place, Position):
                self.reader.commit_position(end.place)
            else:
                self.reader.commit(end.place)
            answered = list(self.uncommitted)  # a copy, because other threads add to it
            self.uncommitted.difference_update(one for one in answered if one[0] < end.seq)


class AnswersSince:
    """Collects which requests, from a given one on, have an answer in a queue, by seq and epoch."""

    def __init__(self, path: str, first: Message) -> None:
        self.answered: set[tuple[int, int]] = set()
        self._path = path
        self._queue_id, self._seq = first.queue_id, first.seq
        self._timestamp_ns = first.timestamp_ns
        self._reader: Reader | None = None
        self._closed = False
        self._alone = threading.Lock()  # a cancelled task may close this while a thread reads

    def read(self, after: CorruptionError | None) -> CorruptionError | None:
        """Continue after this damage; return the next damage, or None at the end. Blocks."""
        with self._alone:
            try:
                if not self._closed:  # it may be closed before the thread starts
                    self._read(after)
            except CorruptionError as damage:
                return damage.with_traceback(None)
        return None

    def _read(self, after: CorruptionError | None) -> None:
        if self._reader is not None and after is not None:
            self._reader.step_over()
        elif after is not None:  # it could not even be searched
            self._reader = open_anywhere(self._path, None)
        else:
            reader = open_reader(self._path)
            try:
                reader.seek_time(self._timestamp_ns)
            except BaseException:
                reader.close()
                raise
            self._reader = reader
        assert self._reader is not None
        for reply in self._reader:
            cause = reply.cause
            if cause is not None and cause[0] == self._queue_id and cause[1] >= self._seq:
                self.answered.add((cause[1], reply.cause_epoch or 0))

    def close(self) -> None:
        """Close the queue, when nothing is read there any more. Blocks."""
        with self._alone:
            self._closed = True
            if self._reader is not None:
                self._reader.close()


def not_before(request_ns: int, replies: Writer) -> int | None:
    """Return a timestamp for an answer; None: the writer's own will do.

    An answer is never older than its request, by which it is found again.
    """
    if time.time_ns() >= request_ns:
        return None
    return max(request_ns, replies.statistics().last_timestamp_ns)
