"""Restores queues from backups."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from aiochronicle._base.arguments import pathname, positive
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.copying import copy_file, write_file
from aiochronicle._core.position_files import decode_position, encode_position
from aiochronicle._core.reader import open_reader
from aiochronicle._files import read_small_file, sync_directory
from aiochronicle._layout import (
    CONTROL,
    GROUP_SUFFIX,
    JAVA_TABLE,
    POSITION_SUFFIX,
    READERS,
    SCHEMA,
    SETTINGS,
    index_name,
    segment_name,
)
from aiochronicle._maintenance import generations as store
from aiochronicle._maintenance.backup_report import BackupProgress, Progress, read_all
from aiochronicle._maintenance.backups import copy_tail, describe_copy, last_message
from aiochronicle._maintenance.generations import Manifest
from aiochronicle._maintenance.java_backups import fill_java
from aiochronicle._services.trusted import refuse_foreign
from aiochronicle.errors import BackupError, BackupNotFound, CorruptionError

__all__ = ["RestoreReport", "hidden", "refuse_occupied", "restore"]


_MODE = 0o600  # until the queue is complete


class RestoreReport(HtmlStruct, frozen=True, kw_only=True):
    """A queue that was restored.

    ``queue_id`` is that of the original; None if the next writer will assign one, or for a Java queue,
    which has none. ``left_out`` has the readers that the backup lacks because their positions could not be
    read, and why: they start like new readers.
    """

    path: str
    backup: str
    number: int
    messages: int
    next_seq: int
    segments: int
    readers: int
    queue_id: int | None
    corrupt: int
    left_out: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def restore(
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    new_id: bool = False,
    number: int | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Restore a queue from a backup, at a path where there is none.

    ``number`` selects a backup, by default the newest. Everything is copied and checked before the queue
    appears at its path. If the process is killed before that, it leaves a hidden directory, which the next
    restore removes. Readers resume where they were at the time of the backup, and count as just seen.

    The restored queue counts as the original, for causes and for Spark's archive: omit ``new_id`` only if the
    original is gone. With ``new_id`` the next writer assigns a new id, as for any copy.

    BackupNotFound if there is no such backup, BackupError if the path exists.
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
            detail = f"there is no backup {chosen}; existing backups: {known}"
            raise BackupNotFound(detail, path=str(root))
        backup = store.path_of(root, chosen)
        manifest = store.read_manifest(backup)
        refuse_occupied(target)
        if not target.parent.is_dir():
            raise BackupError(
                "there is no such directory", path=str(target.parent), advice="Create it first."
            )
        with hidden(target, "restoring") as part, _named_in_backup(part, backup):
            tell: Progress = progress or (lambda _: None)
            if manifest.format == "cq4":
                readers, corrupt = fill_java(part, backup, manifest, tell)
                _give(part, manifest)
            else:
                readers, corrupt = _fill(part, backup, manifest, new_id, tell)
            refuse_occupied(target)
            part.rename(target)
            sync_directory(target.parent)
    return RestoreReport(
        path=str(target),
        backup=str(backup),
        number=chosen,
        messages=manifest.messages,
        next_seq=manifest.next_seq,
        segments=len(manifest.files) or len(manifest.segments) + 1,
        readers=readers,
        queue_id=None if new_id or manifest.format == "cq4" else manifest.queue_id,
        corrupt=corrupt,
        left_out=manifest.left_out,
    )


@contextmanager
def _named_in_backup(part: Path, backup: Path) -> Generator[None]:
    """Name the backup's file in a CorruptionError, not the copy, which is removed."""
    try:
        yield
    except CorruptionError as error:
        place = Path(error.path or part)
        if place.is_relative_to(part):
            place = backup / place.relative_to(part)
        raise CorruptionError(
            error.detail,
            path=str(place),
            offset=error.offset,
            advice="Nothing was restored. Restore another backup, with number= (aioc restore --number; aioc"
            " backup --list lists them). If the queue still exists, back it up with verify_all (aioc backup"
            " --verify-all), which copies damaged segments from it again.",
        ) from error


def refuse_occupied(target: Path) -> None:
    """Raise BackupError unless the path does not exist or is an empty directory."""
    if os.path.lexists(target) and not (
        target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    ):
        raise BackupError(
            "this path already exists",
            path=str(target),
            advice="Nothing was changed. Move it away, or choose another path.",
        )
    if any((target.parent / name).exists() for name in (CONTROL, JAVA_TABLE)):
        raise BackupError(
            "this path is inside a queue", path=str(target), advice="Choose another path."
        )


