"""Requests and replies: every requester has a queue for its requests and one for the answers.

A queue has one writer, so each requester writes requests to its own queue under one root. The responder finds
it there, and answers into a queue of the same name under another root. An answer names its request as its
``cause`` (queue id and seq); payloads belong to the user. Both ends can therefore restart. The responder sees
from its answers which requests are answered; the requester reads only answers that come after it was opened,
and drops those that no task waits for. A request with a timeout carries its deadline, and is not executed
later.
"""

import asyncio
import contextlib
import copy
import logging
import os
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias

import msgspec

from aiochronicle._base.arguments import (
    expect,
    pathname,
    permissions,
    positive,
    refuse_file,
    seconds,
    segment_bytes,
)
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.background import in_background, in_thread, shielded
from aiochronicle._base.closing import Closing
from aiochronicle._base.names import check_name, is_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.health import Health, because, reason
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._hot import Message
from aiochronicle._services.answers import Answers
from aiochronicle._services.attaching import open_anywhere
from aiochronicle._services.damage import (
    REQUESTER_WORDS,
    OnDamage,
    OnDamageOfAnswers,
    check_on_damage,
)
from aiochronicle._services.router import Router
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import (
    CapacityError,
    ChronicleError,
    ClosedError,
    CorruptionError,
    InvalidArgument,
    InvalidName,
    QueueGone,
    RequestFailed,
    RequestTimeout,
    SourceGone,
    StorageError,
    WriterPoisoned,
)

__all__ = ["Request", "Requester", "RequesterStatistics", "Responder", "ResponderStatistics"]

if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeVar

    Q = TypeVar("Q", default=Any)
    A = TypeVar("A", default=Any)
    Payload: TypeAlias = Buffer
else:
    Q = typing.TypeVar("Q")
    A = typing.TypeVar("A")
    Payload = object  # Buffer, of which CPython 3.11 has no type

FAILURE_TYPE = 0xFFFE  # type_id of an answer that says why there is no result
_REASON_BYTES_MAX = 2048
_COMMIT_INTERVAL_S = 0.1
_LOOK_INTERVAL_S = 1.0
_GRACE_S = 1.0
_TIME_MAX_NS = 2**63 - 1
_CANNOT_WRITE = StorageError, CapacityError, WriterPoisoned  # now, but perhaps later
_REMOVED = ClosedError, QueueGone  # one of a requester's two queues

_log = logging.getLogger("aiochronicle.requests")


class RequesterStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a requester: ``sent`` requests and their outcomes, and late answers.

    ``answered`` requests got a result, ``failed`` ones RequestFailed: no request counts as both,
    unlike in ResponderStatistics.
    ``given_up`` requests timed out or were cancelled; ``pending`` ones still wait. ``dropped`` answers came
    when no task waited for them, or belonged to an earlier requester of the same name. ``skipped`` answers
    were damaged; ``lost`` ones were removed before they were read, as far as seqs show.
    """

    sent: int
    answered: int
    failed: int
    given_up: int
    pending: int
    dropped: int
    skipped: int = 0
    lost: int = 0


def _roots(requests: str | os.PathLike[str], replies: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return both roots as paths."""
    asked, answered = pathname("requests", requests), pathname("replies", replies)
    refuse_file("requests", asked)
    refuse_file("replies", answered)
    return Path(asked), Path(answered)


def _make_root(queue: str) -> None:
    """Make the directory of a queue unless it is there."""
    root = Path(queue).parent
    with storage_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)


