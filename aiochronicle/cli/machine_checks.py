"""What may go wrong on this machine: file system, limits, kernel, clock. See ``doctor``."""

import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from aiochronicle.cli.remedies import Finding, finding
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
        "pages are not populated ahead of the writer, so appends take longer",
    ),
    ((5, 3), "pidfd_open", "the end of a process is noticed by polling, up to a second later"),
)


def check_machine(root: Path) -> Iterator[Finding]:
    """Find possible problems of queues in this directory, whatever they contain."""
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


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.isdecimal() else None


def _file_system(root: Path) -> Iterator[Finding]:
    kind = _type_of(root)
    if kind in _NETWORK:
        yield finding("network", root, kind=kind)
    elif kind in _VOLATILE:
        yield finding("volatile", root, kind=kind)


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
        yield finding("space", root, free=amount(free), total=amount(total))
    if status.f_files and status.f_favail / status.f_files < _FREE_SHARE_MIN:
        yield finding("inodes", root, free=status.f_favail, total=status.f_files)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES_MIN:
        yield finding("open-files", "this process", soft=soft, wanted=hard if hard > 0 else 65536)
    maps = _number("/proc/sys/vm/max_map_count")
    if maps is not None and maps < _MAPS_MIN:
        yield finding("maps", "vm.max_map_count", maps=maps, wanted=4 * _MAPS_MIN)


def _kernel() -> Iterator[Finding]:
    """Find missing features of the kernel, and their replacements."""
    release = os.uname().release
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    for needed, feature, without in _KERNEL_FEATURES:
        if version < needed:
            newer = ".".join(map(str, needed))
            subject = f"Linux {release}"
            yield finding("kernel", subject, feature=feature, without=without, needed=newer)
    if _read("/proc/sys/kernel/io_uring_disabled") == "2":
        yield finding("io-uring", "kernel.io_uring_disabled")


def _instances() -> Iterator[Finding]:
    allowed = _number("/proc/sys/fs/inotify/max_user_instances")
    if allowed is not None and allowed < _INSTANCES_MIN:
        yield finding("watch-instances", "fs.inotify.max_user_instances", allowed=allowed)


def _watches() -> Iterator[Finding]:
    allowed = _number("/proc/sys/fs/inotify/max_user_watches")
    if allowed is None:
        return
    left = allowed - _watches_used()
    if left < _WATCHES_LEFT_MIN:
        yield finding("watches", "fs.inotify.max_user_watches", left=left, allowed=allowed)


def _watches_used() -> int:
    """Count the watches of this user's processes, as far as they are visible."""
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
        yield finding("clock", "the system's clock", source=source)


def _huge_pages() -> Iterator[Finding]:
    if "[force]" in (_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or ""):
        yield finding("forced-huge-pages", "transparent_hugepage/shmem_enabled")
    if "[always]" in (_read("/sys/kernel/mm/transparent_hugepage/defrag") or ""):
        yield finding("compacted-pages", "transparent_hugepage/defrag")
