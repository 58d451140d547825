"""What retention is told of an archive: a position, before which messages may be deleted.

It is that of a named reader of the queue. Retention that waits for this reader deletes nothing behind it.
It lies behind all that is archived and verified, or before the first file that has changed since: as long
as the queue has a message, the file with its copy is looked at again by every run. One that is damaged
takes the position back, so that the queue keeps what may be nowhere else.
"""

import pickle
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from aiochronicle.errors import ChronicleError
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.found import FoundDirectory
from aiochronicle.spark.jobs.failures import Failures, noting
from aiochronicle.spark.jobs.ledger import ArchivedFile, Ledger
from aiochronicle.spark.jobs.readback import check_file
from aiochronicle.spark.queues import Source
from aiochronicle.spark.tasks import over_parts

__all__ = ["tell_retention"]

_DAMAGED = "source string, first_seq long, error binary"


class _Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A queue from which retention deletes, and what is archived of it."""

    live: FoundDirectory
    first_seq: int
    ledger: Ledger


class _Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Where the first damaged file of a queue begins, and what is wrong with it."""

    first_seq: int
    error: ChronicleError


def tell_retention(
    spark: SparkSession,
    archive: Path,
    sources: Mapping[str, Source],
    reader: str,
    verified: Collection[str],
    failed: Failures,
) -> None:
    """Commit the reader of each queue, unless its archive lacks messages that are still in the queue.

    ``verified`` are files that need no other look. What was found or went wrong is in ``failed``; the
    reader of a queue that is there already can only go back.
    """
    gates: dict[str, _Gate] = {}
    for name, source in sources.items():
        with noting(failed, name):
            if (gate := _gate(archive, source)) is not None:
                gates[name] = gate
    damaged = _damaged(spark, archive, gates, verified)
    for name, gate in sorted(gates.items()):
        damage = damaged.get(name)
        if damage is None and name in failed:
            continue
        with noting(failed, name), gate.live.reader(reader) as position:
            position.seek(gate.ledger.next_seq if damage is None else damage.first_seq)
            position.commit()
        if damage is not None:
            failed[name] = damage.error


def _gate(archive: Path, source: Source) -> _Gate | None:
    if source.is_java:  # nobody deletes by it; and a name would be a tailer in Java's own table
        return None
    ledger = Ledger.load(archive, source.name)
    if (live := source.live_directory) is None or ledger is None or not ledger.whole:
        return None
    first_seq = msgspec.structs.replace(source, archive=None).earliest()
    return _Gate(live=live, first_seq=first_seq, ledger=ledger)


def _damaged(
    spark: SparkSession, archive: Path, gates: Mapping[str, _Gate], verified: Collection[str]
) -> dict[str, _Damage]:
    doubtful = [
        (name, file)
        for name, gate in gates.items()
        for file in gate.ledger.files
        if file.end_seq > gate.first_seq and file.path not in verified
    ]
    damaged: dict[str, _Damage] = {}
    if doubtful:
        rows = over_parts(spark, doubtful, partial(_check, str(archive)), _DAMAGED).collect()
        for row in sorted(rows, key=lambda row: row.first_seq):
            error = pickle.loads(row.error)  # noqa: S301 - of our own tasks
            damaged.setdefault(row.source, _Damage(first_seq=row.first_seq, error=error))
    return damaged


def _check(archive: str, work: tuple[str, ArchivedFile]) -> Iterator[Batch]:
    """Say of a file if it is damaged, and how."""
    source, file = work
    failed: Failures = {}
    with noting(failed, source):
        check_file(Path(archive), source, file)
    if failed:
        error = pickle.dumps(failed[source])
        yield pa.record_batch({"source": [source], "first_seq": [file.first_seq], "error": [error]})
