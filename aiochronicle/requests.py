"""Questions and answers over queues: every requester has a queue to ask in and one to be answered in.

A queue has one writer, so each requester writes requests to a queue of its own under one root, and
the responder, which finds them there, answers into a queue of the same name under another root.
What belongs together is in the records themselves: an answer names its request as its ``cause``
(queue id and seq), payloads are the user's alone. That makes both ends restartable. The responder
knows from its answers what it answered already; the requester reads only answers that come after
it was opened, and drops those that nobody waits for any more.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

import msgspec

from aiochronicle._arguments import expect, pathname, positive, refuse_file
from aiochronicle._arguments import timeout as checked_timeout
from aiochronicle._background import in_background
from aiochronicle._closing import Closing
from aiochronicle._hot import Message
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    InvalidArgument,
    QueueGone,
    RequestFailed,
    RequestTimeout,
    SourceGone,
)
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

_log = logging.getLogger(__name__)


class RequesterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a requester: ``sent`` requests, what became of them, and answers too late.

    ``given_up`` requests timed out or were cancelled; ``pending`` ones are waited for. ``dropped``
    answers came when nobody waited for them any more, or to a requester of the same name before.
    """

    sent: int
    answered: int
    failed: int
    given_up: int
    pending: int
    dropped: int


def _roots(requests: str | os.PathLike[str], replies: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return both roots as paths, with the first one there."""
    asked, answered = pathname("requests", requests), pathname("replies", replies)
    refuse_file("requests", asked)
    refuse_file("replies", answered)
    Path(asked).mkdir(parents=True, exist_ok=True)
    return Path(asked), Path(answered)


class Requester(Closing, Generic[T]):
    """Asks a responder and waits for its answers; a context manager both ways.

    ``requests`` and ``replies`` are the roots that the responder was given, ``name`` is this
    requester's own: no two may use it at a time. Any number of tasks may ask at once, and it does
    not matter whether the responder runs already. ``codec`` is that of open_writer, for what
    ``request`` is given besides bytes; ``reply_codec`` that of open_reader, for what an answer's
    ``decode`` gives.

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
    ) -> None:
        expect("name", "a str", str, name)
        if not name or name.startswith(".") or "/" in name:
            raise InvalidArgument(f"{name!r} is not a name for a directory")
        self.name = name
        asked, answered = _roots(requests, replies)
        # Answers first: one that comes before we look would be taken for an old one.
        self._replies: Reader[T] = open_reader(
            answered / name, start="last", wait_for_queue=True, codec=reply_codec
        )
        try:
            self._requests = open_writer(
                asked / name,
                segment_size=segment_size,
                retention=retention,
                codec=codec,
                ready=True,
            )
        except BaseException:
            self._replies.close()
            raise
        self.queue_id = self._requests.statistics().queue_id  # as answers name it in their cause
        self._waiting: dict[int, asyncio.Future[Message[T]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._sent = self._answered = self._failed = self._given_up = self._dropped = 0

    async def request(
        self, payload: Payload | msgspec.Struct, *, type_id: int = 0, timeout: float | None = None
    ) -> Message[T]:
        """Send a request, bytes or an object of the codec's types, and return the answer.

        RequestTimeout after ``timeout`` seconds, RequestFailed if the responder says so. Timed out
        or cancelled, the request stays sent; an answer that comes later is dropped and counted.
        """
        limit_s = checked_timeout(timeout)
        if self._requests.closed:
            raise ClosedError("the requester is closed", path=self._requests.path)
        self._follow()
        answer: asyncio.Future[Message[T]] = asyncio.get_running_loop().create_future()
        seq = _write(self._requests, payload, type_id)
        self._sent += 1
        self._waiting[seq] = answer
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await answer
        except asyncio.CancelledError:
            self._given_up += 1
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            self._given_up += 1
            raise RequestTimeout(
                f"no answer to request {seq} within {timeout} s", path=self._requests.path
            ) from None
        finally:
            self._waiting.pop(seq, None)

    def statistics(self) -> RequesterStatistics:
        """Return the counters of this requester."""
        return RequesterStatistics(
            sent=self._sent,
            answered=self._answered,
            failed=self._failed,
            given_up=self._given_up,
            pending=len(self._waiting),
            dropped=self._dropped,
        )

    def _follow(self) -> None:
        """See to it that answers are read, in the loop that runs now."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._read(), name=f"answers to {self.name}")

    async def _read(self) -> None:
        try:
            async for reply in self._replies:
                self._settle(reply)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            self._end(error)
        else:
            self._end(ClosedError("the requester was closed", path=self._requests.path))

    def _settle(self, reply: Message[T]) -> None:
        source, seq = reply.cause or (0, 0)
        answer = self._waiting.pop(seq, None) if source == self.queue_id else None
        if answer is None or answer.done():
            self._dropped += 1
        elif reply.type_id == FAILURE_TYPE:
            self._failed += 1
            answer.set_exception(RequestFailed(reply.payload.decode("utf-8", "replace")))
        else:
            self._answered += 1
            answer.set_result(reply)

    def _end(self, error: Exception) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        """Close both queues; whoever waits for an answer gets ClosedError."""
        self._replies.close()
        self._requests.close()

    async def aclose(self) -> None:
        """Close both queues without blocking the loop. Cancelled, they are closed all the same."""
        self._replies.close()
        try:
            if self._task is not None and not self._task.done():
                await asyncio.wait([self._task])
        finally:
            await in_background(self._requests.close)


class _Client:
    """One requester, as the responder sees it."""

    def __init__(self, reader: Reader, replies: Writer, answered: set[tuple[int, int]]) -> None:
        self.reader = reader
        self.replies = replies
        self.answered = answered  # seq and epoch: before the responder was started, not committed
        self.outstanding: dict[int, Message] = {}  # in order
        self.newest: Message | None = None

    def accept(self, message: Message) -> bool:
        """Take the next request; False if it has its answer already."""
        self.newest = message
        self.outstanding[message.seq] = message
        # A power cut can have a seq given twice. Epoch 0: the answer does not say whose it was.
        if self.answered.isdisjoint({(message.seq, message.epoch), (message.seq, 0)}):
            return True
        del self.outstanding[message.seq]
        return False

    def answered_up_to(self) -> Message | Position | None:
        """Return the last request if all have their answer, else where the first is that has not."""
        waiting = list(self.outstanding.values())  # answers may come from other threads
        return waiting[0].position if waiting else self.newest

    def commit(self, end: Message | Position | None) -> None:
        """Commit up to what ``answered_up_to`` returned; nothing if the queue has gone meanwhile."""
        if self.reader.closed:
            return
        with contextlib.suppress(ChronicleError):  # reading says what is wrong with the queue
            if isinstance(end, Position):
                self.reader.commit_position(end)
            else:
                self.reader.commit(end)


class Request(Generic[T]):
    """A request to be answered, once, by ``reply`` or ``fail``; in any order, at any time.

    If it is not, it comes again when the responder is started the next time.
    """

    def __init__(
        self, message: Message[T], answer: Callable[[Payload | msgspec.Struct, int], None]
    ) -> None:
        self.message = message
        self._answer = answer
        self._answered = False

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
    def answered(self) -> bool:
        """Whether it was answered."""
        return self._answered

    def reply(self, payload: Payload | msgspec.Struct, *, type_id: int = 0) -> None:
        """Answer it, with bytes or an object of the responder's ``reply_codec``.

        Never waits; if the requester's queue was removed, nothing happens.
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
        self._answer(payload, type_id)
        self._answered = True

    def __repr__(self) -> str:
        return f"<Request {self.message.seq} of {self.requester!r} answered={self.answered}>"


Handler = Callable[[Request[T]], Awaitable[Payload | msgspec.Struct | None]]


class ResponderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a responder: ``received`` requests, and what became of them.

    ``failed`` are those of the ``answered`` ones that were answered by ``fail``. ``repeated``
    requests had been answered before a restart; ``gone`` requesters had no queue any more.
    """

    received: int
    answered: int
    failed: int
    outstanding: int
    repeated: int
    gone: int


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
    ``segment_size`` and ``retention`` are those of the queues of answers. Keep answers for longer
    than any request takes: by them a restarted responder knows what was answered.
    Cancelling a task anywhere in ``async for`` loses nothing.
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
        rescan_s: float = 5.0,
    ) -> None:
        types = None if reply_codec is None else registry_of(reply_codec, "reply_codec")
        if types is not None and types.fixed_ids and FAILURE_TYPE in types:
            raise _is_reserved(FAILURE_TYPE)
        asked, answered = _roots(requests, replies)
        self._router: Router[T] = Router(
            asked,
            name=name,
            codec=codec,
            reply_codec=types,
            reply_root=answered,
            reply_segment_size=segment_size,
            reply_retention=retention,
            rescan_s=rescan_s,
        )
        self._clients: dict[tuple[str, int], _Client] = {}
        self._taking = asyncio.Lock()  # requests of one requester are handed over in order
        self._taken: Message[T] | None = None  # from the router, when its task was cancelled
        self._due: dict[_Client, None] = {}  # in order: whose answers are to be flushed
        self._committing: asyncio.Task[None] | None = None
        self._received = self._answered = self._failed = self._repeated = self._gone = 0

    def requesters(self) -> list[str]:
        """Return the names of the requesters whose queues are there."""
        return sorted(reader.source for reader in self._router.sources().values())

    @property
    def problems(self) -> dict[str, Exception]:
        """Requesters' queues that cannot be read, by path; see Router."""
        return self._router.problems

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Request[T]:
        async with self._taking:
            while True:
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
                if client.accept(message):
                    self._received += 1
                    return Request(message, partial(self._answer, client, message))
                self._due[client] = None
                self._repeated += 1

    async def _next_message(self) -> Message[T]:
        if self._taken is not None:
            message, self._taken = self._taken, None
            return message
        try:
            taken: Message[T] = await self._router.next()
        except ClosedError:
            raise StopAsyncIteration from None
        return taken

    async def serve(self, handler: Handler[T], *, concurrency: int = 64) -> None:
        """Call the handler for each request, and answer with what it returns, until cancelled.

        So many handlers run at once at most. One that answers by itself, with ``request.reply`` or
        ``request.fail``, returns None. One that raises RequestFailed fails its request with that
        text; any other exception does with its type and text, and is also logged. Whatever is
        wrong with one requester, its request or its queues, the others are served. Cancelled,
        handlers that run are cancelled; their requests come again after a restart.
        """
        positive("concurrency", concurrency)
        free = asyncio.Semaphore(concurrency)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await free.acquire()
                try:
                    request = await anext(self)
                except StopAsyncIteration:
                    return
                handling = tasks.create_task(_handle(handler, request))
                handling.add_done_callback(lambda _: free.release())

    def statistics(self) -> ResponderStatistics:
        """Return the counters of this responder."""
        return ResponderStatistics(
            received=self._received,
            answered=self._answered,
            failed=self._failed,
            outstanding=sum(len(client.outstanding) for client in self._clients.values()),
            repeated=self._repeated,
            gone=self._gone,
        )

    async def _client_of(self, message: Message) -> _Client:
        key = message.source, message.queue_id
        client = self._clients.get(key)
        if client is None or client.reader.closed:
            reader = self._router.reader_of(message)
            replies = await self._router.reply(message)
            answered = await in_background(lambda: _answered_since(replies.path, message))
            for old in [old for old, client in self._clients.items() if client.reader.closed]:
                del self._clients[old]
            client = self._clients.setdefault(key, _Client(reader, replies, answered))
        elif client.replies.gone:
            client.replies = await self._router.reply(message)
        return client

    def _answer(
        self, client: _Client, message: Message, payload: Payload | msgspec.Struct, type_id: int
    ) -> None:
        if self._router.closed:
            raise ClosedError("the responder is closed", path=self._router.root)
        timestamp_ns = _not_before(message.timestamp_ns, client.replies)
        try:
            _write(client.replies, payload, type_id, timestamp_ns=timestamp_ns, cause=message)
        except (ClosedError, QueueGone):  # one of the requester's two queues was removed
            self._gone += 1
        else:
            self._answered += 1
            self._failed += type_id == FAILURE_TYPE
        # Due before and after it: whoever commits in another thread must see one or the other.
        self._due[client] = None
        del client.outstanding[message.seq]
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
            if isinstance(result, int | ClosedError | QueueGone):
                self._gone += isinstance(result, QueueGone)  # and nobody waits for an answer
                client.commit(end)
            elif client.newest is not None:
                # What was lost of the answers is given again, when the queue is tried again.
                await self._router.set_aside(client.newest, result)

    async def aclose(self) -> None:
        """Stop, and close all queues; requests that were not answered come again next time.

        Cancelled, what was answered last may come again, and is known by its answer.
        """
        try:
            if self._committing is not None and not self._committing.done():
                self._committing.cancel()
                await asyncio.wait([self._committing])
            await self._commit_due()
        finally:
            await self._router.aclose()

    async def __aenter__(self) -> Self:
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
) -> int:
    if not isinstance(payload, msgspec.Struct):
        return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)
    if type_id != 0:
        raise InvalidArgument(f"type_id {type_id} for an object, which has that of its type")
    return writer.send(payload, timestamp_ns=timestamp_ns, cause=cause)


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
        _log.exception("handling request %d of %r failed", request.message.seq, request.requester)


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
    except ChronicleError:  # no space, say: without an answer it comes again after a restart
        _log.exception("request %d of %r has no answer", request.message.seq, request.requester)


def _not_before(request_ns: int, replies: Writer) -> int | None:
    """Return a timestamp for an answer; None: the writer's own will do.

    An answer is never older than its request, by which it is found again.
    """
    if time.time_ns() >= request_ns:
        return None
    return max(request_ns, replies.statistics().last_timestamp_ns)


def _answered_since(path: str, first: Message) -> set[tuple[int, int]]:
    """Return which requests from this one on, by seq and epoch, have an answer in the queue."""
    with open_reader(path) as replies:
        replies.seek_time(first.timestamp_ns)
        causes = ((reply.cause, reply.cause_epoch or 0) for reply in replies)
        return {
            (cause[1], epoch)
            for cause, epoch in causes
            if cause is not None and cause[0] == first.queue_id and cause[1] >= first.seq
        }
