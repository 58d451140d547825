"""Reads many queues as one stream, in timestamp order.

The merge itself is in C (csrc/fanin.c); this module has construction, commits and statistics.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal

from aiochronicle import _hot
from aiochronicle._base.arguments import expect_several, function, one_of, seconds, wrong_type
from aiochronicle._base.arguments import timeout as checked_timeout
from aiochronicle._base.binding import ffi
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.checkpoints import Places
from aiochronicle._core.conflate import Feed
from aiochronicle._core.health import Health, format_reason, health_of
from aiochronicle._core.reader import Reader, turns
from aiochronicle._core.stream import Lag, Stream
from aiochronicle.codec import T
from aiochronicle.errors import ChronicleError

__all__ = ["FanIn", "FanInStatistics", "SourceStatistics"]

_NEVER = 2**64 - 1


class SourceStatistics(HtmlStruct, frozen=True, kw_only=True):
    """One source of a fan-in: its counters and its lag.

    ``silent_s`` is how long strict order has been waiting for this source, 0 if it is not waiting for it.
    ``failed`` means that an error was raised, and the source delivers nothing until it is attached again.
    ``skipped`` is the number of damaged places that were skipped. ``lost`` is the number of messages that
    were removed before they were read; only a Router counts them.
    """

    id: int
    source: str
    delivered: int
    late: int
    last_timestamp_ns: int
    lag_messages: int
    lag_bytes: int
    lag_s: float
    watermark_ns: int
    silent_s: float
    has_message: bool
    attended: bool
    failed: bool
    skipped: int = 0
    lost: int = 0


class FanInStatistics(HtmlStruct, frozen=True, kw_only=True):
    """A fan-in as a whole.

    ``blocked_by`` is the source that strict order is waiting for now, or None, and ``blocked_s`` for how
    long. ``left_out`` is the number of sources that strict order no longer waits for, because they were
    silent for longer than ``max_wait``.
    """

    sources: int
    idle: int
    failed: int
    left_out: int
    delivered: int
    late: int
    last_timestamp_ns: int
    blocked_by: int | None
    blocked_s: float


@_hot.own_methods
class FanIn(_hot.FanIn[T], Stream[T]):
    """Merges readers by (timestamp, source id). Sources can be attached and detached while it runs.

    ``order="available"`` delivers the oldest message that is available now. ``order="strict"`` delivers a
    message only when no attached source can still deliver an older one: each source has a message waiting,
    has promised nothing older (by ``Writer.heartbeat`` or by its last message), or is closed. The result then
    does not depend on when messages arrive. ``max_wait`` limits, in seconds, how long strict order holds a
    message back. It does not wait again for a source that was silent for ``max_wait`` until that source has a
    message or a heartbeat. A message that arrives after newer ones were delivered is marked ``late``.

    If a source fails, the fan-in raises its error once and continues without it: iterate again to get the
    messages of the other sources. With ``on_error``, it calls that function with the source id and the
    exception instead.

    ``close`` detaches the readers and leaves them open; ``Router.close`` closes those that it opened.

    While a reader is attached, read from the fan-in, not from the reader. Automatic commits of the reader
    continue. Cancelling a task anywhere in ``async for``, ``next`` or ``batches`` loses nothing.

    >>> with open_reader(queue) as reader, FanIn([reader]) as fan_in:
    ...     [message.payload for message in fan_in]
    [b'hello']
    """

    def __init__(
        self,
        readers: Iterable[Reader[T]] | tuple[()] = (),
        *,
        order: Literal["available", "strict"] = "available",
        max_wait: float | None = None,
        burst: int = 256,
        poll_max_us: int | None = None,
        on_error: Callable[[int, Exception], object] | None = None,
    ) -> None:
        strict = one_of("order", {"available": False, "strict": True}, order)
        limit_ns = _NEVER
        if max_wait is not None:
            limit_ns = round(seconds("max_wait", max_wait, zero=True) * 1e9)
        burst, poll_us = turns(burst, poll_max_us)
        several = "a list or other iterable of readers"
        expect_several("readers", several, readers)
        if on_error is not None:
            function("on_error", on_error)
        given: object = readers
        if isinstance(given, Reader):  # iterating over it would yield messages
            raise wrong_type("readers", several, given)
        super().__init__(strict, limit_ns, burst, 0, poll_us * 1000, on_error)
        self.order = order
        for reader in readers:
            self.attach(reader)

    def _readers_of_messages(self) -> Iterable[Reader[Any]]:
        return self.sources().values()

    def commit(self, source: int | _hot.Message[Any] | None = None) -> None:
        """Commit what was delivered: from all named readers, from one source, or up to a message.

        If one of several commits fails, the others still run; then the first failure is raised.
        """
        if source is not None:
            super().commit(source)
            return
        try:
            super().commit()
        except ChronicleError:  # the remaining sources are not committed yet
            if self.closed:
                raise
            commit = super().commit
            named = [one for one, reader in self.sources().items() if reader.name is not None]
            self._commit_each(functools.partial(commit, one) for one in named)

    def _commit_each(self, commits: Iterable[Callable[[], None]]) -> None:
        """Run all these commits, then raise the first failure."""
        failed: ChronicleError | None = None
        for commit in commits:
            try:
                commit()
            except ChronicleError as error:
                if failed is None and self._is_raised(error):
                    failed = error
        if failed is not None:
            raise failed

    def _is_raised(self, error: ChronicleError) -> bool:
        """Return whether the failure of a commit is raised; a router overrides this."""
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until a message can be delivered; False after ``timeout`` seconds.

        For programs without an event loop. Other threads can run. Automatic commits work as in
        ``Reader.wait``.
        """
        limit_s = checked_timeout(timeout)
        if limit_s != 0:
            self._commit_due()
        return self._wait(_NEVER if limit_s is None else round(limit_s * 1e9))

    def _feed(self) -> Feed:
        return Feed(
            source=self,
            readers=lambda: self.sources().values(),
            ready=self._ready,
            commit_before=self._commit_before,
            places=self._places,
            mark=self._mark,
        )

    def _commit_before(self, oldest: _hot.Message[Any] | None, places: Places | None) -> None:
        """Commit the named sources at these places.

        A source that was attached later has delivered nothing before the message; its position stays.
        """
        if oldest is None or places is None:
            self.commit()
            return
        self._commit_each(
            functools.partial(reader._commit_at, *places[source])
            for source, reader in self.sources().items()
            if reader.name is not None and source in places
        )

    def _places(self) -> Places:
        return {source: reader.position for source, reader in self.sources().items()}

    def _mark(self) -> Callable[[], None]:
        """Return a function that moves the sources back to where they are now."""
        last_timestamp_ns = self.statistics().last_timestamp_ns
        positions = self._places()

        def go_back() -> None:
            for source, reader in self.sources().items():
                place = positions.get(source)
                if place is not None and place != reader.position:
                    self._go_back(source, place.segment, place.offset, last_timestamp_ns)

        return go_back

    @property
    def lag(self) -> Lag:
        """Undelivered messages and bytes of all sources, and the age of the oldest message.

        A source whose lag is unknown, because its queue was removed or is damaged, does not count.
        """
        messages, size, age_ns = self._lag()
        return Lag(messages, size, age_ns / 1e9)

    @property
    def healthy(self) -> Health:
        """Whether the fan-in is open and none of its sources has failed."""
        return health_of(self._reasons())

    def _reasons(self) -> list[str]:
        if self.closed:
            return [f"{type(self).__name__}: is closed"]
        if not self.statistics().failed:
            return []
        return [
            format_reason(
                f"source {source}",
                reader.path,
                "has failed; it delivers nothing until attached again",
            )
            for source, reader in self.sources().items()
            if self.source_statistics(source).failed
        ]

    def statistics(self) -> FanInStatistics:
        """Return the counters of the fan-in as a whole."""
        stats = ffi.from_buffer("ac_fanin_stats_t *", self._stats())
        return FanInStatistics(
            sources=stats.sources,
            idle=stats.idle,
            failed=stats.failed,
            left_out=stats.left_out,
            delivered=stats.delivered,
            late=stats.late,
            last_timestamp_ns=stats.last_timestamp_ns,
            blocked_by=stats.blocked_by if stats.blocked else None,
            blocked_s=stats.blocked_ns / 1e9,
        )

    def source_statistics(self, source: int) -> SourceStatistics:
        """Return the counters of one source."""
        name, answer = self._source_stats(source)
        stats = ffi.from_buffer("ac_source_stats_t *", answer)
        return SourceStatistics(
            id=stats.id,
            source=name,
            delivered=stats.delivered,
            late=stats.late,
            last_timestamp_ns=stats.last_timestamp_ns,
            lag_messages=stats.lag_messages,
            lag_bytes=stats.lag_bytes,
            lag_s=stats.lag_age_ns / 1e9,
            watermark_ns=stats.watermark_ns,
            silent_s=stats.silent_ns / 1e9,
            has_message=bool(stats.has_message),
            attended=bool(stats.attended),
            failed=bool(stats.failed),
            skipped=self.sources()[source].statistics().skipped_records,
        )

    def _check(self) -> None:
        """Check the invariants of the merge, for tests; quadratic in the number of sources."""
        line = self._check_merge()
        if line:
            raise AssertionError(f"csrc/fanin.c:{line}")

    def __repr__(self) -> str:
        statistics = self.statistics()
        state = "closed" if self.closed else f"sources={statistics.sources}"
        return (
            f"<{type(self).__name__} order={self.order!r} {state} delivered={statistics.delivered}>"
        )
