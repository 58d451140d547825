"""The output of commands: tables for people, JSON for programs.

A table drops its least important columns when the terminal is narrow, and is never cut when it goes
to a pipe. All text from outside is made printable, and none of it is interpreted as markup.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO, cast

import msgspec
from rich.console import Console
from rich.text import Text

from aiochronicle._base.printable import printable, utf8_name

__all__ = ["Column", "Output", "builtins_of", "console", "forget", "say", "shortened", "to_json"]

_PIPE_COLUMNS = 100_000
_GAP = 2


class _Console(Console):
    """A console that leaves the handling of a closed pipe to the command line."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        self.quiet = True
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Prevent further writes to a closed pipe, including Python's own flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or error: colours on a terminal only."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_COLUMNS
    return _Console(
        stderr=stderr,
        width=width,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


class Column(msgspec.Struct, frozen=True):
    """A column of a table. Columns with the highest ``rank`` are dropped first when there is no room.

    ``least`` is how narrow it may be made before any column goes; None: it is not cut. What is cut keeps
    its beginning; with ``ends`` also its end, by which names and paths differ.
    """

    name: str
    right: bool = False
    rank: int = 0
    least: int | None = None
    ends: bool = False


def say(text: str) -> None:
    """Print an error on one line of standard error."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    console(stderr=True).print(Text.assemble(("aioc: ", "bold red"), printable(line)))


Cell = str | Text


def builtins_of(found: Any) -> Any:
    """Convert a record to JSON types: NaN becomes null, bytes become base64, file names become text."""
    made = msgspec.to_builtins(found, str_keys=True)
    return _plain(made)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else utf8_name(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in cast("list[Any]", value)]
    return value


def to_json(found: Any) -> str:
    """Return JSON on one line, in ASCII: nothing in it can move a cursor or break an encoding.

    >>> to_json({"name": "caf\\u00e9\\x1b[2J", "value": float("nan")})
    '{"name": "caf\\\\u00e9\\\\u001b[2J", "value": null}'
    """
    return json.dumps(builtins_of(found), allow_nan=False)


class Output:
    """Standard output of one command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = console()

    def record(self, found: Any, lines: Iterable[tuple[str, Cell]]) -> None:
        """Print one record: as JSON, or as names and values, one a line."""
        if self.as_json:
            self.json(found)
            return
        rows = list(lines)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(Text.assemble((f"{name:<{width}}  ", "dim"), cell(value)))

    def json(self, found: Any) -> None:
        """Print a record as JSON, with or without ``--json``."""
        self._write(to_json(found))

    def line(self, text: Cell) -> None:
        """Print a line."""
        self.console.print(cell(text), soft_wrap=True)

    def raw(self, text: str) -> None:
        """Print text that is safe already, fast."""
        self._write(text)

    def bytes(self, content: bytes) -> None:
        """Print bytes unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(content)

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()

    def table(
        self,
        found: Any,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Cell]],
        *,
        empty: str = "",
    ) -> None:
        """Print records as a JSON array or as a table; prints ``empty`` if there are none."""
        if self.as_json:
            self.json(found)
        elif rows:
            for line in laid_out(columns, rows, self.console.width):
                self.console.print(line, soft_wrap=True)
        elif empty:
            self.line(Text(empty, "dim"))


def cell(value: Cell) -> Text:
    """Return text that is safe to print."""
    return value if isinstance(value, Text) else Text(printable(value))


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """Lay out a table with a heading for a terminal of this width."""
    cells = [[cell(value) for value in row] for row in rows]
    heads = [Text(column.name, "dim") for column in columns]
    widths = [
        max(entry.cell_len for entry in entries) for entries in zip(heads, *cells, strict=True)
    ]
    chosen = _chosen(columns, widths, width)
    return [_row(columns, chosen, row) for row in (heads, *cells)]


def _chosen(columns: Sequence[Column], widths: list[int], width: int) -> dict[int, int]:
    """Return the widths of the columns that fit, by their numbers."""
    chosen = dict(enumerate(widths))
    while True:
        excess = sum(chosen.values()) + _GAP * (len(chosen) - 1) - width
        for number in sorted(chosen, key=lambda each: (-columns[each].rank, -each)):
            least = columns[number].least
            if excess > 0 and least is not None:
                cut = min(excess, max(0, chosen[number] - least))
                chosen[number] -= cut
                excess -= cut
        droppable = [number for number in chosen if columns[number].rank > 0]
        if excess <= 0 or not droppable:
            return chosen
        del chosen[max(droppable, key=lambda each: (columns[each].rank, each))]
        chosen = {number: widths[number] for number in chosen}


def _row(columns: Sequence[Column], chosen: dict[int, int], row: Sequence[Text]) -> Text:
    parts: list[Text] = []
    for number, width in chosen.items():
        entry = shortened(row[number], width, ends=columns[number].ends)
        gap = " " * (width - entry.cell_len)
        parts.append(
            Text.assemble(gap, entry) if columns[number].right else Text.assemble(entry, gap)
        )
    line = Text(" " * _GAP).join(parts)
    line.rstrip()
    return line


def shortened(text: Text, width: int, *, ends: bool = False) -> Text:
    """Return a text of at most this many terminal cells; with ``ends`` it loses its middle.

    >>> shortened(Text("orders/auto-20260131"), 12, ends=True).plain
    'order…260131'
    """
    cut = text.copy()
    if text.cell_len <= width or not ends:
        cut.truncate(width, overflow="ellipsis")
        return cut
    cut.truncate((width - 1) // 2, overflow="crop")
    rest = width - 1 - cut.cell_len
    tail = next(part for n in range(len(text)) if (part := text[n:]).cell_len <= rest)
    return Text.assemble(cut, "…", tail)


def is_terminal() -> bool:
    """Return whether progress can be shown."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
