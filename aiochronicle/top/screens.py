"""Screens over the table: details of a queue, its messages, why it is kept, and events with alarms."""

import asyncio
import time
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from aiochronicle._base.printable import printable
from aiochronicle._core.kept import why_kept
from aiochronicle._core.newest import start_of_newest
from aiochronicle._core.queue import ReaderInfo
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle.cli.decoding import Decoder
from aiochronicle.cli.output import shortened
from aiochronicle.cli.processes import program_of
from aiochronicle.cli.settings import capacity_of, flush_of, retention_of
from aiochronicle.cli.states import STYLES, state_of
from aiochronicle.cli.units import age, amount, many, rate, seq_text, since, when
from aiochronicle.errors import ChronicleError
from aiochronicle.monitor.records import Alarm, Event, QueueState
from aiochronicle.top.rows import WARNING, style_of

__all__ = ["EventsScreen", "QueueScreen", "TailScreen", "WhyScreen"]

_LINES = 200
_BATCH = 500
_NAME_MAX = 28
_SHOWN_AT_ONCE = 20


class _Over(Screen[None]):
    """Base of the screens: a heading, and Escape to return to the table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "app.pop_screen", "back"),
        ("q", "app.pop_screen", "back"),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def head(self) -> Static:
        """Return the heading."""
        return Static(Text(self._title, "bold", no_wrap=True, overflow="ellipsis"), classes="head")


class QueueScreen(_Over):
    """Details of one queue. The application calls ``show`` after each look."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "app.tail", "tail"),
        ("w", "app.why", "why kept"),
    ]

    def __init__(self, state: QueueState) -> None:
        super().__init__(state.name)
        self.number = state.number
        self._state = state

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self.head()
        with VerticalScroll():
            yield Static(id="about")
        yield Footer()

    def on_mount(self) -> None:
        """Show the state of the last look."""
        self.show(self._state)

    def show(self, state: QueueState) -> None:
        """Show a new state of the queue."""
        self.query_one("#about", Static).update(_describe(state))


def _describe(state: QueueState) -> Text:
    text = Text()

    def line(name: str, value: str, style: str = "") -> None:
        text.append(f"{name:<16}", "dim").append(printable(value), style).append("\n")

    def title(name: str) -> None:
        text.append(f"\n{name}\n", "bold cyan")

    line("path", state.path)
    if state.problem is not None:
        line("problem", state.problem, "bold red")
        return text
    info, writer = state.info, state.writer
    form = "cq4" if state.format == "java" else "native"
    line("next seq", seq_text(state.next_seq, form))
    line("rate", f"{rate(state.rate)}, {amount(state.rate_bytes)}/s")
    if info is not None:
        line("segments", f"{info.segments:,}, {amount(info.disk_bytes)}")
        oldest, last = (
            ("oldest cycle", "newest cycle")
            if form == "cq4"
            else ("oldest message", "last message")
        )
        line(oldest, f"{since(info.oldest_ns, state.looked_ns)} ago")
        line(last, f"{since(info.last_timestamp_ns or None, state.looked_ns)} ago")
    if writer is not None:
        how = state_of(writer)
        style = {**STYLES, "stopped": "bold red", "died": "bold red"}.get(how, "")
        line("writer", f"{how}, pid {writer.pid}, {program_of(writer.command)}", style)
        line("opened", f"{since(writer.since_ns, state.looked_ns)} ago")
        line("flush", flush_of(writer.flush))
        line("retention", retention_of(writer.retention))
        line("capacity", capacity_of(writer.capacity))
        for slow in writer.slow_appends[-5:]:
            took = age(slow.duration_ns / 1e9)
            ago = since(slow.time_ns, state.looked_ns)
            line("slow append", f"{took} at seq {slow.seq:,}: {slow.cause}, {ago} ago", WARNING)
        for error in writer.errors[-5:]:
            line("error", f"{error.text} ({many(error.count, 'time')})", "red")
    title("Readers")
    for reader in state.readers:
        how = _how_is(reader)
        lag = f"{many(reader.lag.messages, 'message')}, {amount(reader.lag.bytes)}"
        has_age = reader.lag.messages and state.format == "native"
        old = f", {age(reader.lag.seconds)} old" if has_age else ""
        who = f", pid {reader.pid}" if reader.pid else ""
        line(reader.name, f"{how}, {lag}{old}{who}", "bold red" if reader.lost else "")
    if not state.readers:
        text.append("none\n", "dim")
    for group in state.groups:
        title(f"Group {group.name}")
        line("pending", f"{group.pending:,}, oldest {since(group.oldest_ns, state.looked_ns)}")
        line("in flight", f"{group.in_flight:,}, delayed {group.delayed:,}")
        line("redelivered", f"{group.retried:,}")
        for member in group.members:
            dead = "" if member.alive else ", died"
            line(
                f"pid {member.pid}",
                f"{member.in_flight:,} in flight, {member.acked:,} acknowledged{dead}",
            )
    return text


