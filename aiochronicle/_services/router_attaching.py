"""A fan-in that opens its own queues. It sets aside a queue that fails, and continues where that failed."""

import asyncio
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from aiochronicle import _hot
from aiochronicle._base.background import in_thread, shielded
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._core.health import format_reason
from aiochronicle._core.reader import Reader, StartPoint, TimestampSource
from aiochronicle._services.attaching import Place, commit_to, open_source, place_of
from aiochronicle._services.damage import Damage, OnDamage, Verdict
from aiochronicle._services.discovery import Attached
from aiochronicle._services.examiner import Identity
from aiochronicle._services.router_damage import SkippingFanIn
from aiochronicle._services.router_queues import Aside, Source, close_opened
from aiochronicle._typed.registry import Registry
from aiochronicle.codec import T
from aiochronicle.errors import ChronicleError, ClosedError, QueueGone, SourceGone

__all__ = ["AttachingFanIn"]

_OPENING_THREADS = 8
_DAMAGE_MAX = 64  # places that one attempt skips
_FIRST_RETRY_S = 0.1

_log = logging.getLogger("aiochronicle.router")


class AttachingFanIn(SkippingFanIn[T]):
    """A FanIn that opens the readers of its queues, and sets aside those that fail."""

    if TYPE_CHECKING:  # a subclass has them

        @property
        def root(self) -> str: ...
        def _wake_retries(self) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        order: Literal["available", "strict"],
        max_wait: float | None,
        start: StartPoint,
        codec: Registry | None,
        rescan_s: float,
        burst: int,
        on_corrupt: OnDamage,
        on_lost: OnDamage,
        timestamp: TimestampSource | None,
    ) -> None:
        super().__init__(
            order=order, max_wait=max_wait, burst=burst, on_corrupt=on_corrupt, on_lost=on_lost
        )
        self.name = name
        self._problems: dict[str, Exception] = {}
        self._start: StartPoint = start
        self._codec = codec
        self._rescan_s = rescan_s
        # Further options of open_reader.
        self._reader_options: dict[str, Any] = {} if timestamp is None else {"timestamp": timestamp}
        self._attached: dict[str, Source] = {}
        self._aside: dict[str, Aside] = {}
        self._announced: dict[str, Attached] = {}
        self._closings: set[Future[None]] = set()

    @property
    def problems(self) -> dict[str, Exception]:
        """Why queues are not in the stream now, by path. Look here first if no messages arrive.

        It has every queue that is set aside, until it is attached again or removed, and the root while it
        cannot be watched.
        """
        return self._problems

    def _reasons(self) -> list[str]:
        """Return the reasons for ``healthy``, including the ``problems``."""
        problems = list(self.problems.items())  # a copy, because other threads add to them
        return super()._reasons() + [
            format_reason("router", path, error) for path, error in problems
        ]

    def paths(self) -> dict[int, str]:
        """Return the attached queues, as source id to path."""
        merged = self.sources()
        return {one.id: path for path, one in self._attached.items() if one.id in merged}

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Return whether this is a type of the codec, or of an attached reader's codec."""
        return any(entry.codec.type is wanted for entry in self._codec or ()) or any(
            reader.decodes_to(wanted) for reader in self.sources().values()
        )

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

    async def _attach(self, paths: list[str]) -> None:
        """Attach queues, and skip damage if ``on_corrupt`` and ``on_lost`` allow it."""
        for _ in range(_DAMAGE_MAX):  # the next attempt skips the rest
            await self._try_to_attach(paths)
            paths = self._to_skip(paths)
            if not paths:
                return

    def _to_skip(self, paths: list[str]) -> list[str]:
        """Return the queues to open again, after the damage that was found."""
        return [path for path in paths if path in self._aside and self._aside[path].skip]

    async def _try_to_attach(self, paths: list[str]) -> None:
        """Open queues and merge them; queues that fail are set aside."""
        self._merge_all(paths, await self._open(paths))

    def _merge_all(self, paths: list[str], results: "list[tuple[Reader, int] | Exception]") -> None:
        for path, opened in zip(paths, results, strict=True):
            if isinstance(opened, Exception):
                self._note_failure(path, opened)
                continue
            reader, lost = opened
            try:
                self._merge(path, reader, lost)
            except Exception as error:  # noqa: BLE001 - a problem of that queue only
                self._close_reader(reader)
                self._note_failure(path, error)

    def _merge(self, path: str, reader: Reader, lost: int) -> None:
        source = self._attached[path] = Source(self.attach(reader), reader)
        aside = self._aside.pop(path, None)
        self.problems.pop(path, None)
        if aside is not None:
            source.attached_s += aside.pause_s  # if it soon fails again, it waits for longer
            source.reply = aside.reply
            if aside.done is not None:  # committed while it was being opened
                self._commit_to(reader, aside.done)
            self._count_skip(path, aside.skip, lost)
        _log.info("attached: %s", printable(path))

    async def _open(self, paths: list[str]) -> list[tuple[Reader, int] | Exception]:
        opening = in_thread(lambda: self._open_all(paths))
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # The thread continues, and nothing else would close the readers that it opens.
            self._closings.add(in_thread(lambda: _close_all(opening)))
            raise
        except Exception as error:  # noqa: BLE001 - no thread or no memory: retry these paths
            return [error] * len(paths)

    def _open_all(self, paths: list[str]) -> list[tuple[Reader, int] | Exception]:
        if len(paths) <= 1:
            return [self._open_one(path) for path in paths]
        with ThreadPoolExecutor(_OPENING_THREADS) as threads:
            return [*threads.map(self._open_one, paths)]

    def _open_one(self, path: str) -> tuple[Reader, int] | Exception:
        aside = self._aside.get(path)
        identity = self._identity_of(path)  # so that no other directory is opened
        options = self.name, self._start, self._codec, identity
        more = {**self._reader_options, "source": self._source_of(path)}
        try:
            if aside is None:
                return open_source(path, *options, None, None, **more)
            with aside.storing:
                aside.store(path, self.name, identity)
                place, skip = aside.place, aside.skip
                return open_source(path, *options, place, skip, **more)
        except Exception as error:  # noqa: BLE001 - a problem of that path only
            return error.with_traceback(None)

    def _source_of(self, path: str) -> str:
        """Return the name of a queue: its path below the root."""
        return os.path.relpath(path, self.root)

    def _identity_of(self, path: str) -> Identity | None:
        found = self._announced.get(path)
        return None if found is None else found.identity

    def _note_failure(self, path: str, error: Exception) -> None:
        before = self._aside.get(path)
        if before is not None and str(before.error) == str(error):
            before.pause_s = min(2 * before.pause_s, self._rescan_s)
            before.due_s = time.monotonic() + before.pause_s
            before.skip = None  # skipping did not help
            text = "retried without success, next retry in %.1f s: %s"
            _log.debug(text, before.pause_s, printable(error))
            return
        if before is not None and isinstance(error, Damage):
            self._count_skip(path, before.skip, 1)  # it was skipped: this damage comes after it
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

    def _first_pause_s(self) -> float:
        return min(_FIRST_RETRY_S, self._rescan_s)

    def _set_aside(
        self, path: str, error: Exception, verdict: Verdict, place: Place | None
    ) -> Aside:
        problem = verdict.raised if isinstance(verdict.raised, Exception) else error
        aside = self._aside[path] = Aside(error, self._first_pause_s())
        aside.place = place
        self.problems[path] = problem
        self._wake_retries()
        return aside

    def _on_error(self, source: int, error: Exception) -> None:
        """Skip damage, or set the queue aside; delivered messages can still be committed."""
        reader: Reader = self.sources()[source]
        path = self.paths().get(source)
        verdict = self._judge(error)
        if verdict.skip and self._skip_damage(source, reader, error):
            return
        _log.warning("%s: %s", "detached" if path is None else "set aside", printable(error))
        self.detach(source)
        self._last_skipped.pop(source, None)
        if path is None:  # attached by the program, which still owns the reader
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
        # Messages that were delivered can still be answered and committed.
        aside.reader, aside.reply = reader, source.reply

    def _pause_longer(self, aside: Aside, source: Source) -> None:
        """Double the pause of a queue that fails again soon after it was attached."""
        grace_s = source.attached_s - time.monotonic()  # the rest of the last pause
        if grace_s > 0:
            aside.pause_s = min(max(aside.pause_s, 2 * grace_s), self._rescan_s)
            aside.due_s = time.monotonic() + aside.pause_s

    def _forget(self, path: str) -> None:
        # It may have failed and been set aside while its replies were closed.
        aside = self._aside.pop(path, None)
        if aside is not None and aside.reply is not None:
            aside.reply.add_done_callback(close_opened)
        self.problems.pop(path, None)
        self._announced.pop(path, None)
        counts = self._counts.pop(path, None)
        if counts is not None:
            self._removed.skipped += counts.skipped
            self._removed.lost += counts.lost

    def _close_reader(self, reader: Reader) -> "Future[None] | None":
        """Close a reader without blocking the loop, if there is one; None if it is closed now."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            reader.close()
            return None
        closing = in_thread(reader.close)
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        return closing

    def commit(self, source: "int | _hot.Message | None" = None) -> None:
        """Commit like ``FanIn.commit``; queues that were removed are ignored.

        A queue that was set aside is committed in the background or, if that fails, when it is attached
        again.
        """
        try:
            super().commit(source)
        except QueueGone:  # discovery will soon detach it
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
        self, path: str, aside: Aside, done: "_hot.Message | Position | None"
    ) -> None:
        aside.done = done
        if not aside.cannot_store:
            storing = in_thread(lambda: self._store(path, aside))
            self._closings.add(storing)
            storing.add_done_callback(self._closings.discard)

    def _store(self, path: str, aside: Aside) -> None:
        try:
            aside.store(path, self.name, self._identity_of(path))
        except Exception as error:  # noqa: BLE001 - a problem of that queue only
            if not aside.cannot_store and self._aside.get(path) is aside:
                aside.cannot_store = True
                text = "cannot commit now, will commit when the queue is attached again: %s"
                _log.warning(text, printable(error))

    def _commit_to(self, reader: Reader, done: "_hot.Message | Position") -> None:
        try:
            commit_to(reader, done)
        except ChronicleError as error:
            _log.warning("cannot commit a queue that was set aside: %s", printable(error))

    def _is_raised(self, error: ChronicleError) -> bool:
        return not isinstance(error, QueueGone)


def _close_all(opening: "Future[list[tuple[Reader, int] | Exception]]") -> None:
    for opened in opening.result():
        if not isinstance(opened, Exception):
            opened[0].close()
