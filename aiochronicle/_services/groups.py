"""Open and inspect groups, of a queue and of a topic with many writers."""

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._core.group import (
    Group,
    GroupInfo,
    Key,
    group_names,
    inspect_queue_group,
    open_queue_group,
)
from aiochronicle._core.opening import open_in_background, with_parameters_of
from aiochronicle._core.reader import WaitStrategy
from aiochronicle._layout import READERS
from aiochronicle._services.shared import is_shared
from aiochronicle._services.topic_group import (
    TopicGroup,
    inspect_topic_group,
    list_topic_groups,
)
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.errors import NotAQueue, NotSupported

__all__ = ["aopen_group", "inspect_group", "list_groups", "open_group"]


def open_group(
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
) -> Group[T]:
    """Join a group of a queue; the first member creates it. In an event loop use ``aopen_group``.

    A group has up to 256 members, in any number of processes, and each message goes to one of them at a
    time. Tasks of one process may share a member. A message that is not acknowledged within ``lease_s`` is
    delivered again; messages of a killed or closed member are delivered again at once. At most
    ``max_in_flight`` messages are delivered, counted from the oldest unacknowledged one.

    A message that failed ``max_deliver`` times (at most 254) is moved to the queue at ``dead_letter``, as a
    DeadLetter. A message that failed in an ``async with`` block is delivered again after the delay
    ``retry_s``, which doubles with each attempt, up to the second number.

    ``order="key"`` delivers the messages of one key, which ``key(message)`` returns, in order and one at a
    time. All members need the same function, and call it for every message.

    ``start`` is where a new group begins. The group's position is that of a reader of the same name, so
    retention, capacity and ``list_readers`` include it. The name of an existing reader is refused with
    ReaderBusy; with ``adopt`` the group continues where that reader stopped. Raises GroupInUse if other
    members were opened with different settings.

    For a topic with many writers it returns a TopicGroup, which is also a Group; topics do not support
    ``wait``.

    >>> with open_group(queue, "workers") as group:
    ...     for delivery in group:
    ...         with delivery:
    ...             print(delivery.attempt, delivery.message.payload)
    1 b'hello'
    """
    options: dict[str, Any] = {**locals()}
    del options["path"], options["name"]
    try:
        return open_queue_group(path, name, **options)
    except NotAQueue:
        if not is_shared(path):
            raise
    if wait != "park":
        raise NotSupported(
            "is a topic with many writers: its groups have no wait=",
            path=os.fspath(path),
            advice="Leave it out.",
        )
    del options["wait"]
    return TopicGroup(path, name, **options)


@with_parameters_of(open_group)
async def aopen_group(*arguments: Any, **options: Any) -> Any:
    """Join a group without blocking the event loop: ``open_group`` for coroutines.

    Parameters and exceptions are those of open_group; the exceptions are raised when it is awaited.
    ``group = await aopen_group(path, name)``, or ``async with``, which also closes in the background.

    If it is cancelled while it opens, it closes everything that the thread has opened.

    >>> import asyncio
    >>> async def main():
    ...     async with aopen_group(queue, "workers") as group:
    ...         delivery = await group.next()
    ...         delivery.ack()
    ...         return delivery.message.payload
    >>> asyncio.run(main())
    b'hello'
    """
    return await open_in_background(partial(open_group, *arguments, **options))


def inspect_group(path: str | os.PathLike[str], name: str) -> GroupInfo:
    """Describe a group without joining it. Raises ReaderNotFound if it does not exist. Never writes.

    For a topic, the numbers cover all writers: ``low_seq`` and ``next_seq`` are sums.

    >>> open_group(queue, "workers").close()
    >>> inspect_group(queue, "workers").pending
    1
    """
    directory = os.fsdecode(encode_path(path))
    if is_shared(directory):
        return inspect_topic_group(directory, name)
    return inspect_queue_group(directory, name)


def list_groups(path: str | os.PathLike[str]) -> list[GroupInfo]:
    """Describe all groups of a queue, by name. Never writes.

    >>> open_group(queue, "workers").close()
    >>> [group.name for group in list_groups(queue)]
    ['workers']
    """
    directory = os.fsdecode(encode_path(path))
    if is_shared(directory):
        return list_topic_groups(directory)
    inspect_nothing = ffi.new("ac_queue_info_t *")
    error = new_error()
    check(lib.ac_queue_info(encode_path(path), inspect_nothing, error), error)
    names = sorted(group_names(Path(directory) / READERS))
    return [inspect_queue_group(directory, name) for name in names]
