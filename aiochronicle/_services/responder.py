"""The end that answers requests."""

import asyncio
import copy
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

import msgspec

from aiochronicle._base.arguments import positive, seconds
from aiochronicle._base.background import in_background
from aiochronicle._base.names import is_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.position import Position
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.health import Health, because, reason
from aiochronicle._core.reader import Reader
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle._services.damage import OnDamage
from aiochronicle._services.request import (
    CANNOT_WRITE,
    FAILURE_TYPE,
    Handler,
    Payload,
    Request,
    checked_roots,
    is_expired,
    is_reserved,
    write_payload,
)
from aiochronicle._services.responder_client import AnswersSince, Client, not_before
from aiochronicle._services.responder_handler import answer_by, wait_until_done
from aiochronicle._services.router import Router
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    CorruptionError,
    InvalidName,
    QueueGone,
    SourceGone,
)

__all__ = ["Responder", "ResponderStatistics"]

_COMMIT_INTERVAL_S = 0.1
_GRACE_S = 1.0
_REMOVED = ClosedError, QueueGone  # one of a requester's two queues


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
            raise is_reserved(FAILURE_TYPE)
        asked, answered = checked_roots(requests, replies)
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
        self._clients: dict[tuple[str, int], Client] = {}
        self._taken: Message[T] | None = None  # from the router, when its task was cancelled
        self._told: dict[str, str] = {}  # by requester: which damage was judged
        self._returned: list[Request[T]] = []  # by handlers that were cancelled
        self._due: dict[Client, None] = {}  # in order: whose answers wait for a flush
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
                    # Its answers cannot be written now. That does not concern the other requesters,
                    # and the request is delivered again when the queue is retried.
                    self._taken = message  # if this is cancelled
                    await self._router.set_aside(message, error)
                    self._taken = None
                    continue
                except BaseException:
                    self._taken = message
                    raise
                self._commit_now_and_then()
                if client.lost_answers is not None:  # it is about to be set aside
                    client.newest = message
                    self._due[client] = None
                elif not client.accept(message):
                    self._due[client] = None
                    self._repeated += 1
                elif is_expired(message):
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
            await wait_until_done(own)
        except asyncio.CancelledError:
            for handling in own:
                handling.cancel()
            raise
        finally:
            await wait_until_done(own)

    async def _handle(self, handler: Handler[T], request: Request[T]) -> None:
        if request.expired:  # which waiting for its first turn may have made it
            self._expire(request)
        else:
            await answer_by(handler, request)

    def _on_handled(self, request: Request[T], handling: asyncio.Task[None]) -> None:
        """Arrange that a request without an answer is delivered again."""
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

    def _client_that_sent(self, request: Request[T]) -> Client | None:
        """Return whose request it is, if it waits for its answer."""
        message = request.message
        client = self._clients.get((message.source, message.queue_id))
        return client if client is not None and message.seq in client.outstanding else None

    def _drop(self, client: Client, message: Message) -> None:
        """Drop a request that nobody waits for any more: commit it without an answer."""
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

    async def _client_of(self, message: Message) -> Client:
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
                client = self._clients.setdefault(key, Client(reader, replies, answered))
            else:
                client.attach(reader, replies, answered)
        elif client.replies.closed:
            client.replies = await self._router.reply(message)
        return client

    async def _answered_since(self, path: str, first: Message) -> set[tuple[int, int]]:
        """Return which requests from this one on, by seq and epoch, have an answer in the queue.

        A damaged answer is dealt with as ``on_corrupt`` says. Skipped, its request has none.
        """
        answers = AnswersSince(path, first)
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
        if self._told.get(first.source) == str(damage):  # every retry finds it again
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
        self, client: Client, message: Message, payload: Payload | msgspec.Struct, type_id: int
    ) -> None:
        if self._router.closed:
            raise ClosedError("the responder is closed", path=self._router.root)
        if client.lost_answers is not None and not isinstance(client.lost_answers, _REMOVED):
            raise copy.copy(client.lost_answers)
        timestamp_ns = not_before(message.timestamp_ns, client.replies)
        try:
            write_payload(
                client.replies, payload, type_id, timestamp_ns=timestamp_ns, cause=message
            )
        except _REMOVED as error:
            self._gone += 1
            client.lost_answers = error
        except CANNOT_WRITE as error:
            # The requester is set aside until it can: then its requests are delivered again. No further
            # answer is written before, not even that there is none.
            client.lost_answers = copy.copy(error)  # whose frames do not hold the message
            self._due[client] = None
            raise
        else:
            self._answered += 1
            self._failed += type_id == FAILURE_TYPE
        self._forget_outstanding(client, message)

    def _forget_outstanding(self, client: Client, message: Message) -> None:
        # Due before and after it: a commit in another thread must see one or the other.
        self._due[client] = None
        client.outstanding.pop(message.seq, None)
        self._due[client] = None

    def _commit_now_and_then(self) -> None:
        """Start the task that commits answered requests, in the running loop."""
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
        ends: dict[Client, Message | Position | None] = {}
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
                # Lost answers are given again when the queue is retried.
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
