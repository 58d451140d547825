"""Backs up Java queues while they are in use: their cycles are the segments.

Records never change after they are written, so the file of a cycle is copied up to the message at which the
backup ends. The engine then resets what changes in place (writePosition, the index, metadata.cq4t) to that
moment (csrc/cq4_copy.c). The backup takes no lock and needs read permission only.

Java's files have no checksums, so the backup stores a digest of each file. The digest detects damage that can
still be read.
"""

import errno
import hashlib
import os
import time
from pathlib import Path

import msgspec

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.position import Position
from aiochronicle._base.printable import utf8_name
from aiochronicle._core.copying import copy_file, write_file
from aiochronicle._core.kept import why_kept
from aiochronicle._core.queue import inspect
from aiochronicle._core.reader import open_reader
from aiochronicle._files import open_regular
from aiochronicle._layout import JAVA_SUFFIXES, JAVA_TABLE
from aiochronicle._maintenance import generations as store
from aiochronicle._maintenance.backup_report import (
    BackupProgress,
    BackupReport,
    Progress,
    read_all,
    stamp_of,
)
from aiochronicle._maintenance.generations import Manifest, Owner, Stamp
from aiochronicle._maintenance.healing import Healing
from aiochronicle.errors import BackupError, CorruptionError, NotSupported

__all__ = ["JavaWork", "fill_java"]

_MODE = 0o600


