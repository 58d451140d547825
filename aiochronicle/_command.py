"""Imported first: ``python -m aiochronicle`` imports the whole package before it runs its own code.

See ``_aioc.py``, which the scripts ``aioc`` and ``aiochronicle`` import by themselves.
"""

import sys


def _is_command() -> bool:
    """Tell whether this is ``python -m aiochronicle``, or ``-m aiochronicle.spark``, its alias."""
    given: list[str] = getattr(sys, "argv", [])
    if given[:1] != ["-m"]:  # Python replaces it when it has found the module
        return False
    return sys.orig_argv[-len(given)].removeprefix("-m") in ("aiochronicle", "aiochronicle.spark")


if _is_command():
    import _aioc as _aioc
