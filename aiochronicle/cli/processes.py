"""Which processes use files, according to /proc, as far as this user may see.

Everything is a snapshot: a process may end a moment later, and its pid may be reused. Processes
of other containers cannot be seen, and of other users only some of it.
"""

import os
import pwd
import re
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

__all__ = ["Deleted", "Process", "deleted_files", "pids_using", "process_of", "program_of"]

_PROC = Path("/proc")
_COMMAND_CHARACTERS_MAX = 4096
_DELETED = " (deleted)"
_INTERPRETER = re.compile(r"python[0-9.]*")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process; None for what is not visible."""

    pid: int
    user: str | None
    command: str | None
    started_ns: int | None
    stopped: bool


def process_of(pid: int) -> Process | None:
    """Describe a process; None if there is none."""
    directory = _PROC / str(pid)
    try:
        user = _user_name(directory.stat().st_uid)
    except OSError:
        return None
    command = None
    with suppress(OSError):
        words = (directory / "cmdline").read_bytes()[:_COMMAND_CHARACTERS_MAX].rstrip(b"\0")
        command = os.fsdecode(words.replace(b"\0", b" ")) or None
    fields = _stat_of(directory)
    return Process(
        pid=pid,
        user=user,
        command=command,
        started_ns=_started_ns(fields),
        stopped=fields[:1] in (["T"], ["t"]),
    )


def program_of(command: str | None) -> str:
    """Return a command line without directories, and a script without its interpreter.

    >>> program_of("/opt/feeds/bin/python feed.py --venue XETR"), program_of("/bin/python3 -m feeds.main")
    ('feed.py --venue XETR', 'feeds.main')
    >>> program_of("/usr/bin/feedd -v"), program_of(None)
    ('feedd -v', '')
    >>> program_of("/usr/bin/python3 -c import time; import aiochronicle; time.sleep(60)")
    'python3 -c import time; import…'
    """
    name, rest = _first_word(command or "")
    if _INTERPRETER.fullmatch(name):
        script, arguments = _first_word(rest)
        if script == "-m":
            return arguments
        if script == "-c":  # the whole program follows
            return f"{name} -c {textwrap.shorten(arguments, 20, placeholder='…')}"
        if script and not script.startswith("-"):
            return f"{script} {arguments}".strip()
    return f"{name} {rest}".strip()


def _first_word(command: str) -> tuple[str, str]:
    """Return the name of a program, and the rest."""
    program, _, rest = command.partition(" ")
    return program.rpartition("/")[2], rest


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _stat_of(directory: Path) -> list[str]:
    """Return what the kernel says of a process, from its state on; empty if it is not told."""
    with suppress(OSError):
        # The name of the program is in brackets, and may have brackets and spaces in it.
        return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _started_ns(fields: list[str]) -> int | None:
    """Return when a process began, which the kernel counts in ticks since boot."""
    try:
        ticks = int(fields[19])
    except (ValueError, IndexError):
        return None
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot_ns + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A file that no longer has a name but still takes space, because a process uses it."""

    path: str
    bytes: int
    pids: tuple[int, ...]


def deleted_files(root: Path) -> list[Deleted]:
    """Return the deleted files below a directory that processes have open or mapped."""
    prefix = f"{os.path.realpath(root)}/"
    sizes: dict[tuple[str, int], int] = {}
    users: dict[tuple[str, int], set[int]] = {}
    for directory in _PROC.iterdir():
        if not directory.name.isdecimal():
            continue
        with suppress(OSError):
            for path, inode, size in _find_open_files(directory):
                if path.startswith(prefix):
                    sizes[path, inode] = max(size, sizes.get((path, inode), 0))
                    users.setdefault((path, inode), set()).add(int(directory.name))
    return [
        Deleted(path=path, bytes=sizes[path, inode], pids=tuple(sorted(users[path, inode])))
        for path, inode in sorted(sizes)
        if not _has_another_name(path, inode)
    ]


def pids_using(directory: Path) -> list[int]:
    """Return the processes, but this one, that have a file of a directory open or mapped."""
    prefix = os.fsencode(os.path.realpath(directory)) + b"/"
    found: list[int] = []
    for process in _PROC.iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with suppress(OSError):
                if _uses(process, prefix):
                    found.append(int(process.name))
    return sorted(found)


def _uses(process: Path, prefix: bytes) -> bool:
    for line in (process / "maps").read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(prefix):
            return True
    for fd in (process / "fd").iterdir():
        with suppress(OSError):
            if os.fsencode(fd.readlink()).startswith(prefix):
                return True
    return False


def _has_another_name(path: str, inode: int) -> bool:
    """Return whether a file exists under another name, although its first name is gone."""
    try:
        with os.scandir(Path(path).parent) as entries:
            return any(entry.inode() == inode for entry in entries)
    except OSError:
        return False


def _find_open_files(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, inode and size of what a process uses though it is deleted."""
    for line in (directory / "maps").read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].endswith(_DELETED.encode()):
            first, _, end = fields[0].partition(b"-")
            path = os.fsdecode(fields[5]).removesuffix(_DELETED)
            yield (
                path,
                int(fields[4]),
                _blocks(
                    directory / "map_files" / os.fsdecode(fields[0]), int(end, 16) - int(first, 16)
                ),
            )
    for fd in (directory / "fd").iterdir():
        with suppress(OSError):
            target = str(fd.readlink())
            if target.endswith(_DELETED):
                status = fd.stat()
                yield target.removesuffix(_DELETED), status.st_ino, status.st_blocks * 512


def _blocks(file: Path, otherwise: int) -> int:
    """Return the disk usage of a file; for a mapped file only root may see it."""
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return otherwise
