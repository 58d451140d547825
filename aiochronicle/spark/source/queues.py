"""Finds the queues under one or several roots, and where each of them begins and ends.

A queue is read from its own directory and from its archive, if it has one: a directory that
retention filled with ``YYYY/MM/DD``, each day of which can be opened like a queue. Directories of that
shape with a writer of their own are separate queues. A Java queue, which has neither a control block nor an
archive, is recognised by its files. Beginnings and ends are always taken from the records, because the
control block may promise more than a power cut has left. A damaged control block affects only those who read
that queue (Source.check).
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle._base.spans import Spans
from aiochronicle._core.queue import QueueInfo
from aiochronicle._core.reader import Reader
from aiochronicle._layout import CONTROL, JAVA_SUFFIXES, JAVA_TABLES, READY, SEGMENT, WRITER_LOCK
from aiochronicle.config import Timestamp
from aiochronicle.errors import (
    CONTROL_ADVICE,
    AccessDenied,
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    NotAQueue,
    PositionLost,
    QueueGone,
    QueueNotFound,
)
from aiochronicle.spark.options import MANIFESTS, ReadOptions
from aiochronicle.spark.source.found import (
    FoundDirectory,
    Identity,
    below,
    directories_in,
    has_file,
    identify,
    names_in,
    unreadable,
)

__all__ = [
    "Source",
    "damage_of",
    "find_or_await",
    "find_sources",
    "is_java_queue",
    "is_queue",
    "restarted",
]

DEPTH_MAX = 4  # bus/venue/instrument/stream
DAY_DEPTH = 3  # YYYY/MM/DD
TRIES = 10
HEADLESS_S = 1.0  # longer than any pause in the removal of a queue
PATIENCE_S = 10.0  # for all of them together: another process may touch them again and again

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, by its name under the root; at least one of its two places exists.

    Each is opened only if it is the directory that was found. ``schema`` is its schema.json, if neither
    place has one. ``left_out`` are days of the archive that cannot be opened, and that on_corrupt=skip
    leaves out. The seqs of a Java queue are its indexes, and ``timestamp`` says which field of its messages
    is their time; by default that is when their cycle begins. ``skips_damage`` says whether on_corrupt=skip
    leaves out its files that cannot be opened.
    """

    name: str
    live: str | None
    archive: str | None
    schema: bytes | None = None
    left_out: tuple[str, ...] = ()
    live_identity: Identity | None = None
    archive_identity: Identity | None = None
    is_java: bool = False
    timestamp: Timestamp | None = None
    skips_damage: bool = False

    @property
    def place(self) -> str:
        """Its place, for error texts."""
        return self.live or self.archive or self.name

    @property
    def live_directory(self) -> FoundDirectory | None:
        """The queue's own directory, if it has one."""
        if self.live is None:
            return None
        return FoundDirectory(self.live, self.live_identity, self.timestamp)

    @property
    def archive_directory(self) -> FoundDirectory | None:
        """The directory of its days, if it has one."""
        return None if self.archive is None else FoundDirectory(self.archive, self.archive_identity)

    @property
    def scouting(self) -> dict[str, Any]:
        """Options of a reader that only finds where messages are.

        Reading a native queue reports its damage. For readers that skip damage, a damaged file of a Java
        queue does not exist, so nothing would report it.
        """
        skips = self.skips_damage or not self.is_java
        return {"verify": False, "on_corrupt": "skip" if skips else "raise", "timestamp": None}

    def readable_mode(self) -> int:
        """Return the mode for copies of its messages: users who may read the queue may read them."""
        live = self.live_directory
        for place in self.parts() if live is None else [live]:
            for file in JAVA_TABLES if self.is_java else (CONTROL,):
                with contextlib.suppress(OSError, ChronicleError), place.opened() as directory:
                    found = os.stat(file, dir_fd=directory, follow_symlinks=False)
                    return found.st_mode & 0o044 | 0o600
        return 0o600

    def parts(self) -> list[FoundDirectory]:
        """Return the directories that make up the queue, oldest first."""
        kept = [day for day in self._days() if day.path not in self.left_out]
        return kept if self.live_directory is None else [*kept, self.live_directory]

    def all_parts(self) -> list[FoundDirectory]:
        """Return the directories that make up the queue, those that are left out last."""
        return [*self.parts(), *self._left_out()]

    def _left_out(self) -> list[FoundDirectory]:
        return [day for day in self._days() if day.path in self.left_out] if self.left_out else []

    def _days(self) -> list[FoundDirectory]:
        return [] if self.archive_directory is None else _days_in(self.archive_directory)

    def newest_part(self) -> FoundDirectory:
        """Return the directory with the newest messages; QueueNotFound if none is left."""
        if not (parts := self.parts()):
            raise QueueNotFound("there are no days in the archive any more", path=self.place)
        return parts[-1]

    def earliest(self) -> int:
        """Return the seq of the first message, or where the first one will be."""
        for part in self.parts():
            with part.reader(**self.scouting) as reader:
                if (message := reader.poll()) is not None:
                    return message.seq
        return self.latest()

    def latest(self) -> int:
        """Return the seq after the last message."""
        for part in reversed(self.parts()):
            with part.reader(**self.scouting) as reader:
                if (end := end_of(reader, part)) > 0:
                    return end
        return 0

    def spans(self, start: int, end: int) -> Spans | None:
        """Return which seqs exist from ``start`` up to, but not including, ``end``; None if all do.

        Where a Java queue, whose indexes jump from cycle to cycle, has no file, it has no messages.
        """
        live = self.live_directory
        if not self.is_java or live is None:
            return None
        if start >= end:
            return ()
        try:
            return _patiently(partial(_spans_of, live, start, end, "raise"))
        except CorruptionError as error:
            if not self.skips_damage:
                raise
            _log.warning("left out of %s: %s: %s", self.name, error.path, error.detail)
        return _patiently(partial(_spans_of, live, start, end, "skip"))

    def first_after_loss(self, seq: int) -> int | None:
        """Return the first seq that is left if this seq's cycle is gone; None if the cycle exists.

        Then it is unknown whether all messages of the cycle had been read. In native queues, reading from
        this seq shows what is missing.
        """
        live = self.live_directory
        if not self.is_java or live is None or seq == 0:  # 0 stands for the beginning
            return None
        with live.reader(**self.scouting) as reader:
            reader.seek(seq)
            found = reader.statistics().next_seq
        return found if found > seq else None

    def at_time(self, moment_ns: int) -> int:
        """Return the seq of the first message at or after this time; the end if there is none."""
        return self.at_times([moment_ns])[moment_ns]

    def clip(
        self, start: int, end: int, *, start_ns: int | None, end_ns: int | None
    ) -> tuple[int, int]:
        """Return the part of a range of seqs in a range of time, which may be open."""
        if start < end:
            at = self.at_times([ns for ns in (start_ns, end_ns) if ns is not None])
            start = start if start_ns is None else max(start, at[start_ns])
            end = end if end_ns is None else min(end, at[end_ns])
        return start, end

    def at_times(self, moments_ns: Collection[int]) -> dict[int, int]:
        """Look up several times at the cost of one, which reads every segment's index."""
        found: dict[int, int] = {}
        for part in self.parts():
            wanted = [
                moment_ns
                for moment_ns in moments_ns
                # A segment is archived by the day of its newest message.
                if moment_ns not in found
                and (part.path == self.live or _day_of(moment_ns) <= part.path[-10:])
            ]
            if wanted:
                found |= _patiently(partial(_seqs_at, part, wanted))
        return {ns: found[ns] if ns in found else self.latest() for ns in moments_ns}

    def time_near(self, seq: int) -> int:
        """Return the time of a message, or of one after it if it is gone; for dividing."""
        return self.times_near([seq])[0]

    def times_near(self, seqs: Sequence[int]) -> list[int]:
        """Return the times of several messages at the cost of one; 0 for those after the end."""
        found: dict[int, int] = {}
        for part in self.parts():
            with (
                contextlib.suppress(PositionLost, QueueGone, QueueNotFound),
                part.reader(verify=False, on_corrupt="skip") as reader,
            ):
                for seq in seqs:
                    if seq in found:
                        continue
                    with contextlib.suppress(PositionLost):
                        reader.seek(seq)
                        if (message := reader.poll()) is not None:
                            found[seq] = message.timestamp_ns
        return [found.get(seq, 0) for seq in seqs]

    def check(self, patient_until: float | None = None) -> None:
        """Raise CorruptionError or NotAQueue if a part has a damaged control block, or all were left out.

        Of a Java queue, if it cannot be opened. ``patient_until`` is how long damage may be waited for
        that is perhaps only a removal.
        """
        if self.is_java and self.live_directory is not None:
            with contextlib.suppress(QueueNotFound, QueueGone, AccessDenied):  # as below
                self.live_directory.reader(**self.scouting).close()
            return
        for part in self.parts() or self._left_out():
            if (damage := damage_of(part, patient_until)) is not None:
                raise damage if part.path == self.live else _damaged_day(damage)

    def damaged_days(self) -> list[ChronicleError]:
        """Return the error of each day that is left out."""
        return [damage for day in self._left_out() if (damage := damage_of(day)) is not None]

    def check_seqs(self) -> None:
        """Raise ChronicleError if there are more messages than seqs, which costs an index per segment.

        What cannot be counted, because segments are missing, is left to those who read it.
        """
        if (live := self.live_directory) is None or self.is_java:
            return
        with contextlib.suppress(PositionLost, QueueGone, QueueNotFound):
            if _patiently(partial(_has_more_messages_than_seqs, live)):
                raise restarted(live.path)


