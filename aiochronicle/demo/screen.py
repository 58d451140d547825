"""The live view: a frame a few times per second, or a line per second without a terminal."""

import os
import shutil
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from aiochronicle.demo.board import Board, Feed, Reader
from aiochronicle.demo.options import Options
from aiochronicle.demo.text import Theme, duration, table, theme_of_stdout, visible_length
from aiochronicle.histogram import octave_of

__all__ = ["LineView", "LiveView", "View", "view_for"]

FRAME_S = 0.1
LINE_S = 1.0

# The latency strip: one column per power of two, 1 µs to 67 ms.
FIRST_OCTAVE, LAST_OCTAVE = 10, 26


class View:
    """Shows the board now and then. A context manager: leaving it restores the terminal."""

    interval_s = LINE_S

    def __init__(self, board: Board, options: Options, theme: Theme) -> None:
        self.board = board
        self.options = options
        self.theme = theme
        self._due_s = 0.0

    def refresh(self) -> None:
        """Show the board if it is time to."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + self.interval_s
            self.show()

    def show(self) -> None:
        """Show the board."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class LineView(View):
    """One line per second, and one per event."""

    def __init__(self, board: Board, options: Options, theme: Theme) -> None:
        super().__init__(board, options, theme)
        self._shown_events = 0

    def show(self) -> None:
        board = self.board
        for elapsed_s, text in board.events[self._shown_events :]:
            print(self.theme.plain_text(f"{elapsed_s:5.1f} s  {text}"), flush=True)
        self._shown_events = len(board.events)
        if board.started_s is None:
            return
        slowest = [reader.recent().percentile(99) for reader in board.readers.values()]
        lag = sum(reader.report.lag for reader in board.readers.values() if reader.report)
        line = (
            f"{board.elapsed_s:5.1f} s  written {board.written_rate():>9,.0f}/s"
            f"  read {board.read_rate():>9,.0f}/s  {board.read_byte_rate() / 1e6:6.1f} MB/s"
            f"  lag {lag:>6,}  p99 {duration(max((p for p in slowest if p), default=None))}"
        )
        print(self.theme.plain_text(line), flush=True)

    def __exit__(self, *exception: object) -> None:
        self.show()


