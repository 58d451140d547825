"""``doctor``: what may go wrong on this machine or with these queues, each with its remedy.

A check is a generator of findings: nothing found is nothing said.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from rich.text import Text

import aiochronicle
from aiochronicle._printable import printable
from aiochronicle.cli.arguments import Directory, Json
from aiochronicle.cli.exits import FAILED
from aiochronicle.cli.finding import find_queues, is_queue
from aiochronicle.cli.output import Output
from aiochronicle.cli.processes import deleted_files
from aiochronicle.cli.units import age, amount
from aiochronicle.errors import ChronicleError

__all__ = ["doctor"]

Level = Literal["error", "warning", "note"]

_STYLES: dict[Level, str] = {"error": "red", "warning": "yellow", "note": "cyan"}
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "fuse.sshfs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
)
_VOLATILE = ("tmpfs", "ramfs")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_OPEN_FILES_MIN = 4096
_MAPS_MIN = 65530
_WATCHES_LEFT_MIN = 1024
_FREE_SHARE_MIN = 0.1
_AHEAD_MAX_S = 1.0
_STALE_S = 7 * 86400.0
_ORPHAN_S = 86400.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at. ``check`` is a word that stays the same, for programs."""

    level: Level
    check: str
    subject: str
    detail: str
    remedy: str


def doctor(root: Directory = Path(), /, *, json: Json = False) -> int:
    """Look for what may go wrong, on this machine and with the queues below a directory.

    Each finding comes with its remedy. The exit status is 1 if one of them is an error.

    Example: aioc doctor /var/lib/feeds

    Parameters
    ----------
    root
        a queue, or a directory with queues below it
    """
    queues = list(find_queues(root))
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _file_system(root),
        lambda: _space(root),
        _limits,
        _watches,
        _clock,
        _huge_pages,
        lambda: _leftovers(root),
        lambda: _deleted(root),
    ]
    found = [finding for check in checks for finding in check()]
    for queue in queues:
        found += _queue(queue)
    out = Output(as_json=json)
    if json:
        out.json(found)
    else:
        for one in found:
            head = Text(f"{one.level}: ", _STYLES[one.level])
            out.line(Text.assemble(head, printable(f"{one.subject}: {one.detail}")))
            out.line(f"  {one.remedy}")
        out.line(_verdict(found, len(queues)))
    return FAILED if any(one.level == "error" for one in found) else 0


def _verdict(found: list[Finding], queues: int) -> str:
    counts = {level: sum(one.level == level for one in found) for level in _STYLES}
    said = ", ".join(
        f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items() if count
    )
    return f"{queues} queue{'s' if queues != 1 else ''} looked at: {said or 'nothing found'}"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _file_system(root: Path) -> Iterator[Finding]:
    kind = _type_of(root)
    if kind in _NETWORK:
        yield Finding(
            level="error",
            check="file-system",
            subject=str(root),
            detail=f"is on {kind}, where memory that processes share is not shared between machines",
            remedy="Keep queues on a local disk: ext4, xfs or btrfs.",
        )
    elif kind in _VOLATILE:
        yield Finding(
            level="note",
            check="file-system",
            subject=str(root),
            detail=f"is on {kind}: queues are gone after a restart, and take memory",
            remedy="Keep queues that must survive on ext4, xfs or btrfs.",
        )