class JavaWork:
    """One backup of a Java queue in progress."""

    def __init__(
        self,
        source: Path,
        part: Path,
        root: Path,
        before: tuple[int, Manifest] | None,
        progress: Progress,
    ) -> None:
        if not (source / JAVA_TABLE).exists():
            raise NotSupported(
                "backup does not support queues of Chronicle Queue before 5.16.9",
                path=str(source),
                advice="Copy the directory while no process has the queue open.",
            )
        self._source = source
        self._part = part
        self._before = None if before is None else before[1]
        self._before_path = None if before is None else store.path_of(root, before[0])
        self._progress = progress
        self._done = self._total = self._copied = 0
        self._reflinked = True

    def run(self, number: int, on_corrupt: str, *, verify_all: bool) -> BackupReport:
        """Copy the files, end the copy, verify it, and write its manifest."""
        with open_reader(self._source, start="last") as reader:
            end = reader.position
            next_seq = reader.statistics().next_seq
        if self._before is not None and next_seq < self._before.next_seq:
            raise BackupError(
                f"the queue ends at index {next_seq:#x}, before its last backup, which ends at"
                f" {self._before.next_seq:#x}",
                path=str(self._source),
                advice="Nothing was changed. The queue has lost messages that the backup has: restore"
                " the queue, or back it up into another directory.",
            )
        names = {one.segment: one.file for one in why_kept(self._source)}
        names = {cycle: name for cycle, name in names.items() if cycle <= end.segment}
        try:
            stamps, fresh = self._copy_files(names, end)
            copy_file(self._source / JAVA_TABLE, self._part / JAVA_TABLE, mode=_MODE)
        except FileNotFoundError as error:
            raise BackupError(
                "another process removed files of cycles while they were being copied",
                path=str(self._source),
                advice="Nothing was changed. Try again.",
            ) from error
        moved = 0

        def verify(begin: int, on_corrupt: str) -> tuple[int, int]:
            nonlocal moved
            for cycle in sorted(names.keys() - fresh - {end.segment}):
                if cycle >= begin:
                    self._compare(names[cycle])
            moved = max(moved, self._end_copy(fresh, end, next_seq))
            return self._verify(begin, end, on_corrupt)

        healing = Healing(
            self._source,
            sorted({*names, end.segment}),
            fresh,
            number_of={name: cycle for cycle, name in names.items()}.get,
            verify=verify,
            copy=lambda cycle: self._copy_again(names[cycle]),
        )
        first = min(fresh | {end.segment}) if not verify_all else min(names, default=0)
        messages, corrupt = healing.run(first, on_corrupt)
        self._describe(names, stamps, end, next_seq, messages, corrupt, first, fresh)
        return BackupReport(
            path=str(store.path_of(self._part.parent, number)),
            number=number,
            messages=messages,
            next_seq=next_seq,
            segments=len(names),
            segments_copied=len(fresh) + (end.segment in names),
            bytes_copied=self._copied,
            reflinked=self._reflinked and bool(fresh),
            readers=_count_tailers(self._part),
            positions_moved=moved,
            corrupt=corrupt,
            removed=[],
            replaced=sorted(healing.replaced),
        )

    def _copy_files(
        self, names: dict[int, str], end: Position
    ) -> tuple[dict[int, Stamp], set[int]]:
        """Copy or share the files; return the stamps of finished cycles, and which of them were copied."""
        stamps: dict[int, Stamp] = {}
        fresh: set[int] = set()
        self._total = end.offset + sum(
            (self._source / name).stat().st_blocks * 512
            for cycle, name in names.items()
            if cycle != end.segment
        )
        for cycle, name in names.items():
            source, target = self._source / name, self._part / name
            if cycle == end.segment:
                copy_file(source, target, mode=_MODE, length=end.offset, advance=self._advance)
                os.truncate(target, source.stat().st_size)
                self._copied += end.offset
                continue
            # Sync first: a store into a page that is already dirty does not change the file's times.
            _sync(source)
            stamps[cycle] = stamp_of(source)
            if not self._share(cycle, name, stamps[cycle]):
                self._reflinked &= copy_file(source, target, mode=_MODE, advance=self._advance)
                self._copied += target.stat().st_blocks * 512
                fresh.add(cycle)
        return stamps, fresh

    def _share(self, cycle: int, name: str, stamp: Stamp) -> bool:
        if self._before is None or self._before.segments.get(cycle) != stamp:
            return False
        assert self._before_path is not None
        try:
            os.link(self._before_path / name, self._part / name, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _compare(self, name: str) -> None:
        """Raise CorruptionError if a shared file has changed since it was copied."""
        if self._before is not None:
            _compare(self._part / name, self._before.digests.get(name))

    def _copy_again(self, name: str) -> None:
        (self._part / name).unlink(missing_ok=True)
        copy_file(self._source / name, self._part / name, mode=_MODE)
        self._copied += (self._part / name).stat().st_blocks * 512

    def _end_copy(self, fresh: set[int], end: Position, next_seq: int) -> int:
        error = new_error()
        part = encode_path(self._part)
        for cycle in sorted(fresh):
            check(lib.ac_queue_end_java_file(part, cycle, error), error)
        return check(lib.ac_queue_end_java_copy(part, *end, next_seq, error), error)

    def _verify(self, first: int, end: Position, on_corrupt: str) -> tuple[int, int]:
        with open_reader(self._part, start="first") as reader:
            total = reader.lag.messages
            if first > reader.position.segment:
                reader.seek_position(Position(first, 0))
            return total, read_all(reader, end, on_corrupt, self._tell_verify)

    def _describe(
        self,
        names: dict[int, str],
        stamps: dict[int, Stamp],
        end: Position,
        next_seq: int,
        messages: int,
        corrupt: int,
        verified_from: int,
        fresh: set[int],
    ) -> None:
        known = {} if self._before is None else self._before.digests
        shared = {names[cycle] for cycle in names.keys() - fresh - {end.segment}} & known.keys()
        digests = {
            name: known[name] if name in shared else _digest_of(self._part / name)
            for name in (*names.values(), JAVA_TABLE)
        }
        manifest = Manifest(
            format="cq4",
            files=names,
            queue=utf8_name(os.path.abspath(self._source)),
            queue_id=0,
            segment_size=0,
            created_ns=time.time_ns(),
            first_segment=min(names, default=0),
            end_segment=end.segment,
            end_offset=end.offset,
            next_seq=next_seq,
            last_timestamp_ns=inspect(self._part).last_timestamp_ns,
            messages=messages,
            owner=Owner.of((self._source / JAVA_TABLE).stat()),
            directory_mode=self._source.stat().st_mode & 0o7777,
            readers={},
            corrupt=corrupt,
            segments=stamps,
            verified_from=verified_from,
            digests=digests,
        )
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        write_file(self._part / store.MANIFEST, content, mode=_MODE)

    def _tell_verify(self, done: int, total: int) -> None:
        self._progress(BackupProgress(step="verify", bytes=done, bytes_total=total))

    def _advance(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        self._progress(BackupProgress(step="copy", bytes=self._done, bytes_total=self._total))


def _sync(file: Path) -> None:
    fd = open_regular(str(file))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_BLOCK_BYTES = 1 << 16


def _digest_of(file: Path) -> str:
    """Return a digest of the content of a file, which does not depend on its holes."""
    found = hashlib.sha256()
    fd = open_regular(str(file))
    try:
        size, offset = os.fstat(fd).st_size, 0
        while offset < size:
            try:
                data = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # the rest is a hole
                    break
                raise
            offset = max(offset, data - data % _BLOCK_BYTES)
            block = os.pread(fd, _BLOCK_BYTES, offset).rstrip(b"\0")
            if block:
                found.update(offset.to_bytes(8, "little") + block)
            offset += _BLOCK_BYTES
    finally:
        os.close(fd)
    return found.hexdigest()


def _compare(file: Path, digest: str | None) -> None:
    """Raise CorruptionError unless the file has this digest; None: no earlier backup stored one."""
    if digest is not None and _digest_of(file) != digest:
        raise CorruptionError(
            "the file has changed since it was copied from the queue", path=str(file)
        )


def _count_tailers(queue: Path) -> int:
    """Return the number of named tailers, without reading their positions."""
    error = new_error()
    return check(lib.ac_queue_readers(encode_path(queue), ffi.NULL, 0, error), error)


def fill_java(part: Path, backup: Path, manifest: Manifest, progress: Progress) -> tuple[int, int]:
    """Copy a backup of a Java queue into a directory and check it; return tailers and damaged places."""
    names = [*manifest.files.values(), JAVA_TABLE]
    if any(name != Path(name).name or not name.endswith(JAVA_SUFFIXES) for name in names):
        raise BackupError(
            "the manifest names files that do not belong to a queue",
            path=str(backup / store.MANIFEST),
        )
    total = sum((backup / name).stat().st_blocks * 512 for name in names)
    done = 0
    for name in names:
        copy_file(backup / name, part / name, mode=_MODE)
        _compare(part / name, manifest.digests.get(name))
        done += (backup / name).stat().st_blocks * 512
        progress(BackupProgress(step="copy", bytes=done, bytes_total=total))

    def tell(done: int, total: int) -> None:
        progress(BackupProgress(step="verify", bytes=done, bytes_total=total))

    end = Position(manifest.end_segment, manifest.end_offset)
    with open_reader(part, start="first") as reader:
        corrupt = read_all(reader, end, "keep" if manifest.corrupt else "raise", tell)
    return _count_tailers(part), corrupt
