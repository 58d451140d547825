"""``format("chronicle")``: queues as frames.

A frame is a snapshot: where each queue ends is decided when it is loaded, so that two queries over
one frame see the same rows. Spark makes the source in one Python process, plans in a second and reads
in others, so everything that is decided travels with the objects.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.spans import Span, Spans, count
from aiochronicle.spark import offsets
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.columns import check_schema, frame_schema
from aiochronicle.spark.damage import openable
from aiochronicle.spark.filters import Narrowing, narrow
from aiochronicle.spark.options import ReadOptions, WriteOptions, read_options, write_options
from aiochronicle.spark.parts import RANGES, RangePartition, read_part
from aiochronicle.spark.plan import plan
from aiochronicle.spark.queues import Source, find_or_await, find_sources
from aiochronicle.spark.sink import BatchSink, StreamSink
from aiochronicle.spark.stream import RangeStreamReader, StreamReader

__all__ = ["ChronicleSource"]


class Snapshot:
    """The queues of a frame, and from where to where each of them is read.

    ``spans`` say of a Java queue which indexes there are between. One that cannot tell is an error; or it
    is left out, with the reason in ``failed``.
    """

    def __init__(
        self, options: ReadOptions, *, failed: dict[str, ChronicleError] | None = None
    ) -> None:
        self.sources: dict[str, Source] = {}
        self.start: dict[str, int] = {}
        self.end: dict[str, int] = {}
        self.spans: dict[str, Spans | None] = {}
        found = openable(find_sources(options), options, failed=failed)
        end_of, start_of = offsets.ends(found, options), offsets.starts(found, options, "earliest")
        for name, source in found.items():
            try:
                source.check_seqs()
                self.end[name], self.start[name] = end_of(source), start_of(source)
                self.spans[name] = source.spans(self.start[name], self.end[name])
                self.sources[name] = source
            except ChronicleError as error:
                if failed is None:
                    raise
                failed[name] = error

    def messages(self, name: str) -> int:
        """Return how many messages of a queue are in it."""
        start, end, spans = self.start[name], self.end[name], self.spans[name]
        return count((Span(start, max(start, end)),) if spans is None else spans)


class ChronicleSource(DataSource):
    """Reads frames and streams from queues, and writes them.

    Filters are pushed down only with option pushdown. Spark (4.1 to 4.3) keeps what a filter has left
    of a Python source with the loaded frame and uses it for other queries over that frame as well:
    ``frame.where(a).union(frame.where(b))`` then has the rows of one filter and none of the other, and
    a query without a filter, for which no Python is called at all, the rows of the last one. So no
    source can rule it out, only the user of a frame, who alone knows how it is used.
    tests/spark/test_pushdown.py notices when Spark has changed.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.snapshot: Snapshot | None = None
        # Of a sink or a stream nobody asked for it; a reader will try again, and tell.
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
        """Return what plans and reads a frame."""
        options = read_options(self.options)
        kind = PushdownReader if options.pushdown else FrameReader
        return kind(options, schema, self.snapshot or Snapshot(options))

    def streamReader(self, schema: StructType) -> RangeStreamReader:  # noqa: N802
        """Return what follows the queues: their rows, or only where these are."""
        options = read_options(self.options)
        return RangeStreamReader(options) if schema == RANGES else StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return what writes a frame."""
        return BatchSink(_appending(self.options, overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return what writes a stream."""
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
        parts = plan(
            sources,
            start,
            end,
            spans=self._snapshot.spans,
            partitions_min=self._options.partitions_min,
        )
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """Yield the rows of one part."""
        # With nothing to read Spark makes up a partition of its own.
        if isinstance(partition, RangePartition):
            yield from read_part(partition.part, self._schema, self._options, self._narrowing)


class PushdownReader(FrameReader):
    """The same, narrowed down by filters.

    A class of its own, because Spark refuses a reader that could take filters while its setting
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what helps; all of them are evaluated by Spark again."""
        self._narrowing = narrow(filters)
        return filters
