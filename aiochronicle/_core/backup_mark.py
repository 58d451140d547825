"""Recognises a backup: a directory that is read like a queue but never changed."""

import os
from pathlib import Path

from aiochronicle._base.printable import printable
from aiochronicle._layout import BACKUP
from aiochronicle.errors import BackupError

__all__ = ["refuse_backup"]


def refuse_backup(directory: Path) -> None:
    """Raise BackupError if the directory is a backup, which nothing may change."""
    if not os.path.lexists(directory / BACKUP):
        return
    backups = printable(str(directory.parent))
    raise BackupError(
        "this is a backup, which can only be read",
        path=str(directory),
        advice=f"Restore it and use the restored queue: aioc restore {backups} QUEUE.",
    )
