"""Shell scripts that stand in for a program, in the user's cache."""

import os
import tempfile
from pathlib import Path

__all__ = ["stand_in"]


def stand_in(name: str, script: str) -> Path:
    """Return the path of an executable script of this name, writing it unless it is there already."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aiochronicle"
    path = cache / name
    if not path.exists() or path.read_text(encoding="utf-8") != script:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as file:
            file.write(script)
        Path(file.name).chmod(0o700)
        Path(file.name).rename(path)  # others may start at the same time
    return path
