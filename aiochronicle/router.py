"""A fan-in that follows discovery.

Queues are attached as they announce themselves, and detached as they go.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from aiochronicle import _hot
from aiochronicle._arguments import expect, pathname, segment_bytes
from aiochronicle._background import in_background
from aiochronicle._names import check_name
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.discovery import Attached, Scanned, discover
from aiochronicle.errors import ChronicleError, ClosedError, SourceGone, StorageError
from aiochronicle.fanin import FanIn
from aiochronicle.reader import Reader, StartPoint, check_start, open_reader
from aiochronicle.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.writer import Writer, open_writer

__all__ = ["Router"]

_FDS_WANTED = 65536
_RUN_MAX = 256
_OPENING_THREADS = 8

_log = logging.getLogger(__name__)


def _raise_fd_limit() -> None:
    """Take what the system allows: each attached queue with a live writer costs an fd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FDS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FDS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _log.info("raised the limit of open files from %d to %d", soft, wanted)


class _Source:
    """An attached queue."""

    def __init__(self, source: int, reader: Reader) -> None:
        self.id = source
        self.reader = reader
        self.reply: asyncio.Future[Writer] | None = None

    def dead_reply(self) -> Writer | None:
        """Return the writer of replies if its owner closed it, or its queue was removed."""
        reply = self.reply
        if reply is None or not reply.done() or reply.cancelled() or reply.exception() is not None:
            return None
        writer = reply.result()
        return writer if writer.closed or writer.gone else None


def _close_opened(reply: "asyncio.Future[Writer]") -> None:
    if not reply.cancelled() and reply.exception() is None:
        reply.result().close()


