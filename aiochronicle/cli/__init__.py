"""``aioc``: inspect and maintain queues from a shell.

One module per family of commands; each command is thin over public functions of the package. What a
command finds is a record, or several: they go to standard output as a table or, with ``--json``, as
JSON with the same names. Everything else (progress, errors) goes to standard error.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]

_MISSING = 'aioc: the command line needs two more packages: pip install "aiochronicle[cli]" ({} is missing)'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status; see ``exits.py`` for what it means."""
    try:
        from aiochronicle.cli.application import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("cyclopts", "rich"):
            raise
        print(_MISSING.format(error.name), file=sys.stderr)
        return 1
    return run(sys.argv[1:] if arguments is None else list(arguments))
