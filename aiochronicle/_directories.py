"""Directories whose names a power cut does not take: a file that is synced is found by its name only."""

import os
from pathlib import Path

__all__ = ["make_directory", "sync_directory"]


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
