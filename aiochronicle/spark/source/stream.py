"""``readStream.format("chronicle")``: queues as an unbounded frame.

Spark keeps the offsets; this says how far the queues have come. Some of what it does is not obvious:

- A checkpoint stores where a batch ends, never where the first one began. If that is "latest", it is
  another place after a restart, and messages between the two would be lost. So the first batch is
  empty and ends where it begins, which puts the place into the checkpoint.
- A queue that appears while the stream runs, or while it was down, enters the offsets with its first
  message, and is read from the batch after that on. A queue that is in the end of a batch but not in
  its start has nothing in that batch.
- With a limit, queues are cut at one time, not each by its share: a watermark follows the newest message of a
  batch, and would drop what is read later of a queue that has not come that far.
- Spark asks for the end some ninety times a second while there is nothing to do. The tails stay open
  for that, and the directory is scanned only from time to time.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aiochronicle._base.spans import Spans
from aiochronicle._core.reader import Reader
from aiochronicle.errors import InvalidArgument, NotAQueue, PositionLost, QueueGone, QueueNotFound
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source import offsets
from aiochronicle.spark.source.columns import check_schema
from aiochronicle.spark.source.damage import openable
from aiochronicle.spark.source.found import FoundDirectory
from aiochronicle.spark.source.plan import plan
from aiochronicle.spark.source.queues import Source, end_of, find_sources
from aiochronicle.spark.source.read_task import RangePartition, as_row, read_task

__all__ = ["RangeStreamReader", "StreamReader"]

LOOK_AROUND_S = 0.2

Positions = dict[str, int]


class RangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reports to Spark how far the queues are, and which ranges of them make up a batch."""

    def __init__(self, options: ReadOptions) -> None:
        if options.ending_offsets is not None or options.ending_timestamp_ns is not None:
            raise InvalidArgument(
                "a stream has no end: leave endingOffsets and endingTimestamp out, or stop it by"
                " trigger(availableNow=True)"
            )
        self._options = options
        self._queues = _Queues(options)
        self._initial: Positions | None = None
        self._initial_is_known = True  # stored in the checkpoint, or the same after a restart
        self._target: Positions | None = None

    def initialOffset(self) -> Positions:  # noqa: N802
        """Return where a stream without a checkpoint begins. Called twice, with the same result."""
        if self._initial is None:
            # In this order, concurrent appends do not make the end look like a place before the start.
            ends = self._queues.ends()
            sources = self._queues.sources
            start_of = offsets.starts(sources, self._options, "latest")
            self._initial = {name: start_of(source) for name, source in sources.items()}
            self._initial_is_known = all(seq < ends[name] for name, seq in self._initial.items())
        return self._initial

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:  # noqa: N802
        """Return where the next batch ends, given where it starts."""
        if not self._initial_is_known and start == self._initial:
            self._initial_is_known = True
            return start
        self._queues.look_around()
        ends = self._queues.ends() if self._target is None else self._target
        reached: Positions = {}
        for name, seq in start.items():
            if (end := self._next(name, seq, ends)) is not None:
                reached[name] = end
        if isinstance(limit, ReadMaxRows):
            spans = self._spans(start, reached)
            reached = offsets.limit_in_time(
                self._queues.sources, start, reached, limit.max_rows, spans
            )
        for name, source in self._queues.sources.items():
            if name in ends and name not in start:
                reached[name] = source.earliest()
        return reached

    def _spans(self, start: Positions, end: Positions) -> dict[str, Spans]:
        """Return the existing seqs between, for queues with gaps."""
        found: dict[str, Spans] = {}
        for name in start.keys() & end.keys() & self._queues.sources.keys():
            spans = self._queues.sources[name].spans(start[name], end[name])
            if spans is not None:
                found[name] = spans
        return found

    def _next(self, name: str, start: int, ends: Mapping[str, int]) -> int | None:
        """Return the end of a queue; None if it is gone."""
        if name not in self._queues.sources:
            self._report_loss(
                f"the stream has read {name} up to {start}, and that queue is gone, or not chosen"
            )
            return None
        if name in self._queues.replaced:
            self._report_loss(
                f"the stream has read {name} up to {start}, but that is another queue now"
            )
            self._queues.replaced.discard(name)
            return self._queues.sources[name].earliest()
        end = ends.get(name, start)
        if end >= start:
            return end
        if self._target is not None:
            end = self._queues.ends().get(name, start)
            if end >= start:
                return start  # an available-now query may begin after its end
        self._report_loss(f"the stream has read {name} up to {start}, but it ends at {end}")
        return self._queues.sources[name].earliest()

    def _report_loss(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise PositionLost(
                what,
                path=self._options.where,
                advice="Go on with what is there by option failOnDataLoss=false. If this is the checkpoint"
                " of other queues, take a new one.",
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of maxOffsetsPerTrigger."""
        rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the present ends; the query stops there."""
        self._target = self._queues.ends()

    def reportLatestOffset(self) -> Positions | None:  # noqa: N802
        """Return the ends of the queues, for the progress of the query."""
        return self._queues.ends() or None

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """Divide a batch into parts for tasks."""
        for name in start.keys() & end.keys() - self._queues.sources.keys():
            if start[name] < end[name]:
                self._report_loss(f"messages of {name} are requested, but there is no such queue")
        for name, source in self._queues.sources.items():
            if start.get(name, 0) < end.get(name, 0):
                self._check_cycle(source, start[name])
        parts = plan(self._queues.sources, start, end, partitions_min=self._options.partitions_min)
        return [RangePartition(part) for part in parts]

    def _check_cycle(self, source: Source, seq: int) -> None:
        if (first := source.first_after_loss(seq)) is not None:
            self._report_loss(
                f"the stream has read {source.name} up to {seq}, whose cycle has no file any more; what"
                f" is there begins at {first}"
            )

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """Yield the range itself, as a row."""
        assert isinstance(partition, RangePartition)
        yield as_row(partition.part)

    def stop(self) -> None:
        """Close the queues."""
        self._queues.close()


class StreamReader(RangeStreamReader):
    """Reports to Spark how far the queues are, and reads the requested ranges."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema
        if self._queues.sources:
            check_schema(schema, options, self._queues.sources)

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """Yield the rows of one part."""
        assert isinstance(partition, RangePartition)
        yield from read_task(partition.part, self._schema, self._options)


def _id_of(source: Source, place: FoundDirectory) -> int:
    """Return what distinguishes a queue from a later one of the same name; a Java queue has no id of its
    own."""
    if source.is_java:
        return 0 if place.identity is None else place.identity.inode
    return place.inspect().queue_id


class _Queues:
    """The queues of a stream: searched for repeatedly, with their tails kept open."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._tails: dict[str, tuple[FoundDirectory, Reader]] = {}
        self._known: Positions = {}
        self._ids: dict[str, int] = {}
        self.replaced: set[str] = set()  # names that now belong to another queue
        self._looked_at = time.monotonic()
        try:
            found = find_sources(options)
        except QueueNotFound:
            if not options.follow:
                raise
            found = find_sources(options, ready_only=True)  # they may still appear
        self.sources = openable(found, options)
        self._left_out = found.keys() - self.sources.keys()
        for source in self.sources.values():
            source.check_seqs()

    def look_around(self) -> None:
        """Find queues that have become ready, and days that were archived."""
        if time.monotonic() < self._looked_at + LOOK_AROUND_S:
            return
        self._looked_at = time.monotonic()
        for name, source in self.sources.items():
            if source.live is None:  # a day that gets a segment gets another control block, too
                self._drop_tail(name)
        if not self._options.follow:
            return
        known = self.sources.keys() | self._left_out
        new = find_sources(self._options, ready_only=True, known=known)
        for name, source in new.items():
            with contextlib.suppress(QueueNotFound, QueueGone, NotAQueue):  # gone again
                self._left_out |= {name} - openable({name: source}, self._options).keys()
                if name not in self._left_out:
                    source.check_seqs()
                    self.sources[name] = source

    def ends(self) -> Positions:
        """Return the seq after the last message of each queue that is there."""
        found = {name: self._end(source) for name, source in list(self.sources.items())}
        return {name: end for name, end in found.items() if end is not None}

    def _end(self, source: Source) -> int | None:
        for fresh in (False, True):
            try:
                if fresh:
                    source = self._find_again(source)
                place, tail = self._tail(source)
                end = end_of(tail, place, 0 if fresh else self._known.get(source.name, 0))
                self._known[source.name] = end
                return end if end > 0 or source.archive is None else source.latest()
            except (QueueNotFound, QueueGone, NotAQueue):
                if fresh:  # gone, not replaced by another queue of that name
                    self._drop(source.name)
                    return None
        raise AssertionError("unreachable")

    def _find_again(self, source: Source) -> Source:
        """Return the queue of this name as it is now, perhaps another one; QueueNotFound if it is gone."""
        self._drop_tail(source.name)
        alone = msgspec.structs.replace(
            self._options, subscribe=(source.name,), subscribe_pattern=None
        )
        self.sources[source.name] = find_sources(alone)[source.name]
        return self.sources[source.name]

    def _tail(self, source: Source) -> tuple[FoundDirectory, Reader]:
        if source.name not in self._tails:
            place = source.newest_part()
            self._tails[source.name] = place, place.reader(**source.scouting)
            queue_id = _id_of(source, place)
            if self._ids.get(source.name, queue_id) != queue_id:
                self.replaced.add(source.name)
            self._ids[source.name] = queue_id
        return self._tails[source.name]

    def _drop(self, name: str) -> None:
        self._drop_tail(name)
        del self.sources[name]

    def _drop_tail(self, name: str) -> None:
        if (tail := self._tails.pop(name, None)) is not None:
            tail[1].close()

    def close(self) -> None:
        for name in list(self._tails):
            self._drop_tail(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tails": {}}  # tasks read ranges, and need no tails
