"""Queues out of backups."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from aiochronicle import _generations as store
from aiochronicle._arguments import pathname, positive
from aiochronicle._copying import copy_file, storage_errors, write_file
from aiochronicle._directories import sync_directory
from aiochronicle._generations import Manifest
from aiochronicle._live_settings import FILE as SETTINGS
from aiochronicle._positions import decode_position, encode_position
from aiochronicle._report import HtmlStruct
from aiochronicle._smallfile import read_small_file
from aiochronicle._trusted import refuse_foreign
from aiochronicle.backups import (
    BackupProgress,
    Progress,
    copy_tail,
    describe_copy,
    last_message,
    read_all,
)
from aiochronicle.errors import BackupError, BackupNotFound
from aiochronicle.position import Position
from aiochronicle.reader import open_reader
from aiochronicle.registry import FILE_NAME as SCHEMA

__all__ = ["RestoreReport", "restore"]


_MODE = 0o600  # until all of it is there


class RestoreReport(HtmlStruct, frozen=True, kw_only=True):
    """A queue that was restored. ``queue_id`` is that of the original; None: the next writer gives one."""

    path: str
    backup: str
    number: int
    messages: int
    next_seq: int
    segments: int
    readers: int
    queue_id: int | None
    corrupt: int


def restore(
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    new_id: bool = False,
    number: int | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a queue out of a backup, where there is none.

    ``number`` chooses a backup, by default the newest. Everything is copied and checked before the
    queue appears at its path; killed before, it leaves a hidden directory that the next restore removes.
    Readers go on where they were when the backup was made, and count as just seen.

    The queue is the original one, for causes and for Spark's archive: do that only where the original
    is gone. With ``new_id`` the next writer gives it an id of its own, as to any copy.

    BackupNotFound if there is no such backup, BackupError if there is something at the path already.
    Blocks: in an event loop use ``asyncio.to_thread``.

    >>> _ = backup(queue, tmp_path / "backups")
    >>> restore(tmp_path / "backups", tmp_path / "again").messages
    1
    >>> with open_reader(tmp_path / "again") as reader:
    ...     [message.payload for message in reader]
    [b'hello']
    """
    root = Path(pathname("directory", directory))
    target = Path(os.path.abspath(pathname("path", path)))
    if number is not None:
        positive("number", number)
    with storage_errors(root), store.locked(root, make=False):
        numbers = store.generations(root)
        chosen = number if number is not None else (numbers or [0])[-1]
        if chosen not in numbers:
            known = ", ".join(map(str, numbers)) or "none"
            raise BackupNotFound(f"there is no such backup; there are: {known}", path=str(root))
        backup = store.path_of(root, chosen)
        manifest = store.read_manifest(backup)
        _refuse_occupied(target)
        if not target.parent.is_dir():
            raise BackupError(
                "there is no such directory", path=str(target.parent), advice="Make it first."
            )
        with _hidden(target) as part:
            readers, corrupt = _fill(part, backup, manifest, new_id, progress or (lambda _: None))
            _refuse_occupied(target)
            part.rename(target)
            sync_directory(target.parent)
    return RestoreReport(
        path=str(target),
        backup=str(backup),
        number=chosen,
        messages=manifest.messages,
        next_seq=manifest.next_seq,
        segments=len(manifest.segments) + 1,
        readers=readers,
        queue_id=None if new_id else manifest.queue_id,
        corrupt=corrupt,
    )


def _refuse_occupied(target: Path) -> None:
    if os.path.lexists(target) and not (
        target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    ):
        raise BackupError(
            "something is there",
            path=str(target),
            advice="Nothing was changed. Move it away, or restore to another path.",
        )


@contextmanager
def _hidden(target: Path) -> Generator[Path]:
    """Give a directory beside the target, which goes unless it has got the target's name."""
    part = target.with_name(f".{target.name}.restoring")
    fd = _make_locked(part)
    try:
        yield part
    finally:
        store.remove_tree(part)
        os.close(fd)


