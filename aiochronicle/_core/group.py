"""Groups: members in any process share the messages of one queue, one member per message at a time.

The work per message is in C (csrc/python/group.c over csrc/group_slots.c; the protocol is described at the
head of csrc/group.c). This module opens groups, checks settings, waits, and hands messages that were
delivered too often to dead_letter_mover.py.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, Self

from aiochronicle import _hot
from aiochronicle._base.arguments import (
    expect,
    flag,
    integer,
    number,
    one_of,
    permissions,
    positive,
)
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.closing import Closing
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.backup_mark import refuse_backup
from aiochronicle._core.dead_letter_mover import DeadLetterMover, check_place, fingerprint
from aiochronicle._core.reader import Reader, WaitStrategy, open_reader, spin_ns_of
from aiochronicle._hot import Delivery, Message
from aiochronicle._layout import position_name
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T, T_co
from aiochronicle.errors import (
    AlreadySettled,
    ClosedError,
    InvalidArgument,
    InvalidName,
    LeaseLost,
)

__all__ = [
    "Delivery",
    "Group",
    "GroupInfo",
    "GroupMember",
    "QueueGroup",
    "check_settings",
    "group_names",
    "inspect_queue_group",
    "milliseconds_between_tries",
    "open_queue_group",
    "undone_seqs",
]

_log = logging.getLogger("aiochronicle.group")
_hot.set_delivery_errors(LeaseLost, AlreadySettled)

_FOREVER = 2**64 - 1
_DAY_S = lib.AC_GROUP_DELAY_MAX_MS / 1000
_ATTEMPTS_MAX = 254
_COUNTERS = ("since_ns", "claimed", "acked", "nacked", "redelivered", "refused", "woken")

Key = Callable[[Message[Any]], Hashable]


def _milliseconds(name: str, wanted: str, value: float, least_s: float) -> int:
    return max(round(number(name, wanted, value, least_s, _DAY_S) * 1000), 0)


def _encode_name(path: str | os.PathLike[str], name: str) -> bytes:
    if "\0" in expect("name", "a str", str, name):
        raise InvalidName(f"group name {name!r} contains a NUL byte", path=os.fspath(path))
    return os.fsencode(name)


def milliseconds_between_tries(retry_s: float | tuple[float, float]) -> tuple[int, int]:
    """Return the first and the longest retry delay, in milliseconds."""
    wanted = "seconds, 0 to 86400, or a pair of them: the first and the longest delay"
    first, most = retry_s if isinstance(retry_s, tuple) and len(retry_s) == 2 else (retry_s, 30.0)
    first_ms = _milliseconds("retry_s", wanted, first, 0)
    return first_ms, max(first_ms, _milliseconds("retry_s", wanted, most, 0))


def open_queue_group(
    path: str | os.PathLike[str],
    name: str,
    *,
    lease_s: float = 30,
    max_in_flight: int = 1024,
    max_deliver: int | None = None,
    dead_letter: str | os.PathLike[str] | None = None,
    order: Literal["any", "key"] = "any",
    key: Key | None = None,
    start: Literal["first", "last"] | int | datetime = "first",
    retry_s: float | tuple[float, float] = (0.1, 30.0),
    adopt: bool = False,
    on_corrupt: Literal["raise", "skip"] = "raise",
    wait: WaitStrategy = "park",
    burst: int = 256,
    codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
    verify: bool = True,
    mode: int = 0o600,
    turns: _hot.Turns | None = None,
) -> "QueueGroup[T]":
    """Join a group of one queue: see ``open_group``, which also accepts topics.

    ``turns`` are those of the topic that the queue belongs to: ``key`` then returns a number, and the order
    is that over all queues of the topic.
    """
    config, place = check_settings(
        path,
        lease_s=lease_s,
        max_in_flight=max_in_flight,
        max_deliver=max_deliver,
        dead_letter=dead_letter,
        order=order,
        key=key,
    )
    encoded_name = ffi.new("char[]", _encode_name(path, name))
    config.name = encoded_name
    if turns is not None:
        config.by_key = 2
    config.adopt = flag("adopt", adopt)
    retry_ms = milliseconds_between_tries(retry_s)
    spin_ns = spin_ns_of(wait)
    permissions(mode)
    leaving = None
    if max_deliver is not None and place is not None:
        leaving = DeadLetterMover(
            place, Path(os.fsdecode(encode_path(path))), name, max_deliver, mode
        )
    refuse_backup(Path(os.fsdecode(encode_path(path))))
    options: dict[str, Any] = {"on_corrupt": on_corrupt, "codec": codec, "verify": verify}
    walker: Reader[T] = open_reader(path, start=start, burst=burst, mode=mode, **options)
    again: Reader[T] | None = None
    try:
        again = open_reader(path, mode=mode, **options)
        handle = ffi.new("ac_group_t **")
        error = new_error()
        handles = [ffi.cast("ac_reader_t *", reader._address) for reader in (walker, again)]
        check(lib.ac_group_open(*handles, config, handle, error), error)
    except BaseException:
        walker.close()
        if again is not None:
            again.close()
        raise
    group: QueueGroup[T] = QueueGroup(
        int(ffi.cast("uintptr_t", handle[0])),
        walker,
        again,
        key,
        leaving.put if leaving else None,
        max_deliver or 0,
        *retry_ms,
        burst,
        spin_ns,
        turns,
        name=name,
        leaving=leaving,
    )
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("joined: %s", printable(group))
    return group


def check_settings(
    path: str | os.PathLike[str],
    *,
    lease_s: float,
    max_in_flight: int,
    max_deliver: int | None,
    dead_letter: str | os.PathLike[str] | None,
    order: str,
    key: Key | None,
) -> tuple[Any, Path | None]:
    """Return the settings that all members share, for the engine, and the path of the dead-letter queue."""
    config = ffi.new("ac_group_config_t *")
    config.lease_ms = _milliseconds("lease_s", "seconds, 0.001 to 86400", lease_s, 0.001)
    config.limit = integer("max_in_flight", max_in_flight, 1, lib.AC_GROUP_LIMIT_MAX)
    config.by_key = _check_order(order, key)
    if max_deliver is None and dead_letter is None:
        return config, None
    if max_deliver is None or dead_letter is None:
        raise InvalidArgument(
            "max_deliver and dead_letter go together: a message that is delivered no more has to"
            " go somewhere"
        )
    config.max_deliver = integer("max_deliver", max_deliver, 1, _ATTEMPTS_MAX)
    place = check_place(dead_letter, path)
    config.dead_letter = fingerprint(place)
    return config, place


def _check_order(order: str, key: Key | None) -> int:
    by_key = one_of("order", {"any": 0, "key": 1}, order)
    if bool(by_key) != (key is not None):
        raise InvalidArgument('order="key" and a function key= go together')
    if key is not None and not callable(key):
        raise InvalidArgument(f"key must be a function of a message, not {key!r}")
    return by_key


class Group(Closing, ABC, Generic[T_co]):
    """A member of a group. Created by open_group; a context manager, ``with`` and ``async with``.

    It is a member in one queue; a TopicGroup is a member in the queues of all writers of a topic.

    ``async for delivery in group`` continues until the member is closed; ``for delivery in group`` delivers
    what is available now. End each Delivery with ``ack()``, ``nack(delay_s)``, or ``async with delivery:``,
    which acknowledges on success and gives back on an exception. A delivery that is garbage-collected before
    that is given back.

    Cancelling anywhere loses nothing: messages that were not delivered were not claimed, and the message of a
    cancelled ``async with`` block is delivered again at once, which does not count as an attempt.

    >>> async def work(group: Group) -> None:
    ...     async for delivery in group:
    ...         async with delivery:
    ...             print(delivery.message.payload)
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the group."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Directory of the queue, or of the topic."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True after close(), and in a forked child."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """How many deliveries of this member are not acknowledged or given back yet."""

    @abstractmethod
    def poll(self) -> Delivery[T_co] | None:
        """Return a delivery for this member if there is one now, else None."""

    @abstractmethod
    def take_batch(self, max_messages: int = 1024) -> list[Delivery[T_co]]:
        """Claim available messages, at most ``max_messages``. Never waits."""

    @abstractmethod
    def __iter__(self) -> Iterator[Delivery[T_co]]:
        """Yield the deliveries available to this member now."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until there is a message for this member; False after ``timeout``.

        For programs without an event loop. Another member may be quicker, so ``poll`` may still return None.
        """

    @abstractmethod
    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, Delivery[T_co]]:
        """Wait for the next delivery; TimeoutError after ``timeout`` seconds, ClosedError if closed.

        If cancelled or timed out, it has claimed nothing.
        """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Delivery[T_co]]:
        """Yield deliveries until the member is closed."""

    @abstractmethod
    def batches(self, max_messages: int = 1024) -> AsyncIterator[list[Delivery[T_co]]]:
        """Iterate over lists of deliveries: ``async for batch in group.batches()``.

        A batch has at least one and at most ``max_messages``, and is returned as soon as a message is
        available. If cancelled, it has claimed nothing. All messages of a batch have the same lease.
        """

    @abstractmethod
    def statistics(self) -> "GroupMember":
        """Return the counters of this member since it was opened. ``info`` describes the whole group."""

    @abstractmethod
    def info(self) -> "GroupInfo":
        """Describe the whole group, as ``inspect_group`` does."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; unacknowledged messages are given back and go to other members."""


