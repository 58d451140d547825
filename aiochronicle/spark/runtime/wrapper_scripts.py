"""Shell scripts that stand in for a program, in the user's cache.

They are executed, so no other user may have written one or be able to change it: the script and its
directories, from the cache on, belong to this user alone, and no other user can rename them from above.
Where there is no such cache they go into a temporary directory.
"""

import functools
import logging
import os
import stat
import uuid
from pathlib import Path

from aiochronicle.errors import AccessDenied
from aiochronicle.spark.private_files import (
    DIRECTORY_MODE,
    Location,
    PrivateDirectory,
    is_out_of_reach,
    temporary_directory,
)

__all__ = ["wrapper_script"]

MODE = 0o700
SCRIPT_BYTES_MAX = 1 << 20

_log = logging.getLogger(__name__)


def wrapper_script(name: str, script: str) -> Path:
    """Return the path of an executable script of this name, and write it unless it exists."""
    try:
        return _put(_cache(), name, script)
    except (
        OSError,
        RuntimeError,
    ) as error:  # there is no home, or it is read-only, full, or not ours
        _log.info("the script for %s is in a temporary directory: %s", name, error)
        return _put(_of_this_process(), name, script)


def _cache() -> Path:
    above = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    above.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    # By the path without links: others may own those.
    if not is_out_of_reach(real := above.resolve()):
        raise AccessDenied("can be replaced by other users", path=str(above))
    return real


@functools.cache
def _of_this_process() -> Path:
    return temporary_directory()


def _put(root: Path, name: str, script: str) -> Path:
    *above, last = Path("aiochronicle", name).parts
    place = Location(root=str(root), names=tuple(above))
    with place.make(tighten=True) as directory:
        if not _is_there(directory, last, script):
            _write(directory, last, script)
    return place.path / last


def _is_there(directory: PrivateDirectory, name: str, script: str) -> bool:
    """Return whether exactly this script exists and no other user can change it."""
    found = directory.find(name)
    return (
        found is not None
        and stat.S_ISREG(found.st_mode)
        and found.st_uid == os.geteuid()
        and stat.S_IMODE(found.st_mode) == MODE
        and directory.read(name, SCRIPT_BYTES_MAX) == script.encode()
    )


def _write(directory: PrivateDirectory, name: str, script: str) -> None:
    fresh = f".{name}.{uuid.uuid4().hex}"  # other processes may start at the same time
    with directory.create(fresh, MODE) as file:
        file.write(script.encode())
    directory.rename(fresh, name)
