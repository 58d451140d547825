"""What one task reads, and how: shared by frames and streams."""

from collections.abc import Iterator

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from aiochronicle.columns import BATCH_ROWS
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.columns import Shape
from aiochronicle.spark.filters import Narrowing
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.plan import Range
from aiochronicle.spark.rows import read_range

__all__ = ["RangePartition", "read_part"]

# For Spark a batch has a price of its own. Payloads should still be in the cache when it gets them.
NARROW_BATCH_ROWS = 8 * BATCH_ROWS


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def read_part(
    part: Range, schema: StructType, options: ReadOptions, narrowing: Narrowing
) -> Iterator[Batch]:
    """Yield the rows of a range in the shape of the schema."""
    shape = Shape(schema, options, part.source)
    if shape.is_empty:
        return
    columns = shape.columns
    if narrowing.types is not None and "type_id" not in columns:
        columns = [*columns, "type_id"]
    batch_rows = BATCH_ROWS if "payload" in columns else NARROW_BATCH_ROWS
    for batch in read_range(part, columns, options, batch_rows=batch_rows):
        fitting = shape.fit(narrowing.sift(batch))
        if fitting.num_rows:
            yield fitting
