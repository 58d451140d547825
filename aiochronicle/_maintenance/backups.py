"""Backs up queues while they are in use.

A backup contains everything up to the end of the queue at the moment the backup begins, and nothing later.
The next backup has messages that a writer appends during this one, and removals by retention. A backup
needs read permission only, and delays neither the writer nor readers.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from aiochronicle._base.arguments import one_of, pathname, positive
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.names import is_name
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable, utf8_name
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.copying import copy_file, write_file
from aiochronicle._core.position_files import FILE_BYTES, Slot, decode_position, encode_position
from aiochronicle._core.queue import QueueInfo, inspect
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._files import read_small_file, sync_directory
from aiochronicle._layout import (
    CONTROL,
    GROUP_SUFFIX,
    POSITION_SUFFIX,
    READERS,
    SCHEMA,
    SEGMENT,
    SEGMENT_SUFFIX,
    SETTINGS,
    index_name,
    segment_name,
)
from aiochronicle._maintenance import generations as store
from aiochronicle._maintenance.backup_report import (
    BackupProgress,
    BackupReport,
    Progress,
    read_all,
    stamp_of,
)
from aiochronicle._maintenance.generations import Manifest, Owner, Stamp
from aiochronicle._maintenance.healing import DAMAGED, Healing
from aiochronicle.errors import BackupError, ChronicleError, CorruptionError

if TYPE_CHECKING:
    from aiochronicle._maintenance.java_backups import JavaWork

__all__ = ["Backup", "BackupProgress", "BackupReport", "backup", "list_backups"]

_log = logging.getLogger("aiochronicle.backup")

_TRIES = 3
_MODE = 0o600  # a backup belongs to the user who created it
_HEADER_BYTES = 64
_HEADER_FLAGS = slice(12, 24)  # the seal, and the end of the records


class Backup(HtmlStruct, frozen=True, kw_only=True):
    """An existing backup. ``problem`` says why it cannot be used, or is None."""

    path: str
    number: int
    queue: str
    queue_id: int
    created_ns: int
    messages: int
    next_seq: int
    segments: int
    problem: str | None = None


def list_backups(directory: str | os.PathLike[str]) -> list[Backup]:
    """List the complete backups in a directory, oldest first.

    >>> _ = backup(queue, tmp_path / "backups")
    >>> [(found.number, found.messages) for found in list_backups(tmp_path / "backups")]
    [(1, 1)]
    """
    root = Path(pathname("directory", directory))
    found: list[Backup] = []
    for number in store.generations(root):
        path = store.path_of(root, number)
        try:
            manifest = store.read_manifest(path)
        except (ChronicleError, OSError) as error:
            found.append(
                Backup(
                    path=str(path),
                    number=number,
                    queue="",
                    queue_id=0,
                    created_ns=0,
                    messages=0,
                    next_seq=0,
                    segments=0,
                    problem=str(error),
                )
            )
            continue
        found.append(
            Backup(
                path=str(path),
                number=number,
                queue=manifest.queue,
                queue_id=manifest.queue_id,
                created_ns=manifest.created_ns,
                messages=manifest.messages,
                next_seq=manifest.next_seq,
                segments=len(manifest.files) or len(manifest.segments) + 1,
            )
        )
    return found


def backup(
    path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    keep: int = 2,
    on_corrupt: Literal["raise", "keep"] = "raise",
    verify_all: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up a queue, even while a writer appends to it.

    Each queue needs its own directory of backups. The first backup copies everything; later ones copy new
    segments and the active one, and share the rest with the previous backup. On file systems with reflinks
    no data is copied. The copied segments are read back and checked; with ``verify_all``, all segments. A
    damaged shared segment is copied from the queue again, and is in ``replaced`` of the report. The backup
    appears when all of it is on disk; then the oldest backups are removed until ``keep`` are left. If the
    process is killed at any moment, earlier backups are unchanged.

    CorruptionError if the queue is damaged, so that the last good backup stays; ``on_corrupt="keep"``
    copies the damage, too. A reader whose position cannot be read is in ``left_out`` of the report, and in
    the log. BackupError if the directory has backups of another queue, or of a later state of this one. The
    cycles of a Java queue are its segments; the backup has the positions of its tailers. Blocks: in an
    event loop use ``asyncio.to_thread``.

    >>> report = backup(queue, tmp_path / "backups")
    >>> report.number, report.messages
    (1, 1)
    >>> with open_reader(report.path) as reader:
    ...     [message.payload for message in reader]
    [b'hello']
    """
    source = Path(pathname("path", path))
    root = Path(pathname("directory", directory))
    positive("keep", keep)
    one_of("on_corrupt", dict.fromkeys(("raise", "keep")), on_corrupt)
    info = inspect(source)
    if root.resolve().is_relative_to(source.resolve()):
        raise BackupError(
            "this directory is inside the queue", path=str(root), advice="Choose another directory."
        )
    with storage_errors(root), store.locked(root, make=True):
        store.sweep(root)
        before = _last(root)
        if before is not None:
            _refuse_other(root, before, info.queue_id, source)
        number = (store.generations(root) or [0])[-1] + 1
        part = root / store.PART
        part.mkdir(mode=0o700)
        try:
            kind = _kind_of_work(info)
            work = kind(source, part, root, before, progress or (lambda _: None))
            report = work.run(number, on_corrupt, verify_all=verify_all)
            sync_directory(part)
            part.rename(store.path_of(root, number))
            sync_directory(root)
        except BaseException:
            store.remove_tree(part)
            raise
        removed = store.keep_newest(root, keep)
    return msgspec.structs.replace(report, removed=removed)


