"""A fan-in that follows discovery: queues are attached as they appear, detached as they go."""

import asyncio
import contextlib
import logging
import os
import resource
from types import TracebackType
from typing import Any, Literal, Self

from aiochronicle import _hot
from aiochronicle._background import in_background
from aiochronicle.discovery import Attached, Detached, discover
from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.fanin import FanIn
from aiochronicle.reader import Reader, StartPoint, open_reader
from aiochronicle.writer import Writer, open_writer

__all__ = ["Router"]

_FDS_WANTED = 65536

_log = logging.getLogger(__name__)


def _raise_fd_limit() -> None:
    """Each attached queue costs an fd; take what the system allows without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FDS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FDS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _log.info("raised the limit of open files from %d to %d", soft, wanted)


class Router(FanIn):
    """All queues under a root as one ordered stream: ``async for message in router``.

    Strategies come and go while it runs. ``name`` is the reader name in each queue: after a restart
    every queue goes on behind the last ``commit``. Queues that cannot be attached are in
    ``problems`` by path, with the exception, and are tried again when they are announced anew.

    ``reply(source)`` gives the writer of a queue back to the sender, under ``reply_root`` (by
    default ROOT.replies), named like the sender's.

    Use it as an async context manager, so that readers, writers and the watcher are closed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        name: str,
        order: Literal["available", "strict"] = "available",
        max_wait: float | None = None,
        start: StartPoint = "committed",
        reply_root: str | os.PathLike[str] | None = None,
        depth: int = 1,
        rescan_s: float = 5.0,
        burst: int = 256,
    ) -> None:
        super().__init__(order=order, max_wait=max_wait, burst=burst)
        if not name:
            raise InvalidArgument("a router needs a reader name, under which positions are kept")
        _raise_fd_limit()
        self.name = name
        self.problems: dict[str, Exception] = {}
        self._start: StartPoint = start
        self._discovery = discover(root, depth=depth, rescan_s=rescan_s)
        self._reply_root = f"{self.root}.replies" if reply_root is None else os.fspath(reply_root)
        self._ids: dict[str, int] = {}
        self._replies: dict[str, Writer] = {}
        self._follower: asyncio.Task[None] | None = None

    @property
    def root(self) -> str:
        """Directory under which queues are found."""
        return self._discovery.root

    def paths(self) -> dict[int, str]:
        """Return the attached queues: source id to path."""
        return {source: path for path, source in self._ids.items()}

    def __aiter__(self) -> Any:
        self._follow()
        return super().__aiter__()

    def next(self, timeout: float | None = None) -> Any:
        """Wait for the next message of any queue; TimeoutError after ``timeout`` seconds."""
        self._follow()
        return super().next(timeout)

    def _follow(self) -> None:
        if self._follower is None:
            self._follower = asyncio.create_task(self._run(), name=f"router {self.root}")

    async def _run(self) -> None:
        try:
            async for event in self._discovery:
                if isinstance(event, Attached):
                    await self._attach(event.path)
                else:
                    self._detach(event)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s: discovery ended", self.root)
            raise

    async def _attach(self, path: str) -> None:
        self.problems.pop(path, None)
        reader: Reader | None = None
        try:
            reader = await in_background(lambda: open_reader(path, self.name, start=self._start))
            self._ids[path] = self.attach(reader)
        except ChronicleError as error:
            if reader is not None:
                reader.close()
            self.problems[path] = error
            _log.warning("cannot attach: %s", error)

    def _detach(self, event: Detached) -> None:
        self.problems.pop(event.path, None)
        source = self._ids.pop(event.path, None)
        if source is not None:
            self.detach(source).close()
        reply = self._replies.pop(event.path, None)
        if reply is not None:
            reply.close()

    def reply(self, source: "int | _hot.Message") -> Writer:
        """Return the writer of the reply queue of this source (an id, or a message from it)."""
        path = self.paths()[source] if isinstance(source, int) else self._path_of(source)
        writer = self._replies.get(path)
        if writer is None:
            os.makedirs(self._reply_root, mode=0o700, exist_ok=True)
            target = os.path.join(self._reply_root, os.path.relpath(path, self.root))
            writer = self._replies[path] = open_writer(target, ready=True)
        return writer

    def _path_of(self, message: _hot.Message) -> str:
        for path, source in self._ids.items():
            if self.sources()[source].statistics().queue_id == message.queue_id:
                return path
        raise KeyError(f"the queue of {message!r} is not attached")

    async def aclose(self) -> None:
        """Stop following, detach and close everything this router opened."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
        await self._discovery.aclose()
        readers = list(self.sources().values())
        self.close()
        self._ids.clear()
        for reader in readers:
            reader.close()
        for writer in self._replies.values():
            await in_background(writer.close)
        self._replies.clear()

    async def __aenter__(self) -> Self:
        self._follow()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
