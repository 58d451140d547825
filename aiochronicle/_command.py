"""Sets the Ctrl-C handler of ``python -m aiochronicle`` before the rest of the package is imported.

Python imports the whole package before it runs ``__main__``, which takes a noticeable time. The scripts
``aioc`` and ``aiochronicle`` import ``_aioc.py`` themselves.
"""

import sys


def _is_command() -> bool:
    """Return whether this is ``python -m aiochronicle``, or ``-m aiochronicle.spark``, its alias."""
    arguments: list[str] = getattr(sys, "argv", [])
    if arguments[:1] != ["-m"]:  # Python replaces "-m" once it has found the module
        return False
    module = sys.orig_argv[-len(arguments)].removeprefix("-m")
    return module in ("aiochronicle", "aiochronicle.spark")


if _is_command():
    import _aioc as _aioc
