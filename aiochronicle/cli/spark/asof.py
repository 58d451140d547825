"""``aioc spark asof``."""

from typing import Annotated

from cyclopts import Parameter

from aiochronicle.cli.spark.arguments import (
    ALL,
    LOCAL,
    SHOWN,
    Place,
    Reading,
    Result,
    Root,
    Running,
    Trades,
    place,
)
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.reading import chosen, describe
from aiochronicle.cli.spark.results import check, run_frame

__all__ = ["asof"]

RANKS = {"quote_seq": 8, "quote_source": 7, "seq": 6, "source": 5}


@job
def asof(
    root: Root,
    /,
    *,
    quotes_root: Annotated[
        Place | None, place("DIR", "directory of the quotes, if different")
    ] = None,
    trades: Trades = "trade",
    quotes: Annotated[str, Parameter(metavar="TYPE", help="type of the quotes")] = "quote",
    by: Annotated[
        str,
        Parameter(
            metavar="FIELDS", help="columns that both share; symbol alone: quotes of any queue"
        ),
    ] = "source,symbol",
    look_back: Annotated[
        str | None,
        Parameter(
            metavar="DURATION",
            help="maximum age of a quote at --start; default: no limit",
        ),
    ] = None,
    reading: Reading = ALL,
    result: Result = SHOWN,
    running: Running = LOCAL,
) -> None:
    """Join each trade with the quote in force at its time.

    Example: aioc spark asof bus/md --out trades.parquet
    """
    check(result)

    from aiochronicle.spark import jobs
    from aiochronicle.spark.jobs.asof import asof_keys, options_of_quotes
    from aiochronicle.spark.jobs.inputs import find_input

    keys = asof_keys([part.strip() for part in by.split(",")])
    fields = [key for key in keys if key != "source"]
    with chosen("asof", root, reading, running) as options:
        found = find_input(root, options, type_name=trades, fields=fields)
        elsewhere = quotes_root is not None
        of_quotes = options_of_quotes(options, elsewhere=elsewhere, look_back=look_back)
        find_input(quotes_root or root, of_quotes, type_name=quotes, fields=fields)
        if running.dry_run:
            describe(found, f"look up the quotes for {result.out or 'the terminal'}", running)
            return
        run_frame(
            "asof",
            lambda spark: jobs.asof(
                spark,
                root,
                quotes_root=quotes_root,
                trades=trades,
                quotes=quotes,
                by=keys,
                look_back=look_back,
                options=options,
            ),
            result,
            running,
            order=("timestamp_ns", "source", "seq"),
            ranks=RANKS,
        )
