"""A quicker door to the same rows: a frame of ranges, each read by one task with mapInArrow.

Costs a fifth less per row than the data source. Where to begin and to end is said here instead of
by filters.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aiochronicle.errors import InvalidArgument
from aiochronicle.reader import unix_ns
from aiochronicle.spark.columns import check_schema, frame_schema, known_columns
from aiochronicle.spark.filters import Narrowing
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.parts import read_part
from aiochronicle.spark.plan import Range, plan
from aiochronicle.spark.source import Snapshot
from aiochronicle.spark.tasks import over_parts

__all__ = ["scan"]

Bound = datetime | Mapping[str, int] | None


def scan(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    start: Bound = None,
    end: Bound = None,
    **options: str | int | bool,
) -> DataFrame:
    """Return the messages of the queues in or below ``path``, as ``format("chronicle")`` does.

    ``columns`` are those to read; ``start`` and ``end`` (which is left out) an aware datetime, or seqs by
    queue. ``options`` are those of the format. The frame is a snapshot of now.

    >>> scan(spark, "bus/md", columns=["source", "seq"]).count()  # doctest: +SKIP
    """
    given = {name: _text(value) for name, value in options.items()}
    given |= _bound("starting", start) | _bound("ending", end)
    chosen = read_options({"path": str(path), **given})
    snapshot = Snapshot(chosen)
    schema = frame_schema(chosen, snapshot.sources)
    if columns is not None:
        known = known_columns(chosen, snapshot.sources)
        if unknown := [name for name in columns if name not in known]:
            raise InvalidArgument(f"no column {unknown[0]!r}: choose from {', '.join(known)}")
        schema = StructType([known[name] for name in columns])
    check_schema(schema, chosen, snapshot.sources)
    parts = plan(
        snapshot.sources, snapshot.start, snapshot.end, partitions_min=chosen.partitions_min
    )
    return read_parts(spark, parts, schema, chosen)


def read_parts(
    spark: SparkSession, parts: Sequence[Range], schema: StructType, options: ReadOptions
) -> DataFrame:
    """Return a frame of the rows of these ranges, one task each."""
    read = partial(read_part, schema=schema, options=options, narrowing=Narrowing())
    return over_parts(spark, parts, read, schema)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bound(side: str, bound: Bound) -> dict[str, str]:
    match bound:
        case None:
            return {}
        case datetime():
            return {f"{side}Timestamp": str(unix_ns(bound))}
        case _:
            offsets: dict[str, Any] = dict(bound)
            return {f"{side}Offsets": msgspec.json.encode(offsets).decode()}
