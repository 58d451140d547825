"""A place for temporary files: in memory, where a sync costs nothing."""

import os
import shutil

__all__ = ["in_memory"]

_SHARED_MEMORY = "/dev/shm"
_ROOM_BYTES = 1 << 30


def in_memory() -> str | None:
    """Return a directory in memory, or None to use the default directory for temporary files."""
    if "TMPDIR" in os.environ or not os.access(_SHARED_MEMORY, os.W_OK):
        return None
    return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free > _ROOM_BYTES else None
