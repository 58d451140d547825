"""Bars and quality as pictures (PNG)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from aiochronicle.spark.jobs.quality import PERCENTILES

__all__ = ["plot_bars", "plot_quality"]

COLUMNS = 2
UP, DOWN, LINE, VOLUME = "#228833", "#cc3311", "#4477aa", "#bbbbbb"
TROUBLE = {
    "missing": "#ee6677",
    "duplicates": "#ccbb44",
    "out_of_order": "#aa3377",
    "late": "#66ccee",
}


def plot_bars(rows: Sequence[Any], path: str | Path, *, by: str | None = "symbol") -> None:
    """Draw the rows of ``bars``: candles, VWAP and volume of each series."""
    series: dict[str, list[Any]] = {}
    for row in rows:
        name = row.source if by is None else f"{row[by]} · {row.source}"
        series.setdefault(name, []).append(row)
    lines = -(-len(series) // COLUMNS) or 1
    figure: Any = Figure(figsize=(6.5 * COLUMNS, 2.6 * lines), layout="constrained")
    grid = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for axes, (name, bars) in zip(grid, series.items(), strict=False):
        _draw_series(axes, name, bars)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_series(axes: Any, name: str, bars: Sequence[Any]) -> None:
    places = range(len(bars))
    volume = axes.twinx()
    volume.bar(places, [bar.volume for bar in bars], 0.8, color=VOLUME, alpha=0.5)
    volume.set_ylim(0, 4 * max(bar.volume for bar in bars))  # in the lower quarter
    volume.set_yticks([])
    colours = [UP if bar.close >= bar.open else DOWN for bar in bars]
    axes.vlines(places, [bar.low for bar in bars], [bar.high for bar in bars], colours, linewidth=1)
    least = (max(bar.high for bar in bars) - min(bar.low for bar in bars)) / 200
    bottoms = [min(bar.open, bar.close) for bar in bars]
    bodies = [max(abs(bar.close - bar.open), least) for bar in bars]
    axes.bar(places, bodies, 0.6, bottoms, color=colours)
    axes.plot(places, [bar.vwap for bar in bars], color=LINE, linewidth=1.2, label="VWAP")
    axes.set_zorder(volume.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_title(name, fontsize="medium", loc="left")
    step = max(1, len(bars) // 6)
    labels = [f"{bar.start:%H:%M:%S}" for bar in bars[::step]]
    axes.set_xticks(list(places)[::step], labels, fontsize="small")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.legend(fontsize="small", frameon=False, loc="upper left")
    for each in (axes, volume):
        each.spines[["top", "right"]].set_visible(False)


def plot_quality(rows: Sequence[Any], path: str | Path) -> None:
    """Draw the rows of ``quality``: volume, trouble and delays of each queue and day."""
    places = list(range(len(rows)))
    figure: Any = Figure(figsize=(max(7.0, 1.1 * len(rows)), 9.0), layout="constrained")
    volume, trouble, delays = figure.subplots(3, 1, sharex=True)
    volume.bar(places, [row.messages for row in rows], 0.6, color=LINE)
    volume.set_title("messages")
    width = 0.8 / len(TROUBLE)
    for number, (kind, colour) in enumerate(TROUBLE.items()):
        at = [place + (number - 1.5) * width for place in places]
        label = kind.replace("_", " ")
        trouble.bar(at, [row[kind] for row in rows], width, color=colour, label=label)
    trouble.set_title("trouble (messages)")
    trouble.set_yscale("symlog", linthresh=1)
    trouble.legend(ncols=len(TROUBLE), fontsize="small", frameon=False)
    _draw_delays(delays, places, rows)
    labels = [f"{row.source}\n{row.date:%d %b}" for row in rows]
    delays.set_xticks(places, labels, fontsize="small")
    for axes in (volume, trouble, delays):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=110)


def _draw_delays(axes: Any, places: Sequence[int], rows: Sequence[Any]) -> None:
    axes.set_title("delay from the venue's time to the queue's (µs)")
    if all(row.delay_max_ns is None for row in rows):
        axes.text(0.5, 0.5, "no venue time was named", ha="center", transform=axes.transAxes)
        return
    axes.set_yscale("log")
    for name, marker in zip([*PERCENTILES, "delay_max_ns"], "o^sx", strict=True):
        label = name.removeprefix("delay_").removesuffix("_ns").replace("p999", "p99.9")
        values = [None if row[name] is None else max(row[name], 1) / 1e3 for row in rows]
        axes.plot(places, values, marker, label=label)
    axes.legend(ncols=4, fontsize="small", frameon=False)
