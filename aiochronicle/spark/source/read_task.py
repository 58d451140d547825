"""The reading of one task, shared by frames and streams.

A range can also be a row of a frame: then the next step of the query reads it.
"""

from collections.abc import Iterator

import msgspec
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from aiochronicle._columns.columns import BATCH_ROWS
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.filters import Narrowing
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source.columns import Shape
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.rows import read_range

__all__ = ["RANGES", "RangePartition", "as_row", "read_rows", "read_task"]

# For Spark a batch has a price of its own. Payloads should still be in the cache when it gets them: twice
# as many rows with them take `scan` longer, half as many the copy of a queue.
WIDE_BATCH_ROWS = 2 * BATCH_ROWS
NARROW_BATCH_ROWS = 8 * BATCH_ROWS

# The columns of a frame of ranges.
RANGES = StructType([StructField("_range", BinaryType(), False)])


class RangePartition(InputPartition):
    """The input of one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def read_task(part: Range, schema: StructType, options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a range that pass the filter of the options, in the shape of the schema."""
    shape = Shape(schema, options, part.source)
    if shape.is_empty:
        return
    narrowing = options.filter or Narrowing()
    columns = list(dict.fromkeys([*shape.columns, *narrowing.columns]))
    types = narrowing.types_of(shape.types)
    batch_rows = WIDE_BATCH_ROWS if "payload" in columns else NARROW_BATCH_ROWS
    for batch in read_range(part, columns, options, types=types, batch_rows=batch_rows):
        fitting = shape.fit(narrowing.sift(batch))
        if fitting.num_rows:
            yield fitting


def as_row(part: Range) -> Batch:
    """Return a range as a row of a frame of ranges."""
    encoded = pa.array([msgspec.msgpack.encode(part)], pa.binary())
    return pa.record_batch([encoded], schema=to_arrow_schema(RANGES))


def read_rows(
    batches: Iterator[Batch], schema: StructType, options: ReadOptions
) -> Iterator[Batch]:
    """Yield the rows of the ranges that are rows of these batches."""
    for batch in batches:
        for encoded in batch.column(0).to_pylist():
            part = msgspec.msgpack.decode(encoded, type=Range)
            yield from read_task(part, schema, options)
