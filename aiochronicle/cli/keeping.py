"""``why-kept`` and ``retention``: what keeps old segments, and which rules remove them."""

import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import KeptSegment, Retention
from aiochronicle.cli.arguments import Amount, Json, QueuePath, Seconds
from aiochronicle.cli.exits import Refused
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.settings import retention_of
from aiochronicle.cli.units import amount, since

__all__ = ["retention", "why_kept"]


def why_kept(queue: QueuePath, /, *, json: Json = False) -> None:
    """Say for each segment which reader or rule keeps it.

    Example: aioc why-kept /var/lib/feeds/trades
    """
    found = aiochronicle.why_kept(queue)
    _show(Output(as_json=json), found)


def _show(out: Output, found: list[KeptSegment], *, empty: str = "it has no segments") -> None:
    now_ns = time.time_ns()
    out.table(
        found,
        [
            Column("SEGMENT", right=True),
            Column("SIZE", right=True, rank=1),
            Column("NEWEST", right=True, rank=3),
            Column("READERS", right=True, rank=2),
            Column("WHY", least=55),
        ],
        [
            [
                f"{one.segment}",
                amount(one.bytes),
                since(one.newest_ns, now_ns),
                f"{one.readers:,}",
                Text(one.text, "yellow" if one.why in ("damaged", "position") else ""),
            ]
            for one in found
        ],
        empty=empty,
    )


def retention(
    queue: QueuePath,
    /,
    *,
    max_bytes: Annotated[
        Amount | None, Parameter(help="the oldest segments go when all are more than that")
    ] = None,
    max_age: Annotated[
        Seconds | None, Parameter(help="segments go when their newest message is older")
    ] = None,
    reader_ttl: Annotated[
        Seconds | None, Parameter(help="a reader that was not seen for so long keeps nothing")
    ] = None,
    max_reader_lag: Annotated[
        Amount | None, Parameter(help="a reader that is more behind keeps nothing")
    ] = None,
    wait_for: Annotated[
        str | None, Parameter(metavar="NAME", help="a reader that no limit concerns")
    ] = None,
    archive: Annotated[
        Path | None, Parameter(metavar="DIR", help="segments are moved there instead of deleted")
    ] = None,
    until_read: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="segments go when all named readers have read them",
        ),
    ] = False,
    off: Annotated[
        bool, Parameter(negative=(), show_default=False, help="everything stays")
    ] = False,
    reset: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="forget what was said here: the program's own rules count",
        ),
    ] = False,
    now: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="apply the rules once, to a queue that has no writer",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="say what goes by the rules in force, and change nothing",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show which segments go when, or change it, also while a writer has the queue open.

    What is given here is kept in the queue's settings.toml, and goes before what the program asks
    for. A writer notices within about a second.

    Example: aioc retention /var/lib/feeds/trades --max-bytes 50G --reader-ttl 1d
    """
    given: dict[str, Any] = {
        "max_bytes": max_bytes,
        "max_age_s": max_age,
        "reader_ttl_s": reader_ttl,
        "max_reader_lag": max_reader_lag,
        "wait_for": wait_for,
        "archive": None if archive is None else str(archive.absolute()),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if off + reset + bool(given or until_read) > 1:
        raise Refused("give rules, or --off, or --reset")
    out = Output(as_json=json)
    if dry_run:
        if off or reset or given or until_read:
            raise Refused("--dry-run is about the rules in force: give no others")
        going = [one for one in aiochronicle.why_kept(queue) if one.why in ("goes", "no writer")]
        _show(out, going, empty="no segment would go")
        return
    if reset:
        aiochronicle.configure(queue, clear=True)
    elif off:
        aiochronicle.configure(queue, retention=None)
    elif given or until_read:
        aiochronicle.configure(queue, retention=Retention(**given))
    removed = _apply(queue) if now else None
    _tell(out, queue, removed)


def _apply(queue: Path) -> int:
    """Open the queue for writing, which applies the rules of its settings.toml; count what went."""
    before = aiochronicle.inspect(queue)
    rules = None if before.writer is None else before.writer.retention
    with aiochronicle.open_writer(queue, retention=rules, lock_timeout=0) as writer:
        writer.retain_now()
        statistics = writer.statistics()
    return statistics.segments_deleted + statistics.segments_archived


def _tell(out: Output, queue: Path, removed: int | None) -> None:
    writer = aiochronicle.inspect(queue).writer
    rules = None if writer is None else writer.retention
    text = "not known: no writer of ours has been here" if writer is None else retention_of(rules)
    asked = _asked(queue)
    record = {"path": str(queue), "in_force": rules, "settings": asked, "segments_removed": removed}
    lines: list[tuple[str, str | Text]] = [("in force", text)]
    if asked is not None:
        lines.append(("settings.toml", asked))
    if removed is not None:
        lines.append(("removed", f"{removed:,} segments"))
    out.record(record, lines)


def _asked(queue: Path) -> str | None:
    try:
        return (queue / "settings.toml").read_text(errors="replace").strip().replace(
            "\n", "; "
        ) or None
    except OSError:
        return None
