"""``aioc spark quality``."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from aiochronicle.cli.exits import Refused
from aiochronicle.cli.spark.arguments import (
    ALL,
    LOCAL,
    SHOWN,
    Plot,
    Reading,
    Result,
    Root,
    Running,
)
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.reading import chosen, describe
from aiochronicle.cli.spark.results import check, run_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["quality"]

RANKS = {"gaps": 3, "silence_ns": 4, "delay_p50_ns": 1, "delay_p99_ns": 2}


@job
def quality(
    root: Root,
    /,
    *,
    messages: Annotated[
        str | None, Parameter(metavar="TYPE", help="look at messages of this type only")
    ] = None,
    number: Annotated[
        str | None, Parameter(metavar="FIELD", help="the venue's number; default: seq")
    ] = None,
    by: Annotated[
        str | None, Parameter(metavar="FIELD", help="… which is counted per value of this field")
    ] = None,
    time: Annotated[
        str | None, Parameter(metavar="FIELD", help="the venue's time, in nanoseconds")
    ] = None,
    late: Annotated[
        str,
        Parameter(metavar="DURATION", help="count messages with a larger delay as late"),
    ] = "1s",
    plot: Plot = None,
    reading: Reading = ALL,
    result: Result = SHOWN,
    running: Running = LOCAL,
) -> None:
    """Count gaps, duplicates, disorder and delays, by queue and day.

    Example: aioc spark quality bus/md --messages trade --number trade_id --by symbol --time venue_ns
    """
    check(result, plot)

    from aiochronicle.spark import jobs
    from aiochronicle.spark.jobs.bars import nanoseconds
    from aiochronicle.spark.jobs.inputs import find_input

    nanoseconds(late)
    if messages is None and (number or time or by):
        raise Refused("of which messages are these fields? Name their type: --messages TYPE")
    whole = [name for name in (number, time) if name is not None]
    fields = [] if by is None else [by]
    with chosen("quality", root, reading, running) as options:
        found = find_input(root, options, type_name=messages, fields=fields, whole=whole)
        if running.dry_run:
            describe(found, "look at them twice", running)
            return

        def make(spark: "SparkSession") -> "DataFrame":
            frame = jobs.quality(
                spark,
                root,
                messages=messages,
                number=number,
                time=time,
                by=by,
                late=late,
                options=options,
            ).cache()
            if plot is not None:
                from aiochronicle.spark.jobs.plots import plot_quality

                plot_quality(frame, plot)
            return frame

        run_frame("quality", make, result, running, ranks=RANKS)
