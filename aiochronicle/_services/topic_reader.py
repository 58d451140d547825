"""Reads a topic with many writers (shared.py) as one stream.

A TopicReader is a router over the queues of the topic. In an event loop it follows discovery, like every
router. Without a loop, each call looks for queues that were added or removed; a call that waits looks twenty
times a second.
"""

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeVar

from aiochronicle import _hot
from aiochronicle._base.arguments import expect
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.names import check_name
from aiochronicle._base.printable import printable
from aiochronicle._core.batches import Batches
from aiochronicle._core.conflate import Conflation
from aiochronicle._core.reader import StartPoint
from aiochronicle._services.damage import OnDamage
from aiochronicle._services.examiner import Attached, Examiner
from aiochronicle._services.router import Router
from aiochronicle._services.shared import SharedTopic, is_shared
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.errors import InvalidArgument, QueueNotFound

__all__ = ["TopicReader"]

K = TypeVar("K", bound=Hashable)

_SCAN_INTERVAL_S = 0.05


class TopicReader(Router[T]):
    """Follows all writers of a topic that was created by ``open_writer(path, shared=True)``.

    It is a FanIn that attaches and detaches its sources itself: ``async for``, ``for``, ``poll``, ``next``,
    ``batches``, ``read_batch``, ``wait``, ``commit`` and ``lag`` are those of a FanIn. ``message.source`` is
    the name of the writer's queue, and seqs are those of that queue.

    A ``name`` has a position in the queue of every writer, also of writers that are opened while no reader
    of this name is open, so uncommitted messages are not removed. ``start`` sets where reading begins in
    existing queues: "committed", "first", "last" or an aware datetime. Queues of later writers are read
    from the beginning. ``commit`` is that of ``open_reader``. ``wait_for_queue`` creates the topic if it
    does not exist; otherwise QueueNotFound is raised.

    ``on_corrupt`` and ``on_lost`` are those of a Router, by default "raise": the exception is raised once,
    and the writer's queue is set aside and listed in ``problems`` until it is repaired. Iterate again for the
    other queues.

    Opening waits for the disk: in an event loop use ``await Bus.areader(...)``. Closing it closes
    the readers of all queues.

    >>> with open_writer(tmp_path / "orders", shared=True) as one:
    ...     with open_writer(tmp_path / "orders", shared=True) as two:
    ...         _ = one.append(b"buy"), two.append(b"sell")
    >>> with TopicReader(tmp_path / "orders", "risk") as reader:
    ...     [message.payload for message in reader]
    ...     reader.commit()
    [b'buy', b'sell']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        order: Literal["available", "strict"] = "available",
        max_wait: float | None = None,
        start: StartPoint = "committed",
        commit: Literal["manual", "auto"] | int = "manual",
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        burst: int = 256,
        verify: bool = True,
        on_corrupt: OnDamage = "raise",
        on_lost: OnDamage = "raise",
        wait_for_queue: bool = False,
        rescan_s: float = 5.0,
        mode: int = 0o600,
    ) -> None:
        if isinstance(start, int):
            raise InvalidArgument(
                "start cannot be a seq, because every writer of a topic has its own seqs: give a datetime,"
                ' "committed", "first" or "last"'
            )
        topic = SharedTopic(path)
        super().__init__(
            topic.queues,
            name=name,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            order=order,
            max_wait=max_wait,
            start=start,
            codec=codec,
            rescan_s=rescan_s,
            burst=burst,
            on_corrupt=on_corrupt,
            on_lost=on_lost,
        )
        self.path = topic.path
        self._reader_options = {"commit": commit, "verify": verify, "mode": mode}
        self._examiner = Examiner(self.root, depth=1)
        self._looked_s = 0.0
        try:
            if not is_shared(self.path):
                if not expect("wait_for_queue", "a bool", bool, wait_for_queue):
                    raise QueueNotFound(
                        "there is no topic with many writers",
                        path=self.path,
                        advice="open_writer(path, shared=True) creates one.",
                    )
                topic.make(mode)
            if name is not None:
                topic.add_reader(name, mode)  # before looking for queues: see shared.py
            self.look()
        except BaseException:
            self.close()
            raise
        self._start = "committed"  # queues that are found later are new

    def _check_name(self, name: str | None) -> None:
        if name is not None:
            check_name(f"reader name {name!r} of the topic", name)

    def look(self) -> None:
        """Attach the queues of new writers, and detach queues that were removed.

        All methods do this themselves; in an event loop discovery does it.
        """
        if self.closed or self._is_followed():
            return
        self._looked_s = time.monotonic()
        events = self._examiner.examine(None, lambda: False)
        queues = self._examiner.queues()
        for path in {*self._attached, *self._aside} - queues:
            self._detach_now(path)
        for event in events:
            if isinstance(event, Attached):
                self._announced[event.path] = event
            elif event.path in self._attached:  # another queue has replaced it
                self._detach_now(event.path)
        known = {*self._attached, *self._aside}
        due = {path for path, one in self._aside.items() if one.due_s <= self._looked_s}
        self._attach_now(sorted((queues - known) | due))

    def _is_followed(self) -> bool:
        """Return whether tasks of an event loop follow the queues."""
        loop = self._home.loop
        return bool(self._tasks) and loop is not None and loop.is_running()

    def _attach_now(self, paths: list[str]) -> None:
        while paths:
            self._merge_all(paths, self._open_all(paths))
            paths = self._to_skip(paths)

    def _detach_now(self, path: str) -> None:
        source = self._attached.pop(path, None)
        if source is not None:
            self._last_skipped.pop(source.id, None)
            if source.id in self.sources():
                self.detach(source.id)
            self._close_reader(source.reader)
            self._log_removed(path)
        self._forget(path)

    def _look_if_due(self) -> bool:
        """Look for queues if the last time is long enough ago; return whether it was."""
        if time.monotonic() - self._looked_s < _SCAN_INTERVAL_S:
            return False
        self.look()
        return True

    def __iter__(self) -> "_hot.FanInIterator[T]":
        self.look()
        return super().__iter__()

    def poll(self) -> "_hot.Message[T] | None":
        """Return the next message, or None if there is none now."""
        message = super().poll()
        if message is None and self._look_if_due():
            message = super().poll()
        return message

    def read_batch(
        self, max_messages: int = 1024, max_bytes: int | None = None
    ) -> "list[_hot.Message[T]]":
        """Return available messages, within the limits. Never waits."""
        batch = super().read_batch(max_messages, max_bytes)
        if not batch and self._look_if_due():
            batch = super().read_batch(max_messages, max_bytes)
        return batch

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until there is a message; False after ``timeout`` seconds."""
        limit_s = checked_timeout(timeout)
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self.look()
            left_s = None if end_s is None else end_s - time.monotonic()
            step_s = _SCAN_INTERVAL_S if left_s is None else min(_SCAN_INTERVAL_S, max(left_s, 0))
            if super().wait(step_s):
                return True
            if left_s is not None and left_s <= 0:
                return False

    def batches(
        self,
        max_messages: int = 1024,
        max_bytes: int | None = None,
        max_wait: float | None = None,
    ) -> Batches[T]:
        """Iterate over lists of messages: ``async for batch in reader.batches()``.

        The parameters are those of ``Reader.batches``. If cancelled, it has taken nothing.
        """
        self._follow_in_loop()
        return super().batches(max_messages, max_bytes, max_wait)

    def conflate(
        self, key: Callable[[_hot.Message[T]], K], *, max_keys: int = 65536
    ) -> Conflation[K, T]:
        """Iterate over the latest message per key of all writers, like ``FanIn.conflate``."""
        self._follow_in_loop()
        return super().conflate(key, max_keys=max_keys)

    def _follow_in_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.look()
        else:
            self._follow()

    async def reply(self, source: "int | _hot.Message[Any]") -> Any:
        """Raise InvalidArgument: writers of a topic have no reply queues; see ``Router``."""
        raise InvalidArgument("a TopicReader has no reply queues: use a Router", path=self.path)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.sources())} writers"
        return f"<TopicReader {printable(self.path)!r} name={self.name!r} {state}>"
