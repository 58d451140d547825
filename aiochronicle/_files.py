"""Small files that anybody may have created: READY, schema.json, config.toml and the like.

All of them are read and parsed here, with limits: a regular file, nothing that blocks or never
ends, a maximum of bytes, a maximum of nesting. What breaks one is a ValueError that says which.
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

# Each matches from where it starts in one pass, and a string that does not end as well: else a
# long one would be gone through again from each of its quotes. The last three quotes of a TOML text
# end it; CPython 3.11.2 gets counted quotes after a possessive group wrong.
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

    ``path`` is relative to the descriptor ``directory``, if that is given. ``follow``: the file
    may be a symbolic link, which is for files of the user who runs the program.
    """
    # Looked at first, because merely opening some devices does something, and again when it is open.
    _expect_regular(path, os.stat(path, dir_fd=directory, follow_symlinks=follow))
    # Nonblocking: a pipe in its place, or a lease that its owner does not give back, would block.
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
    """Return the content, None if there is no such file, ValueError if it is not to be used.

    Nothing that could block or never end is read. See ``open_regular`` for the rest; the cause of
    the ValueError is the system's error, if there was one. ``check`` is called with the status of
    the file that is read, and may raise.
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
    """Read until the end or until there is so much; some file systems give it in pieces."""
    content = b""
    while len(content) < count and (piece := os.read(fd, count - len(content))):
        content += piece
    return content


@overload
def parse_json(content: bytes, *, depth_max: int = DEPTH_MAX) -> Any: ...
@overload
def parse_json(content: bytes, kind: type[T], *, depth_max: int = DEPTH_MAX) -> T: ...
def parse_json(content: bytes, kind: Any = Any, *, depth_max: int = DEPTH_MAX) -> Any:
    """Decode JSON as msgspec does; ValueError for all that it is not, and for what is too deep.

    >>> parse_json(b'{"version": 1}')
    {'version': 1}
    >>> parse_json(b"[" * 40_000)
    Traceback (most recent call last):
    ValueError: nested more than 64 levels deep
    """
    check_depth(content, depth_max)
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:  # called with little of the stack left
        raise ValueError("nested too deep") from error


def check_depth(content: bytes, depth_max: int) -> None:
    """Raise ValueError if JSON is nested deeper than that."""
    _check_depth(_JSON_TOKEN, content, depth_max)


def parse_toml(content: bytes, *, depth_max: int = DEPTH_MAX) -> dict[str, Any]:
    """Decode TOML; ValueError for all that it is not, and for what is too deep.

    A dotted key is as deep as it has parts: tomllib takes a time that grows with their square.
    """
    import tomllib  # only where there is such a file, for a quick import of the package

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
    """Make a directory, and those above it, of this mode, and wait until their names are on disk."""
    if not directory.is_dir():
        make_directory(directory.parent, mode)
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
