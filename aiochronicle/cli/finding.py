"""Queues below a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.writer import CONTROL, JAVA_TABLE

__all__ = ["find_queues", "is_queue", "short_path"]

DEPTH_MAX = 16


def is_queue(path: Path) -> bool:
    """Tell whether there is a queue in this directory, sound or not."""
    return any(os.path.lexists(path / name) for name in (CONTROL, JAVA_TABLE))


def short_path(path: str, root: Path) -> str:
    """Return a path as it is seen from the directory that was asked about."""
    full = Path(path)
    return str(full.relative_to(root)) if full != root and full.is_relative_to(root) else path


def find_queues(root: Path, depth: int = DEPTH_MAX) -> Iterator[Path]:
    """Yield the directories of queues: the root itself, or those below it, in the order of names.

    Links are not followed, nor is anything looked for inside of a queue.
    """
    if is_queue(root):
        yield root
        return
    if not root.is_dir():
        raise Refused(f"{root}: there is no such directory.", NOT_FOUND)
    yield from _below(root, depth)


def _below(directory: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        path = directory / name
        if is_queue(path):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)
