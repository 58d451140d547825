"""``aioc spark bars``."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from aiochronicle.cli.exits import Refused
from aiochronicle.cli.spark.arguments import (
    ALL,
    LOCAL,
    SHOWN,
    Amount,
    Count,
    Flag,
    Plot,
    Reading,
    Result,
    Root,
    Running,
    Trades,
)
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.reading import chosen, describe
from aiochronicle.cli.spark.results import check, run_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bars"]

RANKS = {"bar": 8, "trades": 3, "vwap": 2, "source": 1}


@job
def bars(
    root: Root,
    /,
    *,
    every: Annotated[
        str | None, Parameter(metavar="DURATION", help="a bar per 250ms, 1s, 5m, 1h, 1d …")
    ] = None,
    ticks: Annotated[Count | None, Parameter(help="a bar for every N trades")] = None,
    volume: Annotated[Amount | None, Parameter(help="a bar for every N traded")] = None,
    lot: Annotated[
        Amount | None, Parameter(help="unit of sizes that are not whole numbers")
    ] = None,
    trades: Trades = "trade",
    price: Annotated[str, Parameter(metavar="FIELD", help="its price")] = "price",
    size: Annotated[str, Parameter(metavar="FIELD", help="its size")] = "size",
    by: Annotated[
        str | None,
        Parameter(metavar="FIELD", help="a series per queue and value; default: symbol"),
    ] = None,
    per_queue: Annotated[bool, Flag("one series per queue")] = False,
    plot: Plot = None,
    reading: Reading = ALL,
    result: Result = SHOWN,
    running: Running = LOCAL,
) -> None:
    """Make bars: open, high, low, close, volume and VWAP by time, ticks or volume.

    One of --every, --ticks and --volume sets the size of a bar.

    Example: aioc spark bars bus/md --every 1m --out bars.parquet --plot bars.png
    """
    if sum(rule is not None for rule in (every, ticks, volume)) != 1:
        raise Refused("say what a bar is: give one of --every, --ticks and --volume")
    if per_queue and by is not None:
        raise Refused("--by and --per-queue exclude each other")
    key = None if per_queue else by or "symbol"
    check(result, plot)

    from aiochronicle.spark import jobs
    from aiochronicle.spark.jobs.bars import nanoseconds
    from aiochronicle.spark.jobs.inputs import find_input

    if every is not None:
        nanoseconds(every)
    fields = [price, size, *([key] if key else [])]
    with chosen("bars", root, reading, running) as options:
        found = find_input(root, options, type_name=trades, fields=fields)
        if running.dry_run:
            describe(found, f"make bars for {result.out or 'the terminal'}", running)
            return

        def make(spark: "SparkSession") -> "DataFrame":
            frame = jobs.bars(
                spark,
                root,
                every=every,
                ticks=ticks,
                volume=volume,
                trades=trades,
                price=price,
                size=size,
                by=key,
                lot=lot,
                options=options,
            ).cache()
            if plot is not None:
                from aiochronicle.spark.jobs.plots import plot_bars

                plot_bars(frame, plot, by=key)
            return frame

        run_frame("bars", make, result, running, ranks=RANKS)
