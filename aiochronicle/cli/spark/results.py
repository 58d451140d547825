"""A frame as the result of a job: written as Parquet, printed as a table or as JSON."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.spark.arguments import Result, Running
from aiochronicle.cli.spark.running import started
from aiochronicle.cli.units import many
from aiochronicle.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check", "run_frame"]

RANK_OF_NANOSECONDS = 9  # the first to go when a terminal is narrow

Rows = list[dict[str, Any]]


def check(result: Result, plot: str | None = None) -> None:
    """Report before anything is computed if the result cannot be stored."""
    if plot is not None and Path(plot).suffix.lower() != ".png":
        raise InvalidArgument("pictures are PNG: give --plot a name that ends in .png", path=plot)
    if plot is not None and not Path(plot).absolute().parent.is_dir():
        raise InvalidArgument("there is no such directory for the picture", path=plot)
    if result.out is None or not Path(result.out).exists():
        return
    if not result.overwrite:
        raise InvalidArgument("something is there; --overwrite replaces it", path=result.out)
    if not _is_table(Path(result.out)):
        raise InvalidArgument(
            "is not a table written by a job, so it is not replaced; delete it, or give another"
            " directory",
            path=result.out,
        )


def _is_table(path: Path) -> bool:
    """Return whether the directory has only files that Spark writes: overwriting deletes it first."""
    pattern = r"_SUCCESS|part-.*\.parquet|\..*\.crc"
    return path.is_dir() and all(
        entry.is_file() and re.fullmatch(pattern, entry.name) for entry in path.iterdir()
    )


def run_frame(
    name: str,
    make: Callable[["SparkSession"], "DataFrame"],
    result: Result,
    running: Running,
    *,
    order: Sequence[str] = (),
    ranks: Mapping[str, int] | None = None,
) -> None:
    """Compute the frame of a job, and write or show it.

    A table goes into one file. Large results have an ``order``: many tasks write them, into files that are
    sorted inside and by their names. Columns with the highest of ``ranks`` are not shown in a narrow
    terminal.
    """
    with started(name, running) as spark:
        frame = make(spark)
        frame = frame.orderBy(*order) if order else frame
        written = None
        if result.out is not None:
            mode = "overwrite" if result.overwrite else "errorifexists"
            (frame if order else frame.coalesce(1)).write.mode(mode).parquet(result.out)
            frame = spark.read.parquet(result.out)
            written = frame.count()
            frame = frame.orderBy(*order) if order else frame
        # Arrow has times with their zone; rows of collect() have those of this machine, without it.
        rows: Rows = (
            frame.limit(result.rows_shown).toArrow().to_pylist() if result.rows_shown else []
        )
        columns = frame.columns
    out = Output(as_json=running.json)
    if running.json:
        out.json({"out": result.out, "rows": written, "first": rows})
        return
    if written is not None:
        out.line(f"{name}: {many(written, 'row')} in {result.out}")
    if result.rows_shown:
        _print(out, columns, rows, ranks or {})


def _print(out: Output, names: Sequence[str], rows: Rows, ranks: Mapping[str, int]) -> None:
    numbers = {name for name in names if any(isinstance(row[name], int | float) for row in rows)}
    columns = [
        Column(name, right=name in numbers, rank=ranks.get(name, _rank(name))) for name in names
    ]
    cells = [[_cell(row[name]) for name in names] for row in rows]
    out.table(rows, columns, cells, empty="no rows")


def _rank(name: str) -> int:
    return RANK_OF_NANOSECONDS if name.endswith("_ns") else 0


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return str(value)