@_hot.own_methods
class QueueGroup(_hot.Group[T_co], Group[T_co]):
    """A member in one queue."""

    def __init__(
        self,
        address: int,
        walker: Reader[T_co],
        again: Reader[T_co],
        key: Key | None,
        exhausted: Callable[[Delivery[Any], str | None], None] | None,
        max_deliver: int,
        retry_first_ms: int,
        retry_max_ms: int,
        burst: int,
        spin_ns: int,
        turns: _hot.Turns | None,
        *,
        name: str,
        leaving: DeadLetterMover | None,
    ) -> None:
        super().__init__(
            address,
            walker,
            again,
            key,
            exhausted,
            max_deliver,
            retry_first_ms,
            retry_max_ms,
            burst,
            spin_ns,
            turns,
        )
        self._readers = (walker, again)
        self._name = name
        self._leaving = leaving

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def path(self) -> str:
        """Directory of the queue."""
        return self._readers[0].path

    def __repr__(self) -> str:
        """Return the queue, the group, and the number of messages in flight."""
        state = "closed" if self.closed else f"{self.in_flight} in flight"
        return f"<Group {self._name!r} of {self.path}, {state}>"

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until there is a message for this member; False after ``timeout``."""
        limit_s = checked_timeout(timeout)
        return self._wait(_FOREVER if limit_s is None else round(limit_s * 1e9))

    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, Delivery[T_co]]:
        """Wait for the next delivery; TimeoutError after ``timeout`` seconds, ClosedError if closed."""
        limit_s = checked_timeout(timeout)
        return self._next() if limit_s is None else self._next_within(limit_s)

    async def _next_within(self, timeout: float) -> Delivery[T_co]:
        async with asyncio.timeout(timeout):
            return await self._next()

    def take_batch(self, max_messages: int = 1024) -> list[Delivery[T_co]]:
        """Claim available messages, at most ``max_messages``. Never waits."""
        return self._take_batch(positive("max_messages", max_messages))

    def batches(self, max_messages: int = 1024) -> "GroupBatches[T_co]":
        """Iterate over lists of deliveries: ``async for batch in group.batches()``."""
        return GroupBatches(self, positive("max_messages", max_messages))

    def statistics(self) -> "GroupMember":
        """Return the counters of this member since it was opened. ``info`` describes the whole group."""
        counted = zip(_COUNTERS, self._counters(), strict=True)
        return GroupMember(pid=os.getpid(), alive=True, in_flight=self.in_flight, **dict(counted))

    def info(self) -> "GroupInfo":
        """Describe the whole group, as ``inspect_group`` does."""
        return inspect_queue_group(self.path, self._name)

    def close(self) -> None:
        """Leave the group; unacknowledged messages are given back and go to other members."""
        if self._leaving is not None:
            self._leaving.finish()
        self._leave()
        for reader in self._readers:
            reader.close()


class GroupBatches(Generic[T]):
    """The iterator that ``Group.batches`` returns."""

    def __init__(self, group: QueueGroup[T], max_messages: int) -> None:
        self._group = group
        self._max_messages = max_messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delivery[T]]:
        try:
            while await self._group._ready():
                if batch := self._group._take_batch(self._max_messages):
                    return batch
        except ClosedError:
            if not self._group.closed:
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Do nothing: for ``contextlib.aclosing``. The group stays open."""


