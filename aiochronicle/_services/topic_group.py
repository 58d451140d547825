"""Groups over a topic with many writers (shared.py): one member in the queue of every writer.

Each queue has its own group state, so queues share nothing, and a writer that comes or goes affects only its
own queue. This module keeps the list of queues and takes turns among them.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from aiochronicle._base.arguments import expect, flag, one_of, permissions, positive
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.background import in_background
from aiochronicle._base.printable import printable
from aiochronicle._core.group import (
    Group,
    GroupInfo,
    GroupMember,
    Key,
    QueueGroup,
    check_settings,
    inspect_queue_group,
    milliseconds_between_tries,
    open_queue_group,
)
from aiochronicle._core.reader import check_start
from aiochronicle._hot import Delivery
from aiochronicle._services.discovery import Discovery
from aiochronicle._services.examiner import Attached, Examiner
from aiochronicle._services.shared import SharedTopic, is_shared
from aiochronicle._services.topic_turns import TopicTurns, number_of
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T_co
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    GroupInUse,
    InvalidArgument,
    QueueGone,
    QueueNotFound,
    ReaderNotFound,
)

__all__ = ["TopicGroup", "inspect_topic_group", "list_topic_groups"]

_log = logging.getLogger("aiochronicle.topic_group")

_LOOK_EVERY_S = 0.05
_RUN = 64  # messages of one queue before the turn of the next one
_TURN_S = 0.0002
_WAIT_STEP_S = 0.005
_COUNTERS = ("in_flight", "claimed", "acked", "nacked", "redelivered", "refused", "woken")
_TRY_AGAIN_S = 0.2


class TopicGroup(Group[T_co]):
    """A member of a group that shares the messages of a topic with many writers.

    Like a group of one queue, over all present and future writers of the topic: ``async for``, ``for``,
    ``next``, ``poll``, ``take_batch``, ``batches`` and ``wait`` cover the messages of all writers.
    ``delivery.message.source`` is the writer's queue, and seqs are those of that queue. The parameters are
    those of open_group; ``max_in_flight`` applies to each queue, and ``adopt`` continues where a TopicReader
    of this name stopped. ``wait_for_queue`` creates a missing topic; without it, a missing topic raises
    QueueNotFound.

    ``order="key"`` applies across all writers. Messages of one key are delivered one at a time: those of one
    writer in its order, those of several writers by timestamp (docs/guide/groups.md). ``key(message)``
    returns bytes, a str, an int, None, or a tuple of those.

    Opening waits for the disk: in an event loop use ``await TopicGroup.aopen(...)``. An exception of one
    queue is raised once; the queue stays in ``problems`` until it can be joined again. Iterate again to
    continue with the other queues.

    >>> with open_writer(tmp_path / "jobs", shared=True) as one:
    ...     _ = one.append(b"resize")
    >>> with TopicGroup(tmp_path / "jobs", "workers") as group:
    ...     for delivery in group:
    ...         with delivery:
    ...             print(delivery.message.payload)
    b'resize'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        lease_s: float = 30,
        max_in_flight: int = 1024,
        max_deliver: int | None = None,
        dead_letter: str | os.PathLike[str] | None = None,
        order: Literal["any", "key"] = "any",
        key: Key | None = None,
        start: Literal["first", "last"] | datetime = "first",
        retry_s: float | tuple[float, float] = (0.1, 30.0),
        adopt: bool = False,
        on_corrupt: Literal["raise", "skip"] = "raise",
        burst: int = 256,
        codec: type[T_co] | Codec[T_co] | Registry | Sequence[TypeOrCodec] | None = None,
        verify: bool = True,
        wait_for_queue: bool = False,
        mode: int = 0o600,
    ) -> None:
        self._topic = SharedTopic(path)
        self._name = name
        self._options: dict[str, Any] = {
            "lease_s": lease_s,
            "max_in_flight": max_in_flight,
            "max_deliver": max_deliver,
            "dead_letter": dead_letter,
            "retry_s": retry_s,
            "on_corrupt": on_corrupt,
            "codec": codec,
            "verify": verify,
            "mode": mode,
            "order": order,
            "key": None if key is None else number_of(key),
            "adopt": True,  # the writer created the position: see SharedTopic.open
        }
        if isinstance(start, int):
            raise InvalidArgument(
                'start: every writer of a topic counts its own seqs; give "first", "last" or a datetime'
            )
        if dead_letter is not None and _is_below(dead_letter, self._topic.path):
            raise InvalidArgument(f"dead_letter {os.fspath(dead_letter)!r} is in the topic itself")
        # Checked here, too, because there may be no queue yet.
        check_settings(
            path,
            lease_s=lease_s,
            max_in_flight=max_in_flight,
            max_deliver=max_deliver,
            dead_letter=dead_letter,
            order=order,
            key=key,
        )
        milliseconds_between_tries(retry_s)
        one_of("on_corrupt", dict.fromkeys(("raise", "skip")), on_corrupt)
        flag("verify", verify)
        check_start(start)
        permissions(mode)
        if codec is not None:
            registry_of(codec)
        self.problems: dict[str, ChronicleError] = {}
        self._errors: list[ChronicleError] = []  # to raise: of queues that could not be joined
        self._members: dict[str, QueueGroup[T_co]] = {}
        self._turns_by_key: TopicTurns | None = None
        self._turns: list[str] = []
        self._turn = self._run = 0
        self._burst = positive("burst", burst)
        self._turn_left = self._burst  # until other tasks run: see _give_turn
        self._turn_ends_s = 0.0
        self._examiner = Examiner(self._topic.queues, depth=1)
        self._looked_s = self._tried_s = 0.0
        self._closed = False
        self._since_ns = time.time_ns()
        self._joining = threading.Lock()  # held by a thread that joins, and by close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: dict[str, asyncio.Future[Any]] = {}
        self._follower: asyncio.Task[None] | None = None
        if not is_shared(self.path):
            if not expect("wait_for_queue", "a bool", bool, wait_for_queue):
                raise QueueNotFound("is no topic with many writers", path=self.path)
            self._topic.make(mode)
        self._topic.add_group(name, mode, adopt=expect("adopt", "a bool", bool, adopt))
        self._start: Literal["first", "last"] | datetime = start
        try:
            if key is not None:
                self._turns_by_key = TopicTurns(self._topic, name, mode)
                self._options["turns"] = self._turns_by_key.handle
            self._look(first=True)
        except BaseException:
            self.close()
            raise
        self._start = "first"  # queues that appear from now on are new

    @classmethod
    async def aopen(cls, path: str | os.PathLike[str], name: str, **options: Any) -> Self:
        """Open without blocking the event loop. If cancelled, close everything that was opened."""
        opening = asyncio.ensure_future(in_background(lambda: cls(path, name, **options)))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def path(self) -> str:
        """Directory of the topic."""
        return self._topic.path

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """How many deliveries of this member are not acknowledged or given back yet."""
        return sum(member.in_flight for member in self._members.values())

    def __repr__(self) -> str:
        """Return the topic, the group, and the number of writers."""
        state = "closed" if self._closed else f"{len(self._members)} writers"
        return f"<TopicGroup {self._name!r} of {printable(self.path)}, {state}>"

    def statistics(self) -> GroupMember:
        """Return the counters of this member since it was opened, over the queues that exist now.

        ``info`` describes the whole group.
        """
        self._check_open()
        nothing = dict.fromkeys(_COUNTERS, 0)
        mine = GroupMember(pid=os.getpid(), alive=True, since_ns=self._since_ns, **nothing)
        (sums,) = _together([mine, *(member.statistics() for member in self._members.values())])
        return sums

    def info(self) -> GroupInfo:
        """Describe the whole group, over all writers; ``low_seq`` and ``next_seq`` are sums."""
        return inspect_topic_group(self.path, self._name)

    # ---- queues ----

    def _look(self, *, first: bool = False) -> None:
        """Join the queues of new writers, and leave those that have gone."""
        self._looked_s = time.monotonic()
        self._examiner.examine(None, lambda: False)
        there = self._examiner.queues()
        for path in set(self._members) - there:
            self._leave(path)
        for path in sorted(there - set(self._members)):
            self._join(path, strict=first)
        self._look_at_turns()

    def _join(self, path: str, *, strict: bool = False) -> None:
        if self._closed or path in self._members:
            return
        try:
            if self._turns_by_key is not None:
                self._turns_by_key.make_room()
            member: QueueGroup[T_co] = open_queue_group(
                path, self._name, start=self._start, **self._options
            )
        except (QueueNotFound, QueueGone):  # folded away just now
            return
        except ChronicleError as error:
            if self.closed:  # closed meanwhile
                return
            is_known = path in self.problems
            self.problems[path] = error
            if strict or (isinstance(error, InvalidArgument | GroupInUse) and not is_known):
                raise
            if not is_known:
                _log.warning("cannot join a queue of the topic: %s", printable(error))
            return
        if not self._keep(path, member):
            member.close()

    def _keep(self, path: str, member: QueueGroup[T_co]) -> bool:
        """Add a member; False if the group was closed, or another thread joined the queue, meanwhile."""
        with self._joining:
            if self._closed or path in self._members:
                return False
            self.problems.pop(path, None)
            self._members[path] = member
            self._turns = list(self._members)
            return True

    def _leave(self, path: str) -> None:
        member = self._members.pop(path, None)
        self._turns = list(self._members)
        self.problems.pop(path, None)
        waiter = self._waiters.pop(path, None)
        if waiter is not None:
            waiter.cancel()
        if member is not None:
            queue_id = member.queue_id
            member.close()
            if self._turns_by_key is not None and not os.path.lexists(path):
                with contextlib.suppress(ClosedError):
                    self._turns_by_key.handle.forget(queue_id)

    def _look_at_turns(self) -> None:
        """Continue with keys that wait for a message of a queue that this member has not joined."""
        if self._turns_by_key is not None:
            with contextlib.suppress(ClosedError):
                self._turns_by_key.settle_unknown()

    def _set_aside(self, path: str, error: ChronicleError) -> None:
        """Leave a queue that failed, until it can be joined again."""
        self._leave(path)
        self.problems[path] = error

    def _try_again(self) -> None:
        """Join the queues that were set aside, if they still exist. Runs in a thread."""
        for path in list(self.problems):
            if Path(path).is_dir():
                self._join(path)
            else:
                self.problems.pop(path, None)

    def _look_if_due(self) -> bool:
        if self._follower is not None or time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return False
        self._look()
        return True

    # ---- without waiting ----

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed", path=self.path)

    def _take(self) -> Delivery[T_co] | None:
        """Return a delivery of the queue whose turn it is, or of the next queue that has one."""
        self._check_open()
        for _ in range(len(self._turns)):
            if self._turn >= len(self._turns):
                self._turn = 0
            path = self._turns[self._turn]
            try:
                delivery = self._members[path].poll()
            except QueueGone as error:
                self._set_aside(path, error)
                continue
            except ChronicleError as error:
                self._check_open()
                self._set_aside(path, error)
                raise
            self._run += 1
            if delivery is None or self._run >= _RUN:
                self._turn += 1
                self._run = 0
            if delivery is not None:
                return delivery
        return None

    def poll(self) -> Delivery[T_co] | None:
        """Return a delivery for this member, None if none is available now."""
        delivery = self._take()
        if delivery is None and self._look_if_due():
            delivery = self._take()
        return delivery

    def __iter__(self) -> Iterator[Delivery[T_co]]:
        """Yield the deliveries available to this member now."""
        if self._follower is None:
            self._look()
        while (delivery := self._take()) is not None:
            yield delivery

    def take_batch(self, max_messages: int = 1024) -> list[Delivery[T_co]]:
        """Claim available messages, at most ``max_messages``. Never waits."""
        most = positive("max_messages", max_messages)
        batch: list[Delivery[T_co]] = []
        while len(batch) < most and (delivery := self.poll()) is not None:
            batch.append(delivery)
        return batch

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until there is a message for this member; False after ``timeout``.

        It polls 200 times a second. In an event loop it blocks all other tasks.
        """
        limit_s = checked_timeout(timeout)
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._check_open()
            self._look_if_due()
            if self._is_something_there():
                return True
            if end_s is not None and time.monotonic() >= end_s:
                return False
            time.sleep(_WAIT_STEP_S)

    def _is_something_there(self) -> bool:
        for path, member in list(self._members.items()):
            try:
                if member.wait(0):
                    return True
            except QueueGone as error:
                self._set_aside(path, error)
            except ChronicleError:
                self._check_open()
                return True  # poll raises it
        return False

    # ---- in an event loop ----

    async def next(self, timeout: float | None = None) -> Delivery[T_co]:
        """Wait for the next delivery; TimeoutError after ``timeout`` seconds, ClosedError if closed.

        If cancelled or timed out, it has claimed nothing.
        """
        limit_s = checked_timeout(timeout)
        if limit_s is None:
            return await self._next()
        async with asyncio.timeout(limit_s):
            return await self._next()

    async def _next(self) -> Delivery[T_co]:
        await self._give_turn()
        while (delivery := self._take()) is None:
            await self._something_new()
        return delivery

    async def _give_turn(self) -> None:
        """Let other tasks run every ``burst`` messages or 200 µs, however many messages are available."""
        self._turn_left -= 1
        if self._turn_left > 0 and time.monotonic() < self._turn_ends_s:
            return
        await asyncio.sleep(0)
        self._turn_left = self._burst
        self._turn_ends_s = time.monotonic() + _TURN_S

    def __aiter__(self) -> AsyncIterator[Delivery[T_co]]:
        return self

    async def __anext__(self) -> Delivery[T_co]:
        try:
            return await self._next()
        except ClosedError:
            if not self._closed:
                raise
        raise StopAsyncIteration

    async def batches(self, max_messages: int = 1024) -> AsyncIterator[list[Delivery[T_co]]]:
        """Iterate over lists of deliveries: ``async for batch in group.batches()``.

        A batch has at least one and at most ``max_messages``. If cancelled, it has claimed nothing.
        """
        most = positive("max_messages", max_messages)
        while not self._closed:
            batch: list[Delivery[T_co]] = []
            while len(batch) < most and (delivery := self._take()) is not None:
                batch.append(delivery)
            if batch:
                yield batch
                await asyncio.sleep(0)
                continue
            try:
                await self._something_new()
            except ClosedError:
                return

    async def _something_new(self) -> None:
        """Wait until a queue may have a message, or queues have come or gone."""
        self._follow()
        for path, member in list(self._members.items()):
            if path not in self._waiters:
                self._waiters[path] = asyncio.ensure_future(member._ready())
        changed = self._changed
        waiting = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait(
                [*self._waiters.values(), waiting],
                return_when=asyncio.FIRST_COMPLETED,
                timeout=_TRY_AGAIN_S if self.problems or self._turns_by_key else None,
            )
        finally:
            waiting.cancel()
        for path, waiter in list(self._waiters.items()):
            if waiter.done():
                self._waiters.pop(path, None)
                self._take_result(path, waiter)
        self._check_open()
        if self._errors:
            raise self._errors.pop(0)
        if self.problems and time.monotonic() - self._tried_s >= _TRY_AGAIN_S:
            self._tried_s = time.monotonic()
            await in_background(self._try_again)
        if self._turns_by_key is not None and self._turns_by_key.is_waiting():
            await in_background(self._look_at_turns)

    def _take_result(self, path: str, waiter: "asyncio.Future[Any]") -> None:
        if waiter.cancelled():
            return
        error = waiter.exception()
        if error is None or (isinstance(error, ClosedError) and self._closed):
            return
        if isinstance(error, ChronicleError):
            self._set_aside(path, error)
        if not isinstance(error, QueueGone):
            raise error

    def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._check_open()
        self._loop = loop
        self._waiters.clear()
        self._changed = asyncio.Event()
        self._follower = loop.create_task(self._follow_writers())

    async def _follow_writers(self) -> None:
        # make=False: a topic that was moved away stays away, and one that cannot be created does not end the
        # task.
        discovery = Discovery(self._topic.queues, depth=1, rescan_s=5.0, make=False)
        try:
            async for event in discovery:
                if isinstance(event, Attached):
                    await self._join_in_background(event.path)
                else:
                    self._leave(event.path)
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
        finally:
            await discovery.aclose()

    async def _join_in_background(self, path: str) -> None:
        try:
            await in_background(lambda: self._join(path))
        except ChronicleError as error:  # the waiting call raises it
            self._errors.append(error)

    def close(self) -> None:
        """Leave the group; unacknowledged messages are given back and go to other members."""
        with self._joining:
            self._closed = True
        if self._loop is not None and self._loop.is_running():
            with contextlib.suppress(RuntimeError):  # the loop was closed at this moment
                self._loop.call_soon_threadsafe(self._stop_following)
        for member in list(self._members.values()):
            member.close()
        if self._turns_by_key is not None:
            self._turns_by_key.close()

    async def aclose(self) -> None:
        """Close without blocking the loop. If cancelled, it is still closed."""
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            follower = self._follower
            self._stop_following()
            if follower is not None:
                await asyncio.wait([follower])
        await in_background(self.close)

    def _stop_following(self) -> None:
        self._changed.set()
        for waiter in self._waiters.values():
            waiter.cancel()
        if self._follower is not None:
            self._follower.cancel()


def _close_opened(opening: "asyncio.Future[TopicGroup[Any]]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _is_below(place: str | os.PathLike[str], topic: str) -> bool:
    return Path(os.path.realpath(place)).is_relative_to(os.path.realpath(topic))


def inspect_topic_group(path: str | os.PathLike[str], name: str) -> GroupInfo:
    """Return the result of ``inspect_group`` for a group of a topic, over all its writers."""
    topic = SharedTopic(path)
    found: list[GroupInfo] = []
    for writer in topic.writers():
        with contextlib.suppress(ReaderNotFound, QueueNotFound, QueueGone):
            found.append(inspect_queue_group(topic.queue(writer), name))
    if not found:
        raise ReaderNotFound(f"has no group {name!r}, or no writer yet", path=topic.path)
    oldest = [info.oldest_ns for info in found if info.oldest_ns is not None]
    sums = {
        field: sum(getattr(info, field) for info in found)
        for field in ("pending", "in_flight", "delayed", "retried", "low_seq", "next_seq")
    }
    return msgspec.structs.replace(
        found[0],
        oldest_ns=min(oldest) if oldest else None,
        current=all(info.current for info in found),
        members=_together([member for info in found for member in info.members]),
        **sums,
    )


def list_topic_groups(path: str | os.PathLike[str]) -> list[GroupInfo]:
    """Return the result of ``list_groups`` for a topic with many writers."""
    topic = SharedTopic(path)
    found: list[GroupInfo] = []
    for name in topic.names():
        with contextlib.suppress(ReaderNotFound):
            found.append(inspect_topic_group(path, name))
    return found


def _together(members: list[GroupMember]) -> tuple[GroupMember, ...]:
    """Merge the members of all queues: a member joins in every queue of the topic."""
    by_pid: dict[int, list[GroupMember]] = {}
    for member in members:
        by_pid.setdefault(member.pid, []).append(member)
    return tuple(
        msgspec.structs.replace(
            ones[0],
            alive=any(one.alive for one in ones),
            since_ns=min(one.since_ns for one in ones),
            **{field: sum(getattr(one, field) for one in ones) for field in _COUNTERS},
        )
        for ones in by_pid.values()
    )
