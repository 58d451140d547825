"""What a power cut leaves of a queue, by copying its directory as it is at this moment."""

import os
import shutil
from pathlib import Path

from reference import format as fmt

__all__ = ["copy_as_original"]


def copy_as_original(queue: Path, target: Path) -> None:
    """Copy a queue so that it is taken for the original, not for a copy of it."""
    shutil.copytree(queue, target)
    fd = os.open(target / "control.meta", os.O_WRONLY)
    try:
        os.pwrite(fd, bytes(8), fmt.CONTROL_HOME_OFFSET)
    finally:
        os.close(fd)