class GroupMember(HtmlStruct, frozen=True, kw_only=True):
    """One member of a group, and its counters since it joined.

    ``alive`` is False for a member that died with messages in flight, which others will get. ``redelivered``
    counts messages that had been delivered before, ``refused`` counts acknowledgements after the lease had
    ended. ``pid`` is the process id in the member's own container.
    """

    pid: int
    alive: bool
    since_ns: int
    in_flight: int
    claimed: int
    acked: int
    nacked: int
    redelivered: int
    refused: int
    woken: int


class GroupInfo(HtmlStruct, frozen=True, kw_only=True):
    """The state of a group.

    ``pending`` messages are not acknowledged yet. Of these, ``in_flight`` are with a member, ``delayed``
    were given back with a delay, and ``retried`` were delivered more than once. Everything before
    ``low_seq`` is acknowledged. ``oldest_ns`` is the timestamp of the oldest unacknowledged message, None if
    there is none. ``current`` is False if the members' state is from before a reboot, or from a copy: then
    only the committed position counts.
    """

    name: str
    pending: int
    in_flight: int
    delayed: int
    retried: int
    low_seq: int
    next_seq: int
    oldest_ns: int | None
    lease_s: float
    max_in_flight: int
    max_deliver: int | None
    order: Literal["any", "key"]
    current: bool
    members: tuple[GroupMember, ...]


