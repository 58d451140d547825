"""A fan-in that follows discovery.

Queues are attached when they announce themselves, and detached when they are removed. A queue that
fails is set aside: it leaves the stream and is retried, at the position where it failed, until it is
repaired or removed. Every problem belongs to one path and does not affect the other queues.
"""

import asyncio
import contextlib
import logging
import os
import resource
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from aiochronicle import _hot
from aiochronicle._base.arguments import expect, pathname, permissions, segment_bytes
from aiochronicle._base.background import in_background, in_thread, shielded
from aiochronicle._base.names import check_name
from aiochronicle._base.one_loop import OneLoop
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._core.fanin import FanIn, FanInStatistics, SourceStatistics
from aiochronicle._core.health import reason
from aiochronicle._core.reader import (
    Reader,
    StartPoint,
    TimestampSource,
    check_start,
    check_timestamp,
)
from aiochronicle._core.writer import Writer
from aiochronicle._services.attaching import (
    Place,
    commit_late,
    commit_to,
    go_on_after_loss,
    open_source,
    place_of,
)
from aiochronicle._services.damage import (
    SERVICE_WORDS,
    Damage,
    OnDamage,
    Verdict,
    check_on_damage,
    judge,
)
from aiochronicle._services.discovery import Attached, Discovery, Scanned, discover
from aiochronicle._services.examiner import Identity
from aiochronicle._services.trusted import make_trusted_root, open_trusted_writer, owners_of
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Retention
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    CorruptionError,
    PositionLost,
    QueueGone,
    SourceGone,
)

__all__ = ["Router", "RouterStatistics"]

_FDS_WANTED = 65536
_RUN_MAX = 256
_OPENING_THREADS = 8
_DAMAGE_MAX = 64  # places that one try steps over
_FIRST_RETRY_S = 0.1
_REPLY_ROOT_MODE = 0o700

_log = logging.getLogger("aiochronicle.router")


