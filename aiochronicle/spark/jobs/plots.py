"""Plots of results: PNG files, or shown by a notebook.

matplotlib takes half a second to import, so functions do that.
"""

import io
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame

from aiochronicle._base.locations import local_path
from aiochronicle.digest import Block
from aiochronicle.spark.jobs.quality import PERCENTILES
from aiochronicle.spark.private_files import replacing

__all__ = ["Picture", "plot_audit", "plot_bars", "plot_quality"]

COLUMNS = 2
SERIES_MAX = 24  # of more, those with the most trades are drawn
CANDLES_MAX = 200  # more than that are drawn as a band
COUNTS_MAX = 600  # seconds of more are drawn together
LABELS_MAX = 6
BARS_MIN = 6
WIDTH_MAX_IN = 40.0
DOTS_PER_INCH = 110

UP, DOWN, LINE, VOLUME = "#228833", "#cc3311", "#4477aa", "#bbbbbb"
NOTE = "#777777"
TROUBLE = {
    "missing": "#ee6677",
    "duplicates": "#ccbb44",
    "out_of_order": "#aa3377",
    "late": "#66ccee",
}
DELAYS = {
    **dict(zip(PERCENTILES, ("#4477aa", "#ccbb44", "#ee6677"), strict=True)),
    "delay_max_ns": "#aa3377",
}


class Picture:
    """A plot, which a notebook shows; ``figure`` is matplotlib's figure, for changes.

    >>> plot_bars(bars(spark, "bus/md", every="1m")).save("bars.png")  # doctest: +SKIP
    """

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> None:
        """Write it as PNG; the file appears atomically."""
        with replacing(Path(local_path(str(path)))) as file:
            self.figure.savefig(file, format="png", dpi=DOTS_PER_INCH)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=DOTS_PER_INCH)
        return content.getvalue()

    def __repr__(self) -> str:
        width, height = (round(inches * DOTS_PER_INCH) for inches in self.figure.get_size_inches())
        return f"<Picture of {width} by {height} pixels: save(path) writes it>"


def _picture(figure: Any, path: str | Path | None) -> Picture:
    picture = Picture(figure)
    if path is not None:
        picture.save(path)
    return picture


