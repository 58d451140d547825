"""Which queues lie under a root, and where each of them begins and ends.

A queue is read from its own directory and from its archive, if it has one: a directory that
retention filled with ``YYYY/MM/DD``, each day of which can be opened like a queue. Directories of that
shape in which somebody has written are queues of their own. What begins where is always asked of the
records; the control block may promise more than a power cut has left. One that is damaged concerns those
who ask for its queue (Source.check), and nobody else.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from aiochronicle.errors import (
    CONTROL_ADVICE,
    ChronicleError,
    CorruptionError,
    NotAQueue,
    PositionLost,
    QueueGone,
    QueueNotFound,
)
from aiochronicle.queue import QueueInfo, inspect
from aiochronicle.reader import Reader, open_reader
from aiochronicle.slices import Queue
from aiochronicle.spark.options import LEDGERS, ReadOptions

__all__ = ["Source", "damage_of", "find_or_await", "find_sources", "is_queue", "restarted"]

DEPTH_MAX = 4  # bus/venue/instrument/stream
DAY_DEPTH = 3  # YYYY/MM/DD
CONTROL, READY, LOCK = "control.meta", "READY", "writer.lock"
SEGMENT = re.compile(r"\d{9}\.q")
TRIES = 10
HEADLESS_S = 1.0  # nobody who is about to remove the rest of a queue pauses for so long

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A queue by the name it has under the root; at least one of its two places is there.

    ``schema`` is the file with its types, if that is in neither. ``left_out`` are days of the archive
    that on_corrupt=skip steps over, because nobody can open them.
    """

    name: str
    live: str | None
    archive: str | None
    schema: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it is, for messages to people."""
        return self.live or self.archive or self.name

    def readable_mode(self) -> int:
        """Return the mode of copies of its messages: who may read the queue may read them."""
        for place in self.parts() if self.live is None else [self.live]:
            with contextlib.suppress(OSError):
                return (Path(place) / CONTROL).stat().st_mode & 0o044 | 0o600
        return 0o600

    def parts(self) -> list[str]:
        """Return the directories that make up the queue, oldest first."""
        days = [] if self.archive is None else _days_of(Path(self.archive))
        kept = [day for day in map(str, days) if day not in self.left_out]
        return [*kept, *([] if self.live is None else [self.live])]

    def newest_part(self) -> str:
        """Return the directory with the newest messages; QueueNotFound if there is none any more."""
        if self.live is None and not self.parts():
            raise QueueNotFound("there are no days in the archive any more", path=self.place)
        return self.live or self.parts()[-1]

    def earliest(self) -> int:
        """Return the seq of the first message, or where the first one will be."""
        for part in self.parts():
            with open_reader(part, start="first", verify=False, on_corrupt="skip") as reader:
                if (message := reader.poll()) is not None:
                    return message.seq
        return self.latest()

    def latest(self) -> int:
        """Return the seq behind the last message."""
        for part in reversed(self.parts()):
            with open_reader(part, start="first", verify=False, on_corrupt="skip") as reader:
                if (end := end_of(reader)) > 0:
                    return end
        return 0

    def at_time(self, moment_ns: int) -> int:
        """Return the seq of the first message at or after this time; the end if there is none."""
        return self._at_times([moment_ns])[moment_ns]

    def clip(
        self, start: int, end: int, *, start_ns: int | None, end_ns: int | None
    ) -> tuple[int, int]:
        """Return what of a range of seqs lies in a range of time, which may be open."""
        if start < end:
            at = self._at_times([ns for ns in (start_ns, end_ns) if ns is not None])
            start = start if start_ns is None else max(start, at[start_ns])
            end = end if end_ns is None else min(end, at[end_ns])
        return start, end

    def _at_times(self, moments_ns: Collection[int]) -> dict[int, int]:
        """Find several times for the price of one, which is to look at every segment's index."""
        found: dict[int, int] = {}
        for part in self.parts():
            wanted = [
                moment_ns
                for moment_ns in moments_ns
                # A segment is archived by the day of its newest message.
                if moment_ns not in found
                and (part == self.live or _day_of(moment_ns) <= part[-10:])
            ]
            if wanted:
                found |= _patiently(partial(_seqs_at, part, wanted))
        return {ns: found[ns] if ns in found else self.latest() for ns in moments_ns}

    def check(self) -> None:
        """Raise CorruptionError or NotAQueue if a part has a damaged control block, or all were left out."""
        for part in self.parts() or self.left_out:
            if (damage := damage_of(part)) is not None:
                raise damage if part == self.live else _damaged_day(damage)

    def check_seqs(self) -> None:
        """Raise ChronicleError if there are more messages than seqs, which costs an index per segment.

        What cannot be counted, because segments are missing, is left to those who read it.
        """
        if self.live is None:
            return
        with contextlib.suppress(PositionLost, QueueGone, QueueNotFound):
            if _patiently(partial(_has_more_messages_than_seqs, self.live)):
                raise restarted(self.live)


