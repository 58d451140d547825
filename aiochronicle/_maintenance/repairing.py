"""Repairs queues beyond what opening for writing does.

Nothing is destroyed: files that are replaced go to ``recovered/`` first. Damaged messages that no backup has
stay where they are, and readers report them, because hiding them would be a silent loss.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._base.arguments import pathname
from aiochronicle._base.names import is_name
from aiochronicle._base.position import Position
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.backup_mark import refuse_backup
from aiochronicle._core.copying import copy_file, refuse_java, write_file
from aiochronicle._core.position_files import damage_of_position
from aiochronicle._core.queue import inspect
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._core.writer_statistics import Recovery
from aiochronicle._files import sync_directory
from aiochronicle._layout import (
    CONTROL,
    POSITION_SUFFIX,
    READERS,
    RECOVERED,
    SCHEMA,
    SEGMENT,
    SEGMENT_SUFFIX,
    WRITER_LOCK,
    position_name,
    segment_name,
)
from aiochronicle._maintenance import generations as store
from aiochronicle._typed.registry import Registry
from aiochronicle.errors import (
    BackupError,
    ChronicleError,
    CorruptionError,
    LockedError,
    NotAQueue,
    PositionLost,
    QueueNotFound,
    SalvageRequired,
    SchemaError,
)

__all__ = ["Finding", "RepairReport", "repair"]

_QUEUE_ID = slice(32, 40)  # in control.meta
_HOME = slice(136, 144)
_BATCH = 4096
_NO_BACKUP = "Give a backup of the queue that has it, with backup= (aioc repair --backup DIR)"
_SALVAGE = "set the rest aside with salvage=True (aioc repair --salvage)"
_SKIP = {
    "segment": 'let readers skip it: on_corrupt="skip" in programs; --skip-corrupt of aioc cat, tail,'
    " export and convert",
    "missing": "let readers continue after it: seek_position(error.nearest) after PositionLost in"
    " programs; --skip-corrupt of aioc cat, tail, export and convert",
}
_ACTIVE_SEGMENT = (
    "A backup has only part of the segment that was being written: restore the queue, with aioc"
    " restore"
)


class Finding(HtmlStruct, frozen=True, kw_only=True):
    """A problem. ``kind`` is one of the words in the documentation of ``repair``.

    If the problem is ``fixed``, ``remedy`` is what was done, otherwise what can be done. ``set_aside`` is
    where the damaged part is now.
    """

    kind: str
    path: str
    detail: str
    remedy: str
    fixed: bool
    set_aside: str | None = None


class RepairReport(HtmlStruct, frozen=True, kw_only=True):
    """The findings. ``recovery`` is the result of opening for writing at the end; None in a dry run."""

    path: str
    dry_run: bool
    findings: list[Finding]
    recovery: Recovery | None

    @property
    def sound(self) -> bool:
        """True if no problem is left."""
        return all(finding.fixed for finding in self.findings)


def repair(
    path: str | os.PathLike[str],
    *,
    backup: str | os.PathLike[str] | None = None,
    salvage: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> RepairReport:
    """Find damage in a queue without an open writer, and repair what can be repaired.

    ``backup`` is a directory of backups of this queue, from which damaged parts are replaced. ``salvage``
    permits setting aside messages that may have been durable, like ``recover="salvage"`` of open_writer. With
    ``dry_run`` nothing is changed, and a finding is ``fixed`` if it would be. ``progress`` is called with the
    bytes read and the total.

    ============== ===============================================================================
    kind           problem and repair
    ============== ===============================================================================
    control        control.meta is missing or damaged: it is recreated, with the id of the backup
                   if there is one, otherwise with a new id
    segment        records are damaged: the segment is replaced from the backup
    missing        a segment is missing: it is copied from the backup
    position       the position of a reader is damaged: it is set aside, and the reader starts like
                   a new one
    schema         schema.json is damaged: it is replaced from the backup
    end            the last writer did not close the queue: the same repair as by open_writer
    ============== ===============================================================================

    LockedError while the queue has a writer. Blocks: in an event loop use ``asyncio.to_thread``.

    >>> repair(queue).sound
    True
    """
    queue = Path(pathname("path", path))
    with storage_errors(queue):
        refuse_java("repair", queue)
        if not queue.is_dir() or not (_segments(queue) or (queue / CONTROL).exists()):
            raise QueueNotFound("there is no queue", path=str(queue))
        if not dry_run:
            refuse_backup(queue)
    with storage_errors(queue), _source(backup) as source:
        with _alone(queue, take=not dry_run):
            work = _Work(queue, source, dry_run, progress or (lambda done, total: None))
            findings = list(work.findings())
        recovery = None
        if not dry_run and not any(one.kind == "control" and not one.fixed for one in findings):
            recovery, at_end = _open(queue, work, salvage=salvage)
            done = {one.path for one in at_end if one.fixed}
            findings = [one for one in findings if one.fixed or one.path not in done] + at_end
    return RepairReport(path=str(queue), dry_run=dry_run, findings=findings, recovery=recovery)


def _mode(queue: Path) -> int:
    return (queue / CONTROL).stat().st_mode & 0o777


def _open(queue: Path, work: "_Work", *, salvage: bool) -> tuple[Recovery | None, list[Finding]]:
    """Open the queue as its next writer would, which repairs its end.

    With ``salvage``, segments that prevent this are set aside.
    """
    findings: list[Finding] = []
    while True:
        try:
            with open_writer(
                queue,
                recover="salvage" if salvage else "auto",
                mode=_mode(queue),
                _use_settings_file=False,  # its retention would remove segments
            ) as writer:
                recovery = writer.recovery
        except SalvageRequired as error:
            return None, [*findings, _end_needs_salvage(queue, work, error)]
        except CorruptionError as error:
            file = queue / Path(error.path or "").name
            aside = None
            if salvage and SEGMENT.fullmatch(file.name):
                with _alone(queue, take=True):
                    aside = work.set_segment_aside(file)
            findings.append(_prevents_opening(error, aside))
            if aside is None:
                return None, findings
        else:
            return recovery, findings + _end_repaired(queue, recovery)


def _prevents_opening(error: CorruptionError, aside: str | None) -> Finding:
    remedy = "set aside; aioc recovered shows its readable messages"
    if aside is None:
        remedy = f"{_NO_BACKUP}, restore the queue, or {_SALVAGE}"
    return Finding(
        kind="end" if aside is None else "segment",
        path=str(error.path),
        detail=f"prevents opening the queue for writing: {error.detail}",
        remedy=remedy,
        fixed=aside is not None,
        set_aside=aside,
    )


def _end_needs_salvage(queue: Path, work: "_Work", error: SalvageRequired) -> Finding:
    return Finding(
        kind="end",
        path=str(queue),
        detail=error.detail,
        remedy=f"{work.no_backup()}, or {_SALVAGE}",
        fixed=False,
    )


def _end_repaired(queue: Path, recovery: Recovery) -> list[Finding]:
    if recovery.clean:
        return []
    aside = recovery.torn_records or recovery.bytes_set_aside or recovery.segments_set_aside
    detail = (
        f"the last writer did not close the queue; checked {recovery.records_scanned:,} records"
    )
    remedy = "nothing was lost"
    if aside:
        remedy = (
            f"cut {recovery.torn_records} torn records, set aside {recovery.bytes_set_aside:,} bytes and"
            f" {recovery.segments_set_aside} segments"
        )
    return [
        Finding(
            kind="end",
            path=str(queue),
            detail=detail,
            remedy=remedy,
            fixed=True,
            set_aside=str(queue / RECOVERED) if aside else None,
        )
    ]


@contextmanager
def _source(backup: str | os.PathLike[str] | None) -> Generator[Path | None]:
    """Lock the backups while they are in use, and yield the newest."""
    if backup is None:
        yield None
        return
    root = Path(pathname("backup", backup))
    with store.locked(root, make=False):
        numbers = store.generations(root)
        if not numbers:
            raise BackupError("there are no backups", path=str(root))
        yield store.path_of(root, numbers[-1])


@contextmanager
def _alone(queue: Path, *, take: bool) -> Generator[None]:
    """Hold the writer's lock: exclusively with ``take``, otherwise shared."""
    file = queue / WRITER_LOCK
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_RDWR if take else os.O_RDONLY)
    try:
        if take and not os.path.lexists(file):
            with suppress(FileExistsError):
                _create_lock(file)
        fd = os.open(file, flags)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_NB | (fcntl.LOCK_EX if take else fcntl.LOCK_SH))
        except BlockingIOError:
            raise LockedError(
                "the queue has a writer",
                path=str(queue),
                advice="Close it first; aioc who names the process.",
            ) from None
        yield
    finally:
        os.close(fd)