def _new_figure(width_in: float, height_in: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def _collected(rows: DataFrame | Sequence[Any]) -> Sequence[Any]:
    return rows.collect() if isinstance(rows, DataFrame) else rows


def plot_bars(
    rows: DataFrame | Sequence[Any],
    path: str | Path | None = None,
    *,
    by: str | None = "symbol",
) -> Picture:
    """Draw ``bars``: candles, VWAP and volume of each series, all on one time axis.

    ``rows`` is the frame of ``bars``, or its rows; ``by`` is the same as there. With ``path`` the picture is
    also written there, as PNG. Times are UTC. Of more than 24 series those with the most trades are drawn;
    with more than 200 bars in a series, candles become a band from low to high.

    >>> plot_bars(bars(spark, "bus/md", every="1m"), "bars.png")  # doctest: +SKIP
    """
    series: dict[str, list[Any]] = {}
    for row in _collected(rows):
        name = row.source if by is None else f"{row[by]} · {row.source}"
        series.setdefault(name, []).append(row)
    drawn = sorted(series, key=lambda name: -sum(bar.trades for bar in series[name]))[:SERIES_MAX]
    columns = COLUMNS if len(drawn) > 1 else 1
    lines = -(-len(drawn) // columns) or 1
    figure = _new_figure(13.0 * columns / COLUMNS, 2.6 * lines + 0.4)
    if len(drawn) < len(series):
        figure.suptitle(f"the {len(drawn)} of {len(series):,} series with the most trades")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    axis = _axis_of([series[name] for name in drawn])
    for axes, name in zip(grid, sorted(drawn), strict=False):
        _draw_series(axes, name, series[name], axis)
    for axes in grid[len(drawn) :]:
        axes.set_visible(False)
    if not drawn:
        figure.text(0.5, 0.5, "no trades, no bars", ha="center", color=NOTE)
    if drawn:
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=3, frameon=False)
    return _picture(figure, path)


class _Axis(msgspec.Struct, frozen=True, kw_only=True):
    """The time axis that all series share: the position of each bar by its start."""

    places: dict[int, float]
    length: int
    ticks: list[float]
    labels: list[str]


def _axis_of(series: Sequence[Sequence[Any]]) -> _Axis:
    """Lay out a time axis.

    Bars by time start together, so each start has its own position, and times without a trade take no space.
    Bars by ticks or volume start at any time, and are placed by it.
    """
    starts_ns = sorted({bar.start_ns for bars in series for bar in bars})
    longest = max(map(len, series), default=0)
    if len(starts_ns) <= 2 * longest:
        places = {start_ns: float(place) for place, start_ns in enumerate(starts_ns)}
        marked_ns = starts_ns[:: max(1, -(-len(starts_ns) // LABELS_MAX))]
        return _Axis(
            places=places,
            length=len(starts_ns),
            ticks=[places[start_ns] for start_ns in marked_ns],
            labels=_time_labels(_moments(marked_ns)),
        )
    first_ns, whole_ns = starts_ns[0], starts_ns[-1] - starts_ns[0]
    scale = max(longest - 1, 1) / whole_ns
    marked_ns = [first_ns + whole_ns * part // (LABELS_MAX - 1) for part in range(LABELS_MAX)]
    return _Axis(
        places={start_ns: (start_ns - first_ns) * scale for start_ns in starts_ns},
        length=longest,
        ticks=[(moment_ns - first_ns) * scale for moment_ns in marked_ns],
        labels=_time_labels(_moments(marked_ns)),
    )


def _moments(times_ns: Iterable[int]) -> list[datetime]:
    return [datetime.fromtimestamp(time_ns // 1000 / 1e6, UTC) for time_ns in times_ns]


def _draw_series(axes: Any, name: str, bars: Sequence[Any], axis: _Axis) -> None:
    places = [axis.places[bar.start_ns] for bar in bars]
    volume = axes.twinx()
    volumes = [bar.volume for bar in bars]
    volume.set_ylim(0, 4 * max(volumes) or 1)  # in the lower quarter
    volume.set_yticks([])
    if axis.length <= CANDLES_MAX:
        _draw_candles(axes, bars, places)
        volume.bar(places, volumes, 0.8, color=VOLUME, alpha=0.5)
    else:
        volume.fill_between(places, volumes, step="mid", fc=VOLUME, alpha=0.5)
        lows, highs = [bar.low for bar in bars], [bar.high for bar in bars]
        axes.fill_between(places, lows, highs, color=LINE, alpha=0.3, linewidth=0)
    axes.plot(places, [bar.vwap for bar in bars], color=LINE, linewidth=1.2, label="VWAP")
    axes.fill_between([], [], fc=VOLUME, alpha=0.5, label="volume")  # for the legend
    axes.set_zorder(volume.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_title(name, fontsize="medium", loc="left")
    _set_width(axes, axis.length)
    axes.set_xticks(axis.ticks, axis.labels, fontsize="small")
    axes.tick_params(axis="y", labelsize="small")
    axes.ticklabel_format(axis="y", useOffset=False)
    for each in (axes, volume):
        each.spines[["top", "right"]].set_visible(False)


def _set_width(axes: Any, count: int) -> None:
    """Leave space for at least a few bars, so that a single one is not as wide as the plot."""
    middle, half = (count - 1) / 2, max(count, BARS_MIN) / 2
    axes.set_xlim(middle - half - 0.1, middle + half + 0.1)


def _draw_candles(axes: Any, bars: Sequence[Any], places: Sequence[float]) -> None:
    colours = [UP if bar.close >= bar.open else DOWN for bar in bars]
    axes.vlines(places, [bar.low for bar in bars], [bar.high for bar in bars], colours, linewidth=1)
    least = (max(bar.high for bar in bars) - min(bar.low for bar in bars)) / 200
    bottoms = [min(bar.open, bar.close) for bar in bars]
    bodies = [max(abs(bar.close - bar.open), least) for bar in bars]
    axes.bar(places, bodies, 0.6, bottoms, color=colours)


def _time_labels(moments: Sequence[datetime]) -> list[str]:
    """Return times as precise as their distance requires, with the day below the first one of each day."""
    least_s = min(((b - a).total_seconds() for a, b in pairwise(moments)), default=60.0)
    labels: list[str] = []
    day = None
    for moment in moments:
        text = f"{moment:%H:%M}" if least_s >= 60 else f"{moment:%H:%M:%S}"
        if least_s < 1:
            text += f".{moment.microsecond // 1000:03d}"
        labels.append(text if moment.date() == day else f"{text}\n{moment:%d %b %Y}")
        day = moment.date()
    return labels


def plot_audit(blocks: Sequence[Block], path: str | Path | None = None) -> Picture:
    """Draw how many messages each second of an ``audit`` has, or of several seconds each the most.

    >>> plot_audit(audit(spark, "bus").blocks, "audit.png")  # doctest: +SKIP
    """
    figure = _new_figure(9.0, 3.0)
    axes = figure.subplots()
    title = "messages per second"
    if blocks:
        first, end = blocks[0].second, blocks[-1].second + 1
        width = -(-(end - first) // COUNTS_MAX)
        most = np.zeros(-(-(end - first) // width), np.int64)
        for block in blocks:
            place = (block.second - first) // width
            most[place] = max(most[place], block.messages)
        edges = [first + number * width for number in range(len(most) + 1)]
        axes.stairs(most, edges, fill=True, color=LINE)
        marked = np.unique(np.linspace(first, end, LABELS_MAX).astype(np.int64)).tolist()
        moments = [datetime.fromtimestamp(second, UTC) for second in marked]
        axes.set_xticks(marked, _time_labels(moments), fontsize="small")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0)
        if width > 1:
            title += f": the most within each {width} s"
    else:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no messages", ha="center", color=NOTE, transform=axes.transAxes)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return _picture(figure, path)


def plot_quality(rows: DataFrame | Sequence[Any], path: str | Path | None = None) -> Picture:
    """Draw ``quality``: volume, trouble and delays of each queue and day.

    ``rows`` is the frame of ``quality``, or its rows. With ``path`` the picture is also written there.

    >>> plot_quality(quality(spark, "bus/md"), "quality.png")  # doctest: +SKIP
    """
    rows = _collected(rows)
    places = list(range(len(rows)))
    width_in = min(max(8.0, 1.1 * len(rows)), WIDTH_MAX_IN)
    figure = _new_figure(width_in, 9.0)
    volume, trouble, delays = figure.subplots(3, 1, sharex=True)
    volume.bar(places, [row.messages for row in rows], 0.6, color=LINE)
    volume.yaxis.set_major_formatter("{x:,.0f}")
    bar_width = 0.8 / len(TROUBLE)
    for number, (kind, colour) in enumerate(TROUBLE.items()):
        at = [place + (number - 1.5) * bar_width for place in places]
        label = kind.replace("_", " ")
        trouble.bar(at, [row[kind] for row in rows], bar_width, color=colour, label=label)
    trouble.set_yscale("symlog", linthresh=1)
    trouble.set_ylim(0, max(10, *(2 * row[kind] for row in rows for kind in TROUBLE)))
    trouble.yaxis.set_major_formatter("{x:,.0f}")
    draw_delays(delays, places, rows)
    titles = ("messages", "messages with trouble", "delay from the venue's time to the queue's")
    for axes, title in zip((volume, trouble, delays), titles, strict=True):
        axes.set_title(title, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        _set_width(axes, len(rows))
        axes.grid(axis="y", alpha=0.3)
        if axes.get_legend_handles_labels()[0]:  # above the axes, where no bar is
            axes.legend(
                ncols=4,
                fontsize="small",
                frameon=False,
                loc="lower right",
                bbox_to_anchor=(1, 0.99),
            )
    step = -(-len(rows) // int(width_in))
    labels = [f"{row.source}\n{row.date:%d %b %Y}" for row in rows[::step]]
    delays.set_xticks(places[::step], labels, fontsize="small")
    return _picture(figure, path)


def draw_delays(axes: Any, places: Sequence[int], rows: Sequence[Any]) -> None:
    """Draw the percentiles of each row's delays."""
    if all(row.delay_max_ns is None for row in rows):
        text = "unknown: name the field with the venue's time (--time)"
        axes.text(0.5, 0.5, text, ha="center", color=NOTE, transform=axes.transAxes)
        axes.set_yticks([])
        return
    drawn_s: list[float] = []
    for (name, colour), marker in zip(DELAYS.items(), "o^sx", strict=True):
        label = name.removeprefix("delay_").removesuffix("_ns").replace("p999", "p99.9")
        values_s = [None if row[name] is None else row[name] / 1e9 for row in rows]
        axes.plot(places, values_s, marker, color=colour, label=label)
        drawn_s += [value for value in values_s if value is not None]
    _scale_delays(axes, min(drawn_s), max(drawn_s))


def _scale_delays(axes: Any, lowest_s: float, highest_s: float) -> None:
    """Make the axis of delays from the lowest to the highest, with times at it.

    It is logarithmic. With delays of both signs, or 0, there is a linear part around 0. Where all are
    negative and near each other, as with a slow clock, whole powers of ten would be far away from
    them, and the axis is linear.
    """
    from matplotlib.ticker import EngFormatter, NullFormatter

    if lowest_s > 0:
        axes.set_yscale("log")
        # Whole powers of ten have a number at the axis; delays are often all between two of them.
        low, high = math.log10(lowest_s), math.log10(highest_s)
        axes.set_ylim(10 ** math.floor(low - 0.1), 10 ** math.ceil(high + 0.1))
    elif highest_s < 0 and lowest_s / highest_s < 10:
        margin_s = max(highest_s - lowest_s, -lowest_s / 100) / 10
        axes.set_ylim(lowest_s - margin_s, highest_s + margin_s)
    else:
        sizes_s = [size for size in (abs(lowest_s), abs(highest_s)) if size > 0] or [1e-6]
        axes.set_yscale("symlog", linthresh=10 ** math.floor(math.log10(min(sizes_s)) - 2))
        axes.set_ylim(_beyond(lowest_s, -1), _beyond(highest_s, 1))
        axes.axhline(0, color=NOTE, linewidth=0.8)
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _beyond(value_s: float, sign: int) -> float:
    """Return where an axis ends that has this value: at the next power of ten with the sign, or at 0."""
    size_s = sign * value_s
    if size_s > 0:
        return sign * 10.0 ** math.ceil(math.log10(size_s) + 0.1)
    return 0.0 if size_s < 0 else sign * 1e-9