def _day_of(moment_ns: int) -> str:
    """Return how the path of an archived day ends."""
    return datetime.fromtimestamp(moment_ns // 1_000_000_000, UTC).strftime("%Y/%m/%d")


def _patiently(ask: Callable[[], T]) -> T:
    """Return the answer, also if retention removes segments just when they are looked at."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(PositionLost, QueueGone, QueueNotFound):
            return ask()
    return ask()


def _seqs_at(part: str, moments_ns: Collection[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    # A reader would go to a corrupt place before it; a slice begins behind that.
    with Queue(part, verify=False, on_corrupt="skip") as queue:
        for moment_ns in moments_ns:
            if (message := next(iter(queue.slice_time(moment_ns)), None)) is not None:
                found[moment_ns] = message.seq
    return found


def _has_more_messages_than_seqs(path: str) -> bool:
    # In this order nothing that is appended or removed meanwhile looks like too many messages.
    with Queue(path, verify=False, on_corrupt="skip") as queue:
        first = next(iter(queue.slice()), None)
        messages = queue.slice().count
    with open_reader(path, start="first", verify=False, on_corrupt="skip") as reader:
        return first is not None and messages > end_of(reader) - first.seq


def restarted(path: str) -> ChronicleError:
    """Return what to raise when seqs are not unique: nobody could say which message one means."""
    return ChronicleError(
        "its seqs start again, as those of some other programs do, and Spark finds messages by seq."
        " Copy it into a new queue with open_reader, which reads on in the order of the file, and"
        " open_writer",
        path=path,
    )


def damage_of(path: str | Path) -> CorruptionError | NotAQueue | None:
    """Return what is wrong with a control block; other troubles are left to those who read the queue."""
    try:
        inspect(path)
    except (CorruptionError, NotAQueue) as error:
        return error
    except QueueNotFound:
        return _lost_control(Path(path))
    except ChronicleError:
        pass
    return None


def _lost_control(path: Path) -> CorruptionError | None:
    """Return what to raise for segments without a control block, unless somebody is removing them."""
    touched_ns, patient_until = -1, 0.0
    with contextlib.suppress(FileNotFoundError):
        while _is_headless(path):
            if (now_touched_ns := path.stat().st_mtime_ns) != touched_ns:
                touched_ns = now_touched_ns
                untouched_s = max(time.time() - touched_ns / 1e9, 0.0)
                patient_until = time.monotonic() + HEADLESS_S - untouched_s
            if time.monotonic() >= patient_until:
                return CorruptionError(
                    "is missing, though there are segments",
                    path=str(path / CONTROL),
                    advice=CONTROL_ADVICE,
                )
            time.sleep(HEADLESS_S / TRIES)
    return None


def _damaged_day(damage: ChronicleError) -> CorruptionError:
    return CorruptionError(
        f"{damage.detail}: this day of the archive cannot be opened",
        path=damage.path,
        offset=damage.offset,
        advice="Restore the file from a backup, or copy the one of another day of this archive to its"
        " place. Other queues can be read by option subscribe, and other days by on_corrupt=skip.",
    )


def end_of(reader: Reader, known: int = 0) -> int:
    """Return the seq behind the last message of the reader's directory; 0 if it never had one.

    ``known`` is what it was before, from where to look on if it has to be found message by message;
    ChronicleError if seqs start again on that way.
    """
    reader.seek_last()
    if (proven := reader.statistics().next_seq) > 0:
        return proven
    # The newest segment is still empty, or another program wrote it: find the last message, or, if
    # a power cut took what was noted, the last that is left.
    noted = inspect(reader.path).next_seq
    for start in (max(noted, known, 1) - 1, 0):
        reader.seek(start)
        restarts = reader.statistics().seq_restarts
        last = None
        for message in reader:
            last = message.seq
        if reader.statistics().seq_restarts > restarts:
            raise restarted(reader.path)
        if last is not None:
            return last + 1
    return noted  # retention took everything


def is_queue(path: Path) -> bool:
    """Tell whether there is a queue in this very directory."""
    return (path / CONTROL).is_file()


def _is_headless(path: Path) -> bool:
    """Tell whether there are segments here, but no control block: a queue that nobody can open."""
    if is_queue(path):
        return False
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return any(SEGMENT.fullmatch(entry.name) for entry in entries)
    return False


def _was_queue(path: Path) -> bool:
    """Tell whether there is a queue here, be it one that has lost its control block."""
    return is_queue(path) or _is_headless(path)


def find_sources(
    options: ReadOptions, *, ready_only: bool = False, known: Collection[str] = ()
) -> dict[str, Source]:
    """Find the queues that the options ask for; QueueNotFound if there are none.

    ``ready_only`` leaves out those that have not announced themselves, and may be half made, and
    those of a name that is ``known``.
    """
    root = Path(os.path.abspath(options.path))
    if not root.is_dir():
        what = "there is no such directory" if not root.exists() else "is not a directory"
        raise QueueNotFound(f"{what}; queues are looked for in it", path=str(root), advice="")
    found = dict(_sources_under(root, options, ready_only, known))
    advice = ""
    if (root / LEDGERS).is_dir():
        advice = "It was made by archive: aiochronicle.spark.jobs.archived reads it."
    missing = sorted(set(options.subscribe or ()) - set(found))
    if missing and not ready_only:
        everything = msgspec.structs.replace(options, subscribe=None)
        there = ", ".join(sorted(dict(_sources_under(root, everything, False)))) or "none at all"
        raise QueueNotFound(
            f"no queue {', '.join(missing)}; there are {there}", path=str(root), advice=advice
        )
    if not found and not ready_only:
        wanted = options.subscribe_pattern
        what = "no queue" if wanted is None else f"no queue whose name matches {wanted!r}"
        raise QueueNotFound(f"there is {what} in or below it", path=str(root), advice=advice)
    return found


def find_or_await(options: ReadOptions) -> dict[str, Source]:
    """As find_sources; but to find none is no error for those who say that they follow what may come.

    Of a type, somebody has to know the fields.
    """
    try:
        return find_sources(options)
    except QueueNotFound:
        if options.awaits_queues and options.type is None and Path(options.path).is_dir():
            return {}
        raise


def _sources_under(
    root: Path, options: ReadOptions, ready_only: bool, known: Collection[str] = ()
) -> Iterator[tuple[str, Source]]:
    archives = None if options.archive is None else Path(os.path.abspath(options.archive))
    if archives is not None and not archives.is_dir():
        raise NotAQueue(
            "the archive is not a directory",
            path=str(archives),
            advice="Give the directory that retention moves segments to.",
        )
    for place in _walk(root, DEPTH_MAX):
        name = place.name if place == root else place.relative_to(root).as_posix()
        if name in known or not options.wants(name):
            continue
        if ready_only and not (is_queue(place) and (place / READY).is_file()):
            continue
        live = str(place) if _was_queue(place) else None
        archive = str(place) if live is None else None
        if live is not None and archives is not None:
            archive = _archive_of(name, place, archives)
        left_out: tuple[str, ...] = ()
        if options.skip_corrupt and archive is not None:
            left_out = tuple(str(day) for day in _days_of(Path(archive)) if damage_of(day))
        yield name, Source(name=name, live=live, archive=archive, left_out=left_out)


def _archive_of(name: str, live: Path, archives: Path) -> str | None:
    """Find a queue's archive: named like it, or the only one there is, which may be another's."""
    for place in (archives / name, archives):
        days = _days_of(place)
        if days and _is_archive(days, of=live):
            return str(place)
        if days and place != archives:
            raise NotAQueue(
                f"not the archive of {name}, or not of it alone; give each queue an archive of its"
                " own, and one that is made anew a new one",
                path=str(place),
            )
    return None


def _walk(directory: Path, levels: int) -> Iterator[Path]:
    """Yield the directories that are queues or archives, not looking into them."""
    if _was_queue(directory):
        yield directory
        return
    days = _days_of(directory)
    if days and _is_archive(days):
        yield directory
        return
    levels = max(levels, DAY_DEPTH) if days else levels
    if levels > 0:
        with os.scandir(directory) as entries:
            children = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        for child in children:
            if not child.startswith("."):
                yield from _walk(directory / child, levels - 1)


def _is_archive(days: Sequence[Path], *, of: Path | None = None) -> bool:
    """Tell whether days hold segments of one queue; of a certain one, if it is named.

    Retention gives each day a control block with the id of the queue, which no writer ever opens.
    Queues that somebody makes by day have ids of their own and have been written to; those of other
    programs, which have no ids, number their segments from the beginning. If a control block is
    damaged, what else is there tells whether somebody wrote.
    """
    known = {day: block for day in days if (block := _control_block(day)) is not None}
    blocks = list(known.values())
    ids = {block.queue_id for block in blocks}
    if of is not None and (block := _control_block(of)) is not None:
        ids.add(block.queue_id)
    return (
        len(ids) <= 1
        and all(block.writer_epoch == 0 for block in blocks)
        and not any((day / LOCK).exists() for day in days if day not in known)
        and (0 not in ids or all(a.last_segment < b.first_segment for a, b in pairwise(blocks)))
    )


def _control_block(path: Path) -> QueueInfo | None:
    """Return what a control block says; None if it cannot be read, of which others tell."""
    with contextlib.suppress(ChronicleError):
        return inspect(path)
    return None


def _days_of(directory: Path) -> list[Path]:
    """Return the directories of days that can be opened like queues, in order."""
    days: list[Path] = []
    for year in _numbered(directory, r"\d{4}"):
        for month in _numbered(year, r"\d\d"):
            days += [day for day in _numbered(month, r"\d\d") if _was_queue(day)]
    return days


def _numbered(directory: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if re.fullmatch(pattern, path.name))
    except (FileNotFoundError, NotADirectoryError):  # moved or removed since it was listed
        return []
