"""Detects paths that are one level too short."""

from pathlib import Path

from aiochronicle._layout import CONTROL, JAVA_TABLE, SHARED
from aiochronicle.errors import NotAQueue

__all__ = ["refuse_root_of_queues"]


def refuse_root_of_queues(directory: Path) -> None:
    """Raise NotAQueue for a topic with many writers, or a directory whose subdirectories are queues."""
    try:
        if any((directory / name).exists() for name in (CONTROL, JAVA_TABLE)):
            return
        if (directory / SHARED).exists():
            raise NotAQueue(
                "this is a topic with many writers",
                path=str(directory),
                advice="Read it with TopicReader or TopicGroup, and append to it with"
                " open_writer(path, shared=True).",
            )
        below = sorted([*directory.glob(f"*/{CONTROL}"), *directory.glob(f"*/{JAVA_TABLE}")])
    except OSError:
        return  # the engine will raise a better error
    if below:
        detail = f"this is a directory of queues, for instance {below[0].parent.name!r}"
        raise NotAQueue(detail, path=str(directory))
