"""``backup`` and ``restore``."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import aiochronicle
from aiochronicle import BackupProgress
from aiochronicle._layout import CONTROL
from aiochronicle.cli.arguments import Directory, Json, QueuePath, path_argument
from aiochronicle.cli.exits import DAMAGED, NOT_FOUND, Refused
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.progress import Advance, progress
from aiochronicle.cli.units import amount, many, seq_text, since, when

__all__ = ["backup", "restore"]

_List = Annotated[
    bool,
    Parameter(
        name="--list",
        negative=(),
        show_default=False,
        help="list the backups in DIR; create none",
    ),
]


def _format_of(path: str) -> str:
    return "native" if Path(path, CONTROL).exists() else "cq4"


def _telling(advance: Advance) -> Callable[[BackupProgress], None]:
    def tell(step: BackupProgress) -> None:
        advance(step.step, step.bytes, step.bytes_total)

    return tell


def backup(
    queue: Annotated[Path | None, path_argument("QUEUE", "directory of the queue")] = None,
    directory: Annotated[
        Path | None,
        path_argument("DIR", "directory of its backups, created if missing; for this queue only"),
    ] = None,
    /,
    *,
    keep: Annotated[int, Parameter(metavar="N", help="how many backups stay")] = 2,
    keep_damaged: Annotated[
        bool, Parameter(negative=(), show_default=False, help="back up a damaged queue as it is")
    ] = False,
    verify_all: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="also check the segments of earlier backups again"
        ),
    ] = False,
    list_: _List = False,
    json: Json = False,
) -> int:
    """Back up a queue, even while it is in use.

    A backup appears when it is complete, verified and on disk. Unchanged segments are shared with the
    previous backup. The exit status is 5 if the position of a reader could not be read: the backup then has
    all messages, but not that reader.

    Example: aioc backup /var/lib/feeds/trades /backup/trades
    """
    out = Output(as_json=json)
    if list_:
        _list(out, directory or queue)
        return 0
    if queue is None or directory is None:
        raise Refused("backup takes QUEUE and DIR. See: aioc backup --help")
    with progress() as advance:
        report = aiochronicle.backup(
            queue,
            directory,
            keep=keep,
            on_corrupt="keep" if keep_damaged else "raise",
            verify_all=verify_all,
            progress=_telling(advance),
        )
    out.record(
        report,
        [
            ("backup", report.path),
            (
                "messages",
                f"{report.messages:,}, up to seq {seq_text(report.next_seq - 1, _format_of(report.path))}"
                if report.messages
                else "0",
            ),
            (
                "segments",
                f"{report.segments:,}, of which {report.segments_copied:,} copied"
                f" ({amount(report.bytes_copied)}{', by reflinks' if report.reflinked else ''})",
            ),
            ("readers", f"{report.readers:,}"),
            *_left_out(report.left_out),
            *([("damaged", many(report.corrupt, "place"))] if report.corrupt else []),
            *([("replaced", _replaced(report.replaced))] if report.replaced else []),
            *(
                [("removed", ", ".join(f"{number:06d}" for number in report.removed))]
                if report.removed
                else []
            ),
        ],
    )
    return DAMAGED if report.corrupt or report.left_out else 0


def _replaced(segments: list[int]) -> str:
    named = ", ".join(map(str, segments))
    return (
        f"segment {named}: damaged in the backup before, copied from the queue again; earlier backups"
        " still have the damage"
    )


def _left_out(readers: dict[str, str]) -> list[tuple[str, str]]:
    return [("left out", f"reader {name}: {why}") for name, why in readers.items()]


def _list(out: Output, directory: Path | None) -> None:
    if directory is None:
        raise Refused("backup --list takes DIR. See: aioc backup --help")
    if not directory.is_dir():
        said = "is a file, not a directory" if directory.exists() else "there is no such directory"
        raise Refused(f"{directory}: {said}.", NOT_FOUND)
    found = aiochronicle.list_backups(directory)
    now_ns = time.time_ns()
    out.table(
        found,
        [
            Column("BACKUP", right=True),
            Column("MADE"),
            Column("AGE", right=True, rank=1),
            Column("MESSAGES", right=True),
            Column("NEXT SEQ", right=True, rank=1),
            Column("SEGMENTS", right=True, rank=2),
            Column("QUEUE", least=12, ends=True),
        ],
        [
            [
                f"{one.number}",
                when(one.created_ns, parts=False),
                since(one.created_ns, now_ns),
                f"{one.messages:,}",
                seq_text(one.next_seq, _format_of(one.path)),
                f"{one.segments:,}",
                one.problem or one.queue,
            ]
            for one in found
        ],
        empty=f"there are no backups in {directory}",
    )


def restore(
    directory: Directory,
    queue: QueuePath,
    /,
    *,
    new_id: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="it is a copy beside the original, and gets an id of its own",
        ),
    ] = False,
    number: Annotated[
        int | None, Parameter(metavar="N", help="which backup; default: the newest")
    ] = None,
    json: Json = False,
) -> int:
    """Restore a queue from a backup, at a path without a queue.

    Example: aioc restore /backup/trades /var/lib/feeds/trades

    Parameters
    ----------
    directory
        directory of the backups
    """
    with progress() as advance:
        report = aiochronicle.restore(
            directory, queue, new_id=new_id, number=number, progress=_telling(advance)
        )
    Output(as_json=json).record(
        report,
        [
            ("queue", report.path),
            ("from", report.backup),
            (
                "messages",
                f"{report.messages:,}, up to seq {seq_text(report.next_seq - 1, _format_of(report.path))}"
                if report.messages
                else "0",
            ),
            ("readers", f"{report.readers:,}"),
            *_left_out(report.left_out),
            (
                "id",
                "none, as Java queues have"
                if _format_of(report.path) == "cq4"
                else "a new one, with the next writer"
                if report.queue_id is None
                else f"{report.queue_id:016x}",
            ),
            *([("damaged", many(report.corrupt, "place"))] if report.corrupt else []),
        ],
    )
    return DAMAGED if report.corrupt or report.left_out else 0
