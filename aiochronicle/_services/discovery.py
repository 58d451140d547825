"""Finding queues under a root directory as they appear and vanish.

A queue announces itself by a READY file in its directory, created by a rename (Writer.mark_ready). An event
is only a hint to examine a directory again; its present content decides. Hints come from three sources, and
each continues if another fails:

- The engine watches every directory that may contain a queue, through a descriptor that the event loop waits
  for (directory_watch.py). It costs nothing while nothing happens.
- watchfiles watches the directories where queues come and go, and is asked at intervals (watcher.py). Without
  the engine's watches, whose number the system limits, it watches everything, at a short interval.
- Every ``rescan_s`` seconds everything is examined.

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
from aiochronicle._services.directory_watch import Nudge
from aiochronicle._services.examiner import Attached, Detached, Examiner
from aiochronicle._services.ready import Ready
from aiochronicle._services.watcher import Watcher

__all__ = ["Attached", "Detached", "Discovery", "Ready", "discover"]

HINTS_MAX = 4096
# Looks follow each other after a pause that grows while there is always something new.
PAUSE_S, PAUSE_MAX_S = 0.001, 0.02

_NO_WATCHES = (
    "directories cannot be watched as they should, so finding queues takes longer and costs more: %s "
    "(see fs.inotify.max_user_instances and max_user_watches, and the limit of open files)"
)

_log = logging.getLogger("aiochronicle.discovery")


class Scanned(msgspec.Struct, frozen=True):
    """Everything that was there in the beginning has been reported; for those who use ``next_event``."""


def discover(
    root: str | os.PathLike[str],
    *,
    depth: int = 1,
    rescan_s: float = 5.0,
) -> "Discovery":
    """Follow the queues under ``root``: ``async for event in discover(root)``.

    Yields Attached(path, ready) for each queue that exists or appears, and Detached(path) when its directory
    is removed. ``depth`` is the number of levels below the root to search. Directories with an unreadable or
    newer READY are skipped with a warning in the log. Every ``rescan_s`` seconds everything is examined, in
    case the system lost an event. A missing root is created. Close it (``async with``, ``aclose``) when done;
    cancelling a task that waits for an event loses none.
    """
    return Discovery(root, depth=depth, rescan_s=rescan_s)


class Discovery:
    """Created by discover; an asynchronous iterator and context manager.

    It belongs to one event loop at a time: it may be used in another one when the first is closed, and raises
    InvalidArgument before that.
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
        """Make what serves one event loop only."""
        self._there = asyncio.Event()  # an event, or the end
        self._stirred = asyncio.Event()
        self._hints: set[str] | None = set()  # paths; None: anything
        self._task: asyncio.Task[None] | None = None

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
        if self._home.enter():
            self._renew()
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
        """Return whether there is something to be ended; a loop that is closed has ended it."""
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
            self._open_nudge(loop)
            if self._examiner.nudge is None:
                watcher.follow({self.root: None}, eager=True)
                await watcher.watching()
            await self._look(None, watcher)
            self._report(Scanned())
            await self._go_on(loop, watcher)
        finally:
            await self._end(loop, watcher)

    def _make_root(self) -> None:
        refuse_file("root", self.root)
        with storage_errors(self.root):
            Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _end(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        nudge, self._examiner.nudge = self._examiner.nudge, None
        watcher.stop()
        if loop.is_closed():  # before its discovery: nothing can be waited for
            if nudge is not None:
                nudge.close()
            return
        closing = [in_background(watcher.join)]
        if nudge is not None:
            loop.remove_reader(nudge.fileno())
            closing.append(in_background(nudge.close))
        await asyncio.wait(closing)

    async def _go_on(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        """Examine what changes, and now and then everything."""
        rescan_at = loop.time() + self._rescan_s
        pause_s = PAUSE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(rescan_at):
                    await self._stirred.wait()
            self._stirred.clear()
            hints, self._hints = self._hints, set()
            if loop.time() >= rescan_at:
                hints = None
            if hints is None:
                self._open_nudge(loop)
            await self._look(hints, watcher)
            if hints is None:
                rescan_at = loop.time() + self._rescan_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S) if self._stirred.is_set() else PAUSE_S

    def _open_nudge(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._examiner.nudge is not None:
            return
        try:
            nudge = Nudge()
            loop.add_reader(nudge.fileno(), self._on_nudge)
        except OSError as error:
            self._complain("nudge", _NO_WATCHES, error.strerror)
            return
        self._examiner.nudge = nudge

    def _on_nudge(self) -> None:
        if self._examiner.nudge is None:
            return
        changes = self._examiner.nudge.take()
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
        self._stirred.set()

    async def _look(self, hints: set[str] | None, watcher: Watcher) -> None:
        """Examine the directories that the paths lie in, None means all of them; then watch what is new."""
        try:
            looking = in_background(lambda: self._examiner.look(hints, lambda: self._closed))
            try:
                found = await asyncio.shield(looking)
            except asyncio.CancelledError:
                await asyncio.wait([looking])  # it has files open; it ends soon, for we are closed
                raise
        except Exception as error:  # noqa: BLE001 - the next look may fare better
            self._complain(type(error).__name__, "cannot be examined, retrying: %s", error)
            return
        for event in found:
            self._report(event)
        self._follow_directories(watcher)

    def _follow_directories(self, watcher: Watcher) -> None:
        examiner = self._examiner
        if examiner.unwatched is not None:
            self._complain("watch", _NO_WATCHES, examiner.unwatched.strerror)
        eager = examiner.nudge is None or examiner.unwatched is not None
        watcher.follow(
            {path: what for path, what in examiner.directories.items() if eager or not what.leaf},
            eager=eager,
        )

    def _complain(self, kind: str, text: str, *arguments: object) -> None:
        """Log something once."""
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("%s: " + text, printable(self.root), *map(printable, arguments))
