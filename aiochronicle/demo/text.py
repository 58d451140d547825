"""Numbers, colours and tables as text."""

import re
import sys
from collections.abc import Sequence

import msgspec

__all__ = ["Theme", "duration", "table", "theme_of_stdout", "visible_length"]

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "title": "1;36",
    "good": "1;32",
    "bad": "1;31",
}
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_IN_ASCII = {"→": ">", "µ": "u", "–": "-", "·": "|", "✓": "+", "✗": "!"}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def visible_length(text: str) -> int:
    """Return how many columns the text takes."""
    return len(_ESCAPE.sub("", text))


def duration(nanoseconds: int | None) -> str:
    """Return a time with three digits and its unit.

    >>> [duration(value) for value in (None, 950, 8_430, 123_456, 4_200_000, 12_000_000_000)]
    ['–', '950 ns', '8.43 µs', '123 µs', '4.20 ms', '12.0 s']
    """
    if nanoseconds is None:
        return "–"
    if nanoseconds < 1000:
        return f"{nanoseconds} ns"
    size_ns, unit = next((size, unit) for size, unit in _UNITS if nanoseconds >= 0.9995 * size)
    value = nanoseconds / size_ns
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


class Theme(msgspec.Struct, frozen=True):
    """What the terminal can show."""

    colour: bool
    unicode: bool

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and text else text

    def bar(self, share: float, width: int) -> str:
        """Return a progress bar."""
        full = round(min(1.0, max(0.0, share)) * width)
        done, rest = ("━", "─") if self.unicode else ("=", "-")
        return self.paint(done * full, "cyan") + self.paint(rest * (width - full), "dim")

    def steps(self, values: Sequence[float], peak: float | None = None) -> str:
        """Return one block per value, as high as the value."""
        blocks = " ▁▂▃▄▅▆▇█" if self.unicode else " .:-=+*#@"
        highest = (max(values, default=0.0) if peak is None else peak) or 1.0
        levels = len(blocks) - 1
        # What is there at all is shown, however little it is.
        return "".join(
            blocks[min(levels, max(1, round(value / highest * levels)))] if value > 0 else " "
            for value in values
        )

    def plain_text(self, text: str) -> str:
        """Return the text in letters that the terminal has."""
        if self.unicode:
            return text
        for fancy, plain in _IN_ASCII.items():
            text = text.replace(fancy, plain)
        return text


def table(
    theme: Theme, headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1
) -> list[str]:
    """Lay out a table; the first ``left`` columns and the last are flush left, the others right."""
    widths = [
        max(visible_length(row[column]) for row in [headings, *rows])
        for column in range(len(headings))
    ]

    def lay_out(row: Sequence[str]) -> str:
        cells: list[str] = []
        for column, cell in enumerate(row):
            gap = " " * (widths[column] - visible_length(cell))
            flush_left = column < left or column == len(headings) - 1
            cells.append(cell + gap if flush_left else gap + cell)
        return "  ".join(cells).rstrip()

    return [theme.paint(lay_out(headings), "dim"), *(lay_out(row) for row in rows)]


def theme_of_stdout(*, colour: bool) -> Theme:
    """Return the theme for standard output."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return Theme(colour, encoding.startswith("utf"))
