"""Progress of long operations: a bar with rate and time left, on a terminal only."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from aiochronicle.cli.output import console, is_terminal
from aiochronicle.cli.units import amount, rate

__all__ = ["Advance", "progress"]

Advance = Callable[
    [str, int, int | None], None
]  # what is done, how much of it, of how much if known


class _Rate(ProgressColumn):
    def __init__(self, *, is_bytes: bool) -> None:
        super().__init__()
        self._is_bytes = is_bytes

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        text = f"{amount(speed)}/s" if self._is_bytes and speed else rate(speed)
        return Text(text.rjust(12))


@contextmanager
def progress(*, is_bytes: bool = True) -> Generator[Advance]:
    """Yield a function that reports progress; without a terminal it does nothing."""
    if not is_terminal():
        yield lambda what, done, total: None
        return
    screen = console(stderr=True)
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        _Rate(is_bytes=is_bytes),
        TimeRemainingColumn(compact=True),
        console=screen,
        transient=True,
    )
    with shown:
        numbers: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int | None) -> None:
            if what not in numbers:
                for number in numbers.values():
                    shown.update(number, visible=False)
                numbers[what] = shown.add_task(what, total=total)
            shown.update(numbers[what], completed=done, total=total)

        yield advance
