"""Reports about missing messages: damaged ones that were skipped, and removed ones."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote

import aiochronicle
from aiochronicle import Message, Reader, Slice, VerifyReport
from aiochronicle._core.slices import damage_in
from aiochronicle.cli.output import say
from aiochronicle.errors import ChronicleError, PositionLost

__all__ = ["Skipping", "say_removed", "say_skipped"]

_PROBLEMS_SHOWN = 10


def say_skipped(queue: Path, part: Slice, skipped: int) -> VerifyReport | None:
    """Report on standard error what was skipped in a slice; None if nothing was skipped."""
    if not skipped:
        return None
    found = damage_in(part)
    places = max(skipped, found.corrupt)
    lost = f", {found.missing_seqs:,} messages are missing" if found.missing_seqs else ""
    say(f"{queue}: {places:,} damaged place{'s' * (places != 1)} skipped{lost}.")
    for problem in found.problems[:_PROBLEMS_SHOWN]:
        say(problem)
    if places > min(len(found.problems), _PROBLEMS_SHOWN):
        say(f"aioc verify {quote(str(queue))} shows all of it")
    return found


def say_removed(
    queue: Path, start: int | datetime | None, end: int | datetime | None = None
) -> None:
    """Report on standard error that the first of the requested seqs are not in the queue."""
    if not (isinstance(start, int) and start > 0) and not isinstance(end, int):
        return
    with suppress(ChronicleError):
        info = aiochronicle.inspect(queue)
        if info.format == "cq4":  # its indexes jump
            return
        with aiochronicle.open_reader(queue, start="first") as reader:
            first = reader.poll()
        oldest = info.next_seq if first is None else first.seq
        wanted = start if isinstance(start, int) else 0
        if wanted < oldest:
            there, why, after = oldest, ("was removed", "were removed"), "it starts at"
        else:
            there, why, after = _first_from(queue, wanted), ("is missing", "are missing"), "next is"
        last = min(there, end if isinstance(end, int) else there) - 1
        if wanted <= last:
            what = (
                f"seq {last:,} {why[0]}"
                if wanted == last
                else f"seqs {wanted:,} to {last:,} {why[1]}"
            )
            say(f"{queue}: {what}; {after} {there:,}.")


def _first_from(queue: Path, seq: int) -> int:
    """Return the first seq from this one on that a segment has; damage is told when it is read."""
    with aiochronicle.Queue(queue) as whole:
        return next((one.seq for one in whole.slice(seq)), seq)


class Skipping:
    """Reads messages from a reader, and with ``over_gaps`` steps over segments that are missing."""

    def __init__(self, reader: Reader, *, over_gaps: bool) -> None:
        self._reader = reader
        self._over_gaps = over_gaps
        self._gaps = 0

    @property
    def skipped(self) -> int:
        """How many places were skipped."""
        return self._gaps + self._reader.statistics().skipped_records

    def messages(self) -> Iterator[Message]:
        """Yield the messages available now."""
        while True:
            try:
                yield from self._reader
                return
            except PositionLost as error:
                if not self._over_gaps or error.nearest <= error.wanted:
                    raise
                self._reader.seek_position(error.nearest)
                self._gaps += 1