def inspect_queue_group(path: str | os.PathLike[str], name: str) -> GroupInfo:
    """Return the result of ``inspect_group`` for a group of one queue."""
    info = ffi.new("ac_group_info_t *")
    error = new_error()
    encoded = _encode_name(path, name)
    check(lib.ac_group_inspect(encode_path(path), encoded, info, error), error)
    return GroupInfo(
        name=name,
        pending=info.pending,
        in_flight=info.in_flight,
        delayed=info.delayed,
        retried=info.retried,
        low_seq=info.low,
        next_seq=info.next_seq,
        oldest_ns=info.oldest_ns or None,
        lease_s=info.lease_ms / 1000,
        max_in_flight=info.limit,
        max_deliver=info.max_deliver or None,
        order="key" if info.by_key else "any",
        current=bool(info.current),
        members=tuple(_member(info.member[i]) for i in range(info.members)),
    )


def undone_seqs(path: str | os.PathLike[str], name: str, count: int) -> list[int]:
    """Return the seqs that a group of one queue has not finished, the oldest first, at most ``count``."""
    found = ffi.new("uint64_t[]", count)
    error = new_error()
    encoded = _encode_name(path, name)
    filled = check(lib.ac_group_undone(encode_path(path), encoded, found, count, error), error)
    return list(found[0:filled])


def _member(member: Any) -> GroupMember:
    values = {name: getattr(member, name) for name in GroupMember.__struct_fields__}
    return GroupMember(**{**values, "alive": bool(member.alive)})


def group_names(readers: Path) -> Iterable[str]:
    """Return the names of the groups whose files are in this directory."""
    try:
        files = [entry.name for entry in os.scandir(readers)]
    except FileNotFoundError:
        return
    for file in files:
        name, dot, suffix = file.rpartition(".")
        if dot and suffix == "group" and position_name(name) in files:
            yield name
