"""Plots of few, many and no rows; a matplotlib warning fails the test."""

import struct
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pyspark.sql import Row

from aiochronicle.spark.jobs.plots import (
    DELAYS,
    DOTS_PER_INCH,
    WIDTH_MAX_IN,
    _axis_of,
    draw_delays,
    plot_bars,
    plot_quality,
)


def size_of(picture: Path) -> tuple[int, int]:
    """Return the width and height from the header of a PNG."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    return width, height


START_NS = 1_795_000_000 * 10**9  # 2026-11-18T11:06:40Z


def bars_of(
    symbol: str, count: int, step: timedelta, volume: float = 1.0, shift_ns: int = 0
) -> list[Row]:
    return [
        Row(
            source="binance",
            symbol=symbol,
            start_ns=START_NS + number * int(step.total_seconds() * 1e9) + shift_ns,
            open=10.0 + number % 7,
            high=20.0,
            low=5.0,
            close=10.0 + number % 5,
            vwap=11.0,
            volume=volume,
            trades=3,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "step_s"), [(0, 1.0), (1, 0.25), (50, 3600.0), (1000, 1.0)])
def test_bars_of_any_number_and_length_can_be_drawn(
    tmp_path: Path, count: int, step_s: float
) -> None:
    plot_bars(bars_of("ALFA", count, timedelta(seconds=step_s)), tmp_path / "bars.png")
    assert size_of(tmp_path / "bars.png")[0] < 1000


def test_of_many_series_those_with_the_most_trades_are_drawn(tmp_path: Path) -> None:
    many = [row for number in range(300) for row in bars_of(f"S{number}", 1, timedelta(1), 0.0)]
    plot_bars(many, tmp_path / "bars.png")
    assert size_of(tmp_path / "bars.png")[1] < 5000


def test_series_share_one_time_axis() -> None:
    minute = timedelta(minutes=1)
    late = bars_of("BRAVO", 2, minute, shift_ns=3 * 60 * 10**9)
    axis = _axis_of([bars_of("ALFA", 5, minute), late])
    assert [axis.places[bar.start_ns] for bar in late] == [3, 4]
    assert axis.labels[0] == "11:06\n18 Nov 2026", "UTC, wherever this machine is"
    by_ticks = [bars_of(f"S{number}", 5, minute, shift_ns=number) for number in range(3)]
    axis = _axis_of(by_ticks)
    assert axis.length == 5
    assert axis.places[by_ticks[2][4].start_ns] == pytest.approx(4)


def day_of(number: int, delay_ns: int | None) -> Row:
    return Row(
        source="binance",
        date=date(2026, 1, 1) + timedelta(days=number),
        messages=1000 * number,
        missing=number % 3,
        duplicates=0,
        out_of_order=0,
        late=number,
        delay_p50_ns=delay_ns,
        delay_p99_ns=delay_ns,
        delay_p999_ns=delay_ns,
        delay_max_ns=delay_ns,
    )


@pytest.mark.parametrize(
    ("days", "delay_ns"), [(1, None), (5, 0), (200, 3_000_000), (3, -1_270_000_000)]
)
def test_quality_of_few_and_many_days_can_be_drawn(
    tmp_path: Path, days: int, delay_ns: int | None
) -> None:
    plot_quality([day_of(number, delay_ns) for number in range(days)], tmp_path / "quality.png")
    assert size_of(tmp_path / "quality.png")[0] <= WIDTH_MAX_IN * DOTS_PER_INCH


@pytest.mark.parametrize("delay_ns", [1, 150_000, 999_999, 1_000_000, 12_000_000_000])
def test_delays_that_are_near_each_other_have_times_at_their_axis(delay_ns: int) -> None:
    axes: Any = Figure().subplots()
    draw_delays(axes, [0, 1], [day_of(0, delay_ns), day_of(1, delay_ns * 5 // 4)])
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    texts = [label.get_text() for value, label in ticks if low <= value <= high]
    assert len(texts) >= 2
    assert all(text.endswith("s") for text in texts)
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))
    assert low < delay_ns / 1e9 < high


@pytest.mark.parametrize(
    "delays_ns",
    [
        (-1_270_000_000, -1_268_000_000),
        (-5, 80_000_000),
        (0, 0),
        (-1, -(10**10)),
        (0, 10**9),
        (-40, 0),
    ],
)
def test_delays_of_any_sign_are_where_they_are(delays_ns: tuple[int, int]) -> None:
    axes: Any = Figure().subplots()
    draw_delays(axes, [0, 1], [day_of(0, delays_ns[0]), day_of(1, delays_ns[1])])
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    for line in axes.get_lines()[: len(DELAYS)]:
        assert [round(value * 1e9) for value in line.get_ydata()] == list(delays_ns)
    assert low < min(delays_ns) / 1e9
    assert max(delays_ns) / 1e9 < high or (high == 0 and max(delays_ns) < 0)
    texts = [
        label.get_text()
        for value, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= value <= high
    ]
    assert len(texts) >= 2
    assert all(text.endswith("s") for text in texts)
