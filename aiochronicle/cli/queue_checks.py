"""Possible problems of queues: permissions, times, readers, leftovers. See ``doctor``."""

import math
import os
import pwd
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

import aiochronicle
from aiochronicle._base.printable import printable
from aiochronicle._columns.export import is_leftover
from aiochronicle._core.position_files import damaged_positions
from aiochronicle._core.queue import refused_settings
from aiochronicle._core.writer_info import recent_errors
from aiochronicle._layout import READERS, RECOVERED, SEGMENT, segment_name
from aiochronicle.cli.exits import DENIED, status_of
from aiochronicle.cli.finding import is_queue
from aiochronicle.cli.processes import deleted_files, process_of, program_of
from aiochronicle.cli.readers import groups_of
from aiochronicle.cli.remedies import Finding, finding
from aiochronicle.cli.units import age, amount, many, since
from aiochronicle.errors import ChronicleError

__all__ = ["check_deleted", "check_leftovers", "check_queue", "check_unreadable"]

_AHEAD_MAX_S = 1.0
_STALE_S = 7 * 86400.0
_ORPHAN_S = 86400.0
_REPLIES = ".replies"
_NAMED = 3
# Hidden until it is complete, and then renamed.
_HIDDEN = re.compile(r"\.(.+)\.(restoring|converting)", re.DOTALL)
_HIDDEN_FILE = re.compile(r"\.(.+)\.part", re.DOTALL)
_LEFT = {"restoring": "half-restored", "converting": "half-converted"}


def check_leftovers(root: Path) -> Iterator[Finding]:
    """Find queues and exports whose creation did not complete."""
    if is_queue(root):
        return
    for directory, below, files in os.walk(root):
        path = Path(directory)
        if is_queue(path):
            below.clear()
            continue
        hidden = _HIDDEN.fullmatch(path.name)
        if hidden is not None:
            below.clear()
            yield finding(_LEFT[hidden[2]], directory)
        elif "READY" in files:
            below.clear()
            yield finding("ready-alone", directory)
        elif any(SEGMENT.fullmatch(name) for name in files):
            below.clear()
            yield finding("segments-alone", directory, queue=quote(directory))
        for file in sorted(files):
            part = _HIDDEN_FILE.fullmatch(file)
            if part is not None and is_leftover(path / file):
                yield finding("half-exported", path / file, target=quote(str(path / part[1])))


def check_unreadable(directories: Mapping[str, OSError]) -> Iterator[Finding]:
    """Find directories that cannot be listed, but may be or contain queues."""
    for path, error in directories.items():
        yield _refused(Path(path), error.strerror or str(error))


def check_deleted(root: Path) -> Iterator[Finding]:
    """Find files that are deleted and still take space."""
    held = deleted_files(root)
    if held:
        pids = ", ".join(map(str, sorted({pid for one in held for pid in one.pids})))
        size = amount(sum(one.bytes for one in held))
        yield finding("deleted", root, size=size, files=len(held), pids=pids)


def check_queue(queue: Path) -> Iterator[Finding]:
    """Find problems of a queue and its readers."""
    named = quote(str(queue))
    try:
        info = aiochronicle.inspect(queue)
        readers = aiochronicle.list_readers(queue)
        parts = aiochronicle.list_recovered(queue)
    except (ChronicleError, OSError) as error:
        if status_of(error) == DENIED:
            yield from list(_permissions(queue)) or [_refused(queue, str(error))]
            return
        why = error.detail if isinstance(error, ChronicleError) else str(error)
        yield finding("unusable", queue, why=why, queue=named)
        return
    yield from _permissions(queue)
    yield from _orphaned_replies(queue)
    missing = _missing_segments(queue) & _missing_segments(queue)  # retention may be removing some
    if missing:
        files = ", ".join(segment_name(number) for number in sorted(missing)[:_NAMED])
        files += " …" if len(missing) > _NAMED else ""
        yield finding("missing-segments", queue, files=files, queue=named)
    if _lacks_end(queue, info) and _lacks_end(queue, aiochronicle.inspect(queue)):
        file = segment_name(info.last_segment)
        yield finding("missing-end", queue, end=info.current_segment, file=file, queue=named)
    writer = info.writer
    if writer is not None and writer.state == "died":
        command = program_of(writer.command) or "unknown"
        yield finding("dead-writer", queue, pid=writer.pid, command=command)
    if writer is not None and (writer.stopped or writer.silent_s is not None):
        yield _not_running(queue, writer)
    refused = refused_settings(queue) if info.format == "native" else None
    if refused is not None:
        yield finding("settings", refused.path or queue, why=refused.detail)
    now_ns = time.time_ns()
    for failed in [] if writer is None else recent_errors(writer):
        ago = since(failed.last_ns, now_ns)
        text = printable(failed.text)
        times = many(failed.count, "time")
        yield finding("background", queue, text=text, times=times, ago=ago, queue=named)
    ahead_s = (info.last_timestamp_ns - now_ns) / 1e9
    if ahead_s > _AHEAD_MAX_S:
        yield finding("ahead", queue, ahead=age(ahead_s))
    if parts:
        yield finding("recovered", queue, parts=many(len(parts), "part"), queue=named)
    for reader in readers:
        yield from _reader(queue, reader)
    yield from _stopped_members(queue)
    for name, damage in damaged_positions(queue):
        yield finding("damaged-reader", f"{queue}, reader {name}", why=damage.detail, queue=named)


