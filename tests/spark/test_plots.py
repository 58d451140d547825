"""Pictures of few, of many and of no rows; a warning of matplotlib's is an error here."""

import struct
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pyspark.sql import Row

from aiochronicle.spark.jobs.plots import (
    DOTS_PER_INCH,
    WIDTH_MAX_IN,
    draw_delays,
    plot_bars,
    plot_quality,
)


def size_of(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG, from its header."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def bars_of(symbol: str, count: int, step: timedelta, volume: float = 1.0) -> list[Row]:
    return [
        Row(
            source="binance",
            symbol=symbol,
            start=datetime(2026, 11, 16, 22) + number * step,
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


@pytest.mark.parametrize(("days", "delay_ns"), [(1, None), (5, 0), (200, 3_000_000)])
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
