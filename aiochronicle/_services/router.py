"""A fan-in that follows discovery.

It attaches queues when they announce themselves, and detaches them when they are removed. A queue that
fails is set aside: it leaves the stream and is retried, at the position where it failed, until it is
repaired or removed. A problem of one path does not affect the other queues.
"""

import asyncio
import contextlib
import logging
import os
import resource
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from aiochronicle import _hot
from aiochronicle._base.arguments import expect, pathname, permissions, segment_bytes
from aiochronicle._base.background import in_background, in_thread, shielded
from aiochronicle._base.names import check_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.printable import printable
from aiochronicle._core.fanin import FanInStatistics
from aiochronicle._core.reader import (
    Reader,
    StartPoint,
    TimestampSource,
    check_start,
    check_timestamp,
)
from aiochronicle._core.writer import Writer
from aiochronicle._services.damage import OnDamage, Verdict
from aiochronicle._services.discovery import Attached, Discovery, Scanned, discover
from aiochronicle._services.router_attaching import AttachingFanIn
from aiochronicle._services.router_queues import Aside, Known, Source, close_opened
from aiochronicle._services.trusted import make_trusted_root, open_trusted_writer, owners_of
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import ChronicleError, SourceGone

__all__ = ["Router", "RouterStatistics"]

_FDS_WANTED = 65536
_RUN_MAX = 256
_REPLY_ROOT_MODE = 0o700

_log = logging.getLogger("aiochronicle.router")