class LiveView(View):
    """The whole screen, on the terminal's second page: the first one comes back untouched."""

    interval_s = FRAME_S

    def __enter__(self) -> Self:
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")
        return self

    def __exit__(self, *exception: object) -> None:
        self._write("\x1b[?25h\x1b[?1049l")

    def show(self) -> None:
        self.board.written_history.append(self.board.written_rate())
        size = shutil.get_terminal_size()
        lines = [
            self.theme.plain_text(_clip(line, size.columns)) for line in self._frame(size.columns)
        ]
        # From the top, each line cleared behind its text: nothing flickers.
        body = "\x1b[K\n".join(lines[: size.lines - 1])
        self._write(f"\x1b[H{body}\x1b[K\x1b[J")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _frame(self, columns: int) -> Iterable[str]:
        board, options, theme = self.board, self.options, self.theme
        width = min(columns - 2, 104)
        title = theme.paint("aiochronicle", "title") + theme.paint(" · live demo", "dim")
        people = f"{len(board.feeds)} feeds → {len(board.readers)} readers, each a process"
        yield ""
        yield " " + title + theme.paint(people.rjust(width - visible_length(title)), "dim")
        clock = f" {min(board.elapsed_s, options.seconds):4.1f} of {options.seconds:g} s"
        if board.started_s is None:
            clock = " starting"
        share = board.elapsed_s / options.seconds
        yield " " + theme.bar(share, width - len(clock)) + theme.paint(clock, "dim")
        yield ""
        yield " " + self._totals()
        yield ""
        for line in table(
            theme, _FEED_HEADINGS, [self._feed(feed) for feed in board.feeds.values()]
        ):
            yield " " + line
        yield ""
        rows = [self._reader(reader) for reader in board.readers.values()]
        for line in table(theme, [*_READER_HEADINGS, _scale()], rows):
            yield " " + line
        yield ""
        for elapsed_s, text in board.events[-4:]:
            yield " " + theme.paint(f"{elapsed_s:4.1f} s  ", "dim") + text
        yield ""
        yield " " + theme.paint("Ctrl-C ends early; everything is verified at the end", "dim")

    def _totals(self) -> str:
        board, theme = self.board, self.theme
        strip = theme.steps(list(board.written_history)).rjust(board.written_history.maxlen or 0)
        return "   ".join(
            (
                theme.paint(f"{board.written_rate():>9,.0f}", "bold") + " written/s",
                theme.paint(f"{board.read_rate():>9,.0f}", "bold") + " read/s",
                theme.paint(f"{board.read_byte_rate() / 1e6:>6.1f}", "bold") + " MB/s read",
                theme.paint(strip, "cyan"),
            )
        )

    def _feed(self, feed: Feed) -> list[str]:
        theme, report, now_s = self.theme, feed.report, time.monotonic()
        style = {"writing": "green", "killed": "bad"}.get(feed.state, "yellow")
        return [
            theme.paint(feed.queue.ljust(14), "cyan"),
            theme.paint(f"{feed.messages.rate(now_s):,.0f}", "bold"),
            f"{feed.messages.value:>10,}",
            str(report.segment + 1) if report else "–",
            *(duration(feed.append_times.percentile(p)).rjust(7) for p in (50, 99.9)),
            theme.paint(feed.state, style),
        ]

    def _reader(self, reader: Reader) -> list[str]:
        theme, recent = self.theme, reader.recent()
        lag = reader.report.lag if reader.report else 0
        percentiles = [duration(recent.percentile(percent)) for percent in (50, 99, 99.9)]
        return [
            theme.paint(reader.queue, "cyan") + theme.paint(" → ", "dim") + reader.name,
            theme.paint(f"{reader.messages.rate(time.monotonic()):>9,.0f}", "bold"),
            theme.paint(f"{lag:>5,}", "yellow" if lag > 10_000 else "dim" if lag == 0 else "green"),
            *(text.rjust(7) for text in percentiles),
            theme.paint(self._strip(reader), "green"),
        ]

    def _strip(self, reader: Reader) -> str:
        shares = [0.0] * (LAST_OCTAVE - FIRST_OCTAVE)
        for bucket, count in reader.recent().counts.items():
            column = min(max(octave_of(bucket) - FIRST_OCTAVE, 0), len(shares) - 1)
            shares[column] += count
        return self.theme.steps(shares)


_FEED_HEADINGS = ["FEED", "written/s", "written", "segments", "append p50", "p99.9", ""]
_READER_HEADINGS = ["READER", "read/s", "lag", "p50", "p99", "p99.9"]


def _scale() -> str:
    """Return the heading of the latency strip: where 1 µs, 33 µs and 1 ms are."""
    marks = {0: "1µs", 5: "33µs", 10: "1ms"}
    text = ""
    for column, mark in marks.items():
        text = text.ljust(column) + mark
    return text


def _clip(line: str, columns: int) -> str:
    """Cut the line at the edge of the screen, leaving escape sequences whole."""
    if visible_length(line) <= columns:
        return line
    shown, result, position = 0, "", 0
    while position < len(line) and shown < columns:
        if line[position] == "\x1b":
            end = line.index("m", position) + 1
            result += line[position:end]
            position = end
        else:
            result += line[position]
            position += 1
            shown += 1
    return result + "\x1b[0m"


def view_for(board: Board, options: Options) -> View:
    """Return the view that standard output can show."""
    capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    colour = capable and not os.environ.get("NO_COLOR")
    if options.plain or not capable:
        return LineView(board, options, theme_of_stdout(colour=colour and not options.plain))
    return LiveView(board, options, theme_of_stdout(colour=colour))
