"""The last part of the demo: Spark makes bars of what was just recorded.

In a process of its own, because the JVM has much to say on standard error, and because the demo ends
well without it.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._prepared import prepared
from aiochronicle.demo.text import Theme, table

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
    """What the child has done, and the bars to show."""

    messages: int
    bars: int
    seconds: float
    shown: list[Bar]


def show(theme: Theme, root: Path, feed: str, plot: Path) -> None:
    """Run the pipeline over the queues and print what it found; say so if it cannot run."""

    def say(text: str) -> None:
        print(theme.plain_text(f" {text}".rstrip()), flush=True)

    say("")
    if importlib.util.find_spec("pyspark") is None:
        say(
            'Spark is not installed; with it, the demo ends with bars: pip install "aiochronicle[spark]"'
        )
        return
    say(
        theme.paint(
            "the same queues as a Spark pipeline: starting Spark, some ten seconds …", "dim"
        )
    )
    try:
        report = _run(root, feed, plot)
    except (subprocess.SubprocessError, msgspec.DecodeError, OSError) as error:
        say(f"the pipeline could not run here, everything else is as above: {_reason(error)}")
        return
    say("")
    headings = [f"{SYMBOL} {feed}", "open", "high", "low", "close", "volume", "VWAP", "trades", ""]
    for line in table(theme, headings, [_cells(theme, bar) for bar in report.shown]):
        say(line)
    say("")
    say(
        theme.paint("✓ ", "good") + f"{report.bars:,} bars of {EVERY} out of {report.messages:,}"
        f" recorded messages in {report.seconds:.1f} s of Spark; drawn in {plot}"
    )


def _run(root: Path, feed: str, plot: Path) -> Report:
    command = [sys.executable, "-m", __name__, str(root), feed, str(plot)]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Report)


def _reason(error: Exception) -> str:
    output: bytes = getattr(error, "stderr", None) or b""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)


def _cells(theme: Theme, bar: Bar) -> list[str]:
    risen = bar.close >= bar.open
    prices = [f"{value:,.2f}" for value in (bar.open, bar.high, bar.low, bar.close)]
    prices[-1] = theme.paint(prices[-1], "green" if risen else "red")
    return [
        theme.paint(bar.start, "cyan"),
        *prices,
        f"{bar.volume:,.0f}",
        f"{bar.vwap:,.4f}",
        f"{bar.trades:,}",
        "",
    ]


def main(root: str, feed: str, plot: str) -> None:
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
    plot_bars([row for row in rows if row.source == feed], plot)
    found = find_input(root)
    shown = [row for row in rows if (row.source, row.symbol) == (feed, SYMBOL)][-ROWS_SHOWN:]
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
