"""Files that a process has open or mapped."""

import os
from collections import Counter
from pathlib import Path

__all__ = ["files_in_use"]


def files_in_use(root: str | os.PathLike[str]) -> Counter[str]:
    """Count the files below ``root`` that this process has open or mapped.

    >>> before = files_in_use(tmp_path)
    >>> open_reader(queue).close()
    >>> files_in_use(tmp_path) - before
    Counter()
    """
    root = os.fspath(root)
    found: Counter[str] = Counter()
    for fd in list(Path("/proc/self/fd").iterdir()):
        try:
            target = str(fd.readlink())
        except FileNotFoundError:  # the descriptor of this very listing
            continue
        if target.startswith(root):
            found[f"open: {target}"] += 1
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        _, _, target = line.partition("/")
        if f"/{target}".startswith(root):
            found[f"mapped: /{target}"] += 1
    return found
