"""``verify``, ``recovered``, ``repair``, ``config check``: damage, repairs, and data set aside."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import RepairReport
from aiochronicle._base.printable import printable
from aiochronicle._layout import BUS_CONFIGURATION
from aiochronicle._services.settings import load_settings
from aiochronicle._services.trusted import owners_of
from aiochronicle.cli.advice import in_commands
from aiochronicle.cli.arguments import Directory, Json, QueuePath, path_argument
from aiochronicle.cli.decoding import Decoder
from aiochronicle.cli.exits import DAMAGED, NOT_FOUND, Refused
from aiochronicle.cli.finding import is_queue
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.progress import progress
from aiochronicle.cli.units import amount, many, when

__all__ = ["config", "recovered", "repair", "verify"]


def verify(queue: QueuePath, /, *, json: Json = False) -> int:
    """Read and check every message of a queue. Nothing is changed.

    The exit status is 5 if something is damaged.

    Example: aioc verify /var/lib/feeds/trades
    """
    with progress() as advance:
        report = aiochronicle.verify(
            queue, progress=lambda done, total: advance("verify", done, total)
        )
    Output(as_json=json).record(
        {"path": str(queue), "report": report},
        [
            ("messages", f"{report.records:,}"),
            ("damaged", Text(many(report.corrupt, "place"), "red") if report.corrupt else "none"),
            *([("missing", many(report.missing_seqs, "message"))] if report.missing_seqs else []),
            *(("problem", text) for text in report.problems),
        ],
    )
    return DAMAGED if report.corrupt else 0


def recovered(
    queue: QueuePath,
    part: Annotated[
        str | None, Parameter(metavar="PART", help="a part, to print its messages")
    ] = None,
    /,
    *,
    json: Json = False,
) -> None:
    """List the files that repairs have set aside, or print the messages in one of them.

    These messages are not part of the queue: the power was cut, or the writer was killed, before they were
    committed. Only messages with a valid checksum are shown.

    Example: aioc recovered /var/lib/feeds/trades 000000003-4096-1767225600.bin
    """
    out = Output(as_json=json)
    found = aiochronicle.list_recovered(queue)
    if not found and not is_queue(queue):  # what was set aside may be all that is left of one
        aiochronicle.inspect(queue)  # which says what is there instead
    if part is not None:
        if "/" not in part and all(one.name != part for one in found):
            known = ", ".join(one.name for one in found) or "none"
            raise Refused(
                f"{queue}: has no part {part!r} in recovered/; it has {known}.", NOT_FOUND
            )
        decoder = Decoder(queue)
        decoder.tell_problem()
        for message in aiochronicle.read_recovered(queue, part):
            out.raw(decoder.json_line(message) if json else decoder.line(message))
        return
    out.table(
        found,
        [
            Column("PART", least=20, ends=True),
            Column("KIND"),
            Column("SEGMENT", right=True, rank=1),
            Column("OFFSET", right=True, rank=2),
            Column("SIZE", right=True),
            Column("SET ASIDE", rank=1),
        ],
        [
            [
                one.name,
                one.kind,
                "–" if one.segment is None else f"{one.segment}",
                "–" if one.offset is None else f"{one.offset:,}",
                amount(one.bytes),
                when(one.modified_ns, parts=False),
            ]
            for one in found
        ],
        empty="nothing was set aside",
    )


def repair(
    queue: QueuePath,
    /,
    *,
    backup: Annotated[
        Path | None, path_argument("DIR", "backups of the queue, to take sound parts from")
    ] = None,
    salvage: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="if segments are missing, set aside messages that may have been durable",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="report the damage; change nothing"),
    ] = False,
    json: Json = False,
) -> int:
    """Repair a queue without a writer. Nothing is destroyed: bad parts go to recovered/.

    The exit status is 5 if some damage could not be repaired.

    Example: aioc repair /var/lib/feeds/trades --backup /backup/trades --dry-run
    """
    with progress() as advance:
        report = aiochronicle.repair(
            queue,
            backup=backup,
            salvage=salvage,
            dry_run=dry_run,
            progress=lambda done, total: advance("read", done, total),
        )
    out = Output(as_json=json)
    if json:
        out.json({**_fields(report), "sound": report.sound})
    else:
        _tell(out, report)
    return 0 if report.sound else DAMAGED


def _fields(report: RepairReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in RepairReport.__struct_fields__}


def _tell(out: Output, report: RepairReport) -> None:
    for one in report.findings:
        state = ("would repair" if report.dry_run else "repaired") if one.fixed else "left"
        style = "green" if one.fixed else "red"
        out.line(
            Text.assemble(
                (f"{state}: ", style),
                f"{printable(one.path)}: {printable(in_commands(one.detail))}",
            )
        )
        out.line(f"  {in_commands(one.remedy)}")
        if one.set_aside is not None:
            out.line(f"  set aside: {one.set_aside}")
    if not report.findings:
        out.line("nothing is wrong with it")


config = App(
    name="config",
    help="Check the configuration file of a bus.\n\nExample: aioc config check /var/lib/desk",
    help_format="markdown",
    help_epilogue="",
    version_flags=(),
)


@config.command
def check(root: Directory, /, *, json: Json = False) -> int:
    """Check the configuration file of a bus, as a program that opens it would.

    The exit status is 2 if the file is invalid; the error says where and why.

    Example: aioc config check /var/lib/desk

    Parameters
    ----------
    root
        directory of the bus, or the file itself
    """
    is_directory = root.is_dir()
    file = root / BUS_CONFIGURATION if is_directory else root
    settings = load_settings(file, required=True, owners=owners_of(root) if is_directory else None)
    topics = {
        name: settings.for_topic(name)
        for name in settings.topics
        if "/" not in name and "*" not in name
    }
    out = Output(as_json=json)
    if json:
        out.json({"path": str(file), "defaults": settings.defaults, "topics": settings.topics})
    else:
        patterns = len(settings.topics) - len(topics)
        out.line(f"{file}: sound; {many(len(topics), 'topic')} and {many(patterns, 'pattern')}")
    return 0
