"""What may go wrong on this machine: file system, limits, kernel, clock. See ``doctor``."""

import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from aiochronicle.cli.remedies import Finding
from aiochronicle.cli.units import amount

__all__ = ["check_machine"]

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
_INSTANCES_MIN = 128
_FREE_SHARE_MIN = 0.1

_KERNEL_FEATURES = (
    (
        (5, 14),
        "MADV_POPULATE_WRITE",
        "pages are not made ahead of the writer, so appends take longer",
    ),
    ((5, 3), "pidfd_open", "the end of a process is noticed by looking, up to a second later"),
)


def check_machine(root: Path) -> Iterator[Finding]:
    """Find what may go wrong with queues in this directory, whatever is in them."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _file_system(root),
        lambda: _space(root),
        _limits,
        _kernel,
        _watches,
        _instances,
        _clock,
        _huge_pages,
    )
    for check in checks:
        yield from check()


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


def _kernel() -> Iterator[Finding]:
    """Find missing features of the kernel, and their replacements."""
    release = os.uname().release
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    for needed, feature, without in _KERNEL_FEATURES:
        if version < needed:
            yield Finding(
                level="warning",
                check="kernel",
                subject=f"Linux {release}",
                detail=f"has no {feature}: {without}",
                remedy=f"Linux {needed[0]}.{needed[1]} or newer has it.",
            )
    if _read("/proc/sys/kernel/io_uring_disabled") == "2":
        yield Finding(
            level="note",
            check="io-uring",
            subject="kernel.io_uring_disabled",
            detail="is 2: Bus.flush syncs many queues by threads instead, which takes a little longer",
            remedy="sysctl kernel.io_uring_disabled=0, if nothing speaks against it.",
        )


def _instances() -> Iterator[Finding]:
    allowed = _read("/proc/sys/fs/inotify/max_user_instances")
    if allowed is not None and allowed.isdecimal() and int(allowed) < _INSTANCES_MIN:
        yield Finding(
            level="note",
            check="watch-instances",
            subject="fs.inotify.max_user_instances",
            detail=f"a user may have {int(allowed):,}: each process that opens queues takes one or two,"
            " and polls without",
            remedy="sysctl fs.inotify.max_user_instances=1024",
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
    enabled = _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or ""
    if "[force]" in enabled:
        yield Finding(
            level="note",
            check="huge-pages",
            subject="transparent_hugepage/shmem_enabled",
            detail="is force: queues on tmpfs take memory in pieces of 2 MiB",
            remedy="echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    if "[always]" in defrag:
        yield Finding(
            level="note",
            check="huge-pages",
            subject="transparent_hugepage/defrag",
            detail="is always: a page fault may wait for memory to be compacted",
            remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        )
