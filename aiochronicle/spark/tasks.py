"""Runs a function over parts, one task each, wherever Spark runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aiochronicle.spark.arrow import Batch

__all__ = ["run_tasks"]

Part = TypeVar("Part")


def run_tasks(
    spark: SparkSession,
    parts: Sequence[Part],
    function: Callable[[Part], Iterator[Batch]],
    schema: StructType | str,
) -> DataFrame:
    """Return a frame of the rows that the function yields for each part.

    The function and the parts are pickled; each part is one partition, in their order.
    """
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(partial(_run, list(parts), function), schema)


def _run(
    parts: Sequence[Part],
    function: Callable[[Part], Iterator[Batch]],
    numbers: Iterator[Batch],
) -> Iterator[Batch]:
    for batch in numbers:
        assigned: list[int] = batch.column("id").to_pylist()
        for number in assigned:
            yield from function(parts[number])
