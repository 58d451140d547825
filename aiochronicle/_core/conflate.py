"""Delivers the latest message per key, to consumers that are slower than their feed or join it late.

On each request a conflation takes everything from its feed (a reader, a fan-in or a replay), keeps the newest
message of each key, and delivers these one by one. A consumer that keeps up sees every message. A slower one
sees fewer, but never an outdated one.

Delivery goes in rounds. A round begins with all waiting keys, in order of arrival. A key that gets a newer
message while it waits keeps its place, so no key can starve another.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from aiochronicle._base.arguments import function, positive
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.checkpoints import Checkpoints, Places
from aiochronicle._hot import Message
from aiochronicle.codec import T
from aiochronicle.errors import InvalidArgument, TooManyKeys

__all__ = ["Conflation", "ConflationStatistics", "Feed", "take_snapshot", "take_snapshot_now"]

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")  # what messages decode to

_STEP_MESSAGES = 1024  # taken from the feed before yielding to the loop
_YIELD_AFTER_MESSAGES = 256  # delivered before yielding to the loop …
_YIELD_AFTER_S = 0.001  # … or for this long, including the consumer's own work


class _Lag(Protocol):
    @property
    def messages(self) -> int: ...


class Source(Protocol):
    """A reader, a fan-in or a replay."""

    @property
    def closed(self) -> bool: ...
    @property
    def lag(self) -> _Lag: ...
    def read_batch(self, max_messages: int, /) -> list[Message[Any]]: ...


class _Reader(Protocol):
    @property
    def commit_every(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def source(self) -> str: ...


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A source that can be conflated, with the functions that this needs."""

    source: Source
    readers: Callable[[], Iterable[_Reader]]
    ready: Callable[[], Awaitable[bool]]
    commit_before: "Callable[[Message | None, Places | None], None]"
    """Commit everything before this message, or everything that was read if it is None.

    Several queues are committed up to the given places, which belong to one moment before that message.
    """
    places: "Callable[[], Places] | None" = None
    """Return the positions of several queues. A single queue needs none: its messages have theirs."""
    mark: Callable[[], Callable[[], object]]
    """Return a function that moves the source back to where it is now."""


class ConflationStatistics(HtmlStruct, frozen=True, kw_only=True):
    """What happened to the messages ``taken`` from the feed.

    ``delivered`` messages were delivered; ``skipped`` ones were replaced by newer ones. ``waiting`` is the
    number of keys with a message that is not delivered yet. ``held`` messages have keys beyond ``max_keys``.
    """

    taken: int
    delivered: int
    skipped: int
    waiting: int
    held: int


class _Waiting(NamedTuple):
    message: Message
    skipped: int
    first: Message  # gave the key its place in the round
    number: int  # of ``first``, counted over all messages taken


