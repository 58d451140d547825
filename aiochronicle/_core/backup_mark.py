"""What marks a directory as a backup: a queue that is read like others and never changed."""

import os
from pathlib import Path

from aiochronicle._base.printable import printable
from aiochronicle._layout import BACKUP
from aiochronicle.errors import BackupError

__all__ = ["refuse_backup"]


def refuse_backup(directory: Path) -> None:
    """Raise BackupError if a backup is to be written, or a position in it to be moved."""
    if not os.path.lexists(directory / BACKUP):
        return
    backups = printable(str(directory.parent))
    raise BackupError(
        "is a backup, which is only read",
        path=str(directory),
        advice=f"Restore it, and use the restored queue: aioc restore {backups} QUEUE.",
    )
