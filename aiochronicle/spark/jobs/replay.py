"""Parquet files back into queues, with the times at which their messages were recorded.

An archive of the ``archive`` job is restored completely: the queues by name, their schemas, and their
messages in order. Comparing the digests of files and queues verifies this. Payloads that the archive does
not have are encoded from their fields. Other Parquet files need the columns ``timestamp_ns`` and
``payload``, and ``source`` unless one queue is named.
"""

import os
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from aiochronicle._base.locations import archive_path, is_object_url, local_path
from aiochronicle._base.report import HtmlList, HtmlStruct
from aiochronicle._core.slices import Queue
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._typed.registry import registry_of_content
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import CorruptionError, InvalidArgument, TimestampOrder
from aiochronicle.spark.archive.manifest import ArchivedFile, Manifest, find_archive, schema_copy
from aiochronicle.spark.archive.merging import merged_by_seq
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.archive.verify import read_fields, read_listed
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink.journal import nameless
from aiochronicle.spark.sink.publish import complete_others
from aiochronicle.spark.sink.runs import ACCEPTED
from aiochronicle.spark.source.queues import Source, is_queue
from aiochronicle.spark.tasks import run_tasks

__all__ = ["Replayed", "check_times", "replay"]

_ROWS = (
    "source string, seq long, timestamp_ns long, type_id int, payload binary,"
    " cause struct<queue_id: long, seq: long>, key binary, headers map<string, binary>"
)
_DIGESTS = "source string, rows long, archived string, found string"


class Replayed(HtmlStruct, frozen=True, kw_only=True):
    """The result for one queue, written from ``first_seq`` on."""

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
    """Write an archive, or other Parquet files, into queues under a root; appends to existing queues.

    ``queues`` selects queues of an archive. ``queue`` puts everything into one queue of this name. Raises
    TimestampOrder if a queue has newer messages already: replay into a new root then.

    >>> replay(spark, "/data/archive", "bus/again")  # doctest: +SKIP
    """
    # The JVM and its workers may have other working directories.
    files, root = archive_path(files), os.path.abspath(local_path(root))
    files = files if is_object_url(files) else os.path.abspath(files)
    store = open_store(files, spark)
    found = find_archive(store, queues)
    if found and queue is None:
        before = _ends(root, [manifest.source for manifest in found])
        check_times(store, found, root)
        _write(_rows_of(spark, store, found), root)
        for manifest in found:
            _restore_schema(store, root, manifest.source)
        return HtmlList(_verify(spark, store, root, found, before))
    frame = _rows_of(spark, store, found) if found else spark.read.parquet(files)
    usable = frame.select(*(name for name in frame.columns if name in ACCEPTED))
    if queue is not None:
        rows = {queue: usable.count()}
    elif "source" in usable.columns:
        rows = {row.source: row["count"] for row in usable.groupBy("source").count().collect()}
    else:
        raise InvalidArgument("there is no column source: which queue?", path=files)
    before = _ends(root, rows)
    check_times(store, found, root, queue)
    _write(usable, root, queue)
    return HtmlList(
        Replayed(source=source, rows=rows[source], first_seq=before[source])
        for source in sorted(rows)
    )


def check_times(
    archive: Store | str, found: list[Manifest], root: str, queue: str | None = None
) -> None:
    """Raise TimestampOrder if a queue has newer messages than those an archive would put into it."""
    store = open_store(archive)
    first_ns: dict[str, int] = {}
    for manifest in found:
        for file in manifest.files[:1]:
            into = manifest.source if queue is None else queue
            begins_ns = _first_time(store, manifest.source, file)
            first_ns[into] = min(begins_ns, first_ns.get(into, begins_ns))
    for into, begins_ns in first_ns.items():
        path = Path(root) / into
        if is_queue(path) and begins_ns < (last_ns := _last_time(path)):
            raise TimestampOrder(
                f"the archive begins at {begins_ns}, and the queue is at {last_ns} already",
                path=str(path),
                advice="Timestamps of one queue never decrease: replay into a new directory.",
            )


def _first_time(store: Store, source: str, file: ArchivedFile) -> int:
    if file.first_ns is not None:
        return file.first_ns
    times = next(read_fields(store, source, file, ["timestamp_ns"])).column("timestamp_ns")
    return int(times[0].as_py())


