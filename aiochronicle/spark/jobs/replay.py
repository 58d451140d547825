"""Parquet files back into queues, with the times at which their messages were recorded.

An archive of the ``archive`` job comes back as it was: the queues by name, their schemas, and their
messages in order, which is verified by comparing the digests of files and queues. Other Parquet files
need the columns ``timestamp_ns`` and ``payload``, and ``source`` unless one queue is named.
"""

import os
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from aiochronicle.digest import StreamDigest
from aiochronicle.errors import CorruptionError, InvalidArgument, TimestampOrder
from aiochronicle.registry import Registry
from aiochronicle.slices import Queue
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.jobs.ledger import ArchivedFile, Ledger, find_archive, schema_copy
from aiochronicle.spark.jobs.readback import read_back, read_listed
from aiochronicle.spark.journal import nameless
from aiochronicle.spark.options import write_options
from aiochronicle.spark.publish import complete_others
from aiochronicle.spark.queues import Source, is_queue
from aiochronicle.spark.runs import ACCEPTED
from aiochronicle.spark.tasks import over_parts
from aiochronicle.writer import open_writer

__all__ = ["Replayed", "check_times", "replay"]

_ROWS = (
    "source string, seq long, timestamp_ns long, type_id int, payload binary,"
    " cause struct<queue_id: long, seq: long>"
)
_DIGESTS = "source string, rows long, archived string, found string"


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What was written into one queue, from ``first_seq`` on."""

    source: str
    rows: int
    first_seq: int


class _Check(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that was written, and the files it was written from."""

    source: str
    files: tuple[ArchivedFile, ...]
    path: str
    first_seq: int


def replay(
    spark: SparkSession,
    files: str,
    root: str,
    *,
    queues: Collection[str] | None = None,
    queue: str | None = None,
) -> list[Replayed]:
    """Write an archive, or other Parquet files, into queues under a root; what is there is appended to.

    ``queues`` chooses some queues of an archive. ``queue`` puts everything into one queue of this name.
    Raises TimestampOrder if a queue has newer messages already: replay into a new root then.

    >>> replay(spark, "/data/archive", "bus/again")  # doctest: +SKIP
    """
    # The JVM and its workers may have other working directories.
    files, root = os.path.abspath(files), os.path.abspath(root)
    found = find_archive(Path(files), queues)
    if found and queue is None:
        before = _ends(root, [ledger.source for ledger in found])
        check_times(files, found, root)
        _write(_rows_of(spark, files, found), root)
        for ledger in found:
            _restore_schema(files, root, ledger.source)
        return _verified(spark, files, root, found, before)
    frame = _rows_of(spark, files, found) if found else spark.read.parquet(files)
    usable = frame.select(*(name for name in frame.columns if name in ACCEPTED))
    if queue is not None:
        rows = {queue: usable.count()}
    elif "source" in usable.columns:
        rows = {row.source: row["count"] for row in usable.groupBy("source").count().collect()}
    else:
        raise InvalidArgument("there is no column source: which queue?", path=files)
    before = _ends(root, rows)
    check_times(files, found, root, queue)
    _write(usable, root, queue)
    return [
        Replayed(source=source, rows=rows[source], first_seq=before[source])
        for source in sorted(rows)
    ]


def check_times(archive: str, found: list[Ledger], root: str, queue: str | None = None) -> None:
    """Raise TimestampOrder if a queue has newer messages than those an archive would put into it."""
    first_ns: dict[str, int] = {}
    for ledger in found:
        for file in ledger.files[:1]:
            into = ledger.source if queue is None else queue
            begins_ns = _first_time(Path(archive) / file.path)
            first_ns[into] = min(begins_ns, first_ns.get(into, begins_ns))
    for into, begins_ns in first_ns.items():
        path = Path(root) / into
        if is_queue(path) and begins_ns < (last_ns := _last_time(path)):
            raise TimestampOrder(
                f"the archive begins at {begins_ns}, and the queue is at {last_ns} already",
                path=str(path),
                advice="Timestamps of one queue never decrease: replay into a new directory.",
            )


