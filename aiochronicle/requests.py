"""Questions and answers over queues: every requester has a queue to ask in and one to be answered in.

A queue has one writer, so each requester writes requests to a queue of its own under one root, and
the responder, which finds them there, answers into a queue of the same name under another root.
What belongs together is in the records themselves: an answer names its request as its ``cause``
(queue id and seq), payloads are the user's alone. That makes both ends restartable. The responder
knows from its answers what it answered already; the requester reads only answers that come after
it was opened, and drops those that nobody waits for any more. A request that is given a timeout
carries its deadline, and is not executed after it.
"""

import asyncio
import contextlib
import copy
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self

import msgspec

from aiochronicle._answers import Answers
from aiochronicle._arguments import (
    expect,
    pathname,
    permissions,
    positive,
    refuse_file,
    seconds,
    segment_bytes,
)
from aiochronicle._arguments import timeout as checked_timeout
from aiochronicle._attaching import open_anywhere
from aiochronicle._background import in_background, in_thread, shielded
from aiochronicle._closing import Closing
from aiochronicle._damage import (
    REQUESTER_WORDS,
    OnDamage,
    OnDamageOfAnswers,
    check_on_damage,
)
from aiochronicle._hot import Message
from aiochronicle._names import check_name, is_name
from aiochronicle._one_loop import OneLoop
from aiochronicle._printable import printable
from aiochronicle._report import HtmlStruct
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
from aiochronicle.health import Health, because, reason
from aiochronicle.position import Position
from aiochronicle.reader import Reader, open_reader
from aiochronicle.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.router import Router
from aiochronicle.writer import Writer, open_writer

__all__ = ["Request", "Requester", "RequesterStatistics", "Responder", "ResponderStatistics"]

Payload = bytes | bytearray | memoryview | Message

FAILURE_TYPE = 0xFFFE  # type_id of an answer that says why there is no result
_REASON_BYTES_MAX = 2048
_COMMIT_INTERVAL_S = 0.1
_LOOK_INTERVAL_S = 1.0
_GRACE_S = 1.0
_TIME_MAX_NS = 2**63 - 1
_CANNOT_WRITE = StorageError, CapacityError, WriterPoisoned  # now, but perhaps later
_REMOVED = ClosedError, QueueGone  # one of a requester's two queues

_log = logging.getLogger(__name__)


class RequesterStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a requester: ``sent`` requests, what became of them, and answers too late.

    ``answered`` requests got a result, ``failed`` ones RequestFailed: no request counts as both,
    unlike in ResponderStatistics.
    ``given_up`` requests timed out or were cancelled; ``pending`` ones are waited for. ``dropped``
    answers came when nobody waited for them any more, or to a requester of the same name before.
    ``skipped`` answers were damaged; ``lost`` ones were removed before they were read, as far as
    seqs tell.
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


