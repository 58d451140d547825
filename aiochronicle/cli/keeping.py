"""``why-kept`` and ``retention``: what keeps old segments, and which rules remove them."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import UNSET, UnsetType
from rich.text import Text

import aiochronicle
from aiochronicle import KeptSegment, Retention, WriterInfo, WriterStatistics
from aiochronicle._core.queue import refused_settings
from aiochronicle._layout import SETTINGS
from aiochronicle.cli.arguments import Amount, Json, QueuePath, Seconds, path_argument
from aiochronicle.cli.exits import BUSY, NOT_FOUND, Refused, status_of
from aiochronicle.cli.output import Column, Output, say
from aiochronicle.cli.settings import retention_of
from aiochronicle.cli.units import amount, many, since
from aiochronicle.errors import LockedError

__all__ = ["retention", "why_kept"]

_NOTICED_S = 2.0
_PATIENCE_S = 5.0  # a writer checks its segments every second by default


def why_kept(queue: QueuePath, /, *, json: Json = False) -> None:
    """Show for each segment which reader or rule keeps it.

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
            Column("FILE", rank=4),
            Column("WHY", least=55),
        ],
        [
            [
                f"{one.segment}",
                amount(one.bytes),
                since(one.newest_ns, now_ns),
                f"{one.readers:,}",
                one.file,
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
        Amount | None,
        Parameter(help="remove the oldest segments when all together exceed this size"),
    ] = None,
    max_age: Annotated[
        Seconds | None, Parameter(help="remove segments whose newest message is older than this")
    ] = None,
    reader_ttl: Annotated[
        Seconds | None,
        Parameter(help="keep nothing for a reader without a sign of life for this long"),
    ] = None,
    max_reader_lag: Annotated[
        Amount | None, Parameter(help="keep nothing for a reader with a larger lag")
    ] = None,
    wait_for: Annotated[
        str | None,
        Parameter(metavar="NAME", help="a reader that keeps its segments whatever the limits"),
    ] = None,
    archive: Annotated[
        Path | None,
        path_argument("DIR", "move segments to this directory instead of deleting them"),
    ] = None,
    until_read: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="remove segments that all named readers have read",
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
            help="remove these rules: the program's own apply",
        ),
    ] = False,
    now: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="wait until the segments are removed; works without an open writer, too",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="show what the rules given, or those in force, would remove; change nothing",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Show or change the rules for removing segments, even while a writer has the queue open.

    The rules are stored in the queue's settings.toml, which overrides those of the program. They replace all
    rules stored before. An open writer applies them within about a second. If writers refuse the file, the
    command reports it, and the exit status is 2.

    Example: aioc retention /var/lib/feeds/trades --max-bytes 50G --reader-ttl 1d
    """
    if aiochronicle.inspect(queue).format == "cq4":
        raise Refused(
            f"{queue}: only the operator of a Java queue removes its files; why-kept says which ones no"
            " tailer needs."
        )
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
    if reset and (now or dry_run):
        raise Refused(
            "--reset returns to the program's own rules, which are known when it opens the queue:"
            " give neither --now nor --dry-run with it"
        )
    wanted: Retention | UnsetType | None = UNSET
    if off or given or until_read:
        wanted = None if off else Retention(**given)
    if archive is not None:
        _check_archive(archive.absolute())
    out = Output(as_json=json)
    if dry_run:
        _show_going(out, aiochronicle.why_kept(queue, retention=wanted))
        return 0
    before = aiochronicle.inspect(queue).writer
    if reset:
        aiochronicle.configure(queue, clear="retention")
    elif wanted is not UNSET:
        aiochronicle.configure(queue, retention=wanted)
    removed = None
    if now:
        removed = _apply(queue, before, wanted)
    elif reset or wanted is not UNSET:
        _let_it_be_noticed(queue, before, wanted)
    _tell(out, queue, removed)
    refused = refused_settings(queue)
    if refused is None:
        return 0
    say(str(refused))
    return status_of(refused)


def _check_archive(archive: Path) -> None:
    """Refuse a directory to which no writer can move segments. A writer creates the directory, but none
    above it."""
    with suppress(PermissionError):  # the writer may be another user
        if archive.is_dir():
            return
        if archive.exists():
            raise Refused(f"{archive}: is a file, not a directory.")
        if not archive.parent.is_dir():
            raise Refused(
                f"{archive}: the directory above it does not exist. Create it, or check the path.",
                NOT_FOUND,
            )


def _show_going(out: Output, kept: list[KeptSegment]) -> None:
    going = [one for one in kept if one.why in ("goes", "no writer")]
    _show(out, going, empty="no segment would go")
    if going and not out.as_json:
        size = amount(sum(one.bytes for one in going))
        out.line(f"{len(going):,} of {many(len(kept), 'segment')} would go, {size}")


def _let_it_be_noticed(
    queue: Path, before: WriterInfo | None, wanted: Retention | UnsetType | None
) -> None:
    """Wait a moment for an open writer, so that the shown settings are in force."""
    until_s = time.monotonic() + _NOTICED_S
    while before is not None and before.state == "open" and time.monotonic() < until_s:
        writer = aiochronicle.inspect(queue).writer
        changed = writer is None or writer.retention != before.retention
        if changed or (writer is not None and writer.retention == wanted):
            return
        time.sleep(0.1)


def _apply(queue: Path, before: WriterInfo | None, wanted: Retention | UnsetType | None) -> int:
    """Apply the rules once, through the open writer or as a writer; count the removed segments."""
    rules = None if before is None else before.retention
    try:
        writer = aiochronicle.open_writer(queue, retention=rules, lock_timeout=0)
    except LockedError:
        if before is None or before.state != "open" or before.statistics is None:
            raise
        return _wait_for(queue, before, rules if wanted is UNSET else wanted)
    with writer:
        writer.retain_now()
        statistics = writer.statistics()
    return _removed(statistics)


def _removed(statistics: WriterStatistics | None) -> int:
    return 0 if statistics is None else statistics.segments_deleted + statistics.segments_archived


def _wait_for(queue: Path, before: WriterInfo, rules: Retention | None) -> int:
    """Wait until the open writer has removed the segments that the rules allow it to remove."""
    until_s = time.monotonic() + _PATIENCE_S
    done_ns = 0
    while time.monotonic() < until_s:
        writer = aiochronicle.inspect(queue).writer
        if writer is None or writer.since_ns != before.since_ns:
            break
        if done_ns and (writer.published_ns or 0) > done_ns:  # with its counters
            return _removed(writer.statistics) - _removed(before.statistics)
        if not done_ns and writer.retention == rules and not _goes(queue):
            done_ns = time.time_ns()
        time.sleep(0.1)
    raise Refused(
        f"{queue}: its writer, pid {before.pid}, has not yet removed all that goes by the rules: it looks"
        " every check_interval_s. aioc why-kept says what is left, aioc info what failed.",
        BUSY,
    )


def _goes(queue: Path) -> bool:
    return any(one.why == "goes" for one in aiochronicle.why_kept(queue))


def _tell(out: Output, queue: Path, removed: int | None) -> None:
    writer = aiochronicle.inspect(queue).writer
    rules = None if writer is None else writer.retention
    text = "not known: no writer of ours has been here" if writer is None else retention_of(rules)
    asked = _ask(queue)
    record = {"path": str(queue), "in_force": rules, "settings": asked, "segments_removed": removed}
    lines: list[tuple[str, str | Text]] = [("in force", text)]
    if asked is not None:
        lines.append((SETTINGS, asked))
    if removed is not None:
        lines.append(("removed", many(removed, "segment")))
    out.record(record, lines)


def _ask(queue: Path) -> str | None:
    try:
        return (queue / SETTINGS).read_text(errors="replace").strip().replace("\n", "; ") or None
    except OSError:
        return None
