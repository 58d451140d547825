"""Sends requests and waits for the answers."""

import asyncio
import contextlib
import logging
import os
import threading
import time
import typing
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self

from aiochronicle._base.arguments import expect, permissions, segment_bytes
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.background import in_background, in_thread, shielded
from aiochronicle._base.closing import Closing
from aiochronicle._base.names import check_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.health import Health, format_reason, health_of
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._hot import Message
from aiochronicle._services.answers import Answers
from aiochronicle._services.damage import REQUESTER_WORDS, OnDamageOfAnswers, check_on_damage
from aiochronicle._services.request import FAILURE_TYPE, Payload, check_roots, write_payload
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec
from aiochronicle.config import Retention
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    QueueGone,
    RequestFailed,
    RequestTimeout,
    WriterPoisoned,
)

__all__ = ["Requester", "RequesterStatistics"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Q = TypeVar("Q", default=Any)
    A = TypeVar("A", default=Any)
else:
    Q = typing.TypeVar("Q")
    A = typing.TypeVar("A")

_CHECK_INTERVAL_S = 1.0
_TIME_MAX_NS = 2**63 - 1

_log = logging.getLogger("aiochronicle.requests")


class RequesterStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a requester: ``sent`` requests and their outcomes, and late answers.

    ``answered`` requests got a result, ``failed`` ones RequestFailed; unlike in ResponderStatistics, no
    request counts as both. ``given_up`` requests timed out or were cancelled; ``pending`` ones still wait.
    No task waited for ``dropped`` answers, or they belonged to an earlier requester of the same name.
    ``skipped`` answers were damaged; ``lost`` ones were removed before they were read, as far as seqs show.
    """

    sent: int
    answered: int
    failed: int
    given_up: int
    pending: int
    dropped: int
    skipped: int = 0
    lost: int = 0


def _create_root(queue: str) -> None:
    """Create the directory above a queue if it does not exist."""
    root = Path(queue).parent
    with storage_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)


class Requester(Closing, Generic[Q, A]):
    """Sends requests and waits for the answers; a context manager, ``with`` and ``async with``.

    ``requests`` and ``replies`` are the responder's roots. ``name`` identifies this requester; no two open
    requesters may share it. Any number of tasks may send requests, even before the responder runs. ``codec``
    is that of open_writer, for objects passed to ``request``; ``reply_codec`` is that of open_reader, for the
    ``decode`` of answers. ``Requester[Q, A]`` sends a Q and gets an A.

    ``async with`` opens its two queues in the background. ``with``, or the first use of a requester that was
    not entered, opens them at once and blocks. ``mode`` is that of the request queue: with 0o660 a responder
    of another user in the root's group can read it.

    ``on_corrupt`` sets what happens at a damaged answer, ``on_lost`` what happens if answers were removed
    before they were read. With "raise" every pending request raises the exception, because the answer may
    belong to any of them. "skip" counts the answer, and the requests continue to wait. A function is called
    with the exception: if it returns, the answer is skipped; if it raises, the pending requests raise that
    exception. Later requests work in any case, also after one of the queues was removed or replaced.

    It belongs to one event loop at a time. Another loop can use it after the first one is closed; until then
    that raises InvalidArgument.

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
        root, answered = check_roots(requests, replies)
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

    def _open(self) -> Writer:
        """Open both queues if they are not open. Blocks."""
        with self._opening:
            if self._closed:
                raise ClosedError("the requester is closed", path=self._path)
            if self._requests is None:
                # The mode of the root decides who can see the requests; its creator sets it.
                _create_root(self._path)
                writer = open_writer(self._path, **self._options)
                try:
                    self._answers.open()
                except BaseException:
                    writer.close()
                    raise
                self._set_writer(writer)
            assert self._requests is not None
            return self._requests

    def _set_writer(self, writer: Writer) -> None:
        self._requests = writer
        self._queue_id = writer.statistics().queue_id

    def _reopen(self, dead: Writer) -> None:
        """Reopen the request queue, which was removed or in which a sync failed."""
        with self._opening:
            if self._closed or self._requests is not dead:
                return
            with contextlib.suppress(ChronicleError):
                dead.close()
            _create_root(self._path)
            self._set_writer(open_writer(self._path, **self._options))
            text = "%s: reopened the request queue; the waiting requests failed"
            _log.warning(text, printable(self._path))

    @property
    def queue_id(self) -> int:
        """Identity of the request queue, which the causes of answers contain."""
        if self._requests is None:
            self._open()
        return self._queue_id

    def __enter__(self) -> Self:
        self._open()
        return self

    async def __aenter__(self) -> Self:
        """Open both queues in the background. If it is cancelled, they are closed again."""
        opening = in_thread(self._open)
        try:
            await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: in_thread(self.close))
            raise
        return self

    async def request(
        self, payload: Payload | Q, *, type_id: int = 0, timeout: float | None = None
    ) -> Message[A]:
        """Send a request, as bytes or as an object of the codec's types, and return the answer.

        RequestTimeout after ``timeout`` seconds, RequestFailed if the responder reports a failure. The
        request carries its deadline, by the clock of this host: a responder does not start it later. After a
        timeout or a cancellation the request stays in its queue; a later answer is dropped and counted.
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
            seq = write_payload(writer, payload, type_id, expires_ns=deadline_ns)
        except (QueueGone, WriterPoisoned, ClosedError) as error:  # the request was not appended
            if self._closed:
                raise ClosedError("the requester is closed", path=self._path) from None
            writer = await self._renew_writer(writer, error)
            seq = write_payload(writer, payload, type_id, expires_ns=deadline_ns)
        answer: asyncio.Future[Message[A]] = asyncio.get_running_loop().create_future()
        self._sent += 1
        key = self._queue_id, seq
        self._waiting[key] = answer
        return key, answer

    async def _renew_writer(self, dead: Writer, error: ChronicleError) -> Writer:
        """Return the writer that replaces a dead one. If the caller is cancelled, it is still opened."""
        if self._requests is dead:
            self._fail_all(error)  # the waiting requests may never be read
            if self._reopening is None or self._reopening.done():
                self._reopening = in_thread(lambda: self._reopen(dead))
            await shielded(asyncio.wrap_future(self._reopening))
        return self._open()

    @property
    def healthy(self) -> Health:
        """Whether it can send requests: it is not closed, and its request queue is writable."""
        if self._closed:
            return health_of([format_reason(f"requester {self.name!r}", self._path, "is closed")])
        return health_of([]) if self._requests is None else self._requests.healthy

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

    def _enter_loop(self) -> None:
        if self._home.enter():
            self._tasks = []  # the tasks of the previous loop ended with it
            self._waiting.clear()

    def _follow(self) -> None:
        """Start the tasks that read answers, if they are not running."""
        if not self._tasks or any(task.done() for task in self._tasks):
            for task in self._tasks:  # one of them was cancelled
                task.cancel()
            self._tasks = [
                asyncio.create_task(self._answers.follow(), name=f"answers to {self.name}"),
                asyncio.create_task(self._watch_request_queue(), name=f"requests of {self.name}"),
            ]

    async def _watch_request_queue(self) -> None:
        """Fail the waiting requests when the request queue was removed."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            writer = self._requests
            if self._waiting and writer is not None and not writer.closed and writer.gone:
                self._fail_all(QueueGone("the request queue was removed", path=self._path))

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
        """Make every waiting request raise this exception."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        """Close both queues. Blocks; tasks that wait for an answer get ClosedError."""
        self._end()
        self._close_queues()

    async def aclose(self) -> None:
        """Close both queues without blocking the loop. If the caller is cancelled, they are still closed."""
        self._end()
        await in_background(self._close_queues)

    def _end(self) -> None:
        self._closed = True
        loop = self._home.loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # another thread has just closed the loop
                if loop is _running_loop():
                    self._end_waiting()
                else:
                    loop.call_soon_threadsafe(self._end_waiting)

    def _end_waiting(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []  # their exceptions hold frames, which hold the last answer
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
    """Return the time at which the limit ends; None if never, or later than a record can store."""
    if limit_s is None:
        return None
    deadline_ns = time.time_ns() + round(limit_s * 1e9)
    return deadline_ns if deadline_ns <= _TIME_MAX_NS else None
