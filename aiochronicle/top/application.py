"""The application of ``aioc top``: the table of queues, redrawn after each look, and what the keys do."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from aiochronicle.cli.output import shortened
from aiochronicle.cli.units import age, amount, many, rate
from aiochronicle.monitor.collector import Collector, Limits
from aiochronicle.monitor.records import QueueState, Snapshot
from aiochronicle.monitor.stalls import stalls_of
from aiochronicle.top.rows import COLUMNS, ORDERS, WARNING, Column, Order, Row, rows_of, style_of
from aiochronicle.top.screens import EventsScreen, QueueScreen, TailScreen, WhyScreen

__all__ = ["Top"]

_OF_TABLE = ("open", "events", "sort", "reverse", "readers", "filter", "quit")
_OF_QUEUE = ("tail", "why")


class _Table(DataTable[Text]):
    """The table. It shows Enter among the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select_cursor", "open")]


class Top(App[None]):
    """A table of all queues in or below a directory, redrawn after each look of the collector."""

    CSS = """
    #totals, .head { height: 1; padding: 0 1; }
    #warning { height: auto; max-height: 2; padding: 0 1; }
    #totals { background: $primary 30%; }
    .head { background: $primary 30%; }
    #warning { background: $surface; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    DataTable { height: 1fr; }
    VerticalScroll { height: 1fr; padding: 0 1; }
    RichLog { height: 1fr; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "tail", "tail"),
        ("w", "why", "why"),
        ("e", "events", "events"),
        ("s", "sort", "sort"),
        ("r", "reverse", "reverse"),
        ("x", "readers", "readers"),
        ("slash", "filter", "filter"),
        Binding("d", "dark", "dark", show=False),
        ("q", "quit", "quit"),
        Binding("ctrl+c", "leave", "quit", show=False, priority=True),  # in the input as well
    ]

    def __init__(
        self, root: str | os.PathLike[str], *, limits: Limits | None = None, interval_s: float = 1.0
    ) -> None:
        super().__init__()
        self._collector = Collector(root, limits=limits)
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, "aioc-look")  # the collector belongs to it
        self._watching: Worker[None] | None = None
        self._rows: list[Row] = []
        self.snapshot: Snapshot | None = None
        self.order: Order = "name"
        self.is_reversed = False
        self.shows_readers = True

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static("looking …", id="totals")
        yield _Table(id="queues", cursor_type="row", zebra_stripes=True)
        yield Input(placeholder="part of a name; Enter keeps it, Escape removes it", id="filter")
        yield Static(id="warning")
        yield Footer()

    def on_mount(self) -> None:
        """Start the worker that looks at the queues."""
        self.query_one("#queues", DataTable).focus()
        self._watching = self.run_worker(self._watch())

    async def on_unmount(self) -> None:
        """Close all files of the collector."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(WorkerCancelled, WorkerFailed):
                await self._watching.wait()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._collector.close)
        self._thread.shutdown()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.snapshot = await loop.run_in_executor(
                self._thread, self._collector.look, self._focus()
            )
            self._draw()
            await asyncio.sleep(0.1)
            await self._wait()

    async def _wait(self) -> None:
        """Wait until the next look is due, or a writer or reader process ends."""
        ended = asyncio.Event()
        loop, descriptor = asyncio.get_running_loop(), self._collector.fileno()
        loop.add_reader(descriptor, ended.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await ended.wait()
        finally:
            loop.remove_reader(descriptor)

    def _focus(self) -> set[int]:
        return {screen.number for screen in self.screen_stack if isinstance(screen, QueueScreen)}

    # ---- drawing ----

    def _columns(self) -> list[tuple[int, Column]]:
        return [(i, column) for i, column in enumerate(COLUMNS) if column.least <= self.size.width]

    def _widths(self, columns: list[tuple[int, Column]]) -> list[int]:
        """Return the width of each column. The space that is left goes to the names, or to shown warnings."""
        widths = [column.width for _, column in columns]
        left = self.size.width - sum(width + 2 for width in widths) - 2
        names = max((len(row.cells[0]) for row in self._rows), default=0)
        grown = max(0, min(left, names - widths[0]))
        widths[0] += grown
        if columns[-1][1].title == "WARNING":
            widths[-1] += max(0, left - grown)
        return widths

    def _draw(self) -> None:
        snapshot = self.snapshot
        if snapshot is None:
            return
        self._rows = rows_of(
            snapshot,
            self._collector.history,
            order=self.order,
            reverse=self.is_reversed,
            wanted=self.query_one("#filter", Input).value,
            readers=self.shows_readers,
        )
        self._draw_totals(snapshot)
        self._draw_table()
        self._draw_warning(snapshot)
        for screen in self.screen_stack:
            if isinstance(screen, QueueScreen) and screen.is_mounted:
                for queue in snapshot.queues:
                    if queue.number == screen.number:
                        screen.show(queue)

    def _draw_totals(self, snapshot: Snapshot) -> None:
        history = self._collector.history
        bad = sum(alarm.level == "critical" for alarm in snapshot.alarms)
        warn = len(snapshot.alarms) - bad
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(snapshot.root, "bold")
        if wanted := self.query_one("#filter", Input).value:
            text.append(f"  filter: {wanted}", "bold")
        if bad or warn:
            text.append(
                f"  {bad} critical, {many(warn, 'warning')}", "bold red" if bad else WARNING
            )
        else:
            text.append("  healthy", "green")
        text.append(f"  by {self.order}{' reversed' if self.is_reversed else ''}", "dim")
        text.append(f"  {many(len(snapshot.queues), 'queue')}  {rate(history.last('rate'))}")
        text.append(f"  lag {age(history.last('lag_s'))}")
        if self.size.width >= 100:
            text.append(f"  {amount(snapshot.disk_bytes_free)} free")
        self.query_one("#totals", Static).update(text)

    def _draw_table(self) -> None:
        table = self._table()
        columns = self._columns()
        widths = self._widths(columns)
        shape = [(column.title, width) for (_, column), width in zip(columns, widths, strict=True)]
        known = [(str(one.key.value), one.width) for one in table.ordered_columns]
        keys = [row.key for row in self._rows]
        if shape != known or keys != [str(one.key.value) for one in table.ordered_rows]:
            self._rebuild(table, columns, widths)
            return
        for number, row in enumerate(self._rows):
            for place, (i, column) in enumerate(columns):
                cell = _cell(row, i, column, widths[place])
                if table.get_cell_at(Coordinate(number, place)) != cell:
                    table.update_cell_at(Coordinate(number, place), cell)

    def _rebuild(
        self, table: DataTable[Text], columns: list[tuple[int, Column]], widths: list[int]
    ) -> None:
        chosen = self._chosen_key()
        scrolled = table.scroll_y
        table.clear(columns=True)
        for (_, column), width in zip(columns, widths, strict=True):
            title = Text(column.title, justify="right" if column.right else "left")
            table.add_column(title, width=width, key=column.title)
        for row in self._rows:
            cells = [
                _cell(row, i, column, width)
                for (i, column), width in zip(columns, widths, strict=True)
            ]
            table.add_row(*cells, key=row.key)
        keys = [row.key for row in self._rows]
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen), scroll=False)
        table.scroll_y = scrolled

    def _draw_warning(self, snapshot: Snapshot) -> None:
        stalls = stalls_of(snapshot)
        text = Text(no_wrap=bool(stalls), overflow="ellipsis")
        if snapshot.alarms:
            alarm = snapshot.alarms[0]
            text.append(f"{alarm.name or snapshot.root}: {alarm.text}", style_of(alarm))
        if stalls:
            stall = stalls[0]
            what = (
                f"{stall.reader} (pid {stall.pid}) waits for {stall.name}, if its order is strict"
            )
            text.append(f"\n{what}" if snapshot.alarms else what, WARNING)
        self.query_one("#warning", Static).update(text)

    def on_resize(self) -> None:
        """Show the columns that fit."""
        self._draw()

    def _table(self) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one("#queues", DataTable))

    # ---- what is chosen ----

    def _chosen_key(self) -> str | None:
        table = self._table()
        if not table.row_count or table.cursor_row >= len(table.ordered_rows):
            return None
        return table.ordered_rows[table.cursor_row].key.value

    def _chosen(self) -> QueueState | None:
        wanted: int | None = None
        if isinstance(self.screen, QueueScreen):
            wanted = self.screen.number
        else:
            key = self._chosen_key()
            wanted = next((row.queue for row in self._rows if row.key == key), None)
        queues = () if self.snapshot is None else self.snapshot.queues
        return next((queue for queue in queues if queue.number == wanted), None)

    # ---- keys ----

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of the table while another screen is over it."""
        del parameters
        if action in _OF_QUEUE and isinstance(self.screen, QueueScreen):
            return True
        return action not in (*_OF_TABLE, *_OF_QUEUE) or len(self.screen_stack) <= 1

    def on_data_table_row_selected(self, _: Any) -> None:
        """Open the queue of the row: Enter was pressed."""
        self.action_open()

    def action_open(self) -> None:
        """Open the details of the selected queue."""
        chosen = self._chosen()
        if chosen is not None and not isinstance(self.screen, QueueScreen):
            self.push_screen(QueueScreen(chosen))

    def action_tail(self) -> None:
        """Follow the messages of the selected queue."""
        if (chosen := self._chosen()) is not None:
            self.push_screen(TailScreen(chosen))

    def action_why(self) -> None:
        """Show why the segments of the selected queue are kept."""
        if (chosen := self._chosen()) is not None:
            self.push_screen(WhyScreen(chosen))

    def action_events(self) -> None:
        """Show alarms and events."""
        if self.snapshot is not None:
            self.push_screen(EventsScreen(self.snapshot.alarms, list(self._collector.events)))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.is_reversed = not self.is_reversed
        self._draw()

    def action_readers(self) -> None:
        """Show or hide the readers."""
        self.shows_readers = not self.shows_readers
        self._draw()

    def action_dark(self) -> None:
        """Switch between the dark and the light theme."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_leave(self) -> None:
        """End the program, whichever screen is shown."""
        self.exit()

    def action_filter(self) -> None:
        """Open the input for the filter, a part of a name."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Filter the rows by what was typed so far."""
        self._draw()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Return to the table; the filter stays."""
        self._end_filter()

    def key_escape(self) -> None:
        """Remove the filter."""
        if len(self.screen_stack) <= 1:
            self.query_one("#filter", Input).value = ""
            self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one("#queues", DataTable).focus()


def _cell(row: Row, place: int, column: Column, width: int) -> Text:
    text = row.cells[place].copy()
    text.no_wrap = True
    if column.right:
        text.justify = "right"
        text.align("right", width)
        return text
    return shortened(text, width, ends=place == 0)
