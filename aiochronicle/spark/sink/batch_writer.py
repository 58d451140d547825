"""``write.format("chronicle")`` and ``writeStream``: frames into queues.

Tasks sort their rows into runs on disk (staging); when all of them are done, the driver merges the
runs into the queues (publish), fenced by a journal.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aiochronicle._base.locations import local_path
from aiochronicle._base.prepared import prepared
from aiochronicle._files import read_small_file
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.options import WriteOptions
from aiochronicle.spark.sink import journal, publish
from aiochronicle.spark.sink.runs import Run, check_columns, stage, stage_into
from aiochronicle.spark.sink.staging import Place
from aiochronicle.spark.sink.targets import refuse_java_queue
from aiochronicle.spark.source.queues import is_queue

__all__ = ["BatchSink", "StreamSink"]


METADATA_BYTES_MAX = 1 << 20


@prepared
class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The first file that Spark writes into a checkpoint."""

    id: str


class Staged(WriterCommitMessage):
    """What a task reports to the driver."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.query = _query_of_task()


class _Sink:
    """Common to both kinds: the tasks' half."""

    def __init__(self, options: WriteOptions, schema: StructType, place: Place) -> None:
        self._options = options
        self._place = place
        self._queue = options.queue
        # A queue itself may be given, instead of a directory of queues.
        if is_queue(Path(options.path)):
            if options.queue is not None:
                raise InvalidArgument("is a queue, so leave out option queue", path=options.path)
            self._queue = ""
        refuse_java_queue(Path(options.path))
        if options.queue is not None:
            refuse_java_queue(Path(options.path) / options.queue)
        check_columns(schema, self._queue)
        self._attempt = place.new_attempt()

    # The base classes of PySpark's Arrow writers say that it is given instances of Row.
    def write(self, iterator: Iterator[Any]) -> Staged:
        """Sort the rows of one task into runs on disk."""
        return Staged(stage(iterator, self._attempt, self._queue))

    def _publish(self, batch_id: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = [message for message in messages if isinstance(message, Staged)]
        runs = [run for task in tasks for run in task.runs]
        # Spark has at least one task, also for an empty frame.
        query = tasks[0].query if tasks else None
        publish.publish(self._options, self._place, batch_id, runs, query=query)

    def _abandon(self) -> None:
        publish.abandon(self._options, self._place, self._attempt.path)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a frame once.

    With options writerId and batchId a batch that was written before is not written again: for
    foreachBatch, and for jobs that are repeated after a failure.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if (options.writer_id is None) != (options.batch_id is None):
            raise InvalidArgument("a batch is known by writerId and batchId: give both or neither")
        self._batch_id = options.batch_id or 0
        writer_id = options.writer_id or journal.nameless()
        place = Place(root=options.path, writer_id=writer_id, batch=self._batch_id)
        super().__init__(options, schema, place)
        self._attempt.make().close()

    def write(self, iterator: Iterator[Any]) -> Staged:
        """As for a stream, but a task that outlives its job finds the directory gone, and fails."""
        return Staged(stage_into(iterator, self._attempt, self._queue))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged."""
        self._publish(self._batch_id, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have staged; also called when commit has failed."""
        self._abandon()


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        writer_id = options.writer_id or journal.of_query(_query_id(options.checkpoint))
        super().__init__(options, schema, Place(root=options.path, writer_id=writer_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what the tasks have staged."""
        self._publish(batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the tasks have staged; also called when commit has failed."""
        self._abandon()


def _query_of_task() -> str | None:
    """Return the query for which this task writes; also one inside foreachBatch knows it."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty("sql.streaming.queryId")


def _query_id(checkpoint: str | None) -> str:
    """Return Spark's id of the query: batch ids start over with every new checkpoint."""
    if checkpoint is None:
        raise InvalidArgument(
            "a stream into queues needs option checkpointLocation, by which its batches are known"
        )
    file = checkpoint
    try:
        file = str(Path(local_path(checkpoint)) / "metadata")
        content = read_small_file(file, METADATA_BYTES_MAX)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return msgspec.json.decode(content, type=_Metadata).id
    except (
        OSError,
        ValueError,
        msgspec.DecodeError,
        RecursionError,
        InvalidArgument,
    ) as error:
        raise InvalidArgument(
            f"{file} does not say which query this is ({error}); give the stream option writerId,"
            " which must change with every new checkpoint"
        ) from error