class Requester(Closing, Generic[Q, A]):
    """Sends requests and waits for the answers; a context manager, ``with`` and ``async with``.

    ``requests`` and ``replies`` are the responder's roots. ``name`` identifies this requester; two at a time
    may not share it. Any number of tasks may send requests, even before the responder runs. ``codec`` is that
    of open_writer, for objects passed to ``request``; ``reply_codec`` is that of open_reader, for the
    ``decode`` of answers. ``Requester[Q, A]`` sends a Q and gets an A.

    ``async with`` opens its two queues in the background; ``with``, or the first use of a requester that was
    not entered, opens them at once and blocks. ``mode`` is that of its queue of requests: with 0o660 a
    responder of another user in the root's group can read them.

    ``on_corrupt`` sets what happens at a damaged answer, ``on_lost`` what happens if answers were removed
    before they were read. With "raise" every pending request raises the exception, because the answer may
    belong to any of them; "skip" counts it, and the requests continue to wait. A function is called with the
    exception: if it returns, the requester skips; if it raises, the pending requests raise that exception.
    Later requests work in any case, also after one of the queues was removed or replaced.

    It belongs to one event loop at a time: it may be used in another one when the first is closed, and raises
    InvalidArgument before that.

    >>> async def ask():
    ...     async with Requester(tmp_path / "asked", tmp_path / "answered", "desk") as service:
    ...         return await service.request(b"price?", timeout=0.001)
    >>> asyncio.run(ask())
    Traceback (most recent call last):
    aiochronicle.errors.RequestTimeout: ...
    """

    def __init__(
        self,
        requests: str | os.PathLike[str],
        replies: str | os.PathLike[str],
        name: str,
        *,
        codec: type[Q] | Codec[Q] | Registry | Sequence[TypeOrCodec] | None = None,
        reply_codec: type[A] | Codec[A] | Registry | Sequence[TypeOrCodec] | None = None,
        segment_size: int = 8 << 20,
        retention: Retention | None = None,
        mode: int = 0o600,
        on_corrupt: OnDamageOfAnswers = "raise",
        on_lost: OnDamageOfAnswers = "raise",
    ) -> None:
        check_name(f"requester name {expect('name', 'a str', str, name)!r}", name)
        segment_bytes("segment_size", segment_size)
        if retention is not None:
            expect("retention", "a Retention or None", Retention, retention)
        self.name = name
        root, answered = _roots(requests, replies)
        self._path = str(root / name)
        self._options: dict[str, Any] = {
            "segment_size": segment_size,
            "retention": retention,
            "mode": permissions(mode),
            "codec": None if codec is None else registry_of(codec),
            "ready": True,
        }
        self._answers: Answers[A] = Answers(
            str(answered / name),
            None if reply_codec is None else registry_of(reply_codec, "reply_codec"),
            check_on_damage("on_corrupt", on_corrupt, REQUESTER_WORDS),
            check_on_damage("on_lost", on_lost, REQUESTER_WORDS),
            self._deliver_answer,
            self._fail_all,
        )
        self._opening = threading.Lock()
        self._requests: Writer | None = None
        self._reopening: Future[None] | None = None
        self._queue_id = 0
        self._closed = False
        self._waiting: dict[tuple[int, int], asyncio.Future[Message[A]]] = {}  # by queue id and seq
        self._home = OneLoop(f"requester {name!r}")
        self._tasks: list[asyncio.Task[None]] = []
        self._sent = self._answered = self._failed = self._given_up = self._dropped = 0

    # ---- opening ----

    def _open(self) -> Writer:
        """Open both queues unless they are. Blocks."""
        with self._opening:
            if self._closed:
                raise ClosedError("the requester is closed", path=self._path)
            if self._requests is None:
                # Anyone who may read the root sees the requests: its creator decides by its mode.
                _make_root(self._path)
                writer = open_writer(self._path, **self._options)
                try:
                    self._answers.open()
                except BaseException:
                    writer.close()
                    raise
                self._use(writer)
            assert self._requests is not None
            return self._requests

    def _use(self, writer: Writer) -> None:
        self._requests = writer
        self._queue_id = writer.statistics().queue_id

    def _open_again(self, dead: Writer) -> None:
        """Open the queue of requests again: it was removed, or nobody knows what is on disk."""
        with self._opening:
            if self._closed or self._requests is not dead:
                return
            with contextlib.suppress(ChronicleError):
                dead.close()
            _make_root(self._path)
            self._use(open_writer(self._path, **self._options))
            text = "%s: the queue of requests was reopened; what waited for answers failed"
            _log.warning(text, printable(self._path))

    @property
    def queue_id(self) -> int:
        """Identity of the queue of requests, as answers name it in their cause."""
        if self._requests is None:
            self._open()
        return self._queue_id

    def __enter__(self) -> Self:
        self._open()
        return self

    async def __aenter__(self) -> Self:
        """Open both queues in the background. Cancelled, what was opened is closed."""
        opening = in_thread(self._open)
        try:
            await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: in_thread(self.close))
            raise
        return self

    # ---- asking ----

    async def request(
        self, payload: Payload | Q, *, type_id: int = 0, timeout: float | None = None
    ) -> Message[A]:
        """Send a request, as bytes or as an object of the codec's types, and return the answer.

        RequestTimeout after ``timeout`` seconds, RequestFailed if the responder reports a failure. The
        request carries its deadline, by the clock of this host: a responder does not start it later. Timed
        out or cancelled, the request remains sent; a later answer is dropped and counted.
        """
        limit_s = checked_timeout(timeout)
        self._enter_loop()
        writer = self._requests
        if writer is None or self._closed:
            writer = self._open()
        self._follow()
        limit = asyncio.timeout(limit_s)
        key = None
        try:
            async with limit:
                key, answer = await self._send(writer, payload, type_id, _deadline_ns(limit_s))
                return await answer
        except asyncio.CancelledError:
            self._given_up += 1
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            self._given_up += 1
            seq = "that could not be sent" if key is None else key[1]
            raise RequestTimeout(
                f"no answer to request {seq} within {timeout} s", path=self._path
            ) from None
        finally:
            if key is not None:
                self._waiting.pop(key, None)

    async def _send(
        self,
        writer: Writer,
        payload: Payload | Q,
        type_id: int,
        deadline_ns: int | None,
    ) -> tuple[tuple[int, int], asyncio.Future[Message[A]]]:
        try:
            seq = _write(writer, payload, type_id, expires_ns=deadline_ns)
        except (QueueGone, WriterPoisoned, ClosedError) as error:  # nothing of it is in the queue
            if self._closed:
                raise ClosedError("the requester is closed", path=self._path) from None
            writer = await self._renew_writer(writer, error)
            seq = _write(writer, payload, type_id, expires_ns=deadline_ns)
        answer: asyncio.Future[Message[A]] = asyncio.get_running_loop().create_future()
        self._sent += 1
        key = self._queue_id, seq
        self._waiting[key] = answer
        return key, answer

    async def _renew_writer(self, dead: Writer, error: ChronicleError) -> Writer:
        """Return the writer that took the place of a dead one. Cancelled, it comes all the same."""
        if self._requests is dead:
            self._fail_all(error)  # what they asked may never be read
            if self._reopening is None or self._reopening.done():
                self._reopening = in_thread(lambda: self._open_again(dead))
            await shielded(asyncio.wrap_future(self._reopening))
        return self._open()

    @property
    def healthy(self) -> Health:
        """Whether it can ask: it is not closed, and the queue of its requests can be written to."""
        if self._closed:
            return because([reason(f"requester {self.name!r}", self._path, "is closed")])
        return because([]) if self._requests is None else self._requests.healthy

    def statistics(self) -> RequesterStatistics:
        """Return the counters of this requester."""
        return RequesterStatistics(
            sent=self._sent,
            answered=self._answered,
            failed=self._failed,
            given_up=self._given_up,
            pending=len(self._waiting),
            dropped=self._dropped,
            skipped=self._answers.skipped,
            lost=self._answers.lost,
        )

    # ---- answers ----

    def _enter_loop(self) -> None:
        if self._home.enter():
            self._tasks = []  # those of a loop that is closed ended with it
            self._waiting.clear()

    def _follow(self) -> None:
        """See to it that answers are read."""
        if not self._tasks or any(task.done() for task in self._tasks):
            for task in self._tasks:  # one of them was cancelled
                task.cancel()
            self._tasks = [
                asyncio.create_task(self._answers.follow(), name=f"answers to {self.name}"),
                asyncio.create_task(self._look_after_requests(), name=f"requests of {self.name}"),
            ]

    async def _look_after_requests(self) -> None:
        """Fail the waiting requests when the queue that they were written to was removed."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            writer = self._requests
            if self._waiting and writer is not None and not writer.closed and writer.gone:
                self._fail_all(QueueGone("the queue of requests was removed", path=self._path))

    def _deliver_answer(self, reply: Message[A]) -> None:
        cause = reply.cause
        answer = None if cause is None else self._waiting.pop(cause, None)
        if answer is None or answer.done():
            self._dropped += 1
        elif reply.type_id == FAILURE_TYPE:
            self._failed += 1
            answer.set_exception(RequestFailed(reply.payload.decode("utf-8", "replace")))
        else:
            self._answered += 1
            answer.set_result(reply)

    def _fail_all(self, error: BaseException) -> None:
        """Have every request that waits now raise this."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    # ---- the end ----

    def close(self) -> None:
        """Close both queues, blocking; tasks that wait for an answer get ClosedError."""
        self._end()
        self._close_queues()

    async def aclose(self) -> None:
        """Close both queues without blocking the loop. Cancelled, they are closed all the same."""
        self._end()
        await in_background(self._close_queues)

    def _end(self) -> None:
        self._closed = True
        loop = self._home.loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed in another thread just now
                if loop is _running_loop():
                    self._end_waiting()
                else:
                    loop.call_soon_threadsafe(self._end_waiting)

    def _end_waiting(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []  # their exceptions hold frames, and those the last answer
        self._fail_all(ClosedError("the requester was closed", path=self._path))

    def _close_queues(self) -> None:
        with self._opening:
            self._answers.close()
            if self._requests is not None:
                self._requests.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _deadline_ns(limit_s: float | None) -> int | None:
    """Return the time at which the limit ends; None: never, or later than a record can hold."""
    if limit_s is None:
        return None
    deadline_ns = time.time_ns() + round(limit_s * 1e9)
    return deadline_ns if deadline_ns <= _TIME_MAX_NS else None


class _Client:
    """One requester, as the responder sees it."""

    def __init__(self, reader: Reader, replies: Writer, answered: set[tuple[int, int]]) -> None:
        self.reader = reader
        self.replies = replies
        self.answered = answered  # seq and epoch: before it was attached, not committed
        self.outstanding: dict[int, Message] = {}  # in order
        self.newest: Message | None = None
        self.lost_answers: ChronicleError | None = None  # so their requests are to come again

    def attach(self, reader: Reader, replies: Writer, answered: set[tuple[int, int]]) -> None:
        """Go on with another reader of the same queue, with what is being answered."""
        self.reader, self.replies, self.answered = reader, replies, answered
        self.newest = self.lost_answers = None

    def accept(self, message: Message) -> bool:
        """Take the next request; False if it has its answer already, or is being answered."""
        self.newest = message
        held = self.outstanding.get(message.seq)
        if held is not None and held.epoch == message.epoch:
            return False
        # A power cut can have a seq given twice. Epoch 0: the answer does not say whose it was.
        if self.answered.isdisjoint({(message.seq, message.epoch), (message.seq, 0)}):
            self.outstanding[message.seq] = message
            return True
        return False

    def answered_up_to(self) -> Message | Position | None:
        """Return the last request if all have their answer, else where the first is that has not."""
        waiting = list(self.outstanding.values())  # answers may come from other threads
        first = min(waiting, key=lambda message: message.seq, default=None)
        return self.newest if first is None else first.position

    def commit(self, end: Message | Position | None) -> None:
        """Commit up to what ``answered_up_to`` returned; nothing if the queue was removed."""
        if self.reader.closed or end is None:
            return
        with contextlib.suppress(ChronicleError):  # reading says what is wrong with the queue
            if isinstance(end, Position):
                self.reader.commit_position(end)
            else:
                self.reader.commit(end)


class Request(Generic[T]):
    """A request to answer once, by ``reply`` or ``fail``, in any order and at any time.

    An unanswered request is delivered again when the responder is restarted, unless it has expired by then.
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

        A handler of ``serve`` need not catch that: the request then fails with its text.
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
        """Whether its deadline has passed, by the clock of this host."""
        return _is_expired(self.message)

    @property
    def answered(self) -> bool:
        """Whether it was answered."""
        return self._answered

    def reply(self, payload: Payload | msgspec.Struct, *, type_id: int = 0) -> None:
        """Answer it, with bytes or an object of the responder's ``reply_codec``.

        Never waits; if the requester's queue was removed, nothing happens. If the answer cannot be written
        now (DiskFull, for example), the requester is set aside until it can: ``serve`` calls the handler
        again, other programs may call this again.
        """
        if type_id == FAILURE_TYPE:
            raise _is_reserved(type_id)
        self._answer_once(payload, type_id)

    def fail(self, reason: str) -> None:
        """Answer with a failure: ``Requester.request`` raises RequestFailed.

        The requester gets the first 2 KiB of the text.
        """
        # What the requester sent may be quoted in it: as long as a segment, or not even text.
        encoded = reason.encode("utf-8", "backslashreplace")
        self._answer_once(encoded[:_REASON_BYTES_MAX], FAILURE_TYPE)

    def _answer_once(self, payload: Payload | msgspec.Struct, type_id: int) -> None:
        if self._answered:
            raise InvalidArgument(f"{self!r} has its answer already")
        try:
            self._answer(payload, type_id)
        except _CANNOT_WRITE as error:
            self._refused = copy.copy(error)
            raise
        self._answered = True

    def __repr__(self) -> str:
        return f"<Request {self.message.seq} of {self.requester!r} answered={self.answered}>"


Handler = Callable[[Request[T]], Awaitable[Payload | msgspec.Struct | None]]


class ResponderStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a responder: ``received`` requests and their outcomes.

    ``answered`` counts all answers, results and failures; ``failed`` counts the failures among them.
    RequesterStatistics counts the two separately. ``repeated`` requests had been answered before a restart;
    ``gone`` requesters had no queue any more. ``expired`` requests were dropped after their deadline.
    ``skipped`` and ``lost`` are those of RouterStatistics: damaged and removed requests; ``skipped`` includes
    damaged answers, which are found when a requester is attached.
    """

    received: int
    answered: int
    failed: int
    outstanding: int
    repeated: int
    gone: int
    expired: int = 0
    skipped: int = 0
    lost: int = 0


class _RequestRouter(Router[T]):
    """A router that leaves queues alone which no requester can have made."""

    def _open_one(self, path: str) -> tuple[Reader, int] | Exception:
        if not is_name(Path(path).name):
            return InvalidName(
                "no requester can have this name, so nothing in it is read or answered",
                path=path,
                advice="Remove it.",
            )
        return super()._open_one(path)


class Responder(Generic[T]):
    """Answers the requests of any number of requesters; an async context manager.

    ``async for request in responder`` delivers one request after the other, those of each requester in order;
    ``serve`` calls a function for each. Every request gets exactly one answer, even if the responder is
    killed and restarted: requests without an answer are delivered again, others are not. Other effects of a
    request may happen twice. Answers are flushed in the background, and requests are committed after them:
    after a power cut, requests whose answers were lost are delivered again, too.

    One responder at a time can serve a root; ``name`` is its reader name in the queues of the requesters.
    ``codec`` is for ``Request.decode``, ``reply_codec`` for answers that are not bytes; a requester's queue
    with another schema is listed in ``problems``. ``segment_size``, ``retention`` and ``mode`` are those of
    the queues of answers. Keep answers for longer than any request takes: a restarted responder uses them to
    see what was answered. Cancelling a task anywhere in ``async for`` loses nothing.

    An expired request is dropped before it is delivered, and counted. ``on_corrupt`` and ``on_lost`` are
    those of Router: by default a requester whose queue is damaged is set aside, listed in ``problems`` and
    retried, and the others are served. Damaged answers, from which the responder would see what was answered,
    have the same effect; if they are skipped, their requests are answered again. Closing gives running
    handlers ``grace_s`` seconds to finish; their results are sent. It belongs to one event loop at a time, as
    a Router.
    """

    def __init__(
        self,
        requests: str | os.PathLike[str],
        replies: str | os.PathLike[str],
        *,
        name: str = "responder",
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        reply_codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        segment_size: int = 8 << 20,
        retention: Retention | None = None,
        mode: int = 0o600,
        rescan_s: float = 5.0,
        on_corrupt: OnDamage = "set_aside",
        on_lost: OnDamage = "set_aside",
        grace_s: float = _GRACE_S,
    ) -> None:
        self._grace_s = seconds("grace_s", grace_s, zero=True)
        types = None if reply_codec is None else registry_of(reply_codec, "reply_codec")
        if types is not None and types.fixed_ids and FAILURE_TYPE in types:
            raise _is_reserved(FAILURE_TYPE)
        asked, answered = _roots(requests, replies)
        self._router: Router[T] = _RequestRouter(
            asked,
            name=name,
            codec=codec,
            reply_codec=types,
            reply_root=answered,
            reply_segment_size=segment_size,
            reply_retention=retention,
            reply_mode=mode,
            rescan_s=rescan_s,
            on_corrupt=on_corrupt,
            on_lost=on_lost,
        )
        self._clients: dict[tuple[str, int], _Client] = {}
        self._taken: Message[T] | None = None  # from the router, when its task was cancelled
        self._told: dict[str, str] = {}  # by requester: which damage was judged
        self._returned: list[Request[T]] = []  # by handlers that were cancelled
        self._due: dict[_Client, None] = {}  # in order: whose answers are to be flushed
        self._closing = False
        self._received = self._answered = self._failed = self._repeated = self._gone = 0
        self._expired = self._left = 0
        self._home = OneLoop(f"the responder of {self._router.root}")
        self._renew()

    def _renew(self) -> None:
        """Make what serves one event loop only."""
        self._taking = asyncio.Lock()  # requests of one requester are handed over in order
        self._is_waiting = False  # for the next message
        self._committing: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()

    def _enter_loop(self) -> None:
        if self._home.enter():
            self._renew()

    def requesters(self) -> list[str]:
        """Return the names of the requesters whose queues exist."""
        return sorted(reader.source for reader in self._router.sources().values())

    @property
    def problems(self) -> dict[str, Exception]:
        """Why requesters are not served now, by the path of their queue; see ``Router.problems``."""
        return self._router.problems

    @property
    def healthy(self) -> Health:
        """Whether it serves all requesters: it is open, and there are no ``problems``."""
        if self._closing:
            return because([reason("responder", self._router.root, "is closed")])
        return self._router.healthy

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Request[T]:
        self._enter_loop()
        async with self._taking:
            while True:
                if (returned := self._returned_request()) is not None:
                    return returned
                message = await self._next_message()
                try:
                    client = await self._client_of(message)
                except SourceGone:
                    self._gone += 1
                    continue
                except ChronicleError as error:
                    # Its answers cannot be written now. That is no matter of the other requesters,
                    # and the request comes again when the queue is tried again.
                    self._taken = message  # if this is cancelled
                    await self._router.set_aside(message, error)
                    self._taken = None
                    continue
                except BaseException:
                    self._taken = message
                    raise
                self._commit_now_and_then()
                if client.lost_answers is not None:  # it is about to be set aside, and comes again
                    client.newest = message
                    self._due[client] = None
                elif not client.accept(message):
                    self._due[client] = None
                    self._repeated += 1
                elif _is_expired(message):
                    self._drop(client, message)
                else:
                    self._received += 1
                    return Request(message, partial(self._answer, client, message))

    def _returned_request(self) -> Request[T] | None:
        """Return the first of the requests whose handlers were cancelled."""
        while self._returned and not self._closing:
            request = min(self._returned, key=lambda one: one.message.seq)  # of each in order
            self._returned.remove(request)
            self._commit_now_and_then()
            if request.answered:  # by a caller that kept it
                continue
            if not request.expired:
                return request
            self._expire(request)
        return None

    async def _next_message(self) -> Message[T]:
        if self._closing:
            raise StopAsyncIteration
        if self._taken is not None:
            message, self._taken = self._taken, None
            return message
        self._is_waiting = True
        try:
            taken: Message[T] = await self._router.next()
        except ClosedError:
            raise StopAsyncIteration from None
        finally:
            self._is_waiting = False
        return taken

    async def serve(self, handler: Handler[T], *, concurrency: int = 64) -> None:
        """Call the handler for each request, and answer with its result, until cancelled.

        At most ``concurrency`` handlers run at once. A handler that answers itself, with ``request.reply`` or
        ``request.fail``, returns None. If it raises RequestFailed, the request fails with that text; with any
        other exception it fails with the type and text of the exception, which is also logged. A problem with
        one requester, its requests or its queues does not affect the others. A request that expired before
        its handler begins is dropped. Cancelled, running handlers are cancelled; results that they still
        return are sent, and the other requests are delivered again, first of all to the next call of
        ``serve``, or after a restart. If ``on_corrupt`` or ``on_lost`` raises, ``serve`` raises that
        exception when the handlers have ended; call it again for the other requesters.
        """
        positive("concurrency", concurrency)
        self._enter_loop()
        free = asyncio.Semaphore(concurrency)
        own: set[asyncio.Task[None]] = set()
        try:
            while True:
                await free.acquire()
                try:
                    request = await anext(self)
                except StopAsyncIteration:
                    break
                handling = asyncio.create_task(self._handle(handler, request))
                handling.add_done_callback(partial(self._on_handled, request))
                for tasks in (own, self._handling):
                    tasks.add(handling)
                    handling.add_done_callback(tasks.discard)
                handling.add_done_callback(lambda _: free.release())
                del request, handling  # while this waits, it keeps no segment mapped
            await _wait_until_done(own)
        except asyncio.CancelledError:
            for handling in own:
                handling.cancel()
            raise
        finally:
            await _wait_until_done(own)

    async def _handle(self, handler: Handler[T], request: Request[T]) -> None:
        if request.expired:  # which waiting for its first turn may have made it
            self._expire(request)
        else:
            await _handle(handler, request)

    def _on_handled(self, request: Request[T], handling: asyncio.Task[None]) -> None:
        """See to it that a request without an answer comes again."""
        client = self._client_that_sent(request)
        if request.answered or client is None:
            return
        if handling.cancelled():  # perhaps before it began
            self._returned.append(request)
        elif request._refused is not None:  # pyright: ignore[reportPrivateUsage]
            client.lost_answers = client.lost_answers or request._refused  # pyright: ignore[reportPrivateUsage]
            self._forget_outstanding(
                client, request.message
            )  # its queue is tried again, and read again

    def _expire(self, request: Request[T]) -> None:
        client = self._client_that_sent(request)
        if client is not None:
            self._received -= 1
            self._drop(client, request.message)

    def _client_that_sent(self, request: Request[T]) -> _Client | None:
        """Return whose request it is, if it waits for its answer."""
        message = request.message
        client = self._clients.get((message.source, message.queue_id))
        return client if client is not None and message.seq in client.outstanding else None

    def _drop(self, client: _Client, message: Message) -> None:
        """Leave out a request that nobody waits for any more: commit it without an answer."""
        self._expired += 1
        self._forget_outstanding(client, message)

    def statistics(self) -> ResponderStatistics:
        """Return the counters of this responder."""
        damage = self._router.statistics()
        return ResponderStatistics(
            received=self._received,
            answered=self._answered,
            failed=self._failed,
            outstanding=self._left
            + sum(len(client.outstanding) for client in self._clients.values()),
            repeated=self._repeated,
            gone=self._gone,
            expired=self._expired,
            skipped=damage.skipped,
            lost=damage.lost,
        )

    async def _client_of(self, message: Message) -> _Client:
        key = message.source, message.queue_id
        client = self._clients.get(key)
        if client is None or client.reader.closed:
            reader = self._router.reader_of(message)
            replies = await self._router.reply(message)
            answered = await self._answered_since(replies.path, message)
            for old in [old for old, one in self._clients.items() if one.reader.closed]:
                if old != key and not self._clients[old].outstanding:
                    del self._clients[old]
            if client is None:
                client = self._clients.setdefault(key, _Client(reader, replies, answered))
            else:
                client.attach(reader, replies, answered)
        elif client.replies.closed:
            client.replies = await self._router.reply(message)
        return client

    async def _answered_since(self, path: str, first: Message) -> set[tuple[int, int]]:
        """Return which requests from this one on, by seq and epoch, have an answer in the queue.

        A damaged answer is dealt with as ``on_corrupt`` says. Skipped, its request has none.
        """
        answers = _AnswersSince(path, first)
        last: CorruptionError | None = None
        try:
            while (damage := await in_background(partial(answers.read, last))) is not None:
                if last is not None and str(damage) == str(last):  # stepping over did not help
                    raise damage
                self._judge_answer(first, damage)
                last = damage
            return answers.answered
        finally:
            await in_background(answers.close)

    def _judge_answer(self, first: Message, damage: CorruptionError) -> None:
        """Raise damage among the answers to a requester, unless ``on_corrupt`` says to skip it."""
        if self._told.get(first.source) == str(damage):  # it is met at every try
            raise damage
        verdict = self._router._judge(damage)  # pyright: ignore[reportPrivateUsage]
        if verdict.skip:
            self._router._count(self._router.reader_of(first).path).skipped += 1  # pyright: ignore[reportPrivateUsage]
            self._router._log_skip(damage)  # pyright: ignore[reportPrivateUsage]
            return
        self._told[first.source] = str(damage)
        if verdict.raised is not None:
            self._router._fail(verdict.raised)
        raise damage

    def _answer(
        self, client: _Client, message: Message, payload: Payload | msgspec.Struct, type_id: int
    ) -> None:
        if self._router.closed:
            raise ClosedError("the responder is closed", path=self._router.root)
        if client.lost_answers is not None and not isinstance(client.lost_answers, _REMOVED):
            raise copy.copy(client.lost_answers)
        timestamp_ns = _not_before(message.timestamp_ns, client.replies)
        try:
            _write(client.replies, payload, type_id, timestamp_ns=timestamp_ns, cause=message)
        except _REMOVED as error:
            self._gone += 1
            client.lost_answers = error
        except _CANNOT_WRITE as error:
            # The requester is set aside until it can: then its requests come again. No further
            # answer is written before, not even that there is none.
            client.lost_answers = copy.copy(error)  # whose frames do not hold the message
            self._due[client] = None
            raise
        else:
            self._answered += 1
            self._failed += type_id == FAILURE_TYPE
        self._forget_outstanding(client, message)

    def _forget_outstanding(self, client: _Client, message: Message) -> None:
        # Due before and after it: a commit in another thread must see one or the other.
        self._due[client] = None
        client.outstanding.pop(message.seq, None)
        self._due[client] = None

    def _commit_now_and_then(self) -> None:
        """See to it that what is being answered will be committed, in the loop that runs now."""
        loop = asyncio.get_running_loop()
        task = self._committing
        if task is None or task.done() or task.get_loop() is not loop:
            name = f"commits of {self._router.root}"
            self._committing = loop.create_task(self._commit_repeatedly(), name=name)

    async def _commit_repeatedly(self) -> None:
        # By the clock, because answers may be given in other threads, and so that they share syncs.
        while self._due or any(client.outstanding for client in self._clients.values()):
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            await self._commit_due()

    async def _commit_due(self) -> None:
        """Flush answers, and then commit the requests that have one."""
        ends: dict[_Client, Message | Position | None] = {}
        for client in list(self._due):
            del self._due[client]
            if not client.reader.closed:
                ends[client] = client.answered_up_to()
        if not ends:
            return
        writers = [client.replies for client in ends]
        try:
            flushed = await in_background(lambda: Writer.flush_together(writers))
        except BaseException:
            self._due.update(dict.fromkeys(ends))  # by aclose, if that is what cancelled it
            raise
        for (client, end), result in zip(ends.items(), flushed, strict=True):
            lost = client.lost_answers or (None if isinstance(result, int) else result)
            if lost is None:
                client.commit(end)
            elif client.newest is not None:
                # What was lost of the answers is given again, when the queue is tried again.
                self._gone += isinstance(result, QueueGone) and client.lost_answers is None
                await self._router.set_aside(client.newest, lost)

    async def aclose(self) -> None:
        """Stop, and close all queues; unanswered requests are delivered again next time.

        No more requests are taken. Running handlers of ``serve`` have ``grace_s`` seconds to finish, and are
        then cancelled. Answers are flushed and their requests committed. Cancelled, the last requests may be
        read again; they are recognised by their answers.
        """
        self._enter_loop()
        self._closing = True
        if self._is_waiting:
            self._router._fail(ClosedError("the responder is closed", path=self._router.root))
        try:
            await self._end_handlers()
            if self._committing is not None and not self._committing.done():
                self._committing.cancel()
                await asyncio.wait([self._committing])
            await self._commit_due()
        finally:
            try:
                await self._router.aclose()
            finally:
                self._forget()

    def _forget(self) -> None:
        """Let go of all messages: they keep their segments mapped."""
        self._left = self.statistics().outstanding
        self._taken = None
        for held in (self._returned, self._due, self._clients):
            held.clear()

    def close(self) -> None:
        """Close all queues at once; needs no event loop.

        Unanswered requests are delivered again next time; those whose answers were not flushed yet are
        recognised by their answers.
        """
        self._closing = True
        self._router.close()
        self._forget()

    async def _end_handlers(self) -> None:
        running = self._handling - {asyncio.current_task()}  # one of them may close us
        if running:
            _, late = await asyncio.wait(running, timeout=self._grace_s)
            for handling in late:
                handling.cancel()
            await _wait_until_done(late)

    async def __aenter__(self) -> Self:
        self._enter_loop()
        await self._router.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _write(
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
            raise InvalidArgument(f"type_id {type_id} for an object, which has that of its type")
        return writer.send(payload, timestamp_ns=timestamp_ns, cause=cause, expires_ns=expires_ns)
    if expires_ns is not None:
        return writer.append_expiring(payload, expires_ns, type_id=type_id)
    return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)


def _is_expired(message: Message) -> bool:
    expires_ns = message.expires_ns
    return expires_ns is not None and time.time_ns() >= expires_ns


async def _wait_until_done(tasks: "set[asyncio.Task[None]]") -> None:
    """Return when these tasks have ended, however."""
    while tasks:
        await asyncio.wait(list(tasks))
        tasks = {task for task in tasks if not task.done()}


def _is_reserved(type_id: int) -> InvalidArgument:
    return InvalidArgument(f"type_id {type_id} is reserved for answers of Request.fail")


async def _handle(handler: Handler[T], request: Request[T]) -> None:
    """Answer a request, whatever its handler does: what ended the service would come again."""
    try:
        result = await handler(request)
        if result is not None or not request.answered:
            request.reply(result)  # type: ignore[arg-type]  # None is refused
    except RequestFailed as refusal:
        _fail(request, refusal.detail)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        _fail(request, "CancelledError: its handling was cancelled")  # by the handler itself
    except Exception as error:  # noqa: BLE001 - the requester gets it
        _fail(request, _reason(error))
        if request._refused is not None:  # pyright: ignore[reportPrivateUsage]
            return
        name = printable(request.requester)
        _log.exception("handling request %d of '%s' failed", request.message.seq, name)


def _reason(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its text is the handler's code, too
        return type(error).__name__


def _is_cancelled() -> bool:
    """Tell whether this task itself was cancelled, not only something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fail(request: Request, reason: str) -> None:
    if request.answered:
        return
    try:
        request.fail(reason)
    except _CANNOT_WRITE:  # it comes again
        return
    except ChronicleError:  # without an answer it comes again after a restart
        name = printable(request.requester)
        _log.exception("request %d of '%s' has no answer", request.message.seq, name)


def _not_before(request_ns: int, replies: Writer) -> int | None:
    """Return a timestamp for an answer; None: the writer's own will do.

    An answer is never older than its request, by which it is found again.
    """
    if time.time_ns() >= request_ns:
        return None
    return max(request_ns, replies.statistics().last_timestamp_ns)


class _AnswersSince:
    """Which requests from one on, by seq and epoch, have an answer in a queue."""

    def __init__(self, path: str, first: Message) -> None:
        self.answered: set[tuple[int, int]] = set()
        self._path = path
        self._queue_id, self._seq = first.queue_id, first.seq
        self._timestamp_ns = first.timestamp_ns
        self._reader: Reader | None = None
        self._closed = False
        self._alone = threading.Lock()  # the task that waits may be cancelled while a thread reads

    def read(self, after: CorruptionError | None) -> CorruptionError | None:
        """Read on after this damage; return the next damage, None at the end. Blocks."""
        with self._alone:
            try:
                if not self._closed:  # before a thread had time for this
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