class Requester(Closing, Generic[T]):
    """Asks a responder and waits for its answers; a context manager both ways.

    ``requests`` and ``replies`` are the roots that the responder was given, ``name`` is this
    requester's own: no two may use it at a time. Any number of tasks may ask at once, and it does
    not matter whether the responder runs already. ``codec`` is that of open_writer, for what
    ``request`` is given besides bytes; ``reply_codec`` that of open_reader, for what an answer's
    ``decode`` gives.

    Its two queues are opened in the background by ``async with``, and at once, blocking, by
    ``with`` or the first use of a requester that was not entered. ``mode`` is that of its queue of
    requests: 0o660 lets a responder of another user in the group of the root read them.

    ``on_corrupt`` says what to do about a damaged answer, ``on_lost`` about answers that were removed
    before they were read. With "raise" every request that waits at that moment gets the exception,
    since any of them may be meant; "skip" counts it and has them wait on. A function is called with
    the exception: if it returns, that is "skip"; what it raises, the requests get. Requests that
    come later work either way, and also after one of the queues was removed or replaced.

    One event loop at a time: it may be used in another one when the first is closed, and raises
    InvalidArgument in a second one before that.

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
        codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        reply_codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
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
        self._answers: Answers[T] = Answers(
            str(answered / name),
            None if reply_codec is None else registry_of(reply_codec, "reply_codec"),
            check_on_damage("on_corrupt", on_corrupt, REQUESTER_WORDS),
            check_on_damage("on_lost", on_lost, REQUESTER_WORDS),
            self._settle,
            self._fail_all,
        )
        self._opening = threading.Lock()
        self._requests: Writer | None = None
        self._reopening: Future[None] | None = None
        self._queue_id = 0
        self._closed = False
        self._waiting: dict[tuple[int, int], asyncio.Future[Message[T]]] = {}  # by queue id and seq
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
                # Whoever may look into the root sees what is asked: its maker decides by its mode.
                Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        """Open the queue of requests anew: it was removed, or nobody knows what is on disk."""
        with self._opening:
            if self._closed or self._requests is not dead:
                return
            with contextlib.suppress(ChronicleError):
                dead.close()
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._use(open_writer(self._path, **self._options))
            text = "%s: the queue of requests was opened anew; what waited for answers failed"
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
        self, payload: Payload | msgspec.Struct, *, type_id: int = 0, timeout: float | None = None
    ) -> Message[T]:
        """Send a request, bytes or an object of the codec's types, and return the answer.

        RequestTimeout after ``timeout`` seconds, RequestFailed if the responder says so. The request
        carries its deadline, by the clock of this host: a responder does not begin with it later.
        Timed out or cancelled, the request stays sent; an answer that comes later is dropped and
        counted.
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
        payload: Payload | msgspec.Struct,
        type_id: int,
        deadline_ns: int | None,
    ) -> tuple[tuple[int, int], asyncio.Future[Message[T]]]:
        try:
            seq = _write(writer, payload, type_id, expires_ns=deadline_ns)
        except (QueueGone, WriterPoisoned, ClosedError) as error:  # nothing of it is in the queue
            if self._closed:
                raise ClosedError("the requester is closed", path=self._path) from None
            writer = await self._renewed(writer, error)
            seq = _write(writer, payload, type_id, expires_ns=deadline_ns)
        answer: asyncio.Future[Message[T]] = asyncio.get_running_loop().create_future()
        self._sent += 1
        key = self._queue_id, seq
        self._waiting[key] = answer
        return key, answer

    async def _renewed(self, dead: Writer, error: ChronicleError) -> Writer:
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
            for task in self._tasks:  # somebody cancelled one of them
                task.cancel()
            self._tasks = [
                asyncio.create_task(self._answers.follow(), name=f"answers to {self.name}"),
                asyncio.create_task(self._look_after_requests(), name=f"requests of {self.name}"),
            ]

    async def _look_after_requests(self) -> None:
        """Tell whoever waits when the queue that they asked in was removed."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            writer = self._requests
            if self._waiting and writer is not None and not writer.closed and writer.gone:
                self._fail_all(QueueGone("the queue of requests was removed", path=self._path))

    def _settle(self, reply: Message[T]) -> None:
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
        """Close both queues, blocking; whoever waits for an answer gets ClosedError."""
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
    """Return when so many seconds are over; None: never, or later than a record can say."""
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
        """Commit up to what ``answered_up_to`` returned; nothing if the queue has gone meanwhile."""
        if self.reader.closed or end is None:
            return
        with contextlib.suppress(ChronicleError):  # reading says what is wrong with the queue
            if isinstance(end, Position):
                self.reader.commit_position(end)
            else:
                self.reader.commit(end)


class Request(Generic[T]):
    """A request to be answered, once, by ``reply`` or ``fail``; in any order, at any time.

    If it is not, it comes again when the responder is started the next time, unless it has expired
    by then: whoever asked waits no longer.
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
        """What the requester sent."""
        return self.message.payload

    def decode(self) -> T:
        """Return what the requester sent as an object of the responder's codec; or DecodeError.

        A handler of ``serve`` may let that pass: the request fails with its text.
        """
        return self.message.decode()

    @property
    def type_id(self) -> int:
        """The type that the requester gave it."""
        return self.message.type_id

    @property
    def requester(self) -> str:
        """Name of the requester."""
        return self.message.source

    @property
    def deadline_ns(self) -> int | None:
        """When nobody waits for the answer any more, in Unix nanoseconds; None: somebody always does."""
        return self.message.expires_ns

    @property
    def expired(self) -> bool:
        """Whether its deadline is over, by the clock of this host."""
        return _is_expired(self.message)

    @property
    def answered(self) -> bool:
        """Whether it was answered."""
        return self._answered

    def reply(self, payload: Payload | msgspec.Struct, *, type_id: int = 0) -> None:
        """Answer it, with bytes or an object of the responder's ``reply_codec``.

        Never waits; if the requester's queue was removed, nothing happens. If the answer cannot be
        written now (DiskFull, say), the requester is set aside until it can: a handler of ``serve``
        gets its request again, others may call this again.
        """
        if type_id == FAILURE_TYPE:
            raise _is_reserved(type_id)
        self._answer_once(payload, type_id)

    def fail(self, reason: str) -> None:
        """Answer that there is no result: ``Requester.request`` raises RequestFailed.

        With this text, of which it gets the first 2 KiB.
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
    """Counters of a responder: ``received`` requests, and what became of them.

    ``answered`` counts every answer, results and failures; ``failed`` are those of them that say why
    there is no result. RequesterStatistics counts the two apart. ``repeated`` requests had been
    answered before a restart; ``gone`` requesters had no queue any more. ``expired`` requests came
    to their turn after their deadline, and were dropped. ``skipped`` and ``lost`` are those of
    RouterStatistics: damaged requests, and removed ones; damaged answers, which are looked at when
    a requester is attached, are among the ``skipped``.
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

    ``async for request in responder`` gives one request after the other, of each requester in
    order; ``serve`` calls a function for each. Every request gets one answer, also if the
    responder is killed and started again: what had no answer then comes again, what had one does
    not. So whatever else a request sets off may happen twice, its answer does not. Answers are
    flushed in the background, and requests committed behind them: after a power cut, those whose
    answers were lost come again, too.

    One responder at a time can serve a root; ``name`` is the reader name in the queues of the
    requesters. ``codec`` is what ``Request.decode`` gives, ``reply_codec`` what answers can be
    besides bytes; a requester's queue whose schema says something else is one of the ``problems``.
    ``segment_size``, ``retention`` and ``mode`` are those of the queues of answers. Keep answers for longer
    than any request takes: by them a restarted responder knows what was answered.
    Cancelling a task anywhere in ``async for`` loses nothing.

    A request whose deadline is over is dropped before anybody gets it, and counted as ``expired``.
    ``on_corrupt`` and ``on_lost`` are those of Router: by default a requester whose queue is damaged
    is set aside, in ``problems`` and tried again, and the others are served. So it is if its answers
    are damaged by which the responder would know what was answered; if that is skipped, requests whose
    answers are damaged are answered again. Closing it gives
    handlers that run ``grace_s`` seconds to end; what they return is answered. One event loop at a
    time, as Router.
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
        """Return the names of the requesters whose queues are there."""
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
            if request.answered:  # by somebody who kept it
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
        """Call the handler for each request, and answer with what it returns, until cancelled.

        So many handlers run at once at most. One that answers by itself, with ``request.reply`` or
        ``request.fail``, returns None. One that raises RequestFailed fails its request with that
        text; any other exception does with its type and text, and is also logged. Whatever is
        wrong with one requester, its request or its queues, the others are served. A request that
        expired before its handler begins is dropped. Cancelled, handlers that run are cancelled;
        what they return all the same is answered, and the other requests come again: first of all
        to whoever serves next, or after a restart. If ``on_corrupt`` or ``on_lost`` raises, that
        ends it when the handlers have ended; call it again for the other requesters.
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
                handling.add_done_callback(partial(self._handled, request))
                for tasks in (own, self._handling):
                    tasks.add(handling)
                    handling.add_done_callback(tasks.discard)
                handling.add_done_callback(lambda _: free.release())
                del request, handling  # while this waits, it keeps no segment mapped
            await _ended(own)
        except asyncio.CancelledError:
            for handling in own:
                handling.cancel()
            raise
        finally:
            await _ended(own)

    async def _handle(self, handler: Handler[T], request: Request[T]) -> None:
        if request.expired:  # which waiting for its first turn may have made it
            self._expire(request)
        else:
            await _handle(handler, request)

    def _handled(self, request: Request[T], handling: asyncio.Task[None]) -> None:
        """See to it that a request without an answer comes again."""
        client = self._client_that_sent(request)
        if request.answered or client is None:
            return
        if handling.cancelled():  # perhaps before it began
            self._returned.append(request)
        elif request._refused is not None:  # pyright: ignore[reportPrivateUsage]
            client.lost_answers = client.lost_answers or request._refused  # pyright: ignore[reportPrivateUsage]
            self._settled(client, request.message)  # its queue is tried again, and read again

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
        self._settled(client, message)

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
        behind: CorruptionError | None = None
        try:
            while (damage := await in_background(partial(answers.read, behind))) is not None:
                if behind is not None and str(damage) == str(behind):  # stepping over was of no use
                    raise damage
                self._judge_answer(first, damage)
                behind = damage
            return answers.answered
        finally:
            await in_background(answers.close)

    def _judge_answer(self, first: Message, damage: CorruptionError) -> None:
        """Raise damage among the answers to a requester, unless it is to be skipped."""
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
        self._settled(client, message)

    def _settled(self, client: _Client, message: Message) -> None:
        # Due before and after it: whoever commits in another thread must see one or the other.
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
        """Stop, and close all queues; requests that were not answered come again next time.

        No more requests are taken. Handlers of ``serve`` that run have ``grace_s`` seconds to end,
        and are cancelled then. What was answered is flushed and committed. Cancelled, what was
        answered last may come again, and is known by its answer.
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
        """Close all queues at once, without a loop: the one that served may be closed.

        Requests that were not answered come again next time; those whose answers were not flushed
        yet are known by their answers.
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
            await _ended(late)

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
    payload: Payload | msgspec.Struct,
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


async def _ended(tasks: "set[asyncio.Task[None]]") -> None:
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
    except Exception as error:  # noqa: BLE001 - it is the requester that is told
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
    """Tell whether somebody cancelled this task, not only something that it waited for."""
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
        self._alone = threading.Lock()  # whoever waits may be cancelled while a thread reads

    def read(self, behind: CorruptionError | None) -> CorruptionError | None:
        """Read on, behind this damage; return what damage is met, None at the end. Blocks."""
        with self._alone:
            try:
                if not self._closed:  # before a thread had time for this
                    self._read(behind)
            except CorruptionError as damage:
                return damage.with_traceback(None)
        return None

    def _read(self, behind: CorruptionError | None) -> None:
        if self._reader is not None and behind is not None:
            self._reader.step_over()
        elif behind is not None:  # it could not even be searched
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