class Router(FanIn[T]):
    """All queues under a root as one ordered stream: ``async for message in router``.

    Strategies come and go while it runs. ``name`` is the reader name in each queue: after a
    restart every queue goes on behind the last ``commit``. A queue that cannot be attached, or
    that fails, does not stop the others: it is in ``problems`` by path, with the exception, and
    in the log. Attaching is tried again every ``rescan_s`` seconds. ``codec`` is that of
    ``open_reader``, for all of them; a queue whose schema says something else is a problem.

    ``await reply(message)`` gives the writer of a queue back to the sender, under ``reply_root``
    (by default ROOT.replies), named like the sender's, with segments of ``reply_segment_size``;
    ``reply_codec`` is what it can ``send``. They are kept for ever unless ``reply_retention`` says
    something else.

    Use it as an async context manager: entering returns when everything that is there is
    attached, leaving closes readers, writers and the watcher.
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
        reply_codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        depth: int = 1,
        rescan_s: float = 5.0,
        burst: int = 256,
    ) -> None:
        check_name(f"reader name {name!r} of the router", name)
        check_start(start)
        segment_bytes("reply_segment_size", reply_segment_size)
        if reply_retention is not None:
            expect("reply_retention", "a Retention or None", Retention, reply_retention)
        self._codec = None if codec is None else registry_of(codec)
        self._reply_codec = None if reply_codec is None else registry_of(reply_codec, "reply_codec")
        super().__init__(order=order, max_wait=max_wait, burst=burst, on_error=self._on_error)
        _raise_fd_limit()
        self.name = name
        self.problems: dict[str, Exception] = {}
        self._start: StartPoint = start
        self._rescan_s = rescan_s
        self._discovery = discover(root, depth=depth, rescan_s=rescan_s)
        self._reply_root = (
            f"{self.root}.replies" if reply_root is None else pathname("reply_root", reply_root)
        )
        self._reply_segment_size = reply_segment_size
        self._reply_retention = reply_retention
        self._attached: dict[str, _Source] = {}
        self._unattached: set[str] = set()  # announced, but there was a problem
        self._changing = asyncio.Lock()
        self._scanned = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def root(self) -> str:
        """Directory under which queues are found."""
        return self._discovery.root

    def paths(self) -> dict[int, str]:
        """Return the attached queues: source id to path."""
        merged = self.sources()
        return {one.id: path for path, one in self._attached.items() if one.id in merged}

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Tell whether messages may be of this type: of the codec, or of a reader attached here."""
        return any(entry.codec.type is wanted for entry in self._codec or ()) or any(
            reader.decodes_to(wanted) for reader in self.sources().values()
        )

    def __aiter__(self) -> "_hot.Awaitable[_hot.Message[T]]":
        self._follow()
        return super().__aiter__()

    def next(self, timeout: float | None = None) -> Awaitable[_hot.Message[T]]:
        """Wait for the next message of any queue; TimeoutError after ``timeout`` seconds."""
        self._follow()
        return super().next(timeout)

    def _follow(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._follow_discovery(), name=f"router {self.root}"),
                asyncio.create_task(self._try_again(), name=f"router {self.root}: problems"),
            ]

    async def _follow_discovery(self) -> None:
        try:
            while True:
                event = await self._discovery.next_event()
                if isinstance(event, Scanned):
                    self._scanned.set()
                    continue
                async with self._changing:
                    if isinstance(event, Attached):
                        await self._attach(self._run_of(event))
                    else:
                        await self._detach(event.path)
        except StopAsyncIteration:
            return
        except Exception as error:
            self.problems[self.root] = error
            _log.exception("%s: discovery ended", self.root)
            raise

    async def _try_again(self) -> None:
        while True:
            await asyncio.sleep(self._rescan_s)
            for path in sorted(self._unattached):
                async with self._changing:
                    if path in self._unattached:
                        await self._attach([path])

    def _run_of(self, first: Attached) -> list[str]:
        """Return what can be attached together: opening waits for the disk, so not one by one."""
        run = [first.path]
        while len(run) < _RUN_MAX and (more := self._discovery.next_at_once()) is not None:
            run.append(more.path)
        return run

    async def _attach(self, paths: list[str]) -> None:
        for path, opened in zip(paths, await self._open(paths), strict=True):
            if isinstance(opened, Reader):
                try:
                    self._attached[path] = _Source(self.attach(opened), opened)
                    self.problems.pop(path, None)
                    self._unattached.discard(path)
                    _log.info("attached: %s", path)
                except ChronicleError as error:
                    opened.close()
                    self._cannot_attach(path, error)
            else:
                self._cannot_attach(path, opened)

    def _cannot_attach(self, path: str, error: ChronicleError) -> None:
        if str(self.problems.get(path)) != str(error):
            _log.warning("cannot attach: %s", error)
        self.problems[path] = error
        self._unattached.add(path)

    async def _open(self, paths: list[str]) -> list[Reader | ChronicleError]:
        opening = in_background(lambda: self._open_all(paths))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # It goes on in its thread, and nobody else would close what it opens.
            for opened in await opening:
                if isinstance(opened, Reader):
                    opened.close()
            raise

    def _open_all(self, paths: list[str]) -> list[Reader | ChronicleError]:
        if len(paths) == 1:
            return [self._open_one(paths[0])]
        with ThreadPoolExecutor(_OPENING_THREADS) as threads:
            return [*threads.map(self._open_one, paths)]

    def _open_one(self, path: str) -> Reader | ChronicleError:
        try:
            return open_reader(path, self.name, start=self._start, codec=self._codec)
        except ChronicleError as error:
            return error

    async def _detach(self, path: str) -> None:
        self.problems.pop(path, None)
        self._unattached.discard(path)
        if path in self._attached:
            await self._leave(path)
            _log.info("removed: %s", path)

    async def _leave(self, path: str) -> None:
        source = self._attached[path]
        # First, so that whoever sees the source gone finds its replies closed; and while it is
        # still attached, so that aclose does it if this is cancelled here.
        await self._close_reply(source)
        self._attached.pop(path, None)
        if source.id in self.sources():
            self.detach(source.id)
        source.reader.close()

    async def set_aside(self, message: _hot.Message, error: ChronicleError) -> None:
        """Leave the queue of a message that cannot be dealt with now, because of this problem.

        It is attached again after ``rescan_s``, where the router's ``start`` says: by default behind its
        last commit. Nothing happens if it is not attached any more.
        """
        async with self._changing:
            try:
                path = self._path_of(message)
            except SourceGone:
                return
            await self._leave(path)
            # Its frames hold the message, and that would hold the segment.
            self._cannot_attach(path, error.with_traceback(None))

    def _on_error(self, source: int, error: Exception) -> None:
        """Leave a queue that fails; what it delivered may be committed no more."""
        path = self.paths().get(source)
        _log.warning("detached: %s", error)
        reader = self.detach(source)
        self.problems[reader.path if path is None else path] = error
        if path is not None:  # one that was attached by hand stays its owner's
            reader.close()

    async def reply(self, source: "int | _hot.Message") -> Writer:
        """Return the writer of the reply queue of this source (an id, or a message from it).

        The first call opens it, outside the loop, and so does the first after it was found that the
        reply queue alone was removed. SourceGone if the queue is not attached any more; and when it
        goes later, the writer is closed.
        """
        path = self._path_of(source)
        attached = self._attached[path]
        dead = attached.dead_reply()
        if attached.reply is None or dead is not None:
            attached.reply = in_background(lambda: self._open_reply(path, dead))
        opening = attached.reply
        try:
            return await asyncio.shield(opening)  # for all who asked, whoever is cancelled
        except Exception:
            if attached.reply is opening:  # or somebody who was told before us has tried again
                attached.reply = None
            raise

    def reader_of(self, message: _hot.Message) -> Reader:
        """Return the reader that the message came from; SourceGone if it is not attached any more."""
        return self._attached[self._path_of(message)].reader

    def _open_reply(self, path: str, instead_of: Writer | None) -> Writer:
        if instead_of is not None:
            instead_of.close()
        target = Path(self._reply_root) / os.path.relpath(path, self.root)
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"no directory for reply queues can be made: {error.strerror}",
                path=str(target.parent),
                errno=error.errno,
            ) from error
        return open_writer(
            target,
            segment_size=self._reply_segment_size,
            retention=self._reply_retention,
            codec=self._reply_codec,
            ready=True,
        )

    async def _close_reply(self, source: _Source) -> None:
        if source.reply is not None:
            await asyncio.wait([source.reply])
            if source.reply.exception() is None:
                try:
                    await in_background(source.reply.result().close)
                except ChronicleError as error:  # no matter of the other queues
                    _log.warning("closing a reply queue failed: %s", error)

    def _path_of(self, source: "int | _hot.Message") -> str:
        if isinstance(source, int):
            path = self.paths().get(source)
            if path is None:
                raise SourceGone(f"source {source} is not attached")
            return path
        for path, one in self._attached.items():
            if one.reader._is_of(source):
                return path
        raise SourceGone(f"the queue of {source!r} is not attached")

    def commit(self, source: "int | _hot.Message | None" = None) -> None:
        """Do what ``FanIn.commit`` does; nothing for a message whose queue has gone meanwhile."""
        try:
            super().commit(source)
        except (KeyError, ClosedError):
            if self.closed or not isinstance(source, _hot.Message):
                raise

    async def aclose(self) -> None:
        """Stop following, detach and close everything this router opened."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._discovery.aclose()
        for source in self._attached.values():
            await self._close_reply(source)
        self.close()

    def close(self) -> None:
        """As aclose, at once: whatever runs in the background is told to end, not waited for."""
        for task in self._tasks:
            task.cancel()
        self._discovery.stop()
        super().close()
        for source in self._attached.values():
            source.reader.close()
            if source.reply is not None:
                source.reply.add_done_callback(_close_opened)
        self._attached.clear()

    async def __aenter__(self) -> Self:
        self._follow()
        scanned = asyncio.ensure_future(self._scanned.wait())
        try:
            await asyncio.wait([scanned, self._tasks[0]], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.aclose()
            raise
        finally:
            scanned.cancel()
        if not self._scanned.is_set():
            follower = self._tasks[0]
            await self.aclose()
            await follower  # raises what ended it
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
