"""Reads small files that any user may have created: READY, schema.json, config.toml and the like.

Their content is untrusted, so every read has limits: regular files only, nothing that blocks or
never ends, a maximum size, a maximum nesting depth. A file that exceeds a limit raises a ValueError
that names the limit.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

__all__ = [
    "check_depth",
    "make_directory",
    "open_regular",
    "parse_json",
    "parse_toml",
    "read_small_file",
    "sync_directory",
]

DEPTH_MAX = 64

T = TypeVar("T")

# Each pattern matches in one pass, even a string without an end. Otherwise a long unterminated
# string would be scanned again from each of its quotes. The last three quotes of a multi-line TOML
# string end it. There are no counted quotes because CPython 3.11.2 gets {n} after a possessive group
# wrong.
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|(?P<open>[\[{])|(?P<close>[\]}])', re.DOTALL)
_TOML_TOKEN = re.compile(
    rb'"""(?:[^"\\]++|\\.?|"(?!"")|"(?="""))*+(?:""")?'
    rb"|'''(?:[^']++|'(?!'')|'(?='''))*+(?:''')?"
    rb'|"(?:[^"\\\n]++|\\.?)*+"?'
    rb"|'[^'\n]*+'?"
    rb"|\#[^\n]*+"
    rb"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<dot>\.)|(?P<next>[=,\n])",
    re.DOTALL,
)


def open_regular(path: str, *, directory: int | None = None, follow: bool = False) -> int:
    """Open a regular file for reading; ValueError if it is something else, OSError as usual.

    ``path`` is relative to the descriptor ``directory``, if given. With ``follow`` the file may be a
    symbolic link; use it only for files of the user who runs the program.
    """
    # Check before opening, because opening some devices has side effects. Check again afterwards.
    _expect_regular(path, os.stat(path, dir_fd=directory, follow_symlinks=follow))
    # O_NONBLOCK: a pipe put in its place, or a lease that its owner keeps, would block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW, dir_fd=directory)
    try:
        _expect_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _expect_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise ValueError(f"{_name(path)} cannot be opened: it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{_name(path)} is not a regular file")


def _name(path: str) -> str:
    return os.path.basename(path)  # noqa: PTH119


def read_small_file(
    path: str,
    max_bytes: int,
    *,
    directory: int | None = None,
    follow: bool = False,
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes | None:
    """Return the content of a file, None if there is no such file, ValueError if it cannot be used.

    ``open_regular`` explains the other arguments. ``check`` is called with the status of the open
    file and may raise. If a system call failed, its OSError is the cause of the ValueError.
    """
    try:
        fd = open_regular(path, directory=directory, follow=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{_name(path)} cannot be opened: {error.strerror}") from error
    try:
        if check is not None:
            check(os.fstat(fd))
        content = _read_named(fd, max_bytes + 1, path)
    finally:
        os.close(fd)
    if len(content) > max_bytes:
        raise ValueError(f"{_name(path)} is larger than {max_bytes} bytes")
    return content


def _read_named(fd: int, count: int, path: str) -> bytes:
    try:
        return _read(fd, count)
    except OSError as error:
        raise ValueError(f"{_name(path)} cannot be read: {error.strerror}") from error


def _read(fd: int, count: int) -> bytes:
    """Read ``count`` bytes, or fewer at the end; some file systems return short reads."""
    content = b""
    while len(content) < count and (piece := os.read(fd, count - len(content))):
        content += piece
    return content


@overload
def parse_json(content: bytes, *, depth_max: int = DEPTH_MAX) -> Any: ...
@overload
def parse_json(content: bytes, kind: type[T], *, depth_max: int = DEPTH_MAX) -> T: ...
def parse_json(content: bytes, kind: Any = Any, *, depth_max: int = DEPTH_MAX) -> Any:
    """Decode JSON with msgspec; ValueError if it is invalid or nested too deep.

    >>> parse_json(b'{"version": 1}')
    {'version': 1}
    >>> parse_json(b"[" * 40_000)
    Traceback (most recent call last):
    ValueError: nested more than 64 levels deep
    """
    check_depth(content, depth_max)
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:  # the caller left little stack
        raise ValueError("nested too deep") from error


def check_depth(content: bytes, depth_max: int) -> None:
    """Raise ValueError if JSON is nested deeper than ``depth_max``."""
    _check_depth(_JSON_TOKEN, content, depth_max)


def parse_toml(content: bytes, *, depth_max: int = DEPTH_MAX) -> dict[str, Any]:
    """Decode TOML; ValueError if it is invalid or nested too deep.

    A dotted key counts one level per part, because tomllib takes quadratic time in their number.
    """
    import tomllib  # here, to keep the import of the package fast

    text = content.decode()
    _check_depth(_TOML_TOKEN, content, depth_max)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _check_depth(token: re.Pattern[bytes], content: bytes, depth_max: int) -> None:
    depth = dots = 0
    for found in token.finditer(content):
        if found.lastgroup == "open":
            depth, dots = depth + 1, 0
        elif found.lastgroup == "close":
            depth = max(0, depth - 1)
        elif found.lastgroup == "dot":
            dots += 1
        elif found.lastgroup == "next":
            dots = 0
        if depth > depth_max or dots > depth_max:
            raise ValueError(f"nested more than {depth_max} levels deep")


def make_directory(directory: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents with this mode, and sync their directory entries."""
    if not directory.is_dir():
        make_directory(directory.parent, mode)
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
