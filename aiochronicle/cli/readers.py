"""``readers``: where the readers of a queue stand, and how to move or remove them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import ReaderInfo
from aiochronicle.cli.arguments import Json, QueuePath
from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.units import age, amount, parse_moment

__all__ = ["app"]

app = App(
    name="readers",
    help="List the readers of a queue; forget, reset or move one.\n\n"
    "Example: aioc readers /var/lib/feeds/trades",
    help_format="plaintext",
    help_epilogue="",
    version_flags=(),
)

Name = Annotated[str, Parameter(metavar="NAME", help="name of the reader")]


@app.command(name="list")
@app.default
def list_readers(queue: QueuePath, /, *, json: Json = False) -> None:
    """List the readers that have a position in a queue, open or not.

    Example: aioc readers list /var/lib/feeds/trades
    """
    readers = aiochronicle.list_readers(queue)
    Output(as_json=json).table(
        readers,
        [
            Column("NAME", least=8),
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
        [_row(reader) for reader in readers],
        empty="no reader has a position in it",
    )


def _row(reader: ReaderInfo) -> list[str | Text]:
    state = Text("lost", "red") if reader.lost else Text("open", "green") if reader.live else "away"
    return [
        reader.name,
        "–" if reader.pid is None else str(reader.pid),
        state,
        f"{reader.keeps_segments:,}",
        "–" if reader.committed_seq is None else f"{reader.committed_seq:,}",
        f"{reader.lag.messages:,}",
        amount(reader.lag.bytes),
        age(reader.lag.seconds) if reader.lag.messages else "–",
        age(reader.heartbeat_age_s),
        reader.command or "–",
    ]


@app.command
def forget(queue: QueuePath, name: Name, /, *, json: Json = False) -> None:
    """Remove a reader that will not come back: its unread messages are kept no longer.

    Refused while a process has it open.

    Example: aioc readers forget /var/lib/feeds/trades last-year
    """
    aiochronicle.forget_reader(queue, name)
    _tell(queue, name, json, "forgotten", None)


@app.command
def reset(queue: QueuePath, name: Name, /, *, json: Json = False) -> None:
    """Let a reader begin again with the oldest message.

    Refused while a process has it open.

    Example: aioc readers reset /var/lib/feeds/trades risk
    """
    _move(queue, name, "first", json)


@app.command
def seek(
    queue: QueuePath,
    name: Name,
    to: Annotated[
        str,
        Parameter(
            metavar="SEQ|TIME|first|last",
            help="where it goes on: a seq, a time, how long ago (15m), first or last",
        ),
    ],
    /,
    *,
    create: Annotated[
        bool, Parameter(negative=(), help="make the reader if there is none")
    ] = False,
    json: Json = False,
) -> None:
    """Let a reader go on somewhere else.

    Refused while a process has it open.

    Example: aioc readers seek /var/lib/feeds/trades risk 2026-01-31T12:00:00Z
    """
    start: Any = to
    if to not in ("first", "last"):
        try:
            start = parse_moment(to, datetime.now(UTC))
        except ValueError as error:
            raise Refused(str(error)) from None
    _move(queue, name, start, json, create=create)


def _move(queue: Path, name: str, start: Any, json: bool, *, create: bool = False) -> None:
    known = [reader.name for reader in aiochronicle.list_readers(queue)]
    if name not in known and not create:
        names = ", ".join(known) or "none"
        raise Refused(f"{queue}: there is no reader {name!r}, it has {names}.", NOT_FOUND)
    with aiochronicle.open_reader(queue, name, start=start) as reader:
        position = reader.position
        reader.commit_position(position)
        _tell(queue, name, json, "moved", reader.seq_at(position))


def _tell(queue: Path, name: str, json: bool, done: str, seq: int | None) -> None:
    out = Output(as_json=json)
    if json:
        out.json({"path": str(queue), "name": name, "done": done, "seq": seq})
    else:
        out.line(f"{name}: {done}" + ("" if seq is None else f" to seq {seq:,}"))
