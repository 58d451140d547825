"""Find nautilus_trader in the environment, or next to it (see the Makefile), because it pins uvloop."""

import importlib.util
import sys
from pathlib import Path

__all__ = ["BESIDE", "REASON", "has_nautilus"]

BESIDE = Path(sys.prefix) / "nautilus"
REASON = "needs nautilus_trader: make .venv/.nautilus"


def has_nautilus() -> bool:
    """Return whether nautilus_trader can be imported, from the environment or from next to it."""
    if BESIDE.is_dir() and str(BESIDE) not in sys.path:
        sys.path.append(str(BESIDE))
    return importlib.util.find_spec("nautilus_trader") is not None