def _day_of(moment_ns: int) -> str:
    """Return the last parts of the path of an archived day."""
    return datetime.fromtimestamp(moment_ns // 1_000_000_000, UTC).strftime("%Y/%m/%d")


def _patiently(ask: Callable[[], T]) -> T:
    """Return the answer, even if retention removes segments during the read."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(PositionLost, QueueGone, QueueNotFound):
            return ask()
    return ask()


def _seqs_at(part: FoundDirectory, moments_ns: Collection[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    # A reader would stop at a corrupt place before it; a slice begins after that place.
    with part.queue(verify=False, on_corrupt="skip") as queue:
        for moment_ns in moments_ns:
            if (message := next(iter(queue.slice_time(moment_ns)), None)) is not None:
                found[moment_ns] = message.seq
    return found


def _spans_of(
    live: FoundDirectory, start: int, end: int, on_corrupt: Literal["raise", "skip"]
) -> Spans | None:
    with live.queue(verify=False, on_corrupt=on_corrupt) as queue:
        return queue.spans(start, end)


def _has_more_messages_than_seqs(live: FoundDirectory) -> bool:
    # In this order, concurrent appends or removals do not look like too many messages.
    with live.queue(verify=False, on_corrupt="skip") as queue:
        first = next(iter(queue.slice()), None)
        messages = queue.slice().count
    with live.reader(verify=False, on_corrupt="skip") as reader:
        return first is not None and messages > end_of(reader, live) - first.seq


def restarted(path: str) -> ChronicleError:
    """Return the error for seqs that are not unique, and so do not identify messages."""
    return ChronicleError(
        "its seqs start again, as those of some other programs do, and Spark finds messages by seq."
        " Copy it into a new queue with open_reader, which reads on in the order of the file, and"
        " open_writer",
        path=path,
    )


def damage_of(
    directory: FoundDirectory, patient_until: float | None = None
) -> CorruptionError | NotAQueue | None:
    """Return the error of a control block; reading the queue reports other errors."""
    try:
        directory.inspect()
    except (CorruptionError, NotAQueue) as error:
        return error
    except QueueNotFound:
        return _lost_control(directory, patience() if patient_until is None else patient_until)
    except ChronicleError:
        pass
    return None


def patience() -> float:
    """Return until when to wait, by the monotonic clock, for other processes to finish."""
    return time.monotonic() + PATIENCE_S


def _lost_control(directory: FoundDirectory, patient_until: float) -> CorruptionError | None:
    """Return the error for segments without a control block, unless they are being removed.

    Waits no longer than ``patient_until`` for a process that touches them repeatedly.
    """
    touched_ns, untouched_until = -1, 0.0
    with contextlib.suppress(FileNotFoundError, PermissionError, QueueGone):
        while (now_touched_ns := _headless_since(directory)) is not None:
            if now_touched_ns != touched_ns:
                touched_ns = now_touched_ns
                untouched_s = max(time.time() - touched_ns / 1e9, 0.0)
                untouched_until = time.monotonic() + HEADLESS_S - untouched_s
            if time.monotonic() >= min(untouched_until, patient_until):
                return CorruptionError(
                    "is missing, though there are segments",
                    path=f"{directory.path}/{CONTROL}",
                    advice=CONTROL_ADVICE,
                )
            time.sleep(HEADLESS_S / TRIES)
    return None


def _headless_since(directory: FoundDirectory) -> int | None:
    """Return when a queue without a control block was last modified; None if there is no such queue."""
    with directory.opened() as opened:
        return os.fstat(opened).st_mtime_ns if _is_headless(opened) else None


def _damaged_day(damage: ChronicleError) -> CorruptionError:
    return CorruptionError(
        f"{damage.detail}: this day of the archive cannot be opened",
        path=damage.path,
        offset=damage.offset,
        advice="Restore the file from a backup, or copy the one of another day of this archive to its"
        " place. Other queues can be read by option subscribe, and other days by on_corrupt=skip.",
    )


def end_of(reader: Reader, directory: FoundDirectory, known: int = 0) -> int:
    """Return the seq after the last message of the reader's directory; 0 if it never had one.

    ``known`` is what it was before, from where to look on if it has to be found message by message;
    ChronicleError if seqs start again on that way.
    """
    reader.seek_last()
    if (proven := reader.statistics().next_seq) > 0:
        return proven
    # Another program wrote the newest segment, or a power cut took what was noted: find the last message.
    # What inspect() says of such a queue tells nothing about seqs that start again.
    for start in (max(known, 1) - 1, 0):
        reader.seek(start)
        restarts = reader.statistics().seq_restarts
        last = None
        for message in reader:
            last = message.seq
        if reader.statistics().seq_restarts > restarts:
            raise restarted(reader.path)
        if last is not None:
            return last + 1
    return directory.inspect().next_seq  # retention took everything


def is_queue(path: Path) -> bool:
    """Return whether there is a queue in exactly this directory."""
    return (path / CONTROL).is_file()


def is_java_queue(path: Path) -> bool:
    """Return whether there is a Java queue in exactly this directory."""
    return not is_queue(path) and any((path / table).is_file() for table in JAVA_TABLES)


def _is_java(opened: int) -> bool:
    """Return whether there are files of a Java queue here; a directory may have any name."""
    names = [name for name in names_in(opened) if name.endswith(JAVA_SUFFIXES)]
    return any(has_file(opened, name) for name in names if not name.startswith("."))


def _is_headless(opened: int) -> bool:
    """Return whether there are segments here, but no control block: a queue that cannot be opened."""
    return not has_file(opened, CONTROL) and any(map(SEGMENT.fullmatch, names_in(opened)))


def _was_queue(opened: int) -> bool:
    """Return whether there is a queue here, even without its control block."""
    return has_file(opened, CONTROL) or _is_headless(opened)


def find_sources(
    options: ReadOptions, *, ready_only: bool = False, known: Collection[str] = ()
) -> dict[str, Source]:
    """Find the queues that the options ask for; QueueNotFound if there are none.

    ``ready_only`` leaves out those that have not announced themselves, and may be half made, and
    those of a name that is ``known``.
    """
    roots = _roots(options.paths)
    where = ", ".join(map(str, roots))
    found = dict(_sources_under(roots, options, ready_only, known))
    advice = ""
    if any((root / MANIFESTS).is_dir() for root in roots):
        advice = "It was made by archive: aiochronicle.spark.jobs.archived reads it."
    missing = sorted(set(options.subscribe or ()) - set(found))
    if missing and not ready_only:
        everything = msgspec.structs.replace(options, subscribe=None)
        names = sorted(dict(_sources_under(roots, everything, ready_only=False)))
        there = ", ".join(map(printable, names)) or "none at all"
        what = ", ".join(map(printable, missing))
        raise QueueNotFound(f"no queue {what}; there are {there}", path=where, advice=advice)
    if not found and not ready_only:
        wanted = options.subscribe_pattern
        what = "no queue" if wanted is None else f"no queue whose name matches {wanted!r}"
        raise QueueNotFound(f"there is {what} in or below it", path=where, advice=advice)
    return found


def _roots(paths: Sequence[str]) -> dict[Path, tuple[str, ...]]:
    """Return the directories to search, and the prefix for names of queues below each.

    Names are relative to the one root, or to the directory that several roots have in common: so no two
    queues have the same name.
    """
    roots = [Path(os.path.abspath(path)) for path in paths]
    for root in roots:
        if not root.is_dir():
            what = "there is no such directory" if not root.exists() else "is not a directory"
            raise QueueNotFound(f"{what}; queues are looked for in it", path=str(root), advice="")
    if len(roots) == 1:
        return {roots[0]: ()}
    real = [root.resolve() for root in roots]
    for number, place in enumerate(real):
        for other, outer in enumerate(real):
            if number != other and place.is_relative_to(outer):
                raise InvalidArgument(
                    f"is given, and {roots[number]}, which is in it: its messages would be read twice",
                    path=str(roots[other]),
                )
    common = os.path.commonpath(roots)
    return {root: root.relative_to(common).parts for root in roots}


def find_or_await(options: ReadOptions) -> dict[str, Source]:
    """As find_sources; but to find none is no error for those who say that they follow what may come.

    With a type, its fields must be known.
    """
    try:
        return find_sources(options)
    except QueueNotFound:
        there = all(Path(path).is_dir() for path in options.paths)
        if options.awaits_queues and options.type is None and there:
            return {}
        raise


def _sources_under(
    roots: Mapping[Path, tuple[str, ...]],
    options: ReadOptions,
    ready_only: bool,
    known: Collection[str] = (),
) -> Iterator[tuple[str, Source]]:
    archives = None if options.archive is None else Path(os.path.abspath(options.archive))
    if archives is not None and not archives.is_dir():
        raise NotAQueue(
            "the archive is not a directory",
            path=str(archives),
            advice="Give the directory that retention moves segments to.",
        )
    patient_until = patience()
    everything = (
        (root.name, found)
        for root, prefix in roots.items()
        for found in _found_under(root, prefix, options, ready_only)
    )
    for root_name, (names, place, kind) in everything:
        name = "/".join(names) or root_name
        if name in known or not options.wants(name):
            continue
        if ready_only and not _is_ready(place, kind):
            continue
        is_live = kind != "archive"
        archive = None if is_live else place
        if kind == "native" and archives is not None:
            archive = _archive_of(name, place, archives)
        left_out: tuple[str, ...] = ()
        if options.skip_corrupt and archive is not None:
            days = _days_in(archive)
            left_out = tuple(day.path for day in days if damage_of(day, patient_until))
        yield (
            name,
            Source(
                name=name,
                live=place.path if is_live else None,
                archive=None if archive is None else archive.path,
                left_out=left_out,
                live_identity=place.identity if is_live else None,
                archive_identity=None if archive is None else archive.identity,
                is_java=kind == "java",
                timestamp=options.timestamp if kind == "java" else None,
                skips_damage=options.skip_corrupt,
            ),
        )


def _is_ready(place: FoundDirectory, kind: "_Kind") -> bool:
    """Return whether a queue has announced itself; a Java queue has, when its table is complete."""
    if kind != "java":
        return place.has(CONTROL) and place.has(READY)
    try:
        place.inspect()
    except QueueNotFound:
        return False
    except ChronicleError:
        pass  # reading reports that
    return True


def _archive_of(name: str, live: FoundDirectory, archives: Path) -> FoundDirectory | None:
    """Find a queue's archive: named like it, or the only one there is, which may be another's."""
    for names in (name.split("/"), []):
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(FoundDirectory(str(archives)).opened())
            try:
                for step in names:
                    opened = stack.enter_context(below(opened, step))
                days = _days_of(opened, archives.joinpath(*names))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:
                raise unreadable(str(archives.joinpath(*names)), error) from error
            place = FoundDirectory(_path_of(opened, archives, names), identify(opened))
        if days and _is_archive(days, of=live):
            return place
        if days and names:
            raise NotAQueue(
                f"not the archive of {printable(name)}, or not of it alone; give each queue an archive"
                " of its own, and one that is recreated a new one",
                path=place.path,
            )
    return None


def _path_of(opened: int, root: Path, names: Sequence[str]) -> str:
    """Return the path of a directory below a root, or of the root itself, with links resolved."""
    if names or not root.is_symlink():
        return str(root.joinpath(*names))
    return os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115


_Kind: TypeAlias = Literal["native", "java", "archive"]
_Found: TypeAlias = tuple[tuple[str, ...], FoundDirectory, _Kind]  # with the parts of its name


def _found_under(
    root: Path, prefix: tuple[str, ...], options: ReadOptions, ready_only: bool
) -> Iterator[_Found]:
    """Yield the directories that are queues or archives, without descending into them."""

    def refused(names: Sequence[str], error: PermissionError) -> None:
        name, path = "/".join((*prefix, *names)), str(root.joinpath(*names))
        asked_for = any(f"{wanted}/".startswith(f"{name}/") for wanted in options.subscribe or ())
        if asked_for or not names:
            raise unreadable(path, error) from error
        # What is found by name lacks nothing, and what is awaited is looked for again and again.
        if options.subscribe is None and not ready_only:
            _log.warning(
                "%s: left out, since it cannot be looked into: %s", printable(path), error.strerror
            )

    with FoundDirectory(str(root)).opened() as opened:
        for names, place, kind in _walk(opened, root, (), DEPTH_MAX, refused):
            yield (*prefix, *names), place, kind


def _walk(
    opened: int,
    root: Path,
    names: tuple[str, ...],
    levels: int,
    refused: Callable[[Sequence[str], PermissionError], None],
) -> Iterator[_Found]:
    children: list[str] = []
    try:
        kind: _Kind | None = "native" if _was_queue(opened) else None
        kind = "java" if kind is None and _is_java(opened) else kind
        days = [] if kind else _days_of(opened, root.joinpath(*names))
        if days and _is_archive(days):
            kind = "archive"
        levels = max(levels, DAY_DEPTH) if days else levels
        if levels > 0 and kind is None:
            children = directories_in(opened)
    except PermissionError as error:
        refused(names, error)
        return
    if kind is not None:
        place = FoundDirectory(_path_of(opened, root, names), identify(opened))
        yield names, place, kind
    for child in children:
        if not child.startswith("."):
            # Moved or removed since the listing, or replaced by a link.
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                below(opened, child) as found,
            ):
                yield from _walk(found, root, (*names, child), levels - 1, refused)


def _is_archive(days: Sequence[FoundDirectory], *, of: FoundDirectory | None = None) -> bool:
    """Return whether days hold segments of one queue; of a certain one, if it is named.

    Retention gives each day a control block with the id of the queue, which no writer ever opens.
    Queues that users create by day have their own ids and have been written to; those of other
    programs, which have no ids, number their segments from the beginning. If a control block is
    damaged, the other files show whether there was a writer.
    """
    known = {day: block for day in days if (block := _control_block(day)) is not None}
    blocks = list(known.values())
    ids = {block.queue_id for block in blocks}
    if of is not None and (block := _control_block(of)) is not None:
        ids.add(block.queue_id)
    return (
        len(ids) <= 1
        and all(block.writer_epoch == 0 for block in blocks)
        and not any(day.has(WRITER_LOCK) for day in days if day not in known)
        and (0 not in ids or all(a.last_segment < b.first_segment for a, b in pairwise(blocks)))
    )


def _control_block(directory: FoundDirectory) -> QueueInfo | None:
    """Return the content of a control block; None if it cannot be read, which reading reports."""
    with contextlib.suppress(ChronicleError):
        return directory.inspect()
    return None


def _days_in(archive: FoundDirectory) -> list[FoundDirectory]:
    """Return the days of an archive that was found; none if it is gone, AccessDenied if it is unreadable."""
    try:
        with contextlib.suppress(QueueNotFound), archive.opened() as opened:
            return _days_of(opened, Path(archive.path))
    except PermissionError as error:
        if isinstance(error, ChronicleError):
            raise
        raise unreadable(archive.path, error) from error
    return []


def _days_of(
    opened: int, path: Path, levels: Sequence[str] = (r"\d{4}", r"\d\d", r"\d\d")
) -> list[FoundDirectory]:
    """Return the directories of days that can be opened like queues, in order; links are none."""
    if not levels:
        return [FoundDirectory(str(path), identify(opened))] if _was_queue(opened) else []
    days: list[FoundDirectory] = []
    for name in directories_in(opened):
        if re.fullmatch(levels[0], name):
            # Moved or removed since it was listed.
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                below(opened, name) as found,
            ):
                days += _days_of(found, path / name, levels[1:])
    return days