def _raise_fd_limit() -> None:
    """Take what the system allows: each attached queue with a live writer costs an fd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FDS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FDS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _log.info("raised the limit of open files from %d to %d", soft, wanted)


class RouterStatistics(FanInStatistics, frozen=True, kw_only=True):
    """A router as a whole: the counters of FanInStatistics, and those of damage.

    ``skipped`` is the number of damaged places that were stepped over. ``lost`` is the number of
    messages that were removed before they were read, as far as seqs tell; a loss of unknown size
    counts as one. ``set_aside`` is the number of queues that are not in the stream now: see
    ``Router.problems``.
    """

    skipped: int
    lost: int
    set_aside: int


class _Counts:
    """Damage in one queue, however often it is attached again."""

    def __init__(self) -> None:
        self.skipped = self.lost = 0


class _Known:
    """A queue that was announced: the reader that it has or had, and the replies to it."""

    def __init__(self, reader: Reader | None) -> None:
        self.reader: Reader[Any] | None = reader
        self.reply: Future[Writer] | None = None

    def has_sent(self, message: _hot.Message) -> bool:
        """Tell whether a message is from this queue."""
        return self.reader is not None and self.reader._is_of(message)

    def has_no_reply(self) -> bool:
        """Tell whether the writer of replies is yet to be opened, perhaps because that failed."""
        return self.reply is None or (self.reply.done() and self.reply.exception() is not None)

    def dead_reply(self) -> Writer | None:
        """Return the writer of replies if its owner closed it, or its queue was removed."""
        if self.reply is None or not self.reply.done() or self.has_no_reply():
            return None
        writer = self.reply.result()
        return writer if writer.closed or writer.gone else None


class _Source(_Known):
    """An attached queue."""

    reader: Reader[Any]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, source: int, reader: Reader) -> None:
        super().__init__(reader)
        self.id = source
        self.attached_s = time.monotonic()


class _Aside(_Known):
    """A queue that is not attached: why, and when it is tried again."""

    def __init__(self, error: Exception, pause_s: float) -> None:
        super().__init__(None)
        self.error = error
        self.pause_s = pause_s
        self.due_s = time.monotonic() + pause_s
        self.place: Place | None = None
        self.closing: Future[None] | None = None  # its reader; its name is busy until then
        self.skip: Exception | None = None  # the damage that opening steps over
        self.done: _hot.Message | Position | None = None  # committed since, not stored yet
        self.storing = threading.RLock()  # held by who has its reader open
        self.cannot_store = False  # before it is attached again

    def inherit(self, before: "_Aside") -> None:
        """Go on waiting as before, for another reason."""
        self.pause_s, self.due_s = before.pause_s, time.monotonic() + before.pause_s
        self.closing, self.reply = before.closing, before.reply
        self.reader, self.done = before.reader, before.done

    def store(self, path: str, name: str, identity: Identity | None) -> None:
        """Store what was committed since it was set aside, if anything. Blocks."""
        if self.closing is not None:
            self.closing.result()
        with self.storing:
            while (done := self.done) is not None:
                committed = commit_late(path, name, identity, done)
                if self.place is not None:  # so that this is not taken for an operator's commit
                    self.place = self.place._replace(committed=committed)
                if self.done is done:
                    self.done = None


def _close_opened(reply: "Future[Writer]") -> None:
    if reply.exception() is None:
        in_thread(reply.result().close)


class Router(FanIn[T]):
    """All queues under a root as one ordered stream: ``async for message in router``.

    ``message.source`` is the path of the message's queue below the root.

    Queues may be created and removed while it runs. ``name`` is the reader name in each queue: after
    a restart every queue continues after the last ``commit``. ``codec`` is that of ``open_reader``,
    for all queues; a queue with another schema is a problem.

    A queue that cannot be attached, or that fails, does not stop the others: it is set aside. Its
    exception is in ``problems`` by path, and in the log. It is retried, after 0.1 s at first and
    finally every ``rescan_s``, so that it comes back once it is repaired. It continues
    where it failed, or at a newer commit made under the router's name. A copy put in its place,
    for instance a backup, is another queue: it continues at the position committed there.

    ``on_corrupt`` sets what happens at a damaged record, ``on_lost`` what happens if messages were
    removed before they were read. "set_aside" sets the queue aside. "raise" also raises the exception
    out of the iteration, once; iterate again for the other queues. "skip" steps over the damage, or
    continues at the oldest message, with a warning in the log and a count in ``statistics``. A
    function is called with the exception: if it returns, the damage is skipped; an exception that it
    raises is raised as by "raise".

    ``timestamp`` says where messages of Java queues have their time, as in ``open_reader``; a message
    without it sets its queue aside. Native queues have their own timestamps.

    ``await reply(message)`` returns a writer for replies to the sender: a queue under ``reply_root``
    (by default ROOT.replies) with the sender's name, segments of ``reply_segment_size``, the types of
    ``reply_codec`` and files of ``reply_mode``. Replies are kept forever unless ``reply_retention`` is
    given. AccessDenied if ``reply_root`` or the reply queue belongs to a user other than this one,
    root or the owner of the parent directory, or is a link of such a user.

    Use it as an async context manager: entering returns when all existing queues are attached;
    leaving closes readers, writers and the watcher. It belongs to one event loop at a time: it may be
    used in another one when the first is closed, and raises InvalidArgument before that.
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
        self._on_corrupt: OnDamage = check_on_damage("on_corrupt", on_corrupt, SERVICE_WORDS)
        self._on_lost: OnDamage = check_on_damage("on_lost", on_lost, SERVICE_WORDS)
        self._codec = None if codec is None else registry_of(codec)
        self._reply_codec = None if reply_codec is None else registry_of(reply_codec, "reply_codec")
        super().__init__(order=order, max_wait=max_wait, burst=burst, on_error=self._on_error)
        _raise_fd_limit()
        self.name = name
        self._problems: dict[str, Exception] = {}
        self._start: StartPoint = start
        self._depth = depth
        self._rescan_s = rescan_s
        # Of open_reader, besides those above.
        self._reader_options: dict[str, Any] = {} if timestamp is None else {"timestamp": timestamp}
        self._discovery = self._discover(root)
        self._reply_root = (
            f"{self.root}.replies" if reply_root is None else pathname("reply_root", reply_root)
        )
        self._reply_segment_size = reply_segment_size
        self._reply_retention = reply_retention
        self._reply_mode = permissions(reply_mode)
        self._attached: dict[str, _Source] = {}
        self._aside: dict[str, _Aside] = {}
        self._announced: dict[str, Attached] = {}
        self._counts: dict[str, _Counts] = {}  # by path, also of queues that are aside
        self._removed = _Counts()
        self._stepped_over: dict[int, tuple[str | None, int | None]] = {}  # by source: where last
        self._closings: set[Future[None]] = set()
        self._home = OneLoop(f"the router of {self.root}")
        self._renew()

    def _check_name(self, name: str) -> None:
        check_name(f"reader name {name!r} of the router", name)

    def _discover(self, root: str | os.PathLike[str]) -> Discovery:
        return discover(root, depth=self._depth, rescan_s=self._rescan_s)

    def _renew(self) -> None:
        """Make what serves one event loop only."""
        self._changing = asyncio.Lock()
        self._begun = asyncio.Event()  # the first scan has ended, or failed
        self._stirred = asyncio.Event()  # there is more to be tried again
        self._cannot_begin: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def root(self) -> str:
        """Directory under which queues are found."""
        return self._discovery.root

    @property
    def problems(self) -> dict[str, Exception]:
        """Why queues are not in the stream now, by path; look here first if no messages come.

        It has every queue that is set aside, until it is attached again or removed; and the root,
        while it cannot be watched.
        """
        return self._problems

    def _reasons(self) -> list[str]:
        """Return what ``healthy`` says: the ``problems``, too."""
        problems = list(self.problems.items())  # other threads add to them
        return super()._reasons() + [reason("router", path, error) for path, error in problems]

    def paths(self) -> dict[int, str]:
        """Return the attached queues: source id to path."""
        merged = self.sources()
        return {one.id: path for path, one in self._attached.items() if one.id in merged}

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Return whether this is a type of the codec, or of an attached reader's codec."""
        return any(entry.codec.type is wanted for entry in self._codec or ()) or any(
            reader.decodes_to(wanted) for reader in self.sources().values()
        )

    def __aiter__(self) -> "_hot.Awaitable[_hot.Message[T]]":
        self._follow()
        return super().__aiter__()

    def next(self, timeout: float | None = None) -> Coroutine[Any, Any, _hot.Message[T]]:
        """Wait for the next message of any queue; TimeoutError after ``timeout`` seconds."""
        self._follow()
        return super().next(timeout)

    # ---- following ----

    def _enter_loop(self) -> None:
        was = self._home.loop
        if self._home.enter() and was is not None:
            # What the loop before had under way ended with it. Everything is found once more.
            self._discovery = self._discover(self.root)
            self._renew()

    def _follow(self) -> None:
        self._enter_loop()
        if not self._tasks and not self.closed:
            _log.debug("follows %s as %s", printable(self.root), self.name)
            self._tasks = [
                asyncio.create_task(self._follow_discovery(), name=f"router {self.root}"),
                asyncio.create_task(self._try_again(), name=f"router {self.root}: problems"),
            ]

    async def _follow_discovery(self) -> None:
        pause_s = self._first_pause_s()
        while not self.closed:
            try:
                await self._follow_events()
            except StopAsyncIteration:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, queues come and go on
                self._discovery_failed(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._rescan_s)
            await self._discovery.aclose()
            self._discovery = self._discover(self.root)

    def _discovery_failed(self, error: Exception) -> None:
        if not self._begun.is_set():
            self._cannot_begin = error
            self._begun.set()
        if str(self.problems.get(self.root)) != str(error):
            _log.error("%s: discovery failed: %s", printable(self.root), printable(error))
        self.problems[self.root] = error.with_traceback(None)

    async def _follow_events(self) -> None:
        found: set[str] | None = set()  # by the first scan of this discovery; None: it has ended
        while True:
            event = await self._discovery.next_event()
            async with self._changing:
                if isinstance(event, Attached):
                    run = self._run_of(event)
                    if found is not None:
                        found.update(one.path for one in run)
                    self._announced.update((one.path, one) for one in run)
                    await self._attach([p.path for p in run if p.path not in self._attached])
                elif isinstance(event, Scanned):
                    for path in {*self._attached, *self._aside} - (found or set()):
                        await self._detach(path)  # while nobody followed
                    found = None
                    self.problems.pop(self.root, None)
                    self._begun.set()
                else:
                    await self._detach(event.path)

    async def _try_again(self) -> None:
        while not self.closed:
            await self._wait_for_due()
            async with self._changing:
                now_s = time.monotonic()
                due = [path for path, aside in self._aside.items() if aside.due_s <= now_s]
                if due:
                    await self._attach(sorted(due)[:_RUN_MAX])

    async def _wait_for_due(self) -> None:
        self._stirred.clear()
        due_s = min((aside.due_s for aside in self._aside.values()), default=None)
        with contextlib.suppress(TimeoutError):
            pause_s = None if due_s is None else max(due_s - time.monotonic(), 0)
            async with asyncio.timeout(pause_s):
                await self._stirred.wait()

    def _first_pause_s(self) -> float:
        return min(_FIRST_RETRY_S, self._rescan_s)

    def _run_of(self, first: Attached) -> list[Attached]:
        """Return what can be attached together: opening waits for the disk, so not one by one."""
        run = [first]
        while len(run) < _RUN_MAX and (more := self._discovery.next_at_once()) is not None:
            run.append(more)
        return run

    # ---- attaching ----

    async def _attach(self, paths: list[str]) -> None:
        """Attach queues, stepping over damage that may be skipped; each is judged on its own."""
        for _ in range(_DAMAGE_MAX):  # and the rest at the next try
            await self._try_to_attach(paths)
            paths = self._to_skip(paths)
            if not paths:
                return

    def _to_skip(self, paths: list[str]) -> list[str]:
        """Return those that are opened once more, after the damage that was met."""
        return [path for path in paths if path in self._aside and self._aside[path].skip]

    async def _try_to_attach(self, paths: list[str]) -> None:
        """Open queues and merge them; those that fail are set aside, whatever it is."""
        self._take_in_all(paths, await self._open(paths))

    def _take_in_all(
        self, paths: list[str], results: "list[tuple[Reader, int] | Exception]"
    ) -> None:
        for path, opened in zip(paths, results, strict=True):
            if isinstance(opened, Exception):
                self._cannot_attach(path, opened)
                continue
            reader, lost = opened
            try:
                self._take_in(path, reader, lost)
            except Exception as error:  # noqa: BLE001 - it is that queue's problem
                self._close_reader(reader)
                self._cannot_attach(path, error)

    def _take_in(self, path: str, reader: Reader, lost: int) -> None:
        source = self._attached[path] = _Source(self.attach(reader), reader)
        aside = self._aside.pop(path, None)
        self.problems.pop(path, None)
        if aside is not None:
            source.attached_s += aside.pause_s  # failing again soon, it waits for longer
            source.reply = aside.reply
            if aside.done is not None:  # while it was opened
                self._commit_to(reader, aside.done)
            self._count_skip(path, aside.skip, lost)
        _log.info("attached: %s", printable(path))

    async def _open(self, paths: list[str]) -> list[tuple[Reader, int] | Exception]:
        opening = in_thread(lambda: self._open_all(paths))
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # It goes on in its thread, and nobody else would close what it opens.
            self._closings.add(in_thread(lambda: _close_all(opening)))
            raise
        except Exception as error:  # noqa: BLE001 - no thread, no memory: a problem of these paths
            return [error] * len(paths)

    def _open_all(self, paths: list[str]) -> list[tuple[Reader, int] | Exception]:
        if len(paths) <= 1:
            return [self._open_one(path) for path in paths]
        with ThreadPoolExecutor(_OPENING_THREADS) as threads:
            return [*threads.map(self._open_one, paths)]

    def _open_one(self, path: str) -> tuple[Reader, int] | Exception:
        aside = self._aside.get(path)
        identity = self._identity_of(path)  # and no other directory is opened
        options = self.name, self._start, self._codec, identity
        more = {**self._reader_options, "source": self._source_of(path)}
        try:
            if aside is None:
                return open_source(path, *options, None, None, **more)
            with aside.storing:
                aside.store(path, self.name, identity)
                place, skip = aside.place, aside.skip
                return open_source(path, *options, place, skip, **more)
        except Exception as error:  # noqa: BLE001 - it is that path's problem, whatever it is
            return error.with_traceback(None)

    def _source_of(self, path: str) -> str:
        """Return the name of a queue: its path below the root."""
        return os.path.relpath(path, self.root)

    def _identity_of(self, path: str) -> Identity | None:
        found = self._announced.get(path)
        return None if found is None else found.identity

    def _cannot_attach(self, path: str, error: Exception) -> None:
        before = self._aside.get(path)
        if before is not None and str(before.error) == str(error):
            before.pause_s = min(2 * before.pause_s, self._rescan_s)
            before.due_s = time.monotonic() + before.pause_s
            before.skip = None  # it was of no use
            text = "tried again without success, and again in %.1f s: %s"
            _log.debug(text, before.pause_s, printable(error))
            return
        if before is not None and isinstance(error, Damage):
            self._count_skip(path, before.skip, 1)  # it was: this comes after it
        verdict = self._judge(error)
        aside = self._set_aside(path, error, verdict, None if before is None else before.place)
        if before is not None:
            aside.inherit(before)
        if verdict.skip:
            aside.skip = error
            self._log_skip(error)
        else:
            _log.warning("cannot attach: %s", printable(error))
        if verdict.raised is not None:
            self._fail(verdict.raised)

    def _set_aside(
        self, path: str, error: Exception, verdict: Verdict, place: Place | None
    ) -> _Aside:
        problem = verdict.raised if isinstance(verdict.raised, Exception) else error
        aside = self._aside[path] = _Aside(error, self._first_pause_s())
        aside.place = place
        self.problems[path] = problem
        self._stir()
        return aside

    def _stir(self) -> None:
        """Have the problems looked at, by the loop that follows them; from any thread."""
        loop = self._home.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._stirred.set)

    async def _detach(self, path: str) -> None:
        if path in self._attached:
            await self._leave(path)
            self._log_removed(path)
        self._forget(path)

    def _log_removed(self, path: str) -> None:
        _log.info("removed: %s", printable(path))

    def _forget(self, path: str) -> None:
        # After that: it may have failed, and been set aside, while its replies were closed.
        aside = self._aside.pop(path, None)
        if aside is not None and aside.reply is not None:
            aside.reply.add_done_callback(_close_opened)
        self.problems.pop(path, None)
        self._announced.pop(path, None)
        counts = self._counts.pop(path, None)
        if counts is not None:
            self._removed.skipped += counts.skipped
            self._removed.lost += counts.lost

    async def _leave(self, path: str) -> "Future[None] | None":
        """Detach a queue; return what closes its reader."""
        source = self._attached[path]
        # First, so that once the source is gone its replies are closed; and while it is
        # still attached, so that aclose does it if this is cancelled here.
        closed = source.reply
        await self._close_reply(source)
        if self._attached.get(path) is not source:
            return None
        del self._attached[path]
        if source.reply is not None and source.reply is not closed:  # asked for since
            source.reply.add_done_callback(_close_opened)
        self._stepped_over.pop(source.id, None)
        if source.id in self.sources():
            self.detach(source.id)
        return self._close_reader(source.reader)

    def _close_reader(self, reader: Reader) -> "Future[None] | None":
        """Close a reader without blocking the loop, if there is one; None: it is closed."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            reader.close()
            return None
        closing = in_thread(reader.close)
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        return closing

    async def set_aside(self, message: _hot.Message, error: ChronicleError) -> None:
        """Set aside the queue of a message that cannot be handled now, because of this problem.

        It is attached again after a pause, at the router's ``start``: by default after its last
        commit. Does nothing if the queue is no longer attached.
        """
        self._enter_loop()
        async with self._changing:
            try:
                path = self._path_of(message)
            except SourceGone:
                return
            source = self._attached[path]
            closing = await self._leave(path)
            failed = self._aside.get(path)  # while its replies were closed
            # Its frames hold the message, and that would hold the segment.
            aside = self._set_aside(path, error.with_traceback(None), Verdict(), None)
            aside.closing = closing if failed is None else failed.closing
            aside.reader = source.reader
            self._pause_longer(aside, source)
            _log.warning("set aside: %s", printable(error))

    # ---- damage ----

    def _judge(self, error: Exception) -> Verdict:
        """Decide what to do about a queue that failed."""
        if isinstance(error, CorruptionError):
            return judge(self._on_corrupt, error)
        if isinstance(error, PositionLost):
            return judge(self._on_lost, error)
        return Verdict()

    def _on_error(self, source: int, error: Exception) -> None:
        """Step over damage, or leave the queue; what it delivered may be committed later."""
        reader: Reader = self.sources()[source]
        path = self.paths().get(source)
        verdict = self._judge(error)
        if verdict.skip and self._go_on(source, reader, error):
            return
        _log.warning("%s: %s", "detached" if path is None else "set aside", printable(error))
        self.detach(source)
        self._stepped_over.pop(source, None)
        if path is None:  # one that was attached by hand stays its owner's
            problem = verdict.raised if isinstance(verdict.raised, Exception) else error
            self.problems[reader.path] = problem
        else:
            self._abandon(path, reader, error, verdict)
        if verdict.raised is not None:
            raise verdict.raised

    def _abandon(self, path: str, reader: Reader, error: Exception, verdict: Verdict) -> None:
        source = self._attached.pop(path)
        aside = self._set_aside(path, error, verdict, place_of(reader))
        aside.closing = self._close_reader(reader)
        self._pause_longer(aside, source)
        # What was delivered before can still be answered, and committed.
        aside.reader, aside.reply = reader, source.reply

    def _pause_longer(self, aside: _Aside, source: _Source) -> None:
        """Let a queue that fails as soon as it is attached again wait for longer each time."""
        grace_s = source.attached_s - time.monotonic()  # how much of the last pause is left
        if grace_s > 0:
            aside.pause_s = min(max(aside.pause_s, 2 * grace_s), self._rescan_s)
            aside.due_s = time.monotonic() + aside.pause_s

    def _go_on(self, source: int, reader: Reader, error: Exception) -> bool:
        """Step over damage. False if that cannot be done: it is where it was stepped over last."""
        where = (error.path, error.offset) if isinstance(error, ChronicleError) else (None, None)
        if self._stepped_over.get(source) == where:
            return False
        try:
            if isinstance(error, PositionLost):
                next_seq = reader.statistics().next_seq
                self._count(reader.path).lost += go_on_after_loss(reader, error, next_seq)
            else:
                reader.step_over()
                self._count(reader.path).skipped += 1
            self._resume(source)
        except ChronicleError as further:
            _log.warning("cannot go on after that: %s", printable(further))
            return False
        self._stepped_over[source] = where
        self._log_skip(error)
        return True

    def _count_skip(self, path: str, error: Exception | None, lost: int) -> None:
        """Count what opening stepped over, if anything."""
        if isinstance(error, PositionLost):
            self._count(path).lost += lost
        elif error is not None:
            self._count(path).skipped += 1

    def _log_skip(self, error: Exception) -> None:
        what = "went on after a loss" if isinstance(error, PositionLost) else "stepped over"
        _log.warning("%s: %s", what, printable(error))

    def _count(self, path: str) -> _Counts:
        return self._counts.setdefault(path, _Counts())

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

    def source_statistics(self, source: int) -> SourceStatistics:
        """Return the counters of one source, with the damage that was met in its queue."""
        statistics = super().source_statistics(source)
        counts = self._counts.get(self.sources()[source].path, _Counts())
        return msgspec.structs.replace(statistics, skipped=counts.skipped, lost=counts.lost)

    # ---- replies ----

    async def reply(self, source: "int | _hot.Message") -> Writer:
        """Return the writer of the reply queue of this source (an id, or a message from it).

        The first call opens it, in a thread; so does the first call after that failed, or after the
        reply queue was removed. A message whose queue has been set aside can also be answered.
        SourceGone if the queue was removed; if it is removed later, the writer is closed.
        """
        self._enter_loop()
        path, known = self._find_known(source)
        dead = known.dead_reply()
        if known.has_no_reply() or dead is not None:
            known.reply = in_thread(lambda: self._open_reply(path, dead))
        assert known.reply is not None
        # Shielded: all callers share it, and one of them may be cancelled.
        return await shielded(asyncio.wrap_future(known.reply))

    def _find_known(self, source: "int | _hot.Message") -> tuple[str, _Known]:
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
        root = os.fspath(Path(self._reply_root))  # without a slash at its end, which follows links
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

    def _with_replies(self) -> "list[_Source | _Aside]":
        return [*self._attached.values(), *self._aside.values()]

    async def _close_reply(self, source: _Source | _Aside) -> None:
        if source.reply is not None:
            opening = source.reply
            try:
                await in_background(lambda: opening.result().close())
            except Exception as error:  # noqa: BLE001 - no matter of the other queues
                _log.warning("closing a reply queue failed: %s", printable(error))

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
        """Do what ``FanIn.commit`` does; nothing for queues that were removed.

        A queue that was set aside is committed in the background, or if that fails when it is
        attached again.
        """
        try:
            super().commit(source)
        except QueueGone:  # discovery is about to find out
            pass
        except (KeyError, ClosedError):
            if self.closed or not isinstance(source, _hot.Message):
                raise
        else:
            if source is not None:
                return
        for path, aside in list(self._aside.items()):
            if source is None:
                delivered = None if aside.place is None else aside.place.position
                if aside.place is not None and delivered not in (aside.place.committed, aside.done):
                    self._commit_aside(path, aside, delivered)
            elif isinstance(source, _hot.Message) and aside.has_sent(source):
                self._commit_aside(path, aside, source)

    def _commit_aside(
        self, path: str, aside: _Aside, done: "_hot.Message | Position | None"
    ) -> None:
        aside.done = done
        if not aside.cannot_store:
            storing = in_thread(lambda: self._store(path, aside))
            self._closings.add(storing)
            storing.add_done_callback(self._closings.discard)

    def _store(self, path: str, aside: _Aside) -> None:
        try:
            aside.store(path, self.name, self._identity_of(path))
        except Exception as error:  # noqa: BLE001 - it is that queue's problem
            if not aside.cannot_store and self._aside.get(path) is aside:
                aside.cannot_store = True
                text = "committed when it is attached again, because it cannot be now: %s"
                _log.warning(text, printable(error))

    def _commit_to(self, reader: Reader, done: "_hot.Message | Position") -> None:
        try:
            commit_to(reader, done)
        except ChronicleError as error:
            _log.warning("what was set aside cannot be committed: %s", printable(error))

    def _matters(self, error: ChronicleError) -> bool:
        return not isinstance(error, QueueGone)

    # ---- the end ----

    async def aclose(self) -> None:
        """Stop following, detach and close everything this router opened.

        Cancelled, everything is still closed, but perhaps a little later.
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
            self._discovery.stop()  # if this was cancelled before: it ends in the background
            closings = self._close()
            await in_background(lambda: wait(closings))

    def close(self) -> None:
        """Close it at once: background tasks are cancelled, but not waited for as ``aclose`` does.

        Unlike ``FanIn.close`` it also closes the readers that the router opened, but not those that
        were passed to ``attach``.
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
        """Detach everything, and have it closed in threads; return what that waits for."""
        if not self.closed:
            count = len(self._attached)
            _log.debug("leaves %s with %d queues attached", printable(self.root), count)
        super().close()
        for source in self._attached.values():
            self._closings.add(in_thread(source.reader.close))
        for opened in self._with_replies():
            if opened.reply is not None:
                opened.reply.add_done_callback(_close_opened)
        self._attached.clear()
        self._aside.clear()
        return list(self._closings)

    async def __aenter__(self) -> Self:
        self._follow()
        try:
            await self._begun.wait()
            if self._cannot_begin is not None:
                raise self._cannot_begin
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


def _close_all(opening: "Future[list[tuple[Reader, int] | Exception]]") -> None:
    for opened in opening.result():
        if not isinstance(opened, Exception):
            opened[0].close()