def _last_time(queue: Path) -> int:
    """Return the time of the last message, or 0 if there is none."""
    end = Source(name=queue.name, live=str(queue), archive=None).latest()
    with Queue(str(queue), verify=False, on_corrupt="skip") as opened:
        return max(
            (message.timestamp_ns for message in opened.slice(max(0, end - 1), end)), default=0
        )


def _rows_of(spark: SparkSession, archive: Store, found: list[Manifest]) -> DataFrame:
    work = [(manifest.source, file) for manifest in found for file in manifest.files]
    return run_tasks(spark, work, partial(_read_file, archive), _ROWS)


def _read_file(archive: Store, work: tuple[str, ArchivedFile]) -> Iterator[Batch]:
    source, file = work
    for batch in read_listed(archive, source, file):
        named = pa.repeat(pa.scalar(source, pa.utf8()), batch.num_rows)
        columns = ("seq", "timestamp_ns", "type_id", "payload", "cause", "key", "headers")
        arrays = [named, *(batch.column(name) for name in columns)]
        yield pa.record_batch(arrays, names=["source", *columns])


def _write(frame: DataFrame, root: str, queue: str | None = None) -> None:
    writer = frame.write.format("chronicle").mode("append")
    (writer if queue is None else writer.option("queue", queue)).save(root)


def _ends(root: str, sources: Collection[str]) -> dict[str, int]:
    """Return the seq that the first message written to each queue will have.

    A write first completes what others have begun, which must not happen after this call.
    """
    complete_others(write_options({"path": root}), nameless(), set(sources))
    paths = {source: Path(root) / source for source in sources}
    return {
        source: Source(name=source, live=str(path), archive=None).latest() if is_queue(path) else 0
        for source, path in paths.items()
    }


def _restore_schema(archive: Store, root: str, source: str) -> None:
    schema = schema_copy(archive, source)
    if schema is not None:
        codec = registry_of_content(schema, f"{archive.root}: schema of {source}")
        open_writer(Path(root) / source, codec=codec).close()


def _verify(
    spark: SparkSession, archive: Store, root: str, found: list[Manifest], before: dict[str, int]
) -> list[Replayed]:
    """Compare the digests of the files and of the new messages in the queues."""
    checks = [
        _Check(
            source=manifest.source,
            files=manifest.files,
            path=str(Path(root) / manifest.source),
            first_seq=before[manifest.source],
        )
        for manifest in found
        if manifest.files
    ]
    done: list[Replayed] = []
    for row in run_tasks(spark, checks, partial(_digests, archive), _DIGESTS).collect():
        if row.archived != row.found:
            raise CorruptionError(
                f"the digest of {row.rows} messages is {row.found}, and of the archive's"
                f" {row.archived}",
                path=str(Path(root) / row.source),
                advice="If no other program wrote to the queue, compare it with the archive. Nothing is"
                " taken back: replay into a new directory.",
            )
        done.append(Replayed(source=row.source, rows=row.rows, first_seq=before[row.source]))
    return done


def _digests(archive: Store, check: _Check) -> Iterator[Batch]:
    archived, found = StreamDigest([check.source]), StreamDigest([check.source])
    for batch in merged_by_seq(_datasets(archive, check)):
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


def _datasets(archive: Store, check: _Check) -> list[Iterator[Batch]]:
    """Return the messages of each dataset of a queue, in order."""
    datasets: dict[str | None, list[ArchivedFile]] = {}
    for file in check.files:
        datasets.setdefault(file.type, []).append(file)
    return [_dataset(archive, check.source, files) for files in datasets.values()]


def _dataset(archive: Store, source: str, files: list[ArchivedFile]) -> Iterator[Batch]:
    for file in files:
        yield from _digested(archive, source, file)


def _digested(archive: Store, source: str, file: ArchivedFile) -> Iterator[Batch]:
    """Yield the messages of a file; CorruptionError at the end if they differ from the archived ones."""
    digest = StreamDigest([source])
    for batch in read_listed(archive, source, file):
        digest.add_batch(batch)
        yield batch
    if digest.hexdigest() != file.digest:
        raise CorruptionError(
            f"the messages made of it have the digest {digest.hexdigest()}, and those that were"
            f" archived {file.digest}",
            path=f"{archive.root}/{file.path}",
            advice="The file is as it was verified, so another version of aiochronicle or msgspec has"
            " archived it: use that one.",
        )
