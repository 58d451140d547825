"""Writes the answers of a responder, and commits the requests that have an answer."""

import asyncio
import copy
from functools import partial
from typing import Generic

import msgspec

from aiochronicle._base.background import in_background
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle._services.request import CANNOT_WRITE, FAILURE_TYPE, Payload, write_payload
from aiochronicle._services.responder_client import AnsweredUpTo, AnswersSince, Client, not_before
from aiochronicle._services.router import Router
from aiochronicle.codec import T
from aiochronicle.errors import ClosedError, CorruptionError, QueueGone

__all__ = ["AnswerWriters"]

_COMMIT_INTERVAL_S = 0.1
_REMOVED = ClosedError, QueueGone  # one of the requester's two queues was removed


class AnswerWriters(Generic[T]):
    """Writes the answers to each requester, and commits its requests when their answers are on disk."""

    def __init__(self, router: Router[T]) -> None:
        self.clients: dict[tuple[str, int], Client] = {}
        self.due: dict[Client, None] = {}  # in order: requesters whose answers wait for a flush
        self.answered = self.failed = self.gone = 0
        self._router = router
        self._judged: dict[str, str] = {}  # the last damage of each requester's answers
        self._committing: asyncio.Task[None] | None = None

    async def client_of(self, message: Message) -> Client:
        """Return the requester that sent a message; opens its answer queue if necessary."""
        key = message.source, message.queue_id
        client = self.clients.get(key)
        if client is None or client.reader.closed:
            reader = self._router.reader_of(message)
            replies = await self._router.reply(message)
            answered = await self._answered_since(replies.path, message)
            for old in [old for old, one in self.clients.items() if one.reader.closed]:
                if old != key and not self.clients[old].outstanding:
                    del self.clients[old]
            if client is None:
                client = self.clients.setdefault(key, Client(reader, replies, answered))
            else:
                client.attach(reader, replies, answered)
        elif client.replies.closed:
            client.replies = await self._router.reply(message)
        return client

    async def _answered_since(self, path: str, first: Message) -> set[tuple[int, int]]:
        """Return which requests from this one on, by seq and epoch, have an answer in the queue.

        ``on_corrupt`` applies to a damaged answer. If the answer is skipped, its request has none.
        """
        answers = AnswersSince(path, first)
        last: CorruptionError | None = None
        try:
            while (damage := await in_background(partial(answers.read, last))) is not None:
                if last is not None and str(damage) == str(last):  # skipping it did not help
                    raise damage
                self._judge_answer(first, damage)
                last = damage
            return answers.answered
        finally:
            await in_background(answers.close)

    def _judge_answer(self, first: Message, damage: CorruptionError) -> None:
        """Raise a damaged answer to a requester, unless ``on_corrupt`` skips it."""
        if self._judged.get(first.source) == str(damage):  # each retry finds it again
            raise damage
        verdict = self._router._judge(damage)  # pyright: ignore[reportPrivateUsage]
        if verdict.skip:
            self._router._count(self._router.reader_of(first).path).skipped += 1  # pyright: ignore[reportPrivateUsage]
            self._router._log_skip(damage)  # pyright: ignore[reportPrivateUsage]
            return
        self._judged[first.source] = str(damage)
        if verdict.raised is not None:
            self._router._fail(verdict.raised)
        raise damage

    def answer(
        self, client: Client, message: Message, payload: Payload | msgspec.Struct, type_id: int
    ) -> None:
        """Write the answer to a request. Never waits."""
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
            self.gone += 1
            client.lost_answers = error
        except CANNOT_WRITE as error:
            # The requester is set aside until the answer can be written; then its requests are
            # delivered again. No further answer is written before that, not even a failure.
            client.lost_answers = copy.copy(error)  # the copy has no frames that hold the message
            self.due[client] = None
            raise
        else:
            client.note_answer(message)
            self.answered += 1
            self.failed += type_id == FAILURE_TYPE
        self.forget_outstanding(client, message)

    def forget_outstanding(self, client: Client, message: Message) -> None:
        """Commit this request, which needs no further answer, with the next flush."""
        # Due before and after it, so that a commit in another thread sees one or the other.
        self.due[client] = None
        client.outstanding.pop(message.seq, None)
        self.due[client] = None

    def keep_committing(self) -> None:
        """Start the task that commits answered requests, in the running loop."""
        loop = asyncio.get_running_loop()
        task = self._committing
        if task is None or task.done() or task.get_loop() is not loop:
            name = f"commits of {self._router.root}"
            self._committing = loop.create_task(self._commit_repeatedly(), name=name)

    async def _commit_repeatedly(self) -> None:
        # Periodically, because other threads may give answers, and so that answers share syncs.
        while self.due or any(client.outstanding for client in self.clients.values()):
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            await self._commit_due()

    async def _commit_due(self) -> None:
        """Flush answers, and then commit the requests that have one."""
        ends: dict[Client, AnsweredUpTo | None] = {}
        for client in list(self.due):
            del self.due[client]
            if not client.reader.closed:
                ends[client] = client.answered_up_to()
        if not ends:
            return
        writers = [client.replies for client in ends]
        try:
            flushed = await in_background(lambda: Writer.flush_together(writers))
        except BaseException:
            self.due.update(dict.fromkeys(ends))  # the next commit, or aclose, flushes them
            raise
        for (client, end), result in zip(ends.items(), flushed, strict=True):
            lost = client.lost_answers or (None if isinstance(result, int) else result)
            if lost is None:
                client.commit(end)
            elif client.newest is not None:
                # The retry of the queue gives lost answers again.
                self.gone += isinstance(result, QueueGone) and client.lost_answers is None
                await self._router.set_aside(client.newest, lost)

    async def stop_committing(self) -> None:
        """End the task that commits, and commit what is due."""
        task = self._committing
        if task is not None and task.get_loop() is asyncio.get_running_loop() and not task.done():
            task.cancel()
            await asyncio.wait([task])
        await self._commit_due()