def _first_time(file: Path) -> int:
    times = next(read_back(file, ["seq", "timestamp_ns"])).column("timestamp_ns")
    return int(times[0].as_py())


def _last_time(queue: Path) -> int:
    """Return the time of the last message, or 0 if there is none."""
    end = Source(name=queue.name, live=str(queue), archive=None).latest()
    with Queue(str(queue), verify=False, on_corrupt="skip") as opened:
        return max(
            (message.timestamp_ns for message in opened.slice(max(0, end - 1), end)), default=0
        )


def _rows_of(spark: SparkSession, archive: str, found: list[Ledger]) -> DataFrame:
    work = [(ledger.source, file) for ledger in found for file in ledger.files]
    return over_parts(spark, work, partial(_read_file, archive), _ROWS)


def _read_file(archive: str, work: tuple[str, ArchivedFile]) -> Iterator[Batch]:
    source, file = work
    for batch in read_listed(Path(archive), source, file):
        named = pa.repeat(pa.scalar(source, pa.utf8()), batch.num_rows)
        columns = ("seq", "timestamp_ns", "type_id", "payload", "cause")
        arrays = [named, *(batch.column(name) for name in columns)]
        yield pa.record_batch(arrays, names=["source", *columns])


def _write(frame: DataFrame, root: str, queue: str | None = None) -> None:
    writer = frame.write.format("chronicle").mode("append")
    (writer if queue is None else writer.option("queue", queue)).save(root)


def _ends(root: str, sources: Collection[str]) -> dict[str, int]:
    """Return the seq that the first message written to each queue will have.

    A write completes first what others have begun, which must not happen between this and that.
    """
    complete_others(write_options({"path": root}), nameless(), set(sources))
    paths = {source: Path(root) / source for source in sources}
    return {
        source: Source(name=source, live=str(path), archive=None).latest() if is_queue(path) else 0
        for source, path in paths.items()
    }


def _restore_schema(archive: str, root: str, source: str) -> None:
    schema = schema_copy(Path(archive), source)
    if schema.exists():
        open_writer(Path(root) / source, codec=Registry.load(schema)).close()


def _verified(
    spark: SparkSession, archive: str, root: str, found: list[Ledger], before: dict[str, int]
) -> list[Replayed]:
    """Compare the digests of what was read and of what is in the queues now."""
    checks = [
        _Check(
            source=ledger.source,
            files=ledger.files,
            path=str(Path(root) / ledger.source),
            first_seq=before[ledger.source],
        )
        for ledger in found
        if ledger.files
    ]
    done: list[Replayed] = []
    for row in over_parts(spark, checks, partial(_digests, archive), _DIGESTS).collect():
        if row.archived != row.found:
            raise CorruptionError(
                f"the digest of {row.rows} messages is {row.found}, and of the archive's"
                f" {row.archived}",
                path=str(Path(root) / row.source),
                advice="If nobody else wrote to the queue meanwhile, compare it with the archive. Nothing is"
                " taken back: replay into a new directory.",
            )
        done.append(Replayed(source=row.source, rows=row.rows, first_seq=before[row.source]))
    return done


def _digests(archive: str, check: _Check) -> Iterator[Batch]:
    archived, found = StreamDigest([check.source]), StreamDigest([check.source])
    for file in check.files:
        for batch in read_back(Path(archive) / file.path):
            archived.add_batch(batch)
    with Queue(check.path) as queue:
        for batch in queue.slice(check.first_seq, check.first_seq + archived.messages).batches():
            found.add_batch(batch)
    yield pa.record_batch(
        {
            "source": [check.source],
            "rows": [found.messages],
            "archived": [archived.hexdigest()],
            "found": [found.hexdigest()],
        }
    )
