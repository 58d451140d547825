"""The live view: the whole screen, or a line per second without a terminal."""

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import _export_format
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiochronicle.demo.board import Board, Process
from aiochronicle.demo.options import Options

__all__ = ["View", "duration", "is_live", "make_console", "make_table", "save_svg"]

FRAME_S = 0.1
LINE_S = 1.0
WIDTH_MAX = 100
EVENTS_SHOWN = 5
PIPE_COLUMNS = 160

STATES = {"running": "green", "killed": "bold red"}
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def duration(nanoseconds: int | None) -> str:
    """Return a time with three digits and its unit.

    >>> [duration(value) for value in (None, 950, 8_430, 123_456, 4_200_000, 12_000_000_000)]
    ['–', '950 ns', '8.43 µs', '123 µs', '4.20 ms', '12.0 s']
    """
    if nanoseconds is None:
        return "–"
    if nanoseconds < 1000:
        return f"{nanoseconds} ns"
    size_ns, unit = next((size, unit) for size, unit in UNITS if nanoseconds >= 0.9995 * size)
    value = nanoseconds / size_ns
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def is_live(options: Options) -> bool:
    """Return whether standard output can show the live view."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not options.plain


def make_console(options: Options) -> Console:
    """Return the console of standard output; a pipe gets long lines without control codes."""
    if sys.stdout.isatty() and not options.plain:
        return Console(highlight=False, emoji=False)
    return Console(
        highlight=False, emoji=False, color_system=None, force_terminal=False, width=PIPE_COLUMNS
    )


def make_table(*headings: str, left: int = 1) -> Table:
    """Return a table without lines; the first columns and the last are flush left."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column, heading in enumerate(headings):
        flush_left = column < left or column == len(headings) - 1
        table.add_column(heading, justify="left" if flush_left else "right", no_wrap=True)
    return table


def frame(board: Board, options: Options, width: int) -> RenderableType:
    """Return the live view."""
    return Group(
        Text.assemble(
            ("aiochronicle", "bold cyan"),
            ("  venues → strategies → router → gateway → risk", "dim"),
            ("   Ctrl-C ends early", "dim"),
        ),
        _clock(board, options, width),
        Text(),
        _venues(board),
        Text(),
        _strategies(board),
        Text(),
        _services(board),
        Text(),
        *(
            Text.assemble((f"{elapsed_s:4.1f} s  ", "dim"), text, overflow="ellipsis", no_wrap=True)
            for elapsed_s, text in board.events[-EVENTS_SHOWN:]
        ),
        Text(
            "p50, p99: duration of an append; age of a message (risk: of a tick) when read", "dim"
        ),
    )


def _clock(board: Board, options: Options, width: int) -> RenderableType:
    shown_s = min(board.elapsed_s, options.seconds)
    text = f"{shown_s:4.1f} of {options.seconds:g} s" if board.started_s else "starting"
    bar = ProgressBar(total=options.seconds, completed=shown_s, width=width - len(text) - 1)
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(bar, Text(text, style="dim"))
    return row


def _venues(board: Board) -> Table:
    table = make_table("VENUE    ", "written/s", " written", "    p50", "    p99", "  p99.9", "")
    for venue in board.of("venue"):
        percentiles = (venue.latencies.percentile(percent) for percent in (50, 99, 99.9))
        table.add_row(_name(venue), *_flow(venue), *map(duration, percentiles), _state(venue))
    return table


def _strategies(board: Board) -> Table:
    table = make_table(
        "STRATEGY ", " read/s", "    read", "   lag", "    p50", "    p99", "orders", " fills", ""
    )
    for process in board.of("strategy"):
        report = process.report
        table.add_row(
            _name(process),
            *_flow(process),
            *_delays(process),
            f"{report.orders:,}" if report else "–",
            f"{report.fills:,}" if report else "–",
            _state(process),
        )
    return table


def _services(board: Board) -> Table:
    table = make_table("SERVICE  ", "  done/s", "    done", "   lag", "    p50", "    p99", "")
    for role, describe in (("router", _routed_text), ("gateway", _filled_text), ("risk", _at_risk)):
        for process in board.of(role):
            running = process.state == "running"
            last = Text(describe(process), style="dim") if running else _state(process)
            table.add_row(_name(process), *_flow(process), *_delays(process), last)
    return table


def _routed_text(process: Process) -> str:
    sources = process.report.sources if process.report else []
    return f"{len(sources)} strategies attached"


def _filled_text(process: Process) -> str:
    return "a fill per order"


def _at_risk(process: Process) -> str:
    positions = process.report.positions if process.report else {}
    return f"net {sum(positions.values()):+,} in {len(positions)} symbols"


def _name(process: Process) -> Text:
    return Text(process.name, style="cyan")


def _flow(process: Process) -> tuple[Text, str]:
    return Text(f"{process.rate():,.0f}", style="bold"), f"{process.done:,}"


def _delays(process: Process) -> Iterable[Text | str]:
    lag = process.lag
    style = "yellow" if lag > 10_000 else "dim" if lag == 0 else "green"
    recent = process.recent()
    return [Text(f"{lag:,}", style=style), *(duration(recent.percentile(p)) for p in (50, 99))]


def _state(process: Process) -> Text:
    return Text(process.state, style=STATES.get(process.state, "yellow"))


class View:
    """Shows the board at intervals. A context manager: leaving it restores the terminal."""

    def __init__(self, board: Board, options: Options, console: Console) -> None:
        self._board = board
        self._options = options
        self._console = console
        self._due_s = 0.0
        self._shown_events = 0
        self._live = (
            Live(console=console, screen=True, auto_refresh=False) if is_live(options) else None
        )
        self._interval_s = FRAME_S if self._live else LINE_S

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._print_events()

    def refresh(self) -> None:
        """Show events at once, and the board if it is due."""
        if self._live is None:
            self._print_events()
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            self._show()

    def _show(self) -> None:
        if self._live is not None:
            width = min(self._console.width, WIDTH_MAX)
            self._live.update(frame(self._board, self._options, width), refresh=True)
        elif self._board.started_s is not None:
            self._print(f"{self._board.elapsed_s:5.1f} s  {self._line()}")

    def _print_events(self) -> None:
        for elapsed_s, text in self._board.events[self._shown_events :]:
            self._print(f"{elapsed_s:5.1f} s  {text}")
        self._shown_events = len(self._board.events)

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _line(self) -> str:
        board = self._board
        written = sum(venue.rate() for venue in board.of("venue"))
        strategies = board.of("strategy")
        read = sum(strategy.rate() for strategy in strategies)
        orders = sum(s.report.orders for s in strategies if s.report)
        fills = sum(s.report.fills for s in strategies if s.report)
        lag = sum(process.lag for process in board.processes.values())
        (risk,) = board.of("risk")
        return (
            f"ticks {written:>7,.0f}/s  read {read:>8,.0f}/s  orders {orders:>7,}  fills {fills:>7,}"
            f"  lag {lag:>6,}  tick to risk p99 {duration(risk.recent().percentile(99))}"
        )


def save_svg(path: Path, title: str, parts: Iterable[RenderableType], width: int = 90) -> None:
    """Save the output as a self-contained picture."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(
            record=True, width=width, file=nowhere, force_terminal=True, highlight=False
        )
        for part in parts:
            console.print(part)
        code_format = re.sub(
            r"@font-face \{\{.*?\}\}", "", _export_format.CONSOLE_SVG_FORMAT, flags=re.S
        )
        svg = console.export_svg(title=title, code_format=code_format)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
