"""A fan-in that can skip damaged and removed messages, and counts them."""

import logging
from typing import TYPE_CHECKING, Literal

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle._core.fanin import FanIn, SourceStatistics
from aiochronicle._core.reader import Reader
from aiochronicle._services.attaching import resume_after_loss
from aiochronicle._services.damage import SERVICE_WORDS, OnDamage, Verdict, check_on_damage, judge
from aiochronicle._services.router_queues import Counts
from aiochronicle.codec import T
from aiochronicle.errors import ChronicleError, CorruptionError, PositionLost

__all__ = ["SkippingFanIn"]

_log = logging.getLogger("aiochronicle.router")


class SkippingFanIn(FanIn[T]):
    """A FanIn whose sources may be damaged: ``on_corrupt`` and ``on_lost`` decide what to do."""

    if TYPE_CHECKING:  # a subclass has it

        def _on_error(self, source: int, error: Exception) -> None: ...

    def __init__(
        self,
        *,
        order: Literal["available", "strict"],
        max_wait: float | None,
        burst: int,
        on_corrupt: OnDamage,
        on_lost: OnDamage,
    ) -> None:
        self._on_corrupt: OnDamage = check_on_damage("on_corrupt", on_corrupt, SERVICE_WORDS)
        self._on_lost: OnDamage = check_on_damage("on_lost", on_lost, SERVICE_WORDS)
        super().__init__(order=order, max_wait=max_wait, burst=burst, on_error=self._on_error)
        self._counts: dict[str, Counts] = {}  # by path, also of queues that are set aside
        self._removed = Counts()
        self._last_skipped: dict[int, tuple[str | None, int | None]] = {}  # by source: path, offset

    def _judge(self, error: Exception) -> Verdict:
        """Decide what to do about a queue that failed."""
        if isinstance(error, CorruptionError):
            return judge(self._on_corrupt, error)
        if isinstance(error, PositionLost):
            return judge(self._on_lost, error)
        return Verdict()

    def _skip_damage(self, source: int, reader: Reader, error: Exception) -> bool:
        """Skip damage. False if that fails, or if the same place was skipped last."""
        where = (error.path, error.offset) if isinstance(error, ChronicleError) else (None, None)
        if self._last_skipped.get(source) == where:
            return False
        try:
            if isinstance(error, PositionLost):
                next_seq = reader.statistics().next_seq
                self._count(reader.path).lost += resume_after_loss(reader, error, next_seq)
            else:
                reader.step_over()
                self._count(reader.path).skipped += 1
            self._resume(source)
        except ChronicleError as further:
            _log.warning("cannot continue after the damage: %s", printable(further))
            return False
        self._last_skipped[source] = where
        self._log_skip(error)
        return True

    def _count_skip(self, path: str, error: Exception | None, lost: int) -> None:
        """Count the damage that opening skipped, if any."""
        if isinstance(error, PositionLost):
            self._count(path).lost += lost
        elif error is not None:
            self._count(path).skipped += 1

    def _log_skip(self, error: Exception) -> None:
        what = "continued after a loss" if isinstance(error, PositionLost) else "skipped"
        _log.warning("%s: %s", what, printable(error))

    def _count(self, path: str) -> Counts:
        return self._counts.setdefault(path, Counts())

    def source_statistics(self, source: int) -> SourceStatistics:
        """Return the counters of one source, with the damage found in its queue."""
        statistics = super().source_statistics(source)
        counts = self._counts.get(self.sources()[source].path, Counts())
        return msgspec.structs.replace(statistics, skipped=counts.skipped, lost=counts.lost)
