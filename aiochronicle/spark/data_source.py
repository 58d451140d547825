"""``format("chronicle")``: queues as frames.

A frame is a snapshot: the end of each queue is fixed when it is loaded, so that two queries over one frame
see the same rows. Spark creates the source in one Python process, plans in a second and reads in others, so
all decisions travel with the objects.
"""

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.options import ReadOptions, WriteOptions, read_options, write_options
from aiochronicle.spark.sink.batch_writer import BatchSink, StreamSink
from aiochronicle.spark.source.columns import check_schema, frame_schema
from aiochronicle.spark.source.plan import plan
from aiochronicle.spark.source.queues import find_or_await
from aiochronicle.spark.source.read_task import RANGES, RangePartition, read_task
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.stream import RangeStreamReader, StreamReader

__all__ = ["ChronicleSource"]


class ChronicleSource(DataSource):
    """Reads frames and streams from queues, and writes them.

    Filters of queries are not pushed down. Spark (4.1 to 4.3) would keep the filtered source with the loaded
    frame and use it for other queries over that frame as well: ``frame.where(a).union(frame.where(b))``
    would have the rows of one filter and none of the other, and a query without a filter, for which no
    Python is called, would have the rows of the last filter. Instead, option ``filter`` is part of the
    frame.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.snapshot: Snapshot | None = None
        # A sink or a stream does not need it; a reader will try again, and report the error.
        with contextlib.suppress(ChronicleError):
            self.snapshot = Snapshot(read_options(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "chronicle"

    def schema(self) -> StructType:
        """Return the columns."""
        options = read_options(self.options)
        sources = {} if self.snapshot is None else self.snapshot.sources
        return frame_schema(options, sources or find_or_await(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the object that plans and reads a frame."""
        options = read_options(self.options)
        return FrameReader(options, schema, self.snapshot or Snapshot(options))

    def streamReader(self, schema: StructType) -> RangeStreamReader:  # noqa: N802
        """Return the object that follows the queues: their rows, or only the ranges of these."""
        options = read_options(self.options)
        return RangeStreamReader(options) if schema == RANGES else StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return the object that writes a frame."""
        return BatchSink(_appending(self.options, overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return the object that writes a stream."""
        options = _appending(self.options, overwrite)
        if options.batch_id is not None:
            raise InvalidArgument("a stream counts its batches itself: leave out option batchId")
        return StreamSink(options, schema)


def _appending(options: Mapping[str, str], overwrite: bool) -> WriteOptions:
    if overwrite:
        raise InvalidArgument(
            "queues are only ever appended to, since readers may not have read what is there: use"
            " mode append, another directory, or delete the queues before"
        )
    return write_options(options)


class FrameReader(DataSourceReader):
    """Plans and reads the frame of a snapshot."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: Snapshot) -> None:
        self._options = options
        self._schema = schema
        self._snapshot = snapshot
        check_schema(schema, options, snapshot.sources)

    def partitions(self) -> list[InputPartition]:
        """Divide the snapshot into parts for the tasks."""
        parts = plan(
            self._snapshot.sources,
            self._snapshot.start,
            self._snapshot.end,
            spans=self._snapshot.spans,
            partitions_min=self._options.partitions_min,
        )
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """Yield the rows of one part."""
        # Without any part, Spark would create a partition of its own.
        if isinstance(partition, RangePartition):
            yield from read_task(partition.part, self._schema, self._options)