class TailScreen(_Over):
    """Follows the messages of a queue, as ``aioc tail -f`` does."""

    BINDINGS: ClassVar[list[BindingType]] = [("space", "pause", "pause")]

    def __init__(self, state: QueueState) -> None:
        super().__init__(f"{state.name}: messages, decoded by schema.json")
        self._path = state.path
        self._is_paused = False
        self._reader: Reader[Any] | None = None

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self.head()
        yield RichLog(max_lines=_LINES, wrap=False, markup=False, highlight=False, id="messages")
        yield Footer()

    def on_mount(self) -> None:
        """Open a reader near the end, and read in the background."""
        self.run_worker(self._follow(), exclusive=True)

    def on_unmount(self) -> None:
        """Close the reader."""
        self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def action_pause(self) -> None:
        """Pause the output, or continue it."""
        self._is_paused = not self._is_paused

    async def _follow(self) -> None:
        log = self.query_one("#messages", RichLog)
        try:
            decoder = await asyncio.to_thread(Decoder, Path(self._path))
            self._reader = reader = await asyncio.to_thread(_open_near_end, self._path)
            while not reader.closed:
                lines = [] if self._is_paused else await asyncio.to_thread(_next, decoder, reader)
                for line in lines:
                    log.write(Text(line))
                await asyncio.sleep(0.1)
        except (ChronicleError, OSError, ValueError) as error:
            if self._reader is not None or self.is_mounted:
                log.write(Text(printable(error), "red"))


def _how_is(reader: ReaderInfo) -> str:
    if reader.lost or reader.stopped:
        return "lost" if reader.lost else "stopped"
    return "open" if reader.live else "away"


def _open_near_end(path: str) -> Reader[Any]:
    start = start_of_newest(path, _SHOWN_AT_ONCE, on_corrupt="skip")
    return open_reader(path, start=start, on_corrupt="skip", verify=False)


def _next(decoder: Decoder, reader: Reader[Any]) -> list[str]:
    """Return the next lines. If there are too many messages to show, only the newest."""
    if reader.closed:
        return []
    lag = reader.lag.messages
    left: list[str] = []
    if lag > _BATCH:
        reader.seek(start_of_newest(reader.path, _LINES, on_corrupt="skip"))
        left = [f"… {max(0, lag - reader.lag.messages):,} messages are not shown"]
    return left + [decoder.line(message) for message in reader.read_batch(_BATCH)]


class WhyScreen(_Over):
    """Shows which reader or rule keeps each segment."""

    def __init__(self, state: QueueState) -> None:
        super().__init__(f"{state.name}: why segments are kept, the oldest first")
        self._path = state.path

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self.head()
        with VerticalScroll():
            yield Static("looking …", id="why")
        yield Footer()

    async def on_mount(self) -> None:
        """Ask the engine in a thread, and show the result."""
        text = Text()
        try:
            kept = await asyncio.to_thread(why_kept, self._path)
        except (ChronicleError, OSError) as error:
            text.append(printable(error), "red")
        else:
            for one in kept[:_LINES]:
                text.append(f"{one.segment:>8}  {amount(one.bytes):>9}  ", "dim")
                text.append(f"{printable(one.text)}\n", WARNING if one.reader else "")
            if len(kept) > _LINES:
                text.append(f"and {len(kept) - _LINES:,} more", "dim")
        self.query_one("#why", Static).update(text)


class EventsScreen(_Over):
    """Shows the alarms, and below them the events, the newest first."""

    def __init__(self, alarms: tuple[Alarm, ...], events: list[Event]) -> None:
        super().__init__("Alarms and events")
        self._alarms = alarms
        self._events = events

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self.head()
        with VerticalScroll():
            yield Static(self._wrong(), id="alarms")
            yield Static(self._happened(), id="events")
        yield Footer()

    def _wrong(self) -> Text:
        text = Text()
        for alarm in self._alarms:
            text.append(f"{alarm.name or 'all'}: {alarm.text}\n", style_of(alarm))
        if not self._alarms:
            text.append("no alarms\n", "green")
        return text

    def _name_max(self) -> int:
        return min(_NAME_MAX, self.size.width // 5)

    def _happened(self) -> Table:
        today = when(time.time_ns(), parts=False)[:10]
        rows = Table.grid(padding=(0, 2, 0, 0))
        for style in ("dim", "cyan"):
            rows.add_column(style=style, no_wrap=True)
        rows.add_column(style="bold", no_wrap=True, overflow="ellipsis", max_width=self._name_max())
        rows.add_column()
        for event in sorted(self._events, key=lambda one: one.time_ns, reverse=True):
            day, _, moment = when(event.time_ns, parts=False).removesuffix("Z").partition("T")
            count = f" ×{event.count}" if event.count > 1 else ""
            rows.add_row(
                Text(moment if day == today else f"{day} {moment}"),
                Text(f"{event.kind}{count}"),
                shortened(Text(event.name), self._name_max(), ends=True),
                Text(printable(event.text)),
            )
        return rows
