"""Checks every record of a reader: finds damage and missing messages."""

from collections.abc import Callable

from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.reader import Reader
from aiochronicle.errors import ChronicleError, CorruptionError, PositionLost

__all__ = ["VerifyReport", "check_records"]

_BATCH = 4096
_PROBLEMS_MAX = 100


class VerifyReport(HtmlStruct, frozen=True, kw_only=True):
    """Result of checking every record.

    ``corrupt`` counts damaged places; a missing segment between others is one place. ``missing_seqs`` is
    how many messages of a native queue are lost there, computed from the seqs before and after.
    ``problems`` has a sentence for each of the first 100 places; ``first_problem`` is the first of them, or
    None.
    """

    records: int
    corrupt: int
    first_problem: str | None
    missing_seqs: int = 0
    problems: tuple[str, ...] = ()


def check_records(
    reader: Reader,
    first_segment: Callable[[], int],
    advance: Callable[[], object] = lambda: None,
    next_seq: Callable[[], int] = lambda: 0,
) -> VerifyReport:
    """Read to the end, past all damage. Segments that retention removes meanwhile are not damage.

    ``first_segment`` returns the oldest segment now; ``advance`` is called after each step. ``next_seq``
    returns the seq after the last message that was written, if the newest segment was cut before it.
    """
    found = _Findings(reader)
    while True:
        try:
            if not (batch := reader.read_batch(_BATCH)):
                break
            found.add_records(batch[0].seq, batch[-1].seq, len(batch))
        except CorruptionError as error:
            place, skipped = reader.position, reader.statistics().skipped_records
            reader.step_over()
            places = reader.statistics().skipped_records - skipped
            is_stuck = not places and reader.position == place
            places = max(1, places)
            at = "" if error.offset is None else f" at offset {error.offset}"
            found.add_damage(places, f"{printable(error.path)}{at}", error)
            if is_stuck:  # nothing follows: the newest segment was cut
                found.add_end(next_seq())
                break
        except PositionLost as error:
            if error.nearest <= error.wanted:
                raise
            is_removed = error.wanted.segment < first_segment()
            reader.seek_position(error.nearest)
            if is_removed:
                found.allow_gap()
            else:
                found.add_damage(1, printable(error.path), error)
        advance()
    return found.report()


class _Findings:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        statistics = reader.statistics()
        self._is_java = statistics.segment_size == 0
        self._next: int | None = statistics.next_seq  # None: any seq may follow
        if self._is_java or (statistics.next_seq == 0 and reader.position.segment > 0):
            self._next = None
        self._records = self._corrupt = self._missing = 0
        self._is_after_damage = False
        self._problems: list[str] = []

    def add_records(self, first: int, last: int, count: int) -> None:
        self._count_missing_before(first)
        self._records += count
        self._next = None if self._is_java else last + 1

    def add_damage(self, places: int, where: str, error: ChronicleError) -> None:
        self._corrupt += places
        self._is_after_damage = True
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(f"{where}: {error.detail}")

    def add_end(self, next_seq: int) -> None:
        self._count_missing_before(next_seq)

    def allow_gap(self) -> None:
        self._next = None

    def report(self) -> VerifyReport:
        self._count_missing_before(self._reader.statistics().next_seq)
        return VerifyReport(
            records=self._records,
            corrupt=self._corrupt,
            first_problem=self._problems[0] if self._problems else None,
            missing_seqs=self._missing,
            problems=tuple(self._problems),
        )

    def _count_missing_before(self, seq: int) -> None:
        """Count the seqs that are missing before this one, if there was damage."""
        if self._is_after_damage and self._next is not None and seq > self._next:
            self._missing += seq - self._next
            if self._corrupt and len(self._problems) < _PROBLEMS_MAX:
                missing = (
                    f"seq {seq - 1:,} is"
                    if seq - 1 == self._next
                    else f"seqs {self._next:,} to {seq - 1:,} are"
                )
                self._problems[-1] += f"; {missing} missing"
        self._is_after_damage = False
