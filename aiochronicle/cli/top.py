"""``top``: all queues of a directory in the terminal, live."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from aiochronicle.cli.arguments import Directory, Seconds
from aiochronicle.cli.exits import FAILED, Refused
from aiochronicle.cli.finding import find_queues

__all__ = ["top"]


def top(
    root: Directory = Path(),
    /,
    *,
    max_lag: Annotated[
        Seconds,
        Parameter(help="warn about an open reader whose oldest unread message is older than this"),
    ] = 60.0,
) -> None:
    """Show all queues below a directory and their readers, live.

    It only reads. Enter opens a queue, t tails it, w explains why it is kept,
    e shows events, s sorts, r reverses, x hides readers, / filters, q quits.

    Example: aioc top /var/lib/feeds

    Parameters
    ----------
    root
        a queue, or a directory with queues below it
    """
    try:
        from aiochronicle.monitor.collector import Limits
        from aiochronicle.top.application import Top
    except ModuleNotFoundError as error:
        raise Refused(
            f'top needs one more package ({error.name} is missing): pip install "aiochronicle[top]"',
            FAILED,
        ) from None
    next(iter(find_queues(root)), None)  # refuses a missing directory
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise Refused("top needs a terminal; in a pipe use: aioc ls --json")
    Top(root, limits=Limits(max_lag_s=max_lag)).run()
