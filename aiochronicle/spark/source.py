"""``format("chronicle")``: queues as frames.

A frame is a snapshot: where each queue ends is decided when it is loaded, so that two queries over
one frame see the same rows. Spark makes the source in one Python process, plans in a second and reads
in others, so everything that is decided travels with the objects.
"""

import contextlib
from collections.abc import Iterable, Iterator, MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aiochronicle.errors import QueueNotFound
from aiochronicle.spark import offsets
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.columns import Shape, check_schema, frame_schema
from aiochronicle.spark.filters import Narrowing, narrow
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.plan import Range, plan
from aiochronicle.spark.queues import Source, find_sources
from aiochronicle.spark.rows import read_range

__all__ = ["ChronicleSource"]


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class Snapshot:
    """The queues of a frame, and from where to where each of them is read."""

    def __init__(self, options: ReadOptions) -> None:
        self.sources = find_sources(options)
        self.end = offsets.ends(self.sources, options)
        self.start = offsets.starts(self.sources, options, "earliest")


class ChronicleSource(DataSource):
    """Reads frames and streams from queues, and writes them.

    Filters are pushed down only with option pushdown. Spark (4.1 to 4.3) keeps what a filter has left
    of a Python source with the loaded frame and uses it for other queries over that frame as well:
    ``frame.where(a).union(frame.where(b))`` then has the rows of one filter twice and none of the
    other. That is for the user of a frame to rule out, who alone knows how it is used.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.snapshot: Snapshot | None = None
        with contextlib.suppress(QueueNotFound):  # a sink will make them; a reader tells
            self.snapshot = Snapshot(read_options(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "chronicle"

    def schema(self) -> StructType:
        """Return the columns."""
        options = read_options(self.options)
        sources = {} if self.snapshot is None else self.snapshot.sources
        return frame_schema(options, sources or find_sources(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a frame."""
        options = read_options(self.options)
        kind = PushdownReader if options.pushdown else Reader
        return kind(options, schema, self.snapshot or Snapshot(options))


class Reader(DataSourceReader):
    """Plans and reads the frame of a snapshot."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: Snapshot) -> None:
        self._options = options
        self._schema = schema
        self._snapshot = snapshot
        self._narrowing = Narrowing()
        check_schema(schema, options, snapshot.sources)

    def partitions(self) -> list[InputPartition]:
        """Cut the snapshot into what tasks read."""
        start: dict[str, int] = {}
        end: dict[str, int] = {}
        sources: dict[str, Source] = {}
        for name, source in self._snapshot.sources.items():
            if self._narrowing.wants(name):
                sources[name] = source
                start[name], end[name] = self._narrowing.clip(
                    source, self._snapshot.start[name], self._snapshot.end[name]
                )
        parts = plan(sources, start, end, partitions_min=self._options.partitions_min)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """Yield the rows of one part."""
        # With nothing to read Spark makes up a partition of its own.
        if isinstance(partition, RangePartition):
            yield from read_part(partition.part, self._schema, self._options, self._narrowing)


class PushdownReader(Reader):
    """The same, narrowed down by filters.

    A class of its own, because Spark refuses a reader that could take filters while its setting
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what helps; all of them are evaluated by Spark again."""
        self._narrowing = narrow(filters)
        return filters


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
    for batch in read_range(part, columns, options):
        fitting = shape.fit(narrowing.sift(batch))
        if fitting.num_rows:
            yield fitting
