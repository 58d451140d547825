"""``doctor``: what may go wrong on this machine or with these queues, each with its remedy.

A check is a generator of findings; a check that finds nothing reports nothing.
"""

from pathlib import Path

from rich.text import Text

from aiochronicle._base.printable import printable
from aiochronicle.cli.arguments import Directory, Json
from aiochronicle.cli.exits import FAILED
from aiochronicle.cli.finding import find_queues
from aiochronicle.cli.machine_checks import check_machine
from aiochronicle.cli.output import Output
from aiochronicle.cli.queue_checks import (
    check_deleted,
    check_leftovers,
    check_queue,
    check_unreadable,
)
from aiochronicle.cli.remedies import Finding, Level

__all__ = ["doctor"]

_STYLES: dict[Level, str] = {"error": "red", "warning": "yellow", "note": "cyan"}


def doctor(root: Directory = Path(), /, *, json: Json = False) -> int:
    """Find problems and risks, of this machine and of the queues below a directory.

    Each finding comes with its remedy. The exit status is 1 if one of them is an error.

    Example: aioc doctor /var/lib/feeds

    Parameters
    ----------
    root
        a queue, or a directory with queues below it
    """
    unreadable: dict[str, OSError] = {}
    queues = list(find_queues(root, unreadable=unreadable.__setitem__))
    found = [*check_machine(root), *check_leftovers(root), *check_deleted(root)]
    found += check_unreadable(unreadable)
    for queue in queues:
        found += check_queue(queue)
    out = Output(as_json=json)
    if json:
        out.json(found)
    else:
        for one in found:
            head = Text(f"{one.level}: ", _STYLES[one.level])
            out.line(Text.assemble(head, printable(f"{one.subject}: {one.detail}")))
            out.line(f"  {one.remedy}")
        out.line(_verdict(found, len(queues)))
    return FAILED if any(one.level == "error" for one in found) else 0


def _verdict(found: list[Finding], queues: int) -> str:
    counts = {level: sum(one.level == level for one in found) for level in _STYLES}
    said = ", ".join(
        f"{count} {level}{'s' if count != 1 else ''}" for level, count in counts.items() if count
    )
    return f"{queues} queue{'s' if queues != 1 else ''} checked: {said or 'nothing found'}"
