"""The last part of the demo: Spark makes bars from the recording.

It runs in a process of its own, because the JVM writes much to standard error, and because the demo works
without it.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from aiochronicle._base.prepared import prepared
from aiochronicle.demo.screen import make_table

__all__ = ["main", "show"]

EVERY = "1s"
SYMBOL = "ALFA"
ROWS_SHOWN = 12
TIMEOUT_S = 300.0


@prepared
class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar as the child reports it."""

    start: str
    open: float
    high: float
    low: float
    close: float
    volume: float
    vwap: float
    trades: int


@prepared
class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the child process, and the bars to show."""

    messages: int
    bars: int
    seconds: float
    shown: list[Bar]


def show(console: Console, root: Path, venue: str, plot: Path) -> None:
    """Run the pipeline over the queues and print its result, or why it cannot run."""

    def say(text: RenderableType) -> None:
        console.print(text, soft_wrap=True)

    say("")
    if importlib.util.find_spec("pyspark") is None:
        say(
            'Spark is not installed. With it, the demo ends with bars: pip install "aiochronicle\\[spark]"'
        )
        return
    say(
        Text("the same queues as a Spark pipeline: starting Spark, some ten seconds …", style="dim")
    )
    try:
        report = _run(root, venue, plot)
    except (subprocess.SubprocessError, msgspec.DecodeError, OSError) as error:
        say(Text(f"the pipeline could not run here, everything else is as above: {_reason(error)}"))
        return
    table = make_table(
        f"{SYMBOL} {venue}", "open", "high", "low", "close", "volume", "VWAP", "trades", ""
    )
    for bar in report.shown:
        table.add_row(*_cells(bar))
    say("")
    say(table)
    say("")
    say(
        Text.assemble(
            ("✓ ", "bold green"),
            f"{report.bars:,} bars of {EVERY} out of {report.messages:,}"
            f" recorded messages in {report.seconds:.1f} s of Spark; drawn in {plot}",
        )
    )


def _run(root: Path, venue: str, plot: Path) -> Report:
    command = [sys.executable, "-m", __name__, str(root), venue, str(plot)]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Report)


def _reason(error: Exception) -> str:
    output: bytes = getattr(error, "stderr", None) or b""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)


def _cells(bar: Bar) -> list[RenderableType]:
    style = "green" if bar.close >= bar.open else "red"
    return [
        Text(bar.start, style="cyan"),
        *(f"{value:,.2f}" for value in (bar.open, bar.high, bar.low)),
        Text(f"{bar.close:,.2f}", style=style),
        f"{bar.volume:,.0f}",
        f"{bar.vwap:,.4f}",
        f"{bar.trades:,}",
    ]


def main(root: str, venue: str, plot: str) -> None:
    """Make the bars; the last line of standard output is the report."""
    import time

    from aiochronicle.spark import session
    from aiochronicle.spark.jobs import bars
    from aiochronicle.spark.jobs.inputs import find_input
    from aiochronicle.spark.jobs.plots import plot_bars

    spark = session("aiochronicle demo", config={"spark.log.level": "OFF"})
    try:
        started_s = time.monotonic()
        rows: list[Any] = bars(spark, root, every=EVERY).collect()
        seconds = time.monotonic() - started_s
    finally:
        spark.stop()
    Path(plot).parent.mkdir(parents=True, exist_ok=True)
    plot_bars([row for row in rows if row.source == venue], plot)
    found = find_input(root)
    shown = [row for row in rows if (row.source, row.symbol) == (venue, SYMBOL)][-ROWS_SHOWN:]
    report = Report(
        messages=sum(found.messages(name) for name in found.sources),
        bars=len(rows),
        seconds=seconds,
        shown=[
            msgspec.convert({**row.asDict(), "start": f"{row.start:%H:%M:%S}"}, Bar)
            for row in shown
        ],
    )
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
