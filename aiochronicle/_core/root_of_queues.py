"""Paths that are one level too short."""

from pathlib import Path

from aiochronicle._layout import CONTROL, JAVA_TABLE, SHARED
from aiochronicle.errors import NotAQueue

__all__ = ["refuse_root_of_queues"]


def refuse_root_of_queues(directory: Path) -> None:
    """Refuse a path that is one level too short, instead of creating a queue around others."""
    try:
        if any((directory / name).exists() for name in (CONTROL, JAVA_TABLE)):
            return
        if (directory / SHARED).exists():
            raise NotAQueue(
                "is a topic with many writers",
                path=str(directory),
                advice="Read it with TopicReader or TopicGroup, and append with"
                " open_writer(path, shared=True).",
            )
        below = sorted([*directory.glob(f"*/{CONTROL}"), *directory.glob(f"*/{JAVA_TABLE}")])
    except OSError:
        return  # the engine will say what is wrong with it
    if below:
        detail = f"is a directory of queues, of {below[0].parent.name!r} for one"
        raise NotAQueue(detail, path=str(directory))
