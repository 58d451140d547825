"""What may go wrong with queues: permissions, times, readers, what is left over. See ``doctor``."""

import math
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

import aiochronicle
from aiochronicle._layout import READERS, RECOVERED, SEGMENT
from aiochronicle.cli.finding import is_queue
from aiochronicle.cli.processes import deleted_files
from aiochronicle.cli.remedies import Finding
from aiochronicle.cli.units import age, amount
from aiochronicle.errors import AccessDenied, ChronicleError

__all__ = ["check_deleted", "check_leftovers", "check_queue", "check_unreadable"]

_AHEAD_MAX_S = 1.0
_STALE_S = 7 * 86400.0
_ORPHAN_S = 86400.0
_REPLIES = ".replies"
_NAMED = 3


def check_leftovers(root: Path) -> Iterator[Finding]:
    """Find directories of queues whose creation did not complete."""
    if is_queue(root):
        return
    for directory, below, files in os.walk(root):
        path = Path(directory)
        if is_queue(path):
            below.clear()
        elif path.name.endswith(".restoring") and path.name.startswith("."):
            below.clear()
            yield Finding(
                level="note",
                check="half-restored",
                subject=directory,
                detail="is left of a restore that was killed",
                remedy="Restore again, which removes it, or remove it.",
            )
        elif "READY" in files:
            below.clear()
            yield Finding(
                level="warning",
                check="half-made",
                subject=directory,
                detail="has a READY file, but no queue: its writer was killed while it made it, or files"
                " were removed",
                remedy="Start its writer again, or remove the directory.",
            )
        elif any(SEGMENT.fullmatch(name) for name in files):
            below.clear()
            yield Finding(
                level="error",
                check="half-made",
                subject=directory,
                detail="has segments, but no control.meta",
                remedy=f"aioc repair {quote(directory)}",
            )


def check_unreadable(directories: Mapping[str, OSError]) -> Iterator[Finding]:
    """Find directories that may be queues, or have some below, and cannot be looked into."""
    for path, error in directories.items():
        yield _refused(Path(path), error.strerror or str(error))


def check_deleted(root: Path) -> Iterator[Finding]:
    """Find files that are deleted and still take space."""
    held = deleted_files(root)
    if held:
        pids = ", ".join(map(str, sorted({pid for one in held for pid in one.pids})))
        size = sum(one.bytes for one in held)
        yield Finding(
            level="note",
            check="deleted",
            subject=str(root),
            detail=f"{amount(size)} in {len(held)} deleted files are still in use, by pid {pids}",
            remedy="aioc du names the files; the space is free when these processes let go.",
        )


def check_queue(queue: Path) -> Iterator[Finding]:
    """Find what is wrong with a queue and its readers."""
    named = quote(str(queue))
    try:
        info = aiochronicle.inspect(queue)
        readers = aiochronicle.list_readers(queue)
        parts = aiochronicle.list_recovered(queue)
    except (AccessDenied, PermissionError) as error:
        found = list(_permissions(queue))
        yield from found or [_refused(queue, str(error))]
        return
    except (ChronicleError, OSError) as error:
        yield Finding(
            level="error",
            check="unusable",
            subject=str(queue),
            detail=error.detail if isinstance(error, ChronicleError) else str(error),
            remedy=f"aioc repair {named} --dry-run",
        )
        return
    yield from _permissions(queue)
    yield from _orphaned_replies(queue)
    writer = info.writer
    if writer is not None and writer.state == "died":
        yield Finding(
            level="warning",
            check="dead-writer",
            subject=str(queue),
            detail=f"its writer, pid {writer.pid} ({writer.command or 'unknown'}), ended without closing it",
            remedy="Start that program again: it recovers the queue, and nothing that was appended is lost.",
        )
    ahead_s = (info.last_timestamp_ns - time.time_ns()) / 1e9
    if ahead_s > _AHEAD_MAX_S:
        yield Finding(
            level="warning",
            check="ahead",
            subject=str(queue),
            detail=f"its last message is {age(ahead_s)} ahead of the clock, and holds all that follow",
            remedy="Check the clock, and the unit of the timestamps; open_writer(max_ahead_s=...)"
            " refuses such messages.",
        )
    if parts:
        yield Finding(
            level="note",
            check="recovered",
            subject=str(queue),
            detail=f"repairs have set {len(parts)} parts aside",
            remedy=f"aioc recovered {named} shows them; remove what nobody needs from recovered/.",
        )
    for reader in readers:
        yield from _reader(queue, reader)


