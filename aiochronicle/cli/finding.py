"""Queues below a directory."""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from shlex import quote

from aiochronicle._layout import BACKUP, CONTROL, JAVA_TABLE
from aiochronicle.cli.exits import NOT_FOUND, Refused, status_of
from aiochronicle.cli.output import say

__all__ = [
    "Unreadable",
    "explain_missing",
    "find_queues",
    "is_queue",
    "say_unreadable",
    "short_path",
]

Unreadable = Callable[[str, OSError], object]

DEPTH_MAX = 16
_NAMED = 3


def is_queue(path: Path) -> bool:
    """Return whether there is a queue in this directory, sound or not."""
    return any(os.path.lexists(path / name) for name in (CONTROL, JAVA_TABLE))


def short_path(path: str, root: Path) -> str:
    """Return a path relative to the directory that the user named."""
    full = Path(path)
    return str(full.relative_to(root)) if full != root and full.is_relative_to(root) else path


def find_queues(
    root: Path,
    depth: int = DEPTH_MAX,
    *,
    unreadable: Unreadable = lambda path, error: None,
) -> Iterator[Path]:
    """Yield the directories of queues: the root itself, or those below it, in the order of names.

    Does not follow links, nor look inside queues. ``unreadable`` gets the directories that cannot be listed.
    """
    if is_queue(root):
        yield root
        return
    if not root.is_dir():
        said = "is a file, not a directory" if root.exists() else "there is no such directory"
        raise Refused(f"{root}: {said}.", NOT_FOUND)
    yield from _below(root, depth, unreadable)


def _below(directory: Path, depth: int, unreadable: Unreadable) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):  # it was removed while we looked
        return
    except OSError as error:
        unreadable(str(directory), error)
        return
    for name in names:
        path = directory / name
        if is_queue(path):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1, unreadable)


def has_backups(directory: Path) -> bool:
    """Return whether a directory is one of backups of a queue."""
    return any(os.path.lexists(one / BACKUP) for one in directory.glob("[0-9]" * 6 + "*"))


def say_unreadable(unreadable: Mapping[str, Exception], root: Path) -> int:
    """Report on standard error what could not be read, and why; return the exit status."""
    for place, error in unreadable.items():
        text = getattr(error, "detail", None) or getattr(error, "strerror", None) or str(error)
        say(f"{short_path(place, root)}: {text}")
    return max(map(status_of, unreadable.values()), default=0)


def explain_missing(path: str) -> str:
    """Report that there is no queue at a path, and which queues are below it.

    ``path`` may be a file that a queue would have.
    """
    place = Path(path)
    place = place if place.is_dir() or place.name not in (CONTROL, JAVA_TABLE) else place.parent
    if not place.parent.is_dir():
        return f"{place}: the directory above it does not exist. Check the path."
    if not place.is_dir():
        return (
            f"{place}: there is no queue. Check the path; aioc ls lists the queues of a directory."
        )
    if has_backups(place):
        return f"{place}: is a directory of backups. aioc backup --list {quote(str(place))} lists them."
    below = [short_path(str(one), place) for one in islice(find_queues(place), _NAMED + 1)]
    if not below:
        return f"{place}: there is no queue in this directory, nor below it. Check the path."
    named = ", ".join(below[:_NAMED]) + (" …" if len(below) > _NAMED else "")
    return f"{place}: there is no queue in this directory, but below it: {named}. Name one of them."
