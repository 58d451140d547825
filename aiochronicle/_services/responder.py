"""Answers requests."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

from aiochronicle._base.arguments import positive, seconds
from aiochronicle._base.names import is_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.health import Health, format_reason, health_of
from aiochronicle._core.reader import Reader
from aiochronicle._hot import Message
from aiochronicle._services.damage import OnDamage
from aiochronicle._services.request import (
    FAILURE_TYPE,
    Handler,
    Request,
    check_roots,
    is_expired,
    reserved_type_id,
)
from aiochronicle._services.responder_answers import AnswerWriters
from aiochronicle._services.responder_client import Client
from aiochronicle._services.responder_handler import answer_by, wait_until_done
from aiochronicle._services.router import Router
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import ChronicleError, ClosedError, InvalidName, SourceGone

__all__ = ["Responder", "ResponderStatistics"]

_GRACE_S = 1.0


class ResponderStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of a responder: ``received`` requests and their outcomes.

    ``answered`` counts all answers, results and failures; ``failed`` counts the failures among them.
    (RequesterStatistics counts the two separately.) ``repeated`` requests had been answered before a restart.
    ``gone`` counts requests and answers of requesters whose queue no longer exists. ``expired`` requests were
    dropped after their deadline. ``skipped`` and ``lost`` are those of RouterStatistics: damaged and removed
    requests; ``skipped`` includes damaged answers, which are found when a requester is attached.
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
    """A router that does not open queues whose name no requester can have."""

    def _open_one(self, path: str) -> tuple[Reader, int] | Exception:
        if not is_name(Path(path).name):
            return InvalidName(
                "no requester can have this name, so the queue is not read",
                path=path,
                advice="Remove the directory.",
            )
        return super()._open_one(path)


class Responder(Generic[T]):
    """Answers the requests of any number of requesters; an async context manager.

    ``async for request in responder`` delivers one request after the other, those of each requester in order.
    ``serve`` calls a function for each. Every request gets exactly one answer, even if the responder is
    killed and restarted: requests without an answer are delivered again, others are not. Other effects of a
    request may occur twice. Answers are flushed in the background, and then their requests are committed, so
    after a power cut, requests whose answers were lost are also delivered again.

    One responder at a time can serve a root; ``name`` is its reader name in the queues of the requesters.
    ``codec`` is for ``Request.decode``, ``reply_codec`` for answers that are not bytes; a requester's queue
    with another schema is listed in ``problems``. ``segment_size``, ``retention`` and ``mode`` are those of
    the answer queues. Keep answers for longer than any request takes, because a restarted responder uses them
    to find out which requests were answered. Cancelling a task anywhere in ``async for`` loses nothing.

    An expired request is dropped before it is delivered, and counted. ``on_corrupt`` and ``on_lost`` are
    those of Router: by default a requester whose queue is damaged is set aside, listed in ``problems`` and
    retried, and the others are served. Damaged answers have the same effect; if they are skipped, their
    requests are answered again. Closing gives running handlers ``grace_s`` seconds to finish; their results
    are sent. Like a Router, it belongs to one event loop at a time.
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
            raise reserved_type_id(FAILURE_TYPE)
        asked, answered = check_roots(requests, replies)
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
        self._answers = AnswerWriters(self._router)
        self._taken: Message[T] | None = None  # from the router, by a task that was then cancelled
        self._returned: list[Request[T]] = []  # from handlers that were cancelled
        self._closing = False
        self._received = self._repeated = self._gone = self._expired = self._left = 0
        self._home = OneLoop(f"the responder of {self._router.root}")
        self._renew()

    def _renew(self) -> None:
        """Create the objects that belong to one event loop."""
        self._taking = asyncio.Lock()  # keeps the requests of one requester in order
        self._is_waiting = False  # for the next message
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
        """Whether it serves all requesters: it is open and has no ``problems``."""
        if self._closing:
            return health_of([format_reason("responder", self._router.root, "is closed")])
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
                    client = await self._answers.client_of(message)
                except SourceGone:
                    self._gone += 1
                    continue
                except ChronicleError as error:
                    # The answers of this requester cannot be written now. Other requesters are not
                    # affected, and the request is delivered again when the queue is retried.
                    self._taken = message  # in case this is cancelled
                    await self._router.set_aside(message, error)
                    self._taken = None
                    continue
                except BaseException:
                    self._taken = message
                    raise
                self._answers.keep_committing()
                if client.lost_answers is not None:  # the requester will be set aside soon
                    client.newest = message
                    self._answers.due[client] = None
                elif not client.accept(message):
                    self._answers.due[client] = None
                    self._repeated += 1
                elif is_expired(message):
                    self._drop(client, message)
                else:
                    self._received += 1
                    return Request(message, partial(self._answers.answer, client, message))

    def _returned_request(self) -> Request[T] | None:
        """Return the oldest of the requests whose handlers were cancelled."""
        while self._returned and not self._closing:
            request = min(self._returned, key=lambda one: one.message.seq)
            self._returned.remove(request)
            self._answers.keep_committing()
            if request.answered:  # by other code that kept a reference
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

        At most ``concurrency`` handlers run at once. A handler that answers by itself, with ``request.reply``
        or ``request.fail``, returns None. If it raises RequestFailed, the request fails with that text; with
        any other exception it fails with the type and text of the exception, which is also logged. A problem
        with one requester, its requests or its queues does not affect the others. A request that expires
        before its handler begins is dropped.

        If ``serve`` is cancelled, it cancels the running handlers. Results that they still return are sent.
        The other requests are delivered again, first by the next call of ``serve``, or after a restart. If
        ``on_corrupt`` or ``on_lost`` raises, ``serve`` raises that exception when the handlers have ended;
        call it again for the other requesters.
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
                del request, handling  # they would keep a segment mapped during the next wait
            await wait_until_done(own)
        except asyncio.CancelledError:
            for handling in own:
                handling.cancel()
            raise
        finally:
            await wait_until_done(own)

    async def _handle(self, handler: Handler[T], request: Request[T]) -> None:
        if request.expired:  # while the task waited to start
            self._expire(request)
        else:
            await answer_by(handler, request)

    def _on_handled(self, request: Request[T], handling: asyncio.Task[None]) -> None:
        """Arrange that a request without an answer is delivered again."""
        client = self._client_that_sent(request)
        if request.answered or client is None:
            return
        if handling.cancelled():  # possibly before it began
            self._returned.append(request)
        elif request._refused is not None:  # pyright: ignore[reportPrivateUsage]
            client.lost_answers = client.lost_answers or request._refused  # pyright: ignore[reportPrivateUsage]
            # The retry of the requester's queue reads the request again.
            self._answers.forget_outstanding(client, request.message)

    def _expire(self, request: Request[T]) -> None:
        client = self._client_that_sent(request)
        if client is not None:
            self._received -= 1
            self._drop(client, request.message)

    def _client_that_sent(self, request: Request[T]) -> Client | None:
        """Return the requester that sent a request, if it still waits for the answer."""
        message = request.message
        client = self._answers.clients.get((message.source, message.queue_id))
        return client if client is not None and message.seq in client.outstanding else None

    def _drop(self, client: Client, message: Message) -> None:
        """Drop an expired request: commit it without an answer."""
        self._expired += 1
        client.note_answer(message)
        self._answers.forget_outstanding(client, message)

    def statistics(self) -> ResponderStatistics:
        """Return the counters of this responder."""
        damage = self._router.statistics()
        return ResponderStatistics(
            received=self._received,
            answered=self._answers.answered,
            failed=self._answers.failed,
            outstanding=self._left
            + sum(len(client.outstanding) for client in self._answers.clients.values()),
            repeated=self._repeated,
            gone=self._gone + self._answers.gone,
            expired=self._expired,
            skipped=damage.skipped,
            lost=damage.lost,
        )

    async def aclose(self) -> None:
        """Stop, and close all queues; unanswered requests are delivered again next time.

        No more requests are taken. Running handlers of ``serve`` have ``grace_s`` seconds to finish, and are
        then cancelled. Answers are flushed and their requests committed. If this is cancelled, the last
        requests may be read again, but their answers prevent a second answer.
        """
        self._enter_loop()
        self._closing = True
        if self._is_waiting:
            self._router._fail(ClosedError("the responder is closed", path=self._router.root))
        try:
            await self._end_handlers()
            await self._answers.stop_committing()
        finally:
            try:
                await self._router.aclose()
            finally:
                self._forget()

    def _forget(self) -> None:
        """Drop all messages, because they keep their segments mapped."""
        self._left = self.statistics().outstanding
        self._taken = None
        for held in (self._returned, self._answers.due, self._answers.clients):
            held.clear()

    def close(self) -> None:
        """Close all queues at once, without an event loop.

        Unanswered requests are delivered again next time. Requests whose answers were not flushed yet may be
        read again, but their answers prevent a second answer.
        """
        self._closing = True
        self._router.close()
        self._forget()

    async def _end_handlers(self) -> None:
        running = self._handling - {asyncio.current_task()}  # a handler may close the responder
        if running:
            _, late = await asyncio.wait(running, timeout=self._grace_s)
            for handling in late:
                handling.cancel()
            await wait_until_done(late)

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
