"""The latest message per key: for consumers that are slower than their feed, or join it late.

On each request a conflation takes everything from its feed (a reader, a fan-in or a replay), keeps the newest
message of each key, and delivers those one by one. A consumer that keeps up sees every message; a slower one
sees fewer, but never an outdated one.

Keys take turns. A turn begins with everything that is waiting, in order of arrival; a key that gets a newer
message while it waits keeps its place. So no key, busy or quiet, can starve another.
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

_STEP_MESSAGES = 1024  # taken from the feed without a turn for the loop
_TURN_MESSAGES = 256  # handed over without a turn for the loop …
_TURN_S = 0.001  # … or for this long, including the consumer's own work


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
    """What can be conflated, and what there is to know about it."""

    source: Source
    readers: Callable[[], Iterable[_Reader]]
    ready: Callable[[], Awaitable[bool]]
    commit_before: "Callable[[Message | None, Places | None], None]"
    """Commit what was read before this message, or everything if there is none.

    Of many queues: up to these places, which they had all at once, before that message.
    """
    places: "Callable[[], Places] | None" = None
    """Return where each of many queues is; a single queue's messages contain it."""
    mark: Callable[[], Callable[[], object]]
    """Return what brings the source back to where it is now."""


class ConflationStatistics(HtmlStruct, frozen=True, kw_only=True):
    """What became of the messages ``taken`` from the feed.

    ``delivered`` messages were delivered, ``skipped`` ones replaced by newer ones. ``waiting`` keys have a
    message that is not delivered yet; ``held`` messages are of further keys, beyond ``max_keys``.
    """

    taken: int
    delivered: int
    skipped: int
    waiting: int
    held: int


class _Waiting(NamedTuple):
    message: Message
    skipped: int
    first: Message  # with which the key took its place in the turn
    number: int  # of the first, of all messages taken


class Conflation(Generic[K, T]):
    """The latest message per key. Created by ``conflate`` of a Reader, FanIn or Replay.

    ``for message in conflation`` delivers what is available now, ``async for`` waits for more. After each
    message ``skipped`` is the number of older ones of its key that it replaced. Cancelling a task anywhere
    loses nothing. While it is in use, read from the conflation, not from the reader.
    """

    def __init__(self, feed: Feed, key: Callable[[Message[T]], K], max_keys: int) -> None:
        function("key", key)
        positive("max_keys", max_keys)
        for reader in feed.readers():
            if reader.commit_every:
                raise InvalidArgument(
                    "a reader that commits by itself would commit what is still waiting;"
                    ' open it with commit="manual" and use Conflation.commit',
                    path=reader.path,
                )
        self._feed = feed
        self._source = feed.source
        self._key = key
        self._max_keys = max_keys
        self._turn: dict[K, _Waiting] = {}
        self._next_turn: dict[K, _Waiting] = {}
        self._held: deque[Message] = deque()  # a step at most
        self._read = 0  # messages that the feed gave
        self._checkpoints = Checkpoints()
        self._delivered = self._skipped = self._last_skipped = 0
        self._handed_over = 0  # since the loop had a turn …
        self._turn_ended_s = 0.0  # … which was then

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
            left = self._source.lag.messages  # no more: the feed may be quicker than we are
            while left > 0 and self._take_step():
                left -= _STEP_MESSAGES
        return self._hand_over()

    def __iter__(self) -> Iterator[Message[T]]:
        while (message := self.poll()) is not None:
            yield message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        while True:
            await self._take_all()
            message = self._hand_over()
            if message is not None:
                return message
            if not await self._feed.ready() or self._source.closed:
                raise StopAsyncIteration

    async def aclose(self) -> None:
        """Do nothing, for ``contextlib.aclosing``: the reader stays as it is."""

    def commit(self) -> None:
        """Commit so that a reader of this name resumes without losing an undelivered message.

        That is before the oldest message that is still waiting, so after a restart some messages may be
        delivered again, or newer ones of the same key in their place. For a fan-in it is a little earlier,
        see the guide. It does not wait for the disk: the positions are stored in mapped memory, which takes
        some microseconds per queue.
        """
        number, message = self._oldest()
        has_places = message is not None and self._feed.places is not None
        places = self._checkpoints.before(number) if has_places else None
        self._feed.commit_before(message, places)

    def _oldest(self) -> tuple[int, Message | None]:
        """Return the oldest message that is waiting, or None, and how many were taken before it.

        What waits in this turn was there before the next turn, and that before what is held.
        """
        for turn in (self._turn, self._next_turn):
            for waiting in turn.values():
                return waiting.number, waiting.first
        return self._read - len(self._held), self._held[0] if self._held else None

    async def _take_all(self) -> None:
        """Take what is there, yielding to the loop in between."""
        self._handed_over += 1
        if self._take_step():
            left = self._source.lag.messages
            while left > 0:
                await asyncio.sleep(0)
                left = left - _STEP_MESSAGES if self._take_step() else 0
        elif (
            self._handed_over >= _TURN_MESSAGES or time.monotonic() - self._turn_ended_s >= _TURN_S
        ):
            await asyncio.sleep(0)
        else:
            return
        self._handed_over = 0
        self._turn_ended_s = time.monotonic()

    def _take_step(self) -> bool:
        """Take some messages from the feed; True if there may be more to take."""
        held = self._held
        if not held:
            if self._source.closed:
                return False
            if self._feed.places is not None and self._checkpoints.is_due(self._read):
                self._checkpoints.add(self._read, self._feed.places(), self._oldest()[0])
            held.extend(self._source.read_batch(_STEP_MESSAGES))
            self._read += len(held)
        taken = 0
        while held and self._sort_in(held[0]):
            held.popleft()
            taken += 1
        return taken == _STEP_MESSAGES

    def _sort_in(self, message: Message) -> bool:
        """Let the message wait in place of an older one; False if its key has no room."""
        number = self._read - len(self._held)
        try:
            key = self._key(message)
            in_turn, in_next_turn = self._turn.get(key), self._next_turn.get(key)
        except BaseException as error:  # of the key function, or of a key that has no hash
            self._held.popleft()  # otherwise every call would raise it
            place = _path_of(self._feed, message)
            error.add_note(f"stepped over seq {message.seq} of {place}: it has no key")
            raise
        if in_turn is not None:
            skipped = in_turn.skipped + 1
            self._turn[key] = _Waiting(message, skipped, in_turn.first, in_turn.number)
            self._skipped += 1
            return True
        if in_next_turn is not None:
            del self._next_turn[key]
            self._next_turn[key] = _Waiting(message, in_next_turn.skipped + 1, message, number)
            self._skipped += 1
            return True
        if self._waiting_keys() >= self._max_keys:
            return False
        self._next_turn[key] = _Waiting(message, 0, message, number)
        return True

    def _waiting_keys(self) -> int:
        return len(self._turn) + len(self._next_turn)

    def _hand_over(self) -> Message[T] | None:
        if not self._turn:
            self._turn, self._next_turn = self._next_turn, self._turn
            if not self._turn:
                return None
        waiting = self._turn.pop(next(iter(self._turn)))
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
    """Fill in the latest message per key, in order of arrival, up to the present end.

    Given up, or failed, the feed is where it was.
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
                raise TooManyKeys(f"more than {max_keys} different keys", path=path)
            yield
    except BaseException:
        if not feed.source.closed:
            go_back()
        raise


def _path_of(feed: Feed, message: Message) -> str:
    """Return where the message is from, for errors."""
    paths = [reader.path for reader in feed.readers() if reader.source == message.source]
    return paths[0] if len(paths) == 1 else message.source