def _type_of(root: Path) -> str:
    """Return the type of the file system that a directory is on."""
    path = os.path.realpath(root)
    best, kind = "", "unknown"
    for line in (_read("/proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].encode().decode("unicode_escape")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def _space(root: Path) -> Iterator[Finding]:
    status = os.statvfs(root)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if total and free / total < _FREE_SHARE_MIN:
        yield Finding(
            level="warning",
            check="space",
            subject=str(root),
            detail=f"{amount(free)} of {amount(total)} are free",
            remedy="aioc du shows what takes it, aioc why-kept what keeps it; a full disk refuses appends.",
        )
    if status.f_files and status.f_favail / status.f_files < _FREE_SHARE_MIN:
        yield Finding(
            level="warning",
            check="inodes",
            subject=str(root),
            detail=f"{status.f_favail:,} of {status.f_files:,} inodes are free",
            remedy="Use larger segments, or remove files that nobody needs.",
        )


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES_MIN:
        yield Finding(
            level="warning",
            check="open-files",
            subject="this process",
            detail=f"may have {soft:,} files open; a service that follows many queues needs more",
            remedy=f"ulimit -n {hard if hard > 0 else 65536}, or LimitNOFILE= in its systemd unit.",
        )
    maps = _read("/proc/sys/vm/max_map_count")
    if maps is not None and maps.isdecimal() and int(maps) < _MAPS_MIN:
        yield Finding(
            level="warning",
            check="maps",
            subject="vm.max_map_count",
            detail=f"a process may have {int(maps):,} mappings, and each segment in use is one",
            remedy=f"sysctl vm.max_map_count={4 * _MAPS_MIN}",
        )


def _watches() -> Iterator[Finding]:
    allowed = _read("/proc/sys/fs/inotify/max_user_watches")
    if allowed is None or not allowed.isdecimal():
        return
    left = int(allowed) - _watches_used()
    if left < _WATCHES_LEFT_MIN:
        yield Finding(
            level="warning",
            check="watches",
            subject="fs.inotify.max_user_watches",
            detail=f"{left:,} of {int(allowed):,} are left for this user; discovery polls without them",
            remedy="sysctl fs.inotify.max_user_watches=524288",
        )


def _watches_used() -> int:
    """Count the watches of this user's processes, as far as they can be seen."""
    used = 0
    for directory in Path("/proc").iterdir():
        if not directory.name.isdecimal():
            continue
        with suppress(OSError):
            if directory.stat().st_uid != os.geteuid():
                continue
            for fd in (directory / "fd").iterdir():
                if str(fd.readlink()) == "anon_inode:inotify":
                    used += (directory / "fdinfo" / fd.name).read_text().count("inotify wd:")
    return used


def _clock() -> Iterator[Finding]:
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        yield Finding(
            level="warning",
            check="clock",
            subject="the system's clock",
            detail=f"is read from {source}, which takes microseconds for each message",
            remedy="Boot with tsc=reliable if the processor's counter can be trusted.",
        )


def _huge_pages() -> Iterator[Finding]:
    defrag = _read("/sys/kernel/mm/transparent_hugepage/defrag") or ""
    if "[always]" in defrag:
        yield Finding(
            level="note",
            check="huge-pages",
            subject="transparent_hugepage/defrag",
            detail="is always: a page fault may wait for memory to be compacted",
            remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        )


def _leftovers(root: Path) -> Iterator[Finding]:
    """Find directories that are no queues, but were to be some."""
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
        elif any(name.endswith(".q") and name[:-2].isdecimal() for name in files):
            below.clear()
            yield Finding(
                level="error",
                check="half-made",
                subject=directory,
                detail="has segments, but no control.meta",
                remedy=f"aioc repair {directory}",
            )


def _deleted(root: Path) -> Iterator[Finding]:
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


def _queue(queue: Path) -> Iterator[Finding]:
    try:
        info = aiochronicle.inspect(queue)
        readers = aiochronicle.list_readers(queue)
        parts = aiochronicle.list_recovered(queue)
    except (ChronicleError, OSError) as error:
        yield Finding(
            level="error",
            check="unusable",
            subject=str(queue),
            detail=error.detail if isinstance(error, ChronicleError) else str(error),
            remedy=f"aioc repair {queue} --dry-run",
        )
        return
    yield from _permissions(queue)
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
            remedy=f"aioc recovered {queue} shows them; remove what nobody needs from recovered/.",
        )
    for reader in readers:
        yield from _reader(queue, reader)


def _permissions(queue: Path) -> Iterator[Finding]:
    status = queue.stat()
    if status.st_mode & 0o002:
        yield Finding(
            level="warning",
            check="permissions",
            subject=str(queue),
            detail=f"everybody may write into it (mode {status.st_mode & 0o7777:04o})",
            remedy=f"chmod o-w {queue}",
        )


def _reader(queue: Path, reader: aiochronicle.ReaderInfo) -> Iterator[Finding]:
    forget = f"aioc readers forget {queue} {reader.name}"
    if reader.lost:
        yield Finding(
            level="error",
            check="lost-reader",
            subject=f"{queue}, reader {reader.name}",
            detail="its position is no longer in the queue",
            remedy=f"aioc readers seek {queue} {reader.name} first, or {forget}.",
        )
    elif reader.name == "requester" and not reader.live and reader.heartbeat_age_s > _ORPHAN_S:
        yield Finding(
            level="note",
            check="orphaned-replies",
            subject=str(queue),
            detail=f"answers for a requester that was last seen {age(reader.heartbeat_age_s)} ago",
            remedy="Remove the directory if that requester will not come back.",
        )
    elif not reader.live and reader.heartbeat_age_s > _STALE_S and reader.lag.messages:
        yield Finding(
            level="warning",
            check="stale-reader",
            subject=f"{queue}, reader {reader.name}",
            detail=f"was last seen {age(reader.heartbeat_age_s)} ago, and keeps {amount(reader.lag.bytes)}",
            remedy=f"{forget}, if it will not come back.",
        )