def _create_lock(file: Path) -> None:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _give_to_owner(fd, file.parent)
    finally:
        os.close(fd)


def _make_directory(directory: Path) -> None:
    """Create a directory in a queue if it does not exist."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(fd) as entries:
            is_new = next(entries, None) is None  # the owner of the queue may have replaced it
        if is_new:
            _give_to_owner(fd, directory.parent)
    finally:
        os.close(fd)


def _give_to_owner(fd: int, directory: Path) -> None:
    """Give a file that root created to the owner of the queue, whose processes must be able to use it."""
    if os.geteuid() == 0:
        status = directory.stat()
        os.fchown(fd, status.st_uid, status.st_gid)


class _Work:
    """The repair of one queue. Each step yields its findings, fixed or not."""

    def __init__(
        self,
        queue: Path,
        source: Path | None,
        dry_run: bool,
        progress: Callable[[int, int], object],
    ) -> None:
        self._queue = queue
        self._source = source
        self._manifest = None if source is None else store.read_manifest(source)
        self._dry_run = dry_run
        self._progress = progress

    def findings(self) -> Iterator[Finding]:
        control = list(self._check_control())
        yield from control
        if not control or (control[0].fixed and not self._dry_run):
            self._refuse_other_backup()
            yield from self._check_segments()
        yield from self._check_positions()
        yield from self._check_schema()

    def _finding(
        self, kind: str, file: Path, detail: str, done: str | None, *, otherwise: str
    ) -> Finding:
        return Finding(
            kind=kind,
            path=str(file),
            detail=detail,
            remedy=otherwise if done is None else done,
            fixed=done is not None,
        )

    def _set_aside(self, file: Path, name: str | None = None) -> str | None:
        """Move a file to recovered/ under a free name; None in a dry run, or if there is no such file."""
        if self._dry_run or not os.path.lexists(file):
            return None
        directory = self._queue / RECOVERED
        _make_directory(directory)
        target = directory / (name or f"{file.name}-{time.time_ns()}")
        if os.path.lexists(target):
            target = directory / f"{target.name}-{time.time_ns()}"
        file.rename(target)
        sync_directory(directory)
        sync_directory(file.parent)
        return str(target)

    def set_segment_aside(self, file: Path) -> str | None:
        """Move a segment to recovered/, under the name that the engine would use."""
        number = int(file.name.removesuffix(SEGMENT_SUFFIX))
        epoch = inspect(self._queue).writer_epoch
        return self._set_aside(file, f"{number:09d}-{epoch}{SEGMENT_SUFFIX}")

    def no_backup(self, number: int | None = None) -> str:
        """Return the advice for a segment that the backup does not replace; None means the last one."""
        if self._manifest is None:
            return _NO_BACKUP
        if number is None:
            number = max(_segments(self._queue), default=-1) + 1
        return _ACTIVE_SEGMENT if number >= self._manifest.end_segment else _NO_BACKUP

    def _refuse_other_backup(self) -> None:
        if self._manifest is not None and self._manifest.queue_id != inspect(self._queue).queue_id:
            raise BackupError(
                f"this is a backup of another queue, {self._manifest.queue}",
                path=str(self._source),
                advice="Nothing was copied from it. Give a backup of this queue.",
            )

    def _check_control(self) -> Iterator[Finding]:
        try:
            inspect(self._queue)
        except (CorruptionError, NotAQueue, QueueNotFound) as error:
            file = self._queue / CONTROL
            if os.path.lexists(file) and os.lstat(file).st_uid != self._queue.stat().st_uid:
                raise  # another user has created it
            sizes = [
                (self._queue / name).stat().st_size for name in _segments(self._queue).values()
            ]
            if not sizes:
                raise
            known = "the id of the backup" if self._manifest is not None else "a new id"
            aside = self._set_aside(file)
            if not self._dry_run:
                self._make_control(file, max(sizes))
            found = self._finding(
                "control", file, error.detail, f"recreated, with {known}", otherwise=""
            )
            yield msgspec.structs.replace(found, set_aside=aside)

    def _make_control(self, file: Path, segment_size: int) -> None:
        """Copy the control block of a new queue. It has no end position, so opening searches for the end."""
        with tempfile.TemporaryDirectory(dir=self._queue.parent, prefix=".aiochronicle-") as spare:
            open_writer(Path(spare) / "queue", segment_size=segment_size).close()
            content = bytearray((Path(spare) / "queue" / CONTROL).read_bytes())
        content[_HOME] = bytes(8)  # accept this directory as the queue's own
        if self._manifest is not None:
            content[_QUEUE_ID] = self._manifest.queue_id.to_bytes(8, "little")
        status = self._queue.stat()
        owner = store.Owner(status.st_uid, status.st_gid, status.st_mode & 0o666)
        _replace(file, owner, lambda part: write_file(part, bytes(content), mode=0o600))

    def _check_segments(self) -> Iterator[Finding]:
        damaged, missing = self._find_damage()
        for number in sorted(damaged | missing.keys()):
            file = self._queue / segment_name(number)
            kind = "missing" if number in missing else "segment"
            detail = missing.get(number) or "; ".join(damaged[number])
            aside = None
            done = None
            if self._has_sound(number):
                done = f"taken from {self._source}"
                if not self._dry_run:
                    aside = self.set_segment_aside(file)
                    self._take(file)
            otherwise = f"{self.no_backup(number)}, or {_SKIP[kind]}"
            found = self._finding(kind, file, detail, done, otherwise=otherwise)
            yield msgspec.structs.replace(found, set_aside=aside)

    def _find_damage(self) -> tuple[dict[int, list[str]], dict[int, str]]:
        """Read everything; return the damage by segment, and the missing segments."""
        there = sorted(_segments(self._queue))
        missing = {
            number: "there is no such file"
            for before, after in pairwise(there)
            for number in range(before + 1, after)
        }
        damaged: dict[int, list[str]] = {}
        with open_reader(self._queue, start="first") as reader:
            total = max(reader.lag.bytes, 1)
            while True:
                try:
                    if not reader.read_batch(_BATCH) and not _cross_gap(reader, there):
                        break
                except CorruptionError as error:
                    place = reader.position
                    number = _number_of(error.path, place.segment)
                    damaged.setdefault(number, []).append(
                        f"at offset {error.offset or 0}: {error.detail}"
                    )
                    if not _skip_damage(reader, place):
                        break
                except PositionLost as error:
                    if error.nearest <= error.wanted:
                        break
                    reader.seek_position(error.nearest)
                self._progress(max(0, total - reader.lag.bytes), total)
        return damaged, missing

    def _has_sound(self, number: int) -> bool:
        """Return whether the backup has this segment completely, with no damaged record."""
        if self._source is None or self._manifest is None or number not in self._manifest.segments:
            return False
        end = Position(number + 1, 64)
        with open_reader(self._source, start="first") as reader:
            try:
                reader.seek_position(Position(number, 64))
                reader.end_at(end)
                while reader.read_batch(_BATCH):
                    pass
            except ChronicleError:
                return False
        return True

    def _take(self, file: Path) -> None:
        assert self._source is not None
        assert self._manifest is not None
        origin = self._source / file.name
        _replace(file, self._manifest.owner, lambda part: copy_file(origin, part, mode=0o600))
        with suppress(FileNotFoundError):
            file.with_suffix(".idx").unlink()  # an index, which is created again

    def _check_positions(self) -> Iterator[Finding]:
        readers = self._queue / READERS
        try:
            names = sorted(path.name for path in readers.glob(position_name("*")))
        except FileNotFoundError:
            return
        for name in names:
            if not is_name(name.removesuffix(POSITION_SUFFIX)):
                continue
            detail = damage_of_position(readers / name)
            if detail is None:
                continue
            aside = self._set_aside(readers / name)
            found = self._finding(
                "position",
                readers / name,
                detail,
                "set aside; the reader starts like a new one",
                otherwise="",
            )
            yield msgspec.structs.replace(found, set_aside=aside)

    def _check_schema(self) -> Iterator[Finding]:
        file = self._queue / SCHEMA
        if not os.path.lexists(file):
            return
        try:
            Registry.load(file)
        except SchemaError as error:
            aside = done = None
            if self._source is not None and (self._source / SCHEMA).exists():
                done = f"taken from {self._source}"
                if not self._dry_run:
                    aside = self._set_aside(file)
                    self._take(file)
            found = self._finding("schema", file, error.detail, done, otherwise=_NO_BACKUP)
            yield msgspec.structs.replace(found, set_aside=aside)


def _cross_gap(reader: Reader[Any], there: list[int]) -> bool:
    """Continue after a missing segment. A recreated control block does not tell that more segments follow."""
    place = reader.position
    after = [number for number in there if number > place.segment]
    if not after or after[0] == place.segment + 1:
        return False
    reader.seek_position(Position(after[0], 64))
    return True


def _skip_damage(reader: Reader[Any], place: Position) -> bool:
    """Continue after damage; False if nothing follows."""
    with suppress(ChronicleError):
        reader.step_over()
    if reader.position > place:
        return True
    try:
        reader.seek_position(Position(place.segment + 1, 64))
    except ChronicleError:
        return False
    return reader.position > place


def _number_of(path: str | None, otherwise: int) -> int:
    found = None if path is None else SEGMENT.fullmatch(Path(path).name)
    return otherwise if found is None else int(found[1])


def _segments(queue: Path) -> dict[int, str]:
    found = filter(None, (SEGMENT.fullmatch(path.name) for path in queue.iterdir()))
    return {int(match[1]): match[0] for match in found}


def _replace(file: Path, owner: store.Owner, make: Callable[[Path], object]) -> None:
    """Replace a file: create it under another name, and rename it."""
    part = file.with_name(f"{file.name}.tmp")
    with suppress(FileNotFoundError):
        part.unlink()
    make(part)
    owner.give(part)
    part.rename(file)
    sync_directory(file.parent)
