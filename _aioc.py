"""The entry point of ``aioc``: Ctrl-C ends it with status 130 and no traceback from the first import on.

It stands beside the package because importing any module of ``aiochronicle`` first imports the whole core,
which takes a noticeable part of a second. Only programs import it: importing it sets the handler.
"""

import os
import signal
from typing import NoReturn

__all__ = ["main"]


def _end(number: int, frame: object) -> NoReturn:
    """End at once: while modules are imported there is nothing to clean up."""
    try:
        os.write(2, b"aioc: interrupted\n")
    finally:
        os._exit(130)


def main() -> int:
    """Run ``aioc``, which cleans up after Ctrl-C from the moment a command starts until it ends."""
    try:
        from aiochronicle.cli import main as aioc

        return aioc()
    except KeyboardInterrupt:  # at the end of a command, before the handler above is back
        _end(signal.SIGINT, None)


if (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):  # a job in the background ignores it
    signal.signal(signal.SIGINT, _end)