def _make_locked(part: Path) -> int:
    """Make the directory anew, unless another process is at it."""
    for _ in range(2):
        part.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            refuse_foreign(part, os.fstat(fd), (os.geteuid(),))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            detail = "another process is restoring to this path"
            raise BackupError(detail, path=str(part), advice="Wait until it is done.") from None
        except BaseException:
            os.close(fd)
            raise
        if not any(part.iterdir()):
            return fd
        store.remove_tree(part)
        os.close(fd)
    raise BackupError("somebody else writes into it", path=str(part))


def _fill(
    part: Path, backup: Path, manifest: Manifest, new_id: bool, progress: Progress
) -> tuple[int, int]:
    end = Position(manifest.end_segment, manifest.end_offset)
    segments = [f"{number:09d}" for number in sorted(manifest.segments)]
    total = sum((backup / f"{name}.q").stat().st_blocks * 512 for name in segments) + end.offset
    done = 0
    for name in segments:
        copy_file(backup / f"{name}.q", part / f"{name}.q", mode=_MODE)
        done += (backup / f"{name}.q").stat().st_blocks * 512
        progress(BackupProgress(step="copy", bytes=done, bytes_total=total))
    for name in (SCHEMA, SETTINGS, *(f"{name}.idx" for name in segments)):
        with suppress(FileNotFoundError):
            copy_file(backup / name, part / name, mode=_MODE)
    last = f"{end.segment:09d}.q"
    with suppress(FileNotFoundError):  # a queue without a segment
        copy_tail(backup / last, part / last, end.offset, mode=_MODE)
        _allocate(part / last, manifest.segment_size)
    progress(BackupProgress(step="copy", bytes=total, bytes_total=total))
    readers = _copy_positions(backup / "readers", part / "readers", list(manifest.readers))
    describe = partial(describe_copy, backup, part, end, manifest.next_seq, mode=_MODE)
    describe(0, 0, new_id=True)  # to be read, and then as it stays
    corrupt, newest = _verify(part, end, manifest, progress)
    describe(*newest, new_id=new_id)
    _give(part, manifest)
    return readers, corrupt


def _give(part: Path, manifest: Manifest) -> None:
    """Give everything to those whose it was; the directory last, so that nobody replaces files meanwhile."""
    owner = manifest.owner
    for file in part.iterdir():
        if file.name != "readers":
            owner.give(file)
    readers = part / "readers"
    if readers.is_dir():
        for name, of_reader in manifest.readers.items():
            of_reader.give(readers / name)
        msgspec.structs.replace(owner, mode=manifest.readers_mode).give(readers)
        sync_directory(readers)
    msgspec.structs.replace(owner, mode=manifest.directory_mode).give(part)
    sync_directory(part)


def _verify(
    part: Path, end: Position, manifest: Manifest, progress: Progress
) -> tuple[int, tuple[int, int]]:
    def tell(done: int, total: int) -> None:
        progress(BackupProgress(step="verify", bytes=done, bytes_total=total))

    with open_reader(part, start="first") as reader:
        corrupt = read_all(reader, end, "keep" if manifest.corrupt else "raise", tell)
        return corrupt, last_message(reader, end) or (manifest.last_timestamp_ns, 0)


def _allocate(file: Path, size: int) -> None:
    """Give the last segment its space, as a writer does: a store into it cannot fail then."""
    fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_positions(backup: Path, target: Path, names: list[str]) -> int:
    """Copy where the readers are, as if they had just been seen: no limit of retention forgets them."""
    if not backup.is_dir():
        return 0
    target.mkdir(mode=0o700)
    for name in names:
        content = read_small_file(str(backup / name), 4096) if name == Path(name).name else None
        slot = None if content is None else decode_position(content)
        if slot is None:
            raise BackupError("is damaged", path=str(backup / name), advice="Restore another one.")
        slot = msgspec.structs.replace(
            slot, heartbeat_ns=time.time_ns(), generation=slot.generation + 1
        )
        write_file(target / name, encode_position(slot), mode=_MODE)
    return len(names)
