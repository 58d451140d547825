"""Copies damaged shared segments of a backup from the queue again.

Backups share unchanged segments, so damage in one backup would be in all later ones.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from aiochronicle._base.printable import printable
from aiochronicle.errors import BackupError, ChronicleError, CorruptionError, StorageError

__all__ = ["Healing"]

DAMAGED = (
    "No backup was created; earlier ones are unchanged. Repair the queue from one of them, or back it up"
    ' with its damage, with on_corrupt="keep" (aioc backup --keep-damaged).'
)

_log = logging.getLogger("aiochronicle.backup")

Found = TypeVar("Found")


class Healing(Generic[Found]):
    """Verifies a copy, and replaces shared segments that are damaged in it but not in the queue.

    ``number_of`` returns the number of the segment in a file, ``verify`` reads the copy from a segment on,
    and ``copy`` copies a segment from the queue. ``fresh`` are the segments that are not shared.
    """

    def __init__(
        self,
        source: Path,
        numbers: Sequence[int],
        fresh: set[int],
        *,
        number_of: Callable[[str], int | None],
        verify: Callable[[int, str], Found],
        copy: Callable[[int], object],
    ) -> None:
        self.replaced: list[int] = []
        self._source = source
        self._numbers = numbers  # in order; the last one contains the end, and is never shared
        self._fresh = fresh
        self._number_of = number_of
        self._verify = verify
        self._copy = copy

    def run(self, first: int, on_corrupt: str) -> Found:
        """Verify from this segment on."""
        begin, kept = first, False
        while begin <= self._numbers[-1]:
            try:
                found = self._verify(begin, "raise")
            except (CorruptionError, StorageError) as error:
                number = self._number_of(Path(error.path or "").name)
                if number is None:
                    raise
                if number < self._numbers[-1] and number not in self._fresh:
                    self._copy_again(number, error)
                    begin = min(begin, number)
                    continue
                if not isinstance(error, CorruptionError):
                    raise
                if on_corrupt == "raise":
                    raise self._in_queue(error) from error
                kept, begin = True, max(begin, number) + 1
            else:
                if not kept:
                    return found
                break
            begin = min((one for one in self._numbers if one >= begin), default=begin)
        return self._verify(first, on_corrupt)

    def _copy_again(self, number: int, error: ChronicleError) -> None:
        try:
            self._copy(number)
        except FileNotFoundError:
            raise BackupError(
                f"segment {number} is damaged in earlier backups, and was just removed from the queue",
                path=str(self._source),
                advice="Nothing was changed. Try again.",
            ) from error
        self._fresh.add(number)
        self.replaced.append(number)
        _log.warning(
            "%s: segment %d is damaged in the previous backup, and was copied again: %s",
            printable(self._source),
            number,
            printable(error.detail),
        )

    def _in_queue(self, error: CorruptionError) -> CorruptionError:
        """Return the error with the path of the queue's file, the source of the copy."""
        return CorruptionError(
            error.detail,
            path=str(self._source / Path(error.path or "").name),
            offset=error.offset,
            advice=f"{DAMAGED} If aioc verify finds no damage in the queue, only the copy was damaged: try"
            " again.",
        )