@contextmanager
def hidden(target: Path, why: str) -> Generator[Path]:
    """Yield a hidden directory beside the target; it is removed unless it was renamed to the target."""
    part = target.with_name(f".{target.name}.{why}")
    fd = _make_locked(part)
    try:
        yield part
    finally:
        store.remove_tree(part)
        os.close(fd)


def _make_locked(part: Path) -> int:
    """Create the directory, or recreate one that a killed process left; BackupError if it is in use."""
    for _ in range(2):
        part.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            refuse_foreign(part, os.fstat(fd), (os.geteuid(),))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            detail = "another process is working on this path"
            raise BackupError(
                detail, path=str(part), advice="Wait until it has finished."
            ) from None
        except BaseException:
            os.close(fd)
            raise
        if not any(part.iterdir()):
            return fd
        store.remove_tree(part)
        os.close(fd)
    raise BackupError("another process writes into this directory", path=str(part))


def _fill(
    part: Path, backup: Path, manifest: Manifest, new_id: bool, progress: Progress
) -> tuple[int, int]:
    end = Position(manifest.end_segment, manifest.end_offset)
    segments = sorted(manifest.segments)
    total = (
        sum((backup / segment_name(number)).stat().st_blocks * 512 for number in segments)
        + end.offset
    )
    done = 0
    for name in map(segment_name, segments):
        copy_file(backup / name, part / name, mode=_MODE)
        done += (backup / name).stat().st_blocks * 512
        progress(BackupProgress(step="copy", bytes=done, bytes_total=total))
    for name in (SCHEMA, SETTINGS, *map(index_name, segments)):
        with suppress(FileNotFoundError):
            copy_file(backup / name, part / name, mode=_MODE)
    last = segment_name(end.segment)
    with suppress(FileNotFoundError):  # a queue without a segment
        copy_tail(backup / last, part / last, end.offset, mode=_MODE)
        _allocate(part / last, manifest.segment_size)
    progress(BackupProgress(step="copy", bytes=total, bytes_total=total))
    readers = _copy_positions(backup / READERS, part / READERS, list(manifest.readers))
    for name in manifest.groups:
        if name in manifest.readers:  # the name is a group's; its next member creates the rest
            write_file(part / READERS / _group_file(name), b"\0", mode=_MODE)
    describe = partial(describe_copy, backup, part, end, manifest.next_seq, mode=_MODE)
    describe(0, 0, new_id=True)  # for reading; the final description follows
    corrupt, newest = _verify(part, end, manifest, progress)
    describe(*newest, new_id=new_id)
    _give(part, manifest)
    return readers, corrupt


def _group_file(position: str) -> str:
    return position.removesuffix(POSITION_SUFFIX) + GROUP_SUFFIX


def _give(part: Path, manifest: Manifest) -> None:
    """Set the owners of all files; the directory is last, so that its owner cannot replace files before."""
    owner = manifest.owner
    for file in part.iterdir():
        if file.name != READERS:
            owner.give(file)
    readers = part / READERS
    if readers.is_dir():
        for name, of_reader in manifest.readers.items():
            of_reader.give(readers / name)
            if name in manifest.groups:
                of_reader.give(readers / _group_file(name))
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
    """Allocate the space of the last segment, as a writer does, so that stores into it cannot fail."""
    fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_positions(backup: Path, target: Path, names: list[str]) -> int:
    """Copy the positions of readers with a current heartbeat, so that no retention limit removes them."""
    if not backup.is_dir():
        return 0
    target.mkdir(mode=0o700)
    for name in names:
        try:
            content = read_small_file(str(backup / name), 4096) if name == Path(name).name else None
        except ValueError as error:
            raise BackupError(printable(error), path=str(backup / name)) from error
        slot = None if content is None else decode_position(content)
        if slot is None:
            raise BackupError(
                "the position is damaged", path=str(backup / name), advice="Restore another backup."
            )
        slot = msgspec.structs.replace(
            slot, heartbeat_ns=time.time_ns(), generation=slot.generation + 1
        )
        write_file(target / name, encode_position(slot), mode=_MODE)
    return len(names)
