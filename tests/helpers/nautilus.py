"""Where nautilus_trader is: in the environment, or beside it (see the Makefile), since it pins uvloop."""

import importlib.util
import sys
from pathlib import Path

__all__ = ["BESIDE", "REASON", "has_nautilus"]

BESIDE = Path(sys.prefix) / "nautilus"
REASON = "needs nautilus_trader: make .venv/.nautilus"


def has_nautilus() -> bool:
    """Tell whether nautilus_trader can be imported, from beside the environment too."""
    if BESIDE.is_dir() and str(BESIDE) not in sys.path:
        sys.path.append(str(BESIDE))
    return importlib.util.find_spec("nautilus_trader") is not None