def _orphaned_replies(queue: Path) -> Iterator[Finding]:
    """Find a queue of replies whose queue of requests or orders is gone."""
    parent = queue.absolute().parent
    if not parent.name.endswith(_REPLIES) or parent.name == _REPLIES:
        return
    asked = parent.with_name(parent.name.removesuffix(_REPLIES)) / queue.name
    if not is_queue(asked):
        yield Finding(
            level="note",
            check="orphaned-replies",
            subject=str(queue),
            detail=f"has replies to {asked}, which is gone",
            remedy=f"Remove the directory, if nobody needs them: rm -r {quote(str(queue))}",
        )


def _permissions(queue: Path) -> Iterator[Finding]:
    status = queue.stat()
    named = quote(str(queue))
    if status.st_mode & 0o002:
        yield Finding(
            level="warning",
            check="permissions",
            subject=str(queue),
            detail=f"everybody may write into it (mode {status.st_mode & 0o7777:04o})",
            remedy=f"chmod o-w {named}",
        )
    foreign = sorted(_closed_to_owner(queue, status))
    if foreign:
        shown = ", ".join(foreign[:_NAMED]) + (" …" if len(foreign) > _NAMED else "")
        owner = f"{_owner_of(queue)}:{status.st_gid}"
        yield Finding(
            level="error",
            check="permissions",
            subject=str(queue),
            detail=f"{_owner_of(queue)}, whose directory it is, cannot read what others left in it: {shown}",
            remedy=f"chown -R {owner} {named}, as root; run aioc as that user.",
        )


def _refused(path: Path, why: str) -> Finding:
    owner = _owner_of(path)
    return Finding(
        level="error",
        check="permissions",
        subject=str(path),
        detail=f"cannot be examined: {why}",
        remedy=f"Run aioc as the user it belongs to, {owner}{'' if owner == 'root' else ', or as root'}.",
    )


def _closed_to_owner(queue: Path, status: os.stat_result) -> Iterator[str]:
    """Yield files of other users that the owner of a queue may not read."""
    if status.st_uid == 0:
        return
    for directory in (queue, queue / READERS, queue / RECOVERED):
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                readable = found.st_mode & (0o055 if entry.is_dir(follow_symlinks=False) else 0o044)
                if found.st_uid != status.st_uid and not readable and not entry.is_symlink():
                    yield str(Path(entry.path).relative_to(queue))


def _owner_of(queue: Path) -> str:
    user = queue.stat().st_uid
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def _reader(queue: Path, reader: aiochronicle.ReaderInfo) -> Iterator[Finding]:
    named = quote(str(queue))
    forget = f"aioc readers forget {named} {reader.name}"
    if reader.lost:
        yield Finding(
            level="error",
            check="lost-reader",
            subject=f"{queue}, reader {reader.name}",
            detail="its position is no longer in the queue",
            remedy=f"aioc readers seek {named} {reader.name} first, or {forget}",
        )
    elif reader.name == "requester" and not reader.live and reader.heartbeat_age_s > _ORPHAN_S:
        yield Finding(
            level="note",
            check="orphaned-replies",
            subject=str(queue),
            detail=f"answers for a requester that was last seen {age(reader.heartbeat_age_s)} ago",
            remedy=f"Remove the directory if that requester will not come back: rm -r {named}",
        )
    elif not reader.live and _STALE_S < reader.heartbeat_age_s < math.inf and reader.lag.messages:
        yield Finding(
            level="warning",
            check="stale-reader",
            subject=f"{queue}, reader {reader.name}",
            detail=f"was last seen {age(reader.heartbeat_age_s)} ago, and keeps {amount(reader.lag.bytes)}",
            remedy=f"{forget}, if it will not come back.",
        )
