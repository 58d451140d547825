"""Finding queues under a root directory as they appear and vanish.

A queue announces itself by a READY file in its directory, put there by a rename
(Writer.mark_ready). The watcher is started first, then everything is scanned, then its events are
followed, so nothing falls between. An event is only ever a hint to look at a directory again:
what counts is what is found there. That covers the events which recursive watching loses (a READY
renamed into a directory that was created a moment ago); a slow full scan is the net below.
"""

import asyncio
import contextlib
import logging
import os
import stat
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from aiochronicle._arguments import pathname, positive, refuse_file, seconds
from aiochronicle._background import in_background
from aiochronicle._prepared import prepared
from aiochronicle._smallfile import read_small_file
from aiochronicle._watcher import Watcher

__all__ = ["Attached", "Detached", "Discovery", "Ready", "discover"]

SUPPORTED_VERSION = 1
READY_BYTES_MAX = 65536
QUEUE_ID_OFFSET, QUEUE_ID_BYTES = 32, 8  # in control.meta; zero in other programs' queues

_log = logging.getLogger(__name__)


@prepared
class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a READY file; ``extra`` holds whatever else its writer put there."""

    version: int
    pid: int | None = None
    created_at: str | None = None
    extra: dict[str, Any] = {}


class Attached(msgspec.Struct, frozen=True):
    """A queue is ready."""

    path: str
    ready: Ready


class Detached(msgspec.Struct, frozen=True):
    """A queue that was ready is gone."""

    path: str


class Scanned(msgspec.Struct, frozen=True):
    """Everything that was there in the beginning has been reported; for those who use ``next_event``."""


class _Known(msgspec.Struct, frozen=True):
    """What tells a queue from another one at the same path; an inode number alone is used again."""

    device: int
    inode: int
    queue_id: bytes


def parse_ready(content: bytes) -> Ready:
    """Read a READY file: JSON, or ``version=N`` on its first line; else ValueError."""
    text = content.decode("utf-8")
    first = text.strip().splitlines()[0] if text.strip() else ""
    if first.startswith("version="):
        return Ready(version=int(first.removeprefix("version=")))
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"neither JSON nor version=N: {error}") from error
    names = ("version", "pid", "created_at")
    known: dict[str, Any] = {name: fields.pop(name) for name in names if name in fields}
    try:
        return msgspec.convert({**known, "extra": fields}, Ready)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def discover(
    root: str | os.PathLike[str],
    *,
    depth: int = 1,
    rescan_s: float = 5.0,
) -> "Discovery":
    """Follow the queues under ``root``: ``async for event in discover(root)``.

    Gives Attached(path, ready) for each queue that is there or appears, and Detached(path) when
    its directory is removed. ``depth`` is how many levels below the root queues may lie.
    Directories with an unreadable or newer READY are skipped with a warning in the log. Every
    ``rescan_s`` seconds everything is looked at, in case that the system lost an event. A missing
    root is made. Close it (``async with``, ``aclose``) when done; cancelling a task that waits
    for an event loses none.
    """
    return Discovery(root, depth=depth, rescan_s=rescan_s)


class Discovery:
    """Made by discover; an asynchronous iterator and context manager."""

    def __init__(self, root: str | os.PathLike[str], *, depth: int, rescan_s: float) -> None:
        self.root = pathname("root", root)
        self._depth = positive("depth", depth)
        self._rescan_s = seconds("rescan_s", rescan_s)
        self._known: dict[str, _Known] = {}
        self._warned: dict[str, str] = {}
        self._events: deque[Attached | Detached | Scanned] = deque()
        self._there = asyncio.Event()  # an event, or the end
        self._hints: set[str] = set()
        self._stirred = asyncio.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attached | Detached:
        while isinstance(event := await self.next_event(), Scanned):
            pass
        return event

    async def next_event(self) -> Attached | Detached | Scanned:
        """Wait for what comes next, the end of the first scan included."""
        if self._closed:
            raise StopAsyncIteration
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"discover {self.root}")
            self._task.add_done_callback(lambda _: self._there.set())
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            if self._task.done():
                self._task.result()  # raises what ended it
            self._there.clear()
            await self._there.wait()
        return self._events.popleft()

    def _report(self, event: Attached | Detached | Scanned) -> None:
        self._events.append(event)
        self._there.set()

    def next_at_once(self) -> Attached | None:
        """Return one more queue that is ready, if that comes next and is here already."""
        event = self._events[0] if self._events else None
        if isinstance(event, Attached):
            self._events.popleft()
            return event
        return None

    def stop(self) -> None:
        """Stop watching soon: the watcher ends in the background. Iteration ends."""
        self._closed = True
        self._events.clear()
        self._there.set()
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Stop watching. Iteration ends."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _follow(self) -> None:
        watcher = Watcher(self.root, self._on_change, self._on_failure)
        try:
            await in_background(self._make_root)
            await watcher.start()
            await self._look(None)
            self._report(Scanned())
            await self._go_on()
        finally:
            await watcher.stop()

    async def _go_on(self) -> None:
        """Examine what the watcher reports, and now and then everything."""
        loop = asyncio.get_running_loop()
        rescan_at = loop.time() + self._rescan_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(rescan_at):
                    await self._stirred.wait()
            if self._failure is not None:
                raise self._failure
            self._stirred.clear()
            hints, self._hints = self._hints, set()
            if loop.time() >= rescan_at:
                await self._look(None)
                rescan_at = loop.time() + self._rescan_s
            else:
                await self._look(hints)

    def _on_change(self, paths: set[str]) -> None:
        self._hints |= paths
        self._stirred.set()

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        self._stirred.set()

    def _make_root(self) -> None:
        refuse_file("root", self.root)
        Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _look(self, hints: set[str] | None) -> None:
        """Examine the directories that the paths lie in; None means all of them."""
        looking = in_background(lambda: list(self._examine(hints)))
        try:
            found = await asyncio.shield(looking)
        except asyncio.CancelledError:
            await asyncio.wait([looking])  # it has files open; it ends soon, for we are closed
            raise
        for event in found:
            self._report(event)

    def _examine(self, hints: set[str] | None) -> Iterable[Attached | Detached]:
        candidates: set[str] = set()
        if hints is None:
            candidates.update(self._scan(self.root, self._depth))
        for path in hints or ():
            candidates.update(self._directories_of(path))
        if hints is None:
            candidates.update(self._known)
        for path in sorted(candidates):
            if self._closed:
                return
            yield from self._examine_one(path)

    def _scan(self, directory: str, levels: int) -> Iterable[str]:
        try:
            with os.scandir(directory) as entries:
                children = [e.path for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for child in children:
            yield child
            if levels > 1:
                yield from self._scan(child, levels - 1)

    def _directories_of(self, path: str) -> Iterable[str]:
        """Yield the directories on the way from the root to ``path``, as deep as queues may lie."""
        parts = Path(os.path.relpath(path, self.root)).parts
        if not parts or parts[0] == os.pardir:
            return
        for count in range(1, min(len(parts), self._depth) + 1):
            directory = str(Path(self.root, *parts[:count]))
            yield directory
            if count == len(parts) and count < self._depth:
                yield from self._scan(directory, self._depth - count)

    def _examine_one(self, path: str) -> Iterable[Attached | Detached]:
        known = self._known.get(path)
        found = self._identify(path)
        if known is not None and found != known:
            del self._known[path]
            yield Detached(path)
            known = None
        if found is None:
            self._warned.pop(path, None)
        elif known is None and (ready := self._read_ready(path)) is not None:
            self._known[path] = found
            yield Attached(path, ready)

    def _identify(self, path: str) -> _Known | None:
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISDIR(status.st_mode):
            return None
        return _Known(status.st_dev, status.st_ino, self._read_queue_id(path))

    def _read_queue_id(self, path: str) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(f"{path}/control.meta", flags)
        except OSError:
            return b""
        try:
            return os.pread(fd, QUEUE_ID_BYTES, QUEUE_ID_OFFSET)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def _read_ready(self, path: str) -> Ready | None:
        """Return the marker's content, or None if there is none that can be used."""
        try:
            ready = _load_ready(f"{path}/READY")
        except ValueError as error:
            if self._warned.get(path) != str(error):  # once, not at every scan
                self._warned[path] = str(error)
                _log.warning("%s: %s; the queue is skipped", path, error)
            return None
        return ready


def _load_ready(path: str) -> Ready | None:
    """Read a marker; None if there is none, ValueError if it cannot be used."""
    content = read_small_file(path, READY_BYTES_MAX)
    if content is None:
        return None
    try:
        ready = parse_ready(content)
    except ValueError as error:
        raise ValueError(f"READY cannot be read: {error}") from error
    if ready.version > SUPPORTED_VERSION:
        raise ValueError(f"READY has version {ready.version}, newer than this program's")
    return ready