def _missing_segments(queue: Path) -> set[int]:
    """Return the numbers of missing segments between existing ones."""
    found = {int(match[1]) for one in queue.iterdir() if (match := SEGMENT.fullmatch(one.name))}
    return set(range(min(found), max(found))) - found if found else set()


def _lacks_end(queue: Path, info: aiochronicle.QueueInfo) -> bool:
    """Return whether the segment in which a native queue ended is missing."""
    return (
        info.format == "native"
        and info.segments > 0
        and info.current_segment > info.last_segment
        and not (queue / segment_name(info.current_segment)).exists()
    )


def _orphaned_replies(queue: Path) -> Iterator[Finding]:
    """Find a queue of replies whose queue of requests or orders is gone."""
    parent = queue.absolute().parent
    if not parent.name.endswith(_REPLIES) or parent.name == _REPLIES:
        return
    asked = parent.with_name(parent.name.removesuffix(_REPLIES)) / queue.name
    if not is_queue(asked):
        yield finding("orphaned-replies", queue, asked=asked, queue=quote(str(queue)))


def _permissions(queue: Path) -> Iterator[Finding]:
    status = queue.stat()
    named = quote(str(queue))
    if status.st_mode & 0o002:
        yield finding("open-to-all", queue, mode=status.st_mode & 0o7777, queue=named)
    foreign = sorted(_closed_to_owner(queue, status))
    if foreign:
        files = ", ".join(foreign[:_NAMED]) + (" …" if len(foreign) > _NAMED else "")
        owner, group = _owner_of(queue), status.st_gid
        yield finding("foreign-files", queue, owner=owner, group=group, files=files, queue=named)


def _refused(path: Path, why: str) -> Finding:
    owner = _owner_of(path)
    return finding(
        "refused", path, why=why, owner=owner if owner == "root" else f"{owner}, or as root"
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


def _not_running(queue: Path, writer: aiochronicle.WriterInfo) -> Finding:
    command = program_of(writer.command) or "unknown"
    if writer.stopped:
        return finding("stopped-writer", queue, pid=writer.pid, command=command)
    silent = age(writer.silent_s or 0.0)
    return finding("silent-writer", queue, pid=writer.pid, command=command, silent=silent)


def _stopped_members(queue: Path) -> Iterator[Finding]:
    """Find members of groups that hold messages and whose processes are stopped."""
    for group in groups_of(queue):
        for member in group.members:
            process = process_of(member.pid) if member.alive else None
            if process is not None and process.stopped:
                yield finding(
                    "stopped-member",
                    f"{queue}, group {group.name}",
                    pid=member.pid,
                    command=program_of(process.command) or "unknown",
                    messages=many(member.in_flight, "message"),
                )


def _reader(queue: Path, reader: aiochronicle.ReaderInfo) -> Iterator[Finding]:
    names = {"queue": quote(str(queue)), "reader": reader.name}
    subject = f"{queue}, reader {reader.name}"
    away_s = reader.heartbeat_age_s
    if reader.stopped:
        command, lag = program_of(reader.command) or "unknown", many(reader.lag.messages, "message")
        yield finding("stopped-reader", subject, pid=reader.pid, command=command, lag=lag)
    if reader.lost:
        yield finding("lost-reader", subject, **names)
    elif reader.damaged:
        yield finding("reader-in-damage", subject, **names)
    elif reader.name == "requester" and not reader.live and away_s > _ORPHAN_S:
        yield finding("absent-requester", queue, seen=age(away_s), **names)
    elif not reader.live and _STALE_S < away_s < math.inf and reader.lag.messages:
        lag = amount(reader.lag.bytes)
        yield finding("stale-reader", subject, seen=age(away_s), lag=lag, **names)
