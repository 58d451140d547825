"""What a task of a sink leaves for the driver: sorted runs of rows in Arrow files.

A run holds as many rows as fit into memory comfortably, sorted by queue, time, source and seq; each
of its record batches belongs to one queue. What is only there to be read once and deleted is
compressed lightly: page cache and disk cost more than that.

    ROOT/.staging/WRITER@BATCH/ATTEMPT/….arrow

What is staged belongs to one batch of one writer (or to a stream, which has one at a time) and is
deleted by whoever publishes or gives up that batch. Drivers that die before leave it for a day.
"""

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql.types import StructType

from aiochronicle._binding import lib
from aiochronicle.errors import DiskFull, InvalidArgument
from aiochronicle.spark.append import RECORD_UNIT_BYTES
from aiochronicle.spark.arrow import Batch, Column, Table, pa, pc

__all__ = [
    "CAUSE",
    "Place",
    "Run",
    "check_columns",
    "discard",
    "lost",
    "stage",
    "stage_into",
    "sweep_old",
]

STAGING = ".staging"
OLD_S = 86_400.0
RUN_BYTES = 64 << 20
BATCH_ROWS = 8192
TIMESTAMP_NS_MAX = 2**63 - 2  # as for a writer's append
BATCH_BYTES = 1 << 20  # the merge holds a batch of each run

ACCEPTED = ("source", "seq", "timestamp_ns", "timestamp", "type_id", "payload", "cause")
ORDER = ["timestamp_ns", "source", "seq"]

CAUSE = pa.struct([("queue_id", pa.int64()), ("seq", pa.int64())])
_ROWS = pa.schema(
    [
        ("queue", pa.utf8()),
        ("timestamp_ns", pa.int64()),
        ("source", pa.utf8()),
        ("seq", pa.int64()),
        ("type_id", pa.int32()),
        ("payload", pa.binary()),
        ("cause", CAUSE),
    ]
)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run is for one queue."""

    queue: str
    batches: list[int]
    rows: int
    first_ns: int
    payload_bytes_max: int
    record_bytes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One file, and which of its batches are whose; without causes it has no column for them."""

    path: str
    shares: list[Share]
    caused: bool = True


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a writer stages a batch; a stream, which has no ``batch``, all that it has in hand.

    No writer's id has an ``@``, so nobody's place is another's.
    """

    root: str
    writer_id: str
    batch: int | None = None

    @property
    def path(self) -> Path:
        """The directory, which is there only while something is staged."""
        batch = "stream" if self.batch is None else self.batch
        # The next driver, which may need what is here, can have another working directory.
        return Path(os.path.abspath(self.root)) / STAGING / f"{self.writer_id}@{batch}"

    def new_directory(self) -> str:
        """Return where the tasks of one attempt put their runs."""
        return str(self.path / uuid.uuid4().hex)

    def sweep(self, needed: Iterable[Run] = ()) -> None:
        """Delete all that is staged here but what is needed: dead tasks and drivers leave some, too."""
        kept = {Path(run.path).parent.name for run in needed}  # the root may have many paths
        for attempt in self.path.glob("*"):
            if attempt.name not in kept:
                shutil.rmtree(attempt, ignore_errors=True)
        with contextlib.suppress(OSError):  # something is needed, or there is nothing
            self.path.rmdir()


def check_columns(schema: StructType, queue: str | None) -> None:
    """Raise InvalidArgument unless a frame has what messages are made of, and nothing else."""
    names = schema.fieldNames()
    if unknown := [name for name in names if name not in ACCEPTED]:
        raise InvalidArgument(
            f"column {unknown[0]!r} is no part of a message: select some of {', '.join(ACCEPTED)}"
        )
    if "payload" not in names:
        raise InvalidArgument("there is no column payload to write")
    if "timestamp_ns" not in names and "timestamp" not in names:
        raise InvalidArgument("there is no column timestamp_ns (or timestamp) to write with")
    if queue is None and "source" not in names:
        raise InvalidArgument("into which queue? Give option queue, or a column source")


def stage(batches: Iterable[Batch], directory: str, queue: str | None) -> list[Run]:
    """Write the rows of a task into runs, each synced to disk."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    return stage_into(batches, directory, queue)


def stage_into(batches: Iterable[Batch], directory: str, queue: str | None) -> list[Run]:
    """As stage, but fail if the directory is not there: the write was given up meanwhile."""
    try:
        return [_write(rows, directory, queue) for rows in _in_pieces(batches)]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("cannot stage the rows", path=directory, errno=error.errno) from error
        raise