class Conflation(Generic[K, T]):
    """The latest message per key. Created by ``conflate`` of a Reader, FanIn or Replay.

    ``for message in conflation`` delivers what is available now, ``async for`` waits for more. After each
    message, ``skipped`` is the number of older messages of its key that it replaced. Cancelling a task
    anywhere loses nothing. While the conflation is in use, do not read from the reader itself.
    """

    def __init__(self, feed: Feed, key: Callable[[Message[T]], K], max_keys: int) -> None:
        function("key", key)
        positive("max_keys", max_keys)
        for reader in feed.readers():
            if reader.commit_every:
                raise InvalidArgument(
                    "a reader that commits by itself would commit messages that are still waiting:"
                    ' open it with commit="manual" and use Conflation.commit',
                    path=reader.path,
                )
        self._feed = feed
        self._source = feed.source
        self._key = key
        self._max_keys = max_keys
        self._round: dict[K, _Waiting] = {}
        self._next_round: dict[K, _Waiting] = {}
        self._held: deque[Message] = deque()  # at most one step
        self._read = 0  # messages taken from the feed
        self._checkpoints = Checkpoints()
        self._delivered = self._skipped = self._last_skipped = 0
        self._since_yield = 0  # messages delivered since the last yield to the loop
        self._yielded_at_s = 0.0

    @property
    def skipped(self) -> int:
        """How many older messages of its key the last delivered message replaced."""
        return self._last_skipped

    def statistics(self) -> ConflationStatistics:
        """Return the counters of this conflation."""
        waiting, held = self._waiting_keys(), len(self._held)
        return ConflationStatistics(
            taken=self._delivered + self._skipped + waiting + held,
            delivered=self._delivered,
            skipped=self._skipped,
            waiting=waiting,
            held=held,
        )

    def poll(self) -> Message[T] | None:
        """Return the next message if there is one now."""
        if self._take_step():
            left = (
                self._source.lag.messages
            )  # a limit, because the feed may be faster than this loop
            while left > 0 and self._take_step():
                left -= _STEP_MESSAGES
        return self._next_waiting()

    def __iter__(self) -> Iterator[Message[T]]:
        while (message := self.poll()) is not None:
            yield message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        while True:
            await self._take_all()
            message = self._next_waiting()
            if message is not None:
                return message
            if not await self._feed.ready() or self._source.closed:
                raise StopAsyncIteration

    async def aclose(self) -> None:
        """Do nothing. It exists for ``contextlib.aclosing``; the reader stays open."""

    def commit(self) -> None:
        """Commit so that a reader of this name resumes without losing an undelivered message.

        The committed position is before the oldest message that is still waiting. After a restart some
        messages may therefore be delivered again, or newer ones of the same key in their place. A fan-in
        commits slightly earlier positions, see the guide. Does not wait for the disk: storing the positions
        in mapped memory takes a few microseconds per queue.
        """
        number, message = self._oldest()
        has_places = message is not None and self._feed.places is not None
        places = self._checkpoints.before(number) if has_places else None
        self._feed.commit_before(message, places)

    def _oldest(self) -> tuple[int, Message | None]:
        """Return how many messages were taken before the oldest waiting one, and that message, or None.

        Messages of this round are older than those of the next round, and these older than those held.
        """
        for this_round in (self._round, self._next_round):
            for waiting in this_round.values():
                return waiting.number, waiting.first
        return self._read - len(self._held), self._held[0] if self._held else None

    async def _take_all(self) -> None:
        """Take all available messages, yielding to the loop in between."""
        self._since_yield += 1
        if self._take_step():
            left = self._source.lag.messages
            while left > 0:
                await asyncio.sleep(0)
                left = left - _STEP_MESSAGES if self._take_step() else 0
        elif (
            self._since_yield >= _YIELD_AFTER_MESSAGES
            or time.monotonic() - self._yielded_at_s >= _YIELD_AFTER_S
        ):
            await asyncio.sleep(0)
        else:
            return
        self._since_yield = 0
        self._yielded_at_s = time.monotonic()

    def _take_step(self) -> bool:
        """Take up to _STEP_MESSAGES messages from the feed; True if there may be more."""
        held = self._held
        if not held:
            if self._source.closed:
                return False
            if self._feed.places is not None and self._checkpoints.is_due(self._read):
                self._checkpoints.add(self._read, self._feed.places(), self._oldest()[0])
            held.extend(self._source.read_batch(_STEP_MESSAGES))
            self._read += len(held)
        taken = 0
        while held and self._store_latest(held[0]):
            held.popleft()
            taken += 1
        return taken == _STEP_MESSAGES

    def _store_latest(self, message: Message) -> bool:
        """Store the message in place of an older one of its key; False if there is no space for the key."""
        number = self._read - len(self._held)
        try:
            key = self._key(message)
            in_round, in_next_round = self._round.get(key), self._next_round.get(key)
        except BaseException as error:  # the key function raised, or the key is not hashable
            self._held.popleft()  # otherwise every call would raise it
            place = _path_of(self._feed, message)
            error.add_note(f"skipped seq {message.seq} of {place}: it has no key")
            raise
        if in_round is not None:
            skipped = in_round.skipped + 1
            self._round[key] = _Waiting(message, skipped, in_round.first, in_round.number)
            self._skipped += 1
            return True
        if in_next_round is not None:
            del self._next_round[key]
            self._next_round[key] = _Waiting(message, in_next_round.skipped + 1, message, number)
            self._skipped += 1
            return True
        if self._waiting_keys() >= self._max_keys:
            return False
        self._next_round[key] = _Waiting(message, 0, message, number)
        return True

    def _waiting_keys(self) -> int:
        return len(self._round) + len(self._next_round)

    def _next_waiting(self) -> Message[T] | None:
        if not self._round:
            self._round, self._next_round = self._next_round, self._round
            if not self._round:
                return None
        waiting = self._round.pop(next(iter(self._round)))
        self._last_skipped = waiting.skipped
        self._delivered += 1
        return waiting.message


def take_snapshot_now(
    feed: Feed, key: Callable[[Message[M]], K], max_keys: int
) -> dict[K, Message[M]]:
    """See Reader.snapshot_now."""
    latest: dict[K, Message[M]] = {}
    for _ in _steps(feed, key, max_keys, latest):
        pass
    return latest


async def take_snapshot(
    feed: Feed, key: Callable[[Message[M]], K], max_keys: int
) -> dict[K, Message[M]]:
    """See Reader.snapshot."""
    latest: dict[K, Message[M]] = {}
    with contextlib.closing(_steps(feed, key, max_keys, latest)) as steps:
        for _ in steps:
            await asyncio.sleep(0)
    return latest


def _steps(
    feed: Feed, key: Callable[[Message[M]], K], max_keys: int, latest: dict[K, Message[M]]
) -> Generator[None, None, None]:
    """Collect the latest message per key, in order of arrival, up to the current end.

    If it is closed early or fails, it moves the feed back to where it was.
    """
    function("key", key)
    positive("max_keys", max_keys)
    go_back = feed.mark()
    left = feed.source.lag.messages
    try:
        while left > 0 and (batch := feed.source.read_batch(min(left, _STEP_MESSAGES))):
            left -= len(batch)
            for message in batch:
                name = key(message)
                latest.pop(name, None)
                latest[name] = message
            if len(latest) > max_keys:
                path = _path_of(feed, batch[-1])
                raise TooManyKeys(f"there are more than {max_keys} different keys", path=path)
            yield
    except BaseException:
        if not feed.source.closed:
            go_back()
        raise


def _path_of(feed: Feed, message: Message) -> str:
    """Return the path of the message's queue, or its name if that is ambiguous, for errors."""
    paths = [reader.path for reader in feed.readers() if reader.source == message.source]
    return paths[0] if len(paths) == 1 else message.source
