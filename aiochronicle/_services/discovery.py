"""Finds queues under a root directory as they appear and disappear.

A queue announces itself by a file READY in its directory, created by a rename (Writer.mark_ready). A file
system event is only a hint to examine a directory again; the current content of the directory decides. Hints
come from three sources, and each continues if another fails:

- The engine watches every directory that may contain a queue, through a descriptor that the event loop waits
  for (directory_watch.py). This costs nothing while nothing changes.
- watchfiles watches the directories where queues are created and removed, at intervals (watcher.py). If the
  engine's watches, whose number the system limits, are not available, it watches everything, at a short
  interval.
- A full scan runs every ``rescan_s`` seconds.

Discovery therefore ends only when it is closed.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from aiochronicle._base.arguments import pathname, positive, refuse_file, seconds
from aiochronicle._base.background import in_background
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.printable import printable
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._services.directory_watch import DirectoryWatch
from aiochronicle._services.examiner import Attached, Detached, Examiner
from aiochronicle._services.ready import Ready
from aiochronicle._services.watcher import Watcher

__all__ = ["Attached", "Detached", "Discovery", "Ready", "discover"]

HINTS_MAX = 4096
# The pause between examinations, which grows while changes continue.
PAUSE_S, PAUSE_MAX_S = 0.001, 0.02

_NO_WATCHES = (
    "cannot watch all directories, so finding queues is slower and costs more CPU time: %s "
    "(check fs.inotify.max_user_instances and max_user_watches, and the limit of open files)"
)

_log = logging.getLogger("aiochronicle.discovery")


class Scanned(msgspec.Struct, frozen=True):
    """The first scan has ended: all queues that existed at the start were reported. For ``next_event``."""


def discover(
    root: str | os.PathLike[str],
    *,
    depth: int = 1,
    rescan_s: float = 5.0,
) -> "Discovery":
    """Follow the queues under ``root``: ``async for event in discover(root)``.

    Yields Attached(path, ready) for each queue that exists or appears, and Detached(path) when its
    directory is removed. ``depth`` is the number of levels below the root to search. A directory whose
    READY is unreadable or of a newer version is skipped with a warning in the log. A full scan runs every
    ``rescan_s`` seconds, in case the system lost an event. A missing root is created. Close it (``async
    with``, ``aclose``) when you are done. Cancelling a task that waits for an event loses none.
    """
    return Discovery(root, depth=depth, rescan_s=rescan_s)


class Discovery:
    """An asynchronous iterator and context manager. Created by discover.

    It belongs to one event loop at a time. Another loop can use it after the first one is closed; until then
    that raises InvalidArgument.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, depth: int, rescan_s: float, make: bool = True
    ) -> None:
        self.root = pathname("root", root)
        self._makes_root = make
        self._rescan_s = seconds("rescan_s", rescan_s)
        self._examiner = Examiner(self.root, positive("depth", depth))
        self._events: deque[Attached | Detached | Scanned] = deque()
        self._logged: set[str] = set()
        self._closed = False
        self._home = OneLoop(f"the discovery of {self.root}")
        self._renew()

    def _renew(self) -> None:
        """Create the objects that belong to one event loop."""
        self._event_added = asyncio.Event()  # also set at the end
        self._changed = asyncio.Event()
        self._hints: set[str] | None = set()  # paths to examine; None: all
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attached | Detached:
        while isinstance(event := await self.next_event(), Scanned):
            pass
        return event

    async def next_event(self) -> Attached | Detached | Scanned:
        """Wait for the next event, which may be the end of the first scan."""
        if self._closed:
            raise StopAsyncIteration
        if self._home.enter():
            self._renew()
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"discover {self.root}")
            self._task.add_done_callback(lambda _: self._event_added.set())
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            if self._task.done():
                self._task.result()  # raises the exception that ended it
            self._event_added.clear()
            await self._event_added.wait()
        return self._events.popleft()

    def _report(self, event: Attached | Detached | Scanned) -> None:
        self._events.append(event)
        self._event_added.set()

    def next_attached_now(self) -> Attached | None:
        """Return the next event without waiting, if it is an Attached."""
        event = self._events[0] if self._events else None
        if isinstance(event, Attached):
            self._events.popleft()
            return event
        return None

    def stop(self) -> None:
        """Stop watching soon: the watcher ends in the background. Iteration ends."""
        self._closed = True
        self._events.clear()
        self._event_added.set()
        if self._is_following():
            assert self._task is not None
            self._task.cancel()

    async def aclose(self) -> None:
        """Stop watching. Iteration ends."""
        self.stop()
        if self._is_following():
            assert self._task is not None
            await asyncio.wait([self._task])

    def _is_following(self) -> bool:
        """Return whether the task may be running; the task of a closed loop is not."""
        return self._task is not None and not self._task.get_loop().is_closed()

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
        if self._makes_root:
            await in_background(self._make_root)
        loop = asyncio.get_running_loop()
        watcher = Watcher(self.root, self._on_change)
        try:
            self._open_watch(loop)
            if self._examiner.watch is None:
                watcher.follow({self.root: None}, eager=True)
                await watcher.watching()
            await self._examine(None, watcher)
            self._report(Scanned())
            await self._follow_changes(loop, watcher)
        finally:
            await self._end(loop, watcher)

    def _make_root(self) -> None:
        refuse_file("root", self.root)
        with storage_errors(self.root):
            Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _end(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        watch, self._examiner.watch = self._examiner.watch, None
        watcher.stop()
        if loop.is_closed():  # before the discovery was closed: nothing can be awaited
            if watch is not None:
                watch.close()
            return
        closing = [in_background(watcher.join)]
        if watch is not None:
            loop.remove_reader(watch.fileno())
            closing.append(in_background(watch.close))
        await asyncio.wait(closing)

    async def _follow_changes(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        """Examine what changes, and everything at intervals."""
        rescan_at = loop.time() + self._rescan_s
        pause_s = PAUSE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(rescan_at):
                    await self._changed.wait()
            self._changed.clear()
            hints, self._hints = self._hints, set()
            if loop.time() >= rescan_at:
                hints = None
            if hints is None:
                self._open_watch(loop)
            await self._examine(hints, watcher)
            if hints is None:
                rescan_at = loop.time() + self._rescan_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S) if self._changed.is_set() else PAUSE_S

    def _open_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._examiner.watch is not None:
            return
        try:
            watch = DirectoryWatch()
            loop.add_reader(watch.fileno(), self._on_watch)
        except OSError as error:
            self._warn_once("no inotify", _NO_WATCHES, error.strerror)
            return
        self._examiner.watch = watch

    def _on_watch(self) -> None:
        if self._examiner.watch is None:
            return
        changes = self._examiner.watch.take()
        if changes is None:
            self._on_change(None)
        elif marks := {
            os.path.join(path, name) if name else path
            for path, name in changes
            if self._examiner.is_mark(path, name)
        }:
            self._on_change(marks)

    def _on_change(self, paths: set[str] | None) -> None:
        if paths is None or self._hints is None or len(self._hints) + len(paths) > HINTS_MAX:
            self._hints = None
        else:
            self._hints |= paths
        self._changed.set()

    async def _examine(self, hints: set[str] | None, watcher: Watcher) -> None:
        """Examine the directories of these paths, or all if None; then watch new directories."""
        try:
            examining = in_background(lambda: self._examiner.examine(hints, lambda: self._closed))
            try:
                found = await asyncio.shield(examining)
            except asyncio.CancelledError:
                await asyncio.wait(
                    [examining]
                )  # it has files open, and ends soon because of _closed
                raise
        except Exception as error:  # noqa: BLE001 - the next examination may succeed
            self._warn_once(type(error).__name__, "cannot be examined, retrying: %s", error)
            return
        for event in found:
            self._report(event)
        self._follow_directories(watcher)

    def _follow_directories(self, watcher: Watcher) -> None:
        examiner = self._examiner
        if examiner.unwatched is not None:
            self._warn_once("watch", _NO_WATCHES, examiner.unwatched.strerror)
        eager = examiner.watch is None or examiner.unwatched is not None
        watcher.follow(
            {path: what for path, what in examiner.directories.items() if eager or not what.leaf},
            eager=eager,
        )

    def _warn_once(self, kind: str, text: str, *arguments: object) -> None:
        """Log a warning, once for each kind."""
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("%s: " + text, printable(self.root), *map(printable, arguments))
