"""The position that tells retention what is archived: messages before it may be deleted.

It is that of a named reader of the queue. Retention that waits for this reader deletes nothing after it. It
is after everything that is archived and verified, or before the first file that has changed since: while the
queue still has a message, every run checks the file with its copy again. A damaged file moves the position
back, so that the queue keeps messages that may be stored nowhere else.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from aiochronicle.errors import ChronicleError
from aiochronicle.spark.archive.manifest import ArchivedFile, Manifest
from aiochronicle.spark.archive.store import Store
from aiochronicle.spark.archive.verify import check_file
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.failures import Failures, decode_error, encode_error, noting
from aiochronicle.spark.source.found import FoundDirectory
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.tasks import run_tasks

__all__ = ["tell_retention"]

_DAMAGED = "source string, first_seq long, error binary"


class _Archived(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with retention, and what is archived of it."""

    live: FoundDirectory
    first_seq: int
    manifest: Manifest


class _Damage(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a queue's first damaged file, and its error."""

    first_seq: int
    error: ChronicleError


def tell_retention(
    spark: SparkSession,
    archive: Store,
    sources: Mapping[str, Source],
    reader: str,
    verified: Collection[str],
    failed: Failures,
) -> None:
    """Commit the reader of each queue, unless its archive lacks messages that are still in the queue.

    ``verified`` are files that need no further check. ``failed`` has the errors; the reader of a queue in it
    can only move back.
    """
    archived: dict[str, _Archived] = {}
    for name, source in sources.items():
        with noting(failed, name):
            if (queue := _load_archived(archive, source)) is not None:
                archived[name] = queue
    damaged = _check_file(spark, archive, archived, verified)
    for name, queue in sorted(archived.items()):
        damage = damaged.get(name)
        if damage is None and name in failed:
            continue
        with noting(failed, name), queue.live.reader(reader) as position:
            position.seek(queue.manifest.next_seq if damage is None else damage.first_seq)
            position.commit()
        if damage is not None:
            failed[name] = damage.error


def _load_archived(archive: Store, source: Source) -> _Archived | None:
    if source.is_java:  # nobody deletes by it; and a name would be a tailer in Java's own table
        return None
    manifest = Manifest.load(archive, source.name)
    if (live := source.live_directory) is None or manifest is None or not manifest.whole:
        return None
    first_seq = msgspec.structs.replace(source, archive=None).earliest()
    return _Archived(live=live, first_seq=first_seq, manifest=manifest)


def _check_file(
    spark: SparkSession,
    archive: Store,
    archived: Mapping[str, _Archived],
    verified: Collection[str],
) -> dict[str, _Damage]:
    doubtful = [
        (name, file)
        for name, queue in archived.items()
        for file in queue.manifest.files
        if file.end_seq > queue.first_seq and file.path not in verified
    ]
    damaged: dict[str, _Damage] = {}
    if doubtful:
        rows = run_tasks(spark, doubtful, partial(_check, archive), _DAMAGED).collect()
        for row in sorted(rows, key=lambda row: row.first_seq):
            error = decode_error(row.error)
            damaged.setdefault(row.source, _Damage(first_seq=row.first_seq, error=error))
    return damaged


def _check(archive: Store, work: tuple[str, ArchivedFile]) -> Iterator[Batch]:
    """Return the damage of a file, if any."""
    source, file = work
    failed: Failures = {}
    with noting(failed, source):
        check_file(archive, source, file)
    if failed:
        error = encode_error(failed[source])
        yield pa.record_batch({"source": [source], "first_seq": [file.first_seq], "error": [error]})