def _raise_fd_limit() -> None:
    """Raise the limit of open files: each attached queue with a live writer needs a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FDS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FDS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _log.info("raised the limit of open files from %d to %d", soft, wanted)


class RouterStatistics(FanInStatistics, frozen=True, kw_only=True):
    """A router as a whole: the counters of FanInStatistics, and those of damage.

    ``skipped`` is the number of damaged places that were skipped. ``lost`` is the number of messages that
    were removed before they were read, as far as seqs show; a loss of unknown size counts as one.
    ``set_aside`` is the number of queues that are not in the stream now: see ``Router.problems``.
    """

    skipped: int
    lost: int
    set_aside: int


class Router(AttachingFanIn[T]):
    """All queues under a root as one ordered stream: ``async for message in router``.

    ``message.source`` is the path of the message's queue below the root.

    Queues may be created and removed while it runs. ``name`` is the reader name in each queue: after a
    restart every queue continues after the last ``commit``. ``codec`` is that of ``open_reader``, for all
    queues; a queue with another schema is a problem.

    A queue that cannot be attached, or that fails, does not stop the others: it is set aside. Its exception
    is in ``problems``, by path, and in the log. It is retried until it is repaired, first after 0.1 s and
    finally every ``rescan_s``. It continues where it failed, or at a newer commit under the router's name.
    A copy that replaces it, for instance a backup, is another queue: it continues at the position committed
    there.

    ``on_corrupt`` sets what happens at a damaged record, ``on_lost`` what happens if messages were removed
    before they were read. "set_aside" sets the queue aside. "raise" does the same, and the iteration raises
    the exception once; iterate again for the other queues. "skip" skips the damage, or continues at the
    oldest message, with a warning in the log and a count in ``statistics``. A function is called with the
    exception: if it returns, the damage is skipped; if it raises, the iteration raises that exception.

    ``timestamp`` tells where messages of Java queues have their time, as in ``open_reader``; a message
    without it sets its queue aside. Native queues have their own timestamps.

    ``await reply(message)`` returns a writer for replies to the sender: a queue under ``reply_root`` (by
    default ROOT.replies) with the sender's name, segments of ``reply_segment_size``, the types of
    ``reply_codec`` and files of ``reply_mode``. Replies are kept forever unless ``reply_retention`` is given.
    AccessDenied if ``reply_root`` or the reply queue belongs to a user other than this one, root or the owner
    of the parent directory, or is a link of such a user.

    Use it as an async context manager: entering it waits until all existing queues are attached; leaving it
    closes readers, writers and the watcher. It belongs to one event loop at a time. Another loop can use it
    after the first one is closed; until then that raises InvalidArgument.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        name: str,
        order: Literal["available", "strict"] = "available",
        max_wait: float | None = None,
        start: StartPoint = "committed",
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        reply_root: str | os.PathLike[str] | None = None,
        reply_segment_size: int = 8 << 20,
        reply_retention: Retention | None = None,
        reply_mode: int = 0o600,
        reply_codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        depth: int = 1,
        rescan_s: float = 5.0,
        burst: int = 256,
        on_corrupt: OnDamage = "set_aside",
        on_lost: OnDamage = "set_aside",
        timestamp: TimestampSource | None = None,
    ) -> None:
        self._check_name(name)
        check_timestamp(timestamp)
        check_start(start)
        segment_bytes("reply_segment_size", reply_segment_size)
        if reply_retention is not None:
            expect("reply_retention", "a Retention or None", Retention, reply_retention)
        types = None if codec is None else registry_of(codec)
        self._reply_codec = None if reply_codec is None else registry_of(reply_codec, "reply_codec")
        super().__init__(
            name=name,
            order=order,
            max_wait=max_wait,
            start=start,
            codec=types,
            rescan_s=rescan_s,
            burst=burst,
            on_corrupt=on_corrupt,
            on_lost=on_lost,
            timestamp=timestamp,
        )
        _raise_fd_limit()
        self._depth = depth
        self._discovery = self._discover(root)
        self._reply_root = (
            f"{self.root}.replies" if reply_root is None else pathname("reply_root", reply_root)
        )
        self._reply_segment_size = reply_segment_size
        self._reply_retention = reply_retention
        self._reply_mode = permissions(reply_mode)
        self._home = OneLoop(f"the router of {self.root}")
        self._renew()

    def _check_name(self, name: str) -> None:
        check_name(f"reader name {name!r} of the router", name)

    def _discover(self, root: str | os.PathLike[str]) -> Discovery:
        return discover(root, depth=self._depth, rescan_s=self._rescan_s)

    def _renew(self) -> None:
        """Create the objects that belong to one event loop."""
        self._changing = asyncio.Lock()
        self._first_scan_ended = asyncio.Event()  # or failed
        self._retry_added = asyncio.Event()
        self._start_error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def root(self) -> str:
        """Directory under which queues are found."""
        return self._discovery.root

    def __aiter__(self) -> "_hot.Awaitable[_hot.Message[T]]":
        self._follow()
        return super().__aiter__()

    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, _hot.Message[T]]:
        """Wait for the next message of any queue; TimeoutError after ``timeout`` seconds."""
        self._follow()
        return super().next(timeout)

    def _enter_loop(self) -> None:
        previous = self._home.loop
        if self._home.enter() and previous is not None:
            # The work of the previous loop ended with it. Discovery starts again.
            self._discovery = self._discover(self.root)
            self._renew()

    def _follow(self) -> None:
        self._enter_loop()
        if not self._tasks and not self.closed:
            _log.debug("following %s as %s", printable(self.root), self.name)
            self._tasks = [
                asyncio.create_task(self._follow_discovery(), name=f"router {self.root}"),
                asyncio.create_task(self._retry_problems(), name=f"router {self.root}: problems"),
            ]

    async def _follow_discovery(self) -> None:
        pause_s = self._first_pause_s()
        while not self.closed:
            try:
                await self._follow_events()
            except StopAsyncIteration:
                return
            except Exception as error:  # noqa: BLE001 - discovery must continue
                self._discovery_failed(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._rescan_s)
            await self._discovery.aclose()
            self._discovery = self._discover(self.root)

    def _discovery_failed(self, error: Exception) -> None:
        if not self._first_scan_ended.is_set():
            self._start_error = error
            self._first_scan_ended.set()
        if str(self.problems.get(self.root)) != str(error):
            _log.error("%s: discovery failed: %s", printable(self.root), printable(error))
        self.problems[self.root] = error.with_traceback(None)

    async def _follow_events(self) -> None:
        found: set[str] | None = set()  # by the first scan of this discovery; None: it has ended
        while True:
            event = await self._discovery.next_event()
            async with self._changing:
                if isinstance(event, Attached):
                    run = self._collect_run(event)
                    if found is not None:
                        found.update(one.path for one in run)
                    self._announced.update((one.path, one) for one in run)
                    await self._attach([p.path for p in run if p.path not in self._attached])
                elif isinstance(event, Scanned):
                    for path in {*self._attached, *self._aside} - (found or set()):
                        await self._detach(path)  # removed while discovery was not running
                    found = None
                    self.problems.pop(self.root, None)
                    self._first_scan_ended.set()
                else:
                    await self._detach(event.path)

    async def _retry_problems(self) -> None:
        while not self.closed:
            await self._wait_for_due()
            async with self._changing:
                now_s = time.monotonic()
                due = [path for path, aside in self._aside.items() if aside.due_s <= now_s]
                if due:
                    await self._attach(sorted(due)[:_RUN_MAX])

    async def _wait_for_due(self) -> None:
        self._retry_added.clear()
        due_s = min((aside.due_s for aside in self._aside.values()), default=None)
        with contextlib.suppress(TimeoutError):
            pause_s = None if due_s is None else max(due_s - time.monotonic(), 0)
            async with asyncio.timeout(pause_s):
                await self._retry_added.wait()

    def _collect_run(self, first: Attached) -> list[Attached]:
        """Return queues to attach together, because opening them one by one would wait for the disk."""
        run = [first]
        while len(run) < _RUN_MAX and (more := self._discovery.next_attached_now()) is not None:
            run.append(more)
        return run

    def _wake_retries(self) -> None:
        """Wake the task that retries problems. Thread-safe."""
        loop = self._home.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._retry_added.set)

    async def _detach(self, path: str) -> None:
        if path in self._attached:
            await self._remove_source(path)
            self._log_removed(path)
        self._forget(path)

    def _log_removed(self, path: str) -> None:
        _log.info("removed: %s", printable(path))

    async def _remove_source(self, path: str) -> "Future[None] | None":
        """Detach a queue; return the future that closes its reader."""
        source = self._attached[path]
        # First the replies, so that they are closed once the source is gone. The queue is still
        # attached then, so that aclose closes them if this is cancelled here.
        closed = source.reply
        await self._close_reply(source)
        if self._attached.get(path) is not source:
            return None
        del self._attached[path]
        if source.reply is not None and source.reply is not closed:  # opened meanwhile
            source.reply.add_done_callback(close_opened)
        self._last_skipped.pop(source.id, None)
        if source.id in self.sources():
            self.detach(source.id)
        return self._close_reader(source.reader)

    async def set_aside(self, message: _hot.Message, error: ChronicleError) -> None:
        """Set aside the queue of a message that cannot be processed now, because of this problem.

        The queue is attached again after a pause, at the router's ``start``: by default after its last
        commit. Does nothing if the queue is no longer attached.
        """
        self._enter_loop()
        async with self._changing:
            try:
                path = self._path_of(message)
            except SourceGone:
                return
            source = self._attached[path]
            closing = await self._remove_source(path)
            failed = self._aside.get(path)  # it may have failed while its replies were closed
            # Without frames, which would hold the message and its segment.
            aside = self._set_aside(path, error.with_traceback(None), Verdict(), None)
            aside.closing = closing if failed is None else failed.closing
            aside.reader = source.reader
            self._pause_longer(aside, source)
            _log.warning("set aside: %s", printable(error))

    def statistics(self) -> RouterStatistics:
        """Return the counters of the router as a whole."""
        merged = msgspec.structs.asdict(super().statistics())
        every = [self._removed, *self._counts.values()]
        return RouterStatistics(
            **merged,
            skipped=sum(counts.skipped for counts in every),
            lost=sum(counts.lost for counts in every),
            set_aside=len(self._aside),
        )

    async def reply(self, source: "int | _hot.Message") -> Writer:
        """Return the writer of the reply queue of this source (an id, or a message from it).

        The first call opens it, in a thread; so does the first call after opening failed, or after the reply
        queue was removed. A message whose queue has been set aside can also be answered. SourceGone if the
        queue was removed; if it is removed later, the writer is closed.
        """
        self._enter_loop()
        path, known = self._find_known(source)
        dead = known.dead_reply()
        if known.has_no_reply() or dead is not None:
            known.reply = in_thread(lambda: self._open_reply(path, dead))
        assert known.reply is not None
        # Shielded, because all callers share it and one of them may be cancelled.
        return await shielded(asyncio.wrap_future(known.reply))

    def _find_known(self, source: "int | _hot.Message") -> tuple[str, Known]:
        """Return the queue of a source or message, attached or set aside."""
        if isinstance(source, _hot.Message):
            for path, aside in self._aside.items():
                if aside.has_sent(source):
                    return path, aside
        path = self._path_of(source)
        return path, self._attached[path]

    def reader_of(self, message: _hot.Message) -> Reader:
        """Return the reader that the message came from; SourceGone if it is no longer attached."""
        return self._attached[self._path_of(message)].reader

    def _open_reply(self, path: str, instead_of: Writer | None) -> Writer:
        if instead_of is not None:
            instead_of.close()
        root = os.fspath(Path(self._reply_root))  # without a final slash, which would follow a link
        make_trusted_root(root, owners_of(self.root), _REPLY_ROOT_MODE)
        return open_trusted_writer(
            root,
            os.path.relpath(path, self.root).split("/"),
            way_mode=_REPLY_ROOT_MODE,
            segment_size=self._reply_segment_size,
            retention=self._reply_retention,
            mode=self._reply_mode,
            codec=self._reply_codec,
            ready=True,
        )

    def _with_replies(self) -> "list[Source | Aside]":
        return [*self._attached.values(), *self._aside.values()]

    async def _close_reply(self, source: Source | Aside) -> None:
        if source.reply is not None:
            opening = source.reply
            try:
                await in_background(lambda: opening.result().close())
            except Exception as error:  # noqa: BLE001 - the other queues are not affected
                _log.warning("closing a reply queue failed: %s", printable(error))

    async def aclose(self) -> None:
        """Stop following, and detach and close everything that this router opened.

        If it is cancelled, everything is still closed, in the background.
        """
        self._enter_loop()
        try:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._discovery.aclose()
            for opened in self._with_replies():
                await self._close_reply(opened)
        finally:
            self._discovery.stop()  # in case this was cancelled: it ends in the background
            closings = self._close()
            await in_background(lambda: wait(closings))

    def close(self) -> None:
        """Close it at once. Unlike ``aclose`` it does not wait for the background tasks that it cancels.

        Unlike ``FanIn.close`` it also closes the readers that the router opened, but not those that were
        passed to ``attach``.
        """
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
        self._discovery.stop()
        readers = [source.reader for source in self._attached.values()]
        self._close()
        for reader in readers:
            reader.close()

    def _close(self) -> "list[Future[None]]":
        """Detach all queues and close them in threads; return the futures to wait for."""
        if not self.closed:
            count = len(self._attached)
            _log.debug("leaving %s with %d queues attached", printable(self.root), count)
        super().close()
        for source in self._attached.values():
            self._closings.add(in_thread(source.reader.close))
        for opened in self._with_replies():
            if opened.reply is not None:
                opened.reply.add_done_callback(close_opened)
        self._attached.clear()
        self._aside.clear()
        return list(self._closings)

    async def __aenter__(self) -> Self:
        self._follow()
        try:
            await self._first_scan_ended.wait()
            if self._start_error is not None:
                raise self._start_error
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