def _in_pieces(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    kept: list[Batch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= RUN_BYTES:
            yield kept
            kept, size_bytes = [], 0
    if kept:
        yield kept


def _write(batches: list[Batch], directory: str, queue: str | None) -> Run:
    # As one: Spark's batches may be small, and each call of Arrow's has its price.
    rows = _as_rows(pa.Table.from_batches(batches).combine_chunks(), queue)
    if not _is_in_order(rows):
        rows = rows.sort_by([(name, "ascending") for name in ("queue", *ORDER)]).combine_chunks()
    path = Path(directory) / f"{uuid.uuid4().hex}.arrow"
    shares: list[Share] = []
    written = 0
    caused = rows.column("cause").null_count < rows.num_rows
    stored = rows.drop_columns(["queue"] if caused else ["queue", "cause"])
    lightly = pa.ipc.IpcWriteOptions(compression="lz4")
    with path.open("wb") as file:
        with pa.ipc.new_file(file, stored.schema, options=lightly) as writer:
            for name, first, end in _spans(rows.column("queue")):
                part = stored.slice(first, end - first)
                sizes = pc.binary_length(part.column("payload"))
                pieces = list(_pieces(part, sizes))
                for piece in pieces:
                    writer.write_batch(piece)
                share = Share(
                    queue=name,
                    batches=list(range(written, written + len(pieces))),
                    rows=end - first,
                    first_ns=part.column("timestamp_ns")[0].as_py(),
                    payload_bytes_max=pc.max(sizes).as_py(),
                    record_bytes=_record_bytes(sizes),
                )
                shares.append(share)
                written += len(pieces)
        file.flush()
        os.fsync(file.fileno())
    return Run(path=str(path), shares=shares, caused=caused)


def _pieces(rows: Table, sizes: Column) -> Iterator[Batch]:
    """Cut rows into batches of so many rows and bytes at most, but of one row at least."""
    ends_bytes = np.cumsum(sizes.to_numpy(), dtype=np.int64)
    first = 0
    while first < rows.num_rows:
        before = int(ends_bytes[first - 1]) if first else 0
        fit = int(np.searchsorted(ends_bytes, before + BATCH_BYTES, side="right"))
        count = max(min(fit - first, BATCH_ROWS), 1)
        yield from rows.slice(first, count).to_batches()
        first += count


def _record_bytes(sizes: Column) -> int:
    """Return what payloads of these sizes take in segments: a header each, and padding."""
    units = (sizes.to_numpy().astype(np.int64) + 2 * RECORD_UNIT_BYTES - 1) // RECORD_UNIT_BYTES
    return int(units.sum()) * RECORD_UNIT_BYTES


def _is_in_order(rows: Table) -> bool:
    """Tell whether the rows are those of one queue as it has them, which need not be sorted."""
    for name in ("queue", "source"):
        column = rows.column(name)
        if not pc.all(pc.equal(column, column[0]), skip_nulls=False).as_py():
            return False
    seqs, times_ns = (rows.column(name).to_numpy() for name in ("seq", "timestamp_ns"))
    later, same = times_ns[1:] > times_ns[:-1], times_ns[1:] == times_ns[:-1]
    return bool((later | (same & (seqs[1:] >= seqs[:-1]))).all())


def _as_rows(given: Table, queue: str | None) -> Table:
    """Bring rows of a frame into the columns of a run."""
    names = set(given.schema.names)
    count = given.num_rows

    def column(name: str, default: object, kind: object) -> object:
        return given.column(name) if name in names else pa.repeat(pa.scalar(default, kind), count)

    if "timestamp_ns" in names:
        time_ns = given.column("timestamp_ns")
    else:
        microseconds = given.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        time_ns = pc.multiply_checked(microseconds, 1000)
    source = column("source", "", pa.utf8())
    made = {
        "queue": source if queue is None else pa.repeat(pa.scalar(queue, pa.utf8()), count),
        "timestamp_ns": time_ns,
        "source": source,
        "seq": column("seq", 0, pa.int64()),
        "type_id": column("type_id", 0, pa.int32()),
        "payload": column("payload", None, pa.binary()),
        "cause": column("cause", None, CAUSE),
    }
    arrays = [pc.cast(made[field.name], field.type) for field in _ROWS]
    rows = pa.Table.from_arrays(arrays, schema=_ROWS)
    for name in ("queue", "timestamp_ns", "type_id", "payload"):
        if rows.column(name).null_count:
            raise InvalidArgument(f"a row has no {'source' if name == 'queue' else name}")
    times_ns = pc.min_max(rows.column("timestamp_ns"))
    if times_ns["min"].as_py() < 0:
        raise InvalidArgument("a row has a timestamp before 1970")
    if times_ns["max"].as_py() > TIMESTAMP_NS_MAX:
        raise InvalidArgument("a row has timestamp_ns 2**63 - 1, the end of time: must be less")
    types = pc.min_max(rows.column("type_id"))
    for type_id in (types["min"].as_py(), types["max"].as_py()):
        if not 0 <= type_id <= lib.AC_TYPE_MAX:
            raise InvalidArgument(f"a row has type_id {type_id}: must be 0 to {lib.AC_TYPE_MAX}")
    return rows


def _spans(queues: Column) -> Iterator[tuple[str, int, int]]:
    """Yield each queue's name and rows; the column is sorted."""
    first = 0
    for end in pc.run_end_encode(queues.combine_chunks()).run_ends.to_pylist():
        yield queues[first].as_py(), first, end
        first = end


def lost(runs: Iterable[Run]) -> list[str]:
    """Return the paths of runs that are not there any more, or not whole."""
    return [run.path for run in runs if not _is_whole(run.path)]


def _is_whole(path: str) -> bool:
    if not Path(path).is_file():
        return False
    try:
        with pa.memory_map(path) as file:
            pa.ipc.open_file(file)  # looks for the end, which is written last
    except pa.ArrowInvalid:
        return False
    except OSError:
        return True  # for all we know: it may be somebody else's, who can read it
    return True


def discard(runs: Iterable[Run]) -> None:
    """Delete runs that are published, and nothing that somebody else stages for the same batch."""
    for attempt in {Path(run.path).parent for run in runs}:
        shutil.rmtree(attempt, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are at it
            attempt.parent.rmdir()


def sweep_old(root: str, spared: Collection[str]) -> None:
    """Delete what dead drivers staged long ago, but for that of some writers."""
    for place in (Path(root) / STAGING).glob("*"):
        with contextlib.suppress(FileNotFoundError):  # its owner was quicker
            newest_s = max(path.stat().st_mtime for path in (place, *place.glob("*")))
            if place.name.rpartition("@")[0] not in spared and time.time() - newest_s > OLD_S:
                shutil.rmtree(place, ignore_errors=True)
