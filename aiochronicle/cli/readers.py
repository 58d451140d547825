"""``readers``: the positions of a queue's readers, and how to move or remove them."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import GroupInfo, GroupMember, ReaderInfo
from aiochronicle._core.position_files import damaged_positions
from aiochronicle._services.shared import SharedTopic, is_shared
from aiochronicle.cli.arguments import Json, QueuePath
from aiochronicle.cli.exits import DAMAGED, Refused
from aiochronicle.cli.output import Column, Output, say
from aiochronicle.cli.processes import process_of, program_of
from aiochronicle.cli.states import STYLES
from aiochronicle.cli.units import age, amount, parse_moment, seq_text, since
from aiochronicle.errors import NotSupported, PositionCorrupt

__all__ = ["app", "damaged_readers", "groups_of"]

app = App(
    name="readers",
    help="List the readers of a queue; forget, reset or move one.\n\n"
    "Example: aioc readers /var/lib/feeds/trades",
    help_format="markdown",
    help_epilogue="",
    version_flags=(),
)

_COLUMNS = 10

Name = Annotated[str, Parameter(metavar="NAME", help="name of the reader")]


@app.command(name="list")
@app.default
def list_readers(queue: QueuePath, /, *, json: Json = False) -> int:
    """List the readers that have a position in a queue, open or not.

    The exit status is 5 if the position of one is damaged, or in a damaged segment.

    Example: aioc readers list /var/lib/feeds/trades
    """
    readers = aiochronicle.list_readers(queue)
    form = _format(queue)
    groups = {group.name: group for group in groups_of(queue)}
    damaged = damaged_readers(queue)
    out = Output(as_json=json)
    out.table(
        [{**msgspec.structs.asdict(one), "group": groups.get(one.name)} for one in readers]
        + [{"name": name, "problem": error.detail} for name, error in damaged.values()],
        [
            Column("NAME", least=24, ends=True),
            Column("PID", right=True, rank=2),
            Column("OPEN"),
            Column("HOLDS", right=True, rank=3),
            Column("SEQ", right=True, rank=1),
            Column("LAG", right=True),
            Column("BYTES", right=True, rank=2),
            Column("AGE", right=True, rank=1),
            Column("SEEN", right=True, rank=4),
            Column("COMMAND", rank=5, least=16),
        ],
        [_row(reader, form, reader.name in groups) for reader in readers]
        + [
            [name, "–", Text("damaged", "red"), *["–"] * (_COLUMNS - 3)]
            for name, _ in damaged.values()
        ],
        empty="no reader has a position in it",
    )
    for group in groups.values() if not json else ():
        _tell_group(out, group)
    out.flush()
    for _, error in damaged.values():
        say(str(error))
    for one in readers:
        if one.damaged:
            say(
                f"{queue}: reader {one.name} is in a damaged segment; its lag counts from the next one"
            )
    return DAMAGED if damaged or any(one.damaged for one in readers) else 0


def damaged_readers(queue: Path) -> dict[str, tuple[str, PositionCorrupt]]:
    """Return the readers with damaged positions, by their files."""
    found: dict[str, tuple[str, PositionCorrupt]] = {}
    for place in _queues_of(queue):
        found |= {str(error.path): (name, error) for name, error in damaged_positions(place)}
    return found


def _queues_of(queue: Path) -> list[Path]:
    """Return the queue, or those of a topic with many writers."""
    if not is_shared(queue):
        return [queue]
    topic = SharedTopic(queue)
    return [Path(topic.queue(writer)) for writer in topic.writers()]


def _format(queue: Path) -> str:
    """Return the format of the queue, or of the queues of a topic with many writers."""
    return "native" if is_shared(queue) else aiochronicle.inspect(queue).format


def groups_of(queue: Path) -> list[GroupInfo]:
    """Return the groups of a queue; a Java queue has none."""
    try:
        return aiochronicle.list_groups(queue)
    except NotSupported:
        return []


def _tell_group(out: Output, group: GroupInfo) -> None:
    """Print a group below the readers: its pending messages, and its members."""
    now_ns = time.time_ns()
    out.line("")
    oldest = f", the oldest {since(group.oldest_ns, now_ns)} old" if group.oldest_ns else ""
    out.line(
        f"group {group.name}: {group.pending:,} pending{oldest};"
        f" {group.in_flight:,} in flight, {group.delayed:,} delayed, {group.retried:,} redelivered"
    )
    out.table(
        None,
        [
            Column("MEMBER", right=True),
            Column("STATE"),
            Column("SINCE", right=True, rank=2),
            Column("IN FLIGHT", right=True),
            Column("ACKNOWLEDGED", right=True, rank=1),
            Column("GIVEN BACK", right=True, rank=3),
            Column("REDELIVERED", right=True, rank=2),
        ],
        [_member_row(member, now_ns) for member in group.members],
        empty="it has no members now",
    )


def _member_row(member: GroupMember, now_ns: int) -> list[str | Text]:
    process = process_of(member.pid) if member.alive else None
    stopped = process is not None and process.stopped
    state = "stopped" if stopped else "open" if member.alive else "died"
    return [
        str(member.pid),
        Text(state, STYLES[state]),
        since(member.since_ns, now_ns),
        f"{member.in_flight:,}",
        f"{member.acked:,}",
        f"{member.nacked:,}",
        f"{member.redelivered:,}",
    ]


def _row(reader: ReaderInfo, form: str, is_group: bool) -> list[str | Text]:
    away = "away" if form == "native" else "–"  # whether a Java tailer is open is unknown
    state = Text("lost", "red") if reader.lost else Text("open", "green") if reader.live else away
    state = Text("group", "green") if is_group and not reader.lost else state
    state = Text("damaged", "red") if reader.damaged else state
    state = Text("stopped", STYLES["stopped"]) if reader.stopped and not reader.lost else state
    return [
        reader.name,
        "–" if reader.pid is None else str(reader.pid),
        state,
        f"{reader.keeps_segments:,}" if form == "native" else "–",  # its operator removes the files
        seq_text(reader.committed_seq, form),
        f"{reader.lag.messages:,}",
        amount(reader.lag.bytes),
        age(reader.lag.seconds) if reader.lag.messages and form == "native" else "–",
        age(reader.heartbeat_age_s),
        program_of(reader.command) or "–",
    ]


Force = Annotated[
    bool,
    Parameter(
        name="--force",
        negative=(),
        show_default=False,
        help="even if it is open: that reader raises PositionRevoked, its commits have no effect",
    ),
]


@app.command
def forget(queue: QueuePath, name: Name, /, *, force: Force = False, json: Json = False) -> None:
    """Remove a reader that will not come back: its unread messages are no longer kept.

    Refused while a process has it open, unless forced.

    Example: aioc readers forget /var/lib/feeds/trades last-year
    """
    aiochronicle.forget_reader(queue, name, force=force)
    _tell(queue, name, json, "forgotten", None)


@app.command
def reset(queue: QueuePath, name: Name, /, *, force: Force = False, json: Json = False) -> None:
    """Move a reader to the oldest message.

    Refused while a process has it open, unless forced.

    Example: aioc readers reset /var/lib/feeds/trades risk
    """
    _tell(queue, name, json, "moved", aiochronicle.seek_reader(queue, name, "first", force=force))


@app.command
def seek(
    queue: QueuePath,
    name: Name,
    to: Annotated[
        str,
        Parameter(
            metavar="SEQ|TIME|first|last",
            help="the new place: a seq, a time, an age (15m), first or last",
        ),
    ],
    /,
    *,
    create: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="create the reader if there is none"),
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Move a reader to another place.

    A place beyond the end is refused; for a seq that was removed, the reader moves to the oldest message.
    Refused while a process has it open, unless forced.

    Example: aioc readers seek /var/lib/feeds/trades risk 2026-01-31T12:00:00Z
    """
    start: Any = to
    if to not in ("first", "last"):
        try:
            start = parse_moment(to, datetime.now(UTC))
        except ValueError as error:
            raise Refused(str(error)) from None
    seq = aiochronicle.seek_reader(queue, name, start, force=force, create=create)
    _tell(queue, name, json, "moved", seq, _other_than(queue, start, seq))


def _other_than(queue: Path, asked: Any, seq: int) -> str:
    """Explain why the seq differs from the requested one."""
    if not isinstance(asked, int) or asked >= seq:
        return ""
    named = seq_text(asked, _format(queue))
    with aiochronicle.open_reader(queue, start="first") as oldest:
        removed = asked < (oldest.seq_at(oldest.position) or 0)
    return f", the oldest: seq {named} was removed" if removed else f": there is no seq {named}"


def _tell(queue: Path, name: str, json: bool, done: str, seq: int | None, note: str = "") -> None:
    out = Output(as_json=json)
    form = _format(queue)
    if json:
        out.json({"path": str(queue), "name": name, "done": done, "seq": seq})
        return
    place = "" if seq is None else f" to seq {seq_text(seq, form)}{note}"
    out.line(f"{name}: {done}{place}")
    if form == "cq4" and seq is not None:
        out.line(
            "if a process has this tailer open, its next commit wins: stop it, and do this again"
        )