def _kind_of_work(info: QueueInfo) -> "type[_Work] | type[JavaWork]":
    if info.format == "native":
        return _Work
    from aiochronicle._maintenance.java_backups import JavaWork

    return JavaWork


def _last(root: Path) -> tuple[int, Manifest] | None:
    numbers = store.generations(root)
    return (numbers[-1], store.read_manifest(store.path_of(root, numbers[-1]))) if numbers else None


def _refuse_other(root: Path, before: tuple[int, Manifest], queue_id: int, source: Path) -> None:
    same = before[1].queue_id == queue_id
    if queue_id == 0:  # another program wrote the queue, and assigned no id
        same &= before[1].queue == utf8_name(os.path.abspath(source))
    if not same:
        named = f", id {before[1].queue_id:016x}" if before[1].queue_id else ""
        raise BackupError(
            f"the directory has backups of another queue ({before[1].queue}{named})",
            path=str(root),
            advice="Nothing was changed. Use one directory for each queue. A queue that was restored with a"
            " new id counts as another queue.",
        )


class _Work:
    """One backup in progress."""

    def __init__(
        self,
        source: Path,
        part: Path,
        root: Path,
        before: tuple[int, Manifest] | None,
        progress: Progress,
    ) -> None:
        self._source = source
        self._part = part
        self._before = None if before is None else before[1]
        self._before_path = None if before is None else store.path_of(root, before[0])
        self._progress = progress
        self._owner = Owner.of((source / CONTROL).stat())
        self._readers: dict[str, Owner] = {}
        self._groups: list[str] = []
        self._left_out: dict[str, str] = {}
        self._readers_mode = 0o700
        self._done = self._total = self._copied = 0
        self._reflinked = True

    def run(self, number: int, on_corrupt: str, *, verify_all: bool) -> BackupReport:
        end, next_seq, lost = self._find_end(on_corrupt)
        if self._before is not None and next_seq < self._before.next_seq:
            raise BackupError(
                f"the queue ends at seq {next_seq}, before its last backup, which ends at"
                f" {self._before.next_seq}",
                path=str(self._source),
                advice="Nothing was changed. The queue has lost messages that the backup has: restore"
                " the queue, or back it up into another directory.",
            )
        try:
            stamps, fresh = self._copy_segments(end)
            self._copy_tail(end)
        except FileNotFoundError as error:
            raise BackupError(
                "retention removed segments faster than they could be copied",
                path=str(self._source),
                advice="Nothing was changed. Let retention keep more, or back up to a faster disk.",
            ) from error
        for name in (SCHEMA, SETTINGS):
            self._copy_small(name)
        readers, moved = self._copy_positions(end)
        first = min(stamps, default=end.segment)
        self._describe(end, next_seq, 0, 0)  # readable from now on
        verified_from = first if verify_all else min(fresh, default=end.segment)
        healing = Healing(
            self._source,
            sorted({*stamps, end.segment}),
            fresh,
            number_of=_number_of,
            verify=lambda begin, on_corrupt: self._verify(begin, end, on_corrupt),
            copy=self._copy_again,
        )
        messages, corrupt, last = healing.run(verified_from, on_corrupt)
        corrupt += lost
        last_ns, last_record = (0, 0) if last is None else last
        self._describe(end, next_seq, last_ns, last_record)
        manifest = Manifest(
            queue=utf8_name(os.path.abspath(self._source)),
            queue_id=inspect(self._source).queue_id,
            segment_size=inspect(self._source).segment_size,
            created_ns=time.time_ns(),
            first_segment=first,
            end_segment=end.segment,
            end_offset=end.offset,
            next_seq=next_seq,
            last_timestamp_ns=last_ns,
            messages=messages,
            owner=self._owner,
            directory_mode=self._source.stat().st_mode & 0o7777,
            readers_mode=self._readers_mode,
            readers=self._readers,
            groups=self._groups,
            left_out=self._left_out,
            corrupt=corrupt,
            segments=stamps,
            verified_from=verified_from,
        )
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        write_file(self._part / store.MANIFEST, content, mode=0o600)
        return BackupReport(
            path=str(store.path_of(self._part.parent, number)),
            number=number,
            messages=messages,
            next_seq=next_seq,
            segments=len(stamps) + 1,
            segments_copied=len(fresh) + 1,
            bytes_copied=self._copied,
            reflinked=self._reflinked and bool(fresh),
            readers=readers,
            positions_moved=moved,
            corrupt=corrupt,
            removed=[],
            left_out=self._left_out,
            replaced=sorted(healing.replaced),
        )

    def _copy_segments(self, end: Position) -> tuple[dict[int, Stamp], set[int]]:
        """Copy or share the segments before the last one; return their stamps, and which were copied."""
        stamps: dict[int, Stamp] = {}
        fresh: set[int] = set()
        while True:
            numbers = [number for number in _segments(self._source) if number < end.segment]
            _refuse_gap(self._source, [*numbers, end.segment])
            for number in stamps.keys() - set(numbers):  # retention has removed it
                (self._part / _name(number)).unlink()
                del stamps[number]
            missing = [number for number in numbers if number not in stamps]
            try:
                shared = [number for number in missing if self._is_known(number)]
                sizes = {number: self._size(number) for number in set(missing) - set(shared)}
                self._done, self._total = 0, sum(sizes.values()) + end.offset
                for number in missing:
                    stamp = stamp_of(self._source / _name(number))
                    if number not in shared or not self._share(number):
                        self._copy_segment(number, sizes.get(number, 0))
                        fresh.add(number)
                    stamps[number] = stamp
            except FileNotFoundError:
                if _segments(self._source)[:1] == numbers[:1]:
                    raise
                continue
            return stamps, fresh & stamps.keys()

    def _size(self, number: int) -> int:
        return (self._source / _name(number)).stat().st_blocks * 512

    def _copy_segment(self, number: int, size: int) -> None:
        file, before = self._source / _name(number), self._done
        self._reflinked &= copy_file(
            file, self._part / file.name, mode=_MODE, advance=self._advance
        )
        self._copied += size
        self._done = before + size
        self._copy_small(index_name(number))

    def _is_known(self, number: int) -> bool:
        """Return whether the previous backup has the same segment, unchanged."""
        if self._before is None or number not in self._before.segments:
            return False
        return self._before.segments[number] == stamp_of(self._source / _name(number))

    def _share(self, number: int) -> bool:
        assert self._before_path is not None
        for name in (_name(number), index_name(number)):
            try:
                os.link(self._before_path / name, self._part / name, follow_symlinks=False)
            except FileNotFoundError:
                if name.endswith(SEGMENT_SUFFIX):
                    return False
            except OSError:  # the file system allows no more links
                return False
        return True

    def _copy_tail(self, end: Position) -> None:
        """Copy the last segment up to the end."""
        file = self._source / _name(end.segment)
        target = self._part / file.name
        if not file.exists() and end.offset <= _HEADER_BYTES:
            return  # a queue without a segment
        copy_tail(
            file,
            target,
            end.offset,
            mode=_MODE,
            advance=self._advance,
        )
        self._copied += end.offset
        with target.open("r+b") as grown:
            grown.truncate(inspect(self._source).segment_size)
            os.fsync(grown.fileno())

    def _copy_small(self, name: str) -> None:
        try:
            copy_file(self._source / name, self._part / name, mode=_MODE)
        except FileNotFoundError:
            return

    def _copy_positions(self, end: Position) -> tuple[int, int]:
        """Copy the positions of readers; a position beyond the end is moved to the end."""
        readers = self._source / READERS
        try:
            names = sorted(path.name for path in readers.iterdir() if _is_position(path.name))
            self._readers_mode = readers.stat().st_mode & 0o7777
        except FileNotFoundError:
            return 0, 0
        target = self._part / READERS
        target.mkdir(mode=0o700)
        moved = 0
        for name in names:
            try:
                found = _read_position(readers / name)
            except ValueError as error:
                self._leave_out(name.removesuffix(POSITION_SUFFIX), str(error))
                continue
            if found is None:
                continue
            content, slot, status = found
            if slot.position > end:
                slot = msgspec.structs.replace(slot, position=end, epoch=0)
                content, moved = encode_position(slot), moved + 1
            write_file(target / name, content[:FILE_BYTES], mode=_MODE)
            self._readers[name] = Owner.of(status)
            if (readers / (name.removesuffix(POSITION_SUFFIX) + GROUP_SUFFIX)).exists():
                self._groups.append(name)
        sync_directory(target)
        return len(self._readers), moved

    def _leave_out(self, reader: str, why: str) -> None:
        self._left_out[reader] = why
        _log.warning(
            "%s: the backup has no position of reader %r: %s",
            printable(self._source),
            reader,
            printable(why),
        )

    def _describe(self, end: Position, next_seq: int, last_ns: int, last_record: int) -> None:
        describe_copy(
            self._source,
            self._part,
            end,
            next_seq,
            last_ns,
            last_record,
            mode=_MODE,
            new_id=True,
        )

    def _copy_again(self, number: int) -> None:
        for name in (_name(number), index_name(number)):
            with suppress(FileNotFoundError):
                (self._part / name).unlink()
        self._copy_segment(number, self._size(number))

    def _verify(
        self, first: int, end: Position, on_corrupt: str
    ) -> tuple[int, int, tuple[int, int] | None]:
        """Read the copy from a segment on; return the number of messages, and of damaged places."""
        with open_reader(self._part, start="first") as reader:
            total = reader.lag.messages
            reader.seek_position(max(Position(first, _HEADER_BYTES), reader.position))
            corrupt = read_all(reader, end, on_corrupt, self._tell_verify)
            last = last_message(reader, end)
        return total, corrupt, last

    def _find_end(self, on_corrupt: str) -> tuple[Position, int, int]:
        """Return the end of the queue, the next seq, and 1 if the newest segment was cut, else 0.

        A reader takes the cut for the end of the queue. Only the control block shows that there was more.
        """
        info = inspect(self._source)  # before the reader: its seqs are in the queue by then
        with open_reader(self._source, start="last") as reader:
            end = reader.position
            next_seq = reader.seq_at(end)
        segment = self._source / segment_name(end.segment)
        with suppress(FileNotFoundError):  # removed by retention, and so not cut
            if segment.stat().st_size < info.segment_size and (next_seq or 0) < info.next_seq:
                if on_corrupt == "raise":
                    raise CorruptionError(
                        f"the segment was cut; the queue had seqs up to {info.next_seq - 1}",
                        path=str(segment),
                        offset=end.offset,
                        advice=DAMAGED,
                    )
                return end, self._seq_after(end), 1
        return end, next_seq or 0, 0

    def _seq_after(self, end: Position) -> int:
        """Return the seq after the last message that can be read."""
        with open_reader(self._source, start="first", on_corrupt="skip") as reader:
            for start in (Position(end.segment, _HEADER_BYTES), reader.position):
                reader.seek_position(start)
                last = deque(reader, maxlen=1)
                if last:
                    return last[0].seq + 1
        return 0

    def _tell_verify(self, done: int, total: int) -> None:
        self._progress(BackupProgress(step="verify", bytes=done, bytes_total=total))

    def _advance(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        self._progress(BackupProgress(step="copy", bytes=self._done, bytes_total=self._total))


def last_message(reader: Reader[Any], end: Position) -> tuple[int, int] | None:
    """Return the time of the last message, and its offset if it is in the last segment (else 0)."""
    next_seq = reader.seq_at(end)
    if not next_seq:
        return None
    message = None
    try:
        reader.seek(next_seq - 1)
        message = reader.poll()
    except CorruptionError:  # of any segment, because seek searches several
        with suppress(ChronicleError):
            reader.seek_position(Position(end.segment, _HEADER_BYTES))
            while batch := reader.read_batch():
                message = batch[-1]
    if message is None:
        return None
    place = message.position
    return message.timestamp_ns, place.offset if place.segment == end.segment else 0


def copy_tail(
    source: Path,
    target: Path,
    length: int,
    *,
    mode: int,
    advance: Callable[[int], object] = lambda _: None,
) -> None:
    """Copy a segment up to the end of the queue. It may be sealed by now, but the copy is not."""
    copy_file(source, target, mode=mode, length=length, advance=advance)
    fd = os.open(target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(fd, bytes(_HEADER_FLAGS.stop - _HEADER_FLAGS.start), _HEADER_FLAGS.start)
        os.fsync(fd)
    finally:
        os.close(fd)


def describe_copy(
    original: Path,
    copy: Path,
    end: Position,
    next_seq: int,
    last_timestamp_ns: int,
    last_record: int,
    *,
    mode: int,
    new_id: bool,
) -> None:
    """Turn the segments in a directory into a queue: write its control block and durable position."""
    described = ffi.new("ac_copy_t *")
    described.segment, described.offset = end
    described.next_seq = next_seq
    described.last_timestamp_ns = last_timestamp_ns
    described.last_record = last_record
    described.mode = mode
    described.new_id = int(new_id)
    error = new_error()
    check(
        lib.ac_queue_describe_copy(encode_path(original), encode_path(copy), described, error),
        error,
    )


def _is_position(name: str) -> bool:
    return name.endswith(POSITION_SUFFIX) and is_name(name.removesuffix(POSITION_SUFFIX))


def _read_position(file: Path) -> tuple[bytes, Slot, os.stat_result] | None:
    """Return the content of a position file; None if the reader was forgotten, ValueError if damaged."""
    for _ in range(_TRIES):  # a commit may be in progress
        content = read_small_file(str(file), 4096)
        if content is None:
            return None
        slot = decode_position(content)
        if slot is not None:
            with suppress(FileNotFoundError):
                return content, slot, os.lstat(file)
            return None
    raise ValueError(f"{file.name} is damaged")


def _segments(queue: Path) -> list[int]:
    found = filter(None, (SEGMENT.fullmatch(path.name) for path in queue.iterdir()))
    return sorted(int(match[1]) for match in found)


def _refuse_gap(source: Path, numbers: list[int]) -> None:
    for number, following in pairwise(numbers):
        if following != number + 1:
            detail = f"segment {number + 1} is missing"
            raise CorruptionError(
                detail, path=str(source), advice="Nothing was changed. Repair the queue first."
            )


def _number_of(name: str) -> int | None:
    match = SEGMENT.fullmatch(name)
    return None if match is None else int(match[1])


def _name(number: int) -> str:
    return segment_name(number)
