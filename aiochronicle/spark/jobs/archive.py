"""Queues into Parquet files: partitioned by date and source, incremental, compacted, verified.

::

    OUT/date=2026-11-16/source=binance/0000000000000000000-5f3a….parquet
    OUT/_chronicle/binance.json          what is archived of the queue: see ledger.py

Each task reads a range of a queue, writes its rows with pyarrow, reads the file back and compares
number, order and content with what came out of the queue (readback.py). When all tasks have done so,
the ledgers are replaced, and retention is told up to where messages may be deleted (gate.py). What goes
wrong with one queue is no reason to leave out others: they are archived, and then it is told.

A later run goes on where the ledger ends, if the queue still has what was archived last. The last file
of a day, if it is small, is written anew together with what follows it, so that frequent runs do not
leave many small files.
"""

import contextlib
import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from aiochronicle.digest import StreamDigest
from aiochronicle.errors import AccessDenied, ChronicleError, InvalidArgument
from aiochronicle.export import Compression, write_parquet
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.found import naming
from aiochronicle.spark.jobs.continuity import check_continuity, fingerprint
from aiochronicle.spark.jobs.failures import Failures, failure, noting
from aiochronicle.spark.jobs.gate import tell_retention
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.jobs.ledger import ArchivedFile, Ledger, escape, keep_schema, locked
from aiochronicle.spark.jobs.readback import COLUMNS, Proof, prove, read_listed, verify
from aiochronicle.spark.options import Given, ReadOptions
from aiochronicle.spark.plan import Range
from aiochronicle.spark.private_files import FILE_MODE, Location, directory_mode
from aiochronicle.spark.queues import Source
from aiochronicle.spark.rows import read_range
from aiochronicle.spark.runs import checksum
from aiochronicle.spark.tasks import over_parts

__all__ = ["Archived", "archive", "archive_each", "archive_plan"]

READER = "archive"
SMALL_BYTES = 32 << 20  # a last file below this is compacted
GROUP_ROWS = 1 << 18
COMPRESSION: Compression = "zstd"
DAY_NS = 86_400 * 10**9

# Of each part: the files that were written, or the error.
_OUTCOMES = "source string, outcome binary"


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did for one queue; what the archive has before ``next_seq`` is verified."""

    source: str
    rows: int
    files: int
    bytes: int
    next_seq: int


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one task does: a range, behind the rows of a file that is to be compacted."""

    part: Range
    before: ArchivedFile | None = None


def archive(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    reader: str | None = READER,
    options: Mapping[str, Given] | None = None,
) -> list[Archived]:
    """Archive what is new in all queues under a root, and return what that was.

    ``reader`` is the named reader whose position says how far the archive is, for retention; None for
    read-only queues. Interrupted anywhere, the archive stays as it was, and a next run cleans up.
    Where to start (options) is for the first run; an archive that does not begin with the first
    message of its queue is not told to retention.
    What is wrong with a queue is raised after the others have been archived: ExportFailed if the disk is
    full, CorruptionError if the queue is damaged or a file is not what was written to it, now or in an
    earlier run (of those whose messages the queue still has, and keeps then), PositionLost if
    messages were removed before they were archived or if the queue has lost archived ones, NotAQueue if
    it is another one; and for several queues a ChronicleError that names them all.

    >>> archive(spark, "bus/md", "/data/archive")  # doctest: +SKIP
    """
    done, failed = archive_each(spark, root, out, reader=reader, options=options)
    if failed:
        raise failure(failed)
    return done


def archive_each(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    reader: str | None = READER,
    options: Mapping[str, Given] | None = None,
) -> tuple[list[Archived], Failures]:
    """As archive, but return what went wrong, too."""
    target = Path(out).absolute()
    _check_target(root, out)  # nothing is made there if it cannot be meant
    is_new = not target.exists()
    with locked(target):
        given, ledgers, failed = archive_plan(root, out, options)
        if is_new:
            _let_readers_in(target, given.sources.values())
        for name in given.sources:
            _clean(target, name, ledgers[name])
        work = _work(given, ledgers)
        run = uuid.uuid4().hex[:12]
        write = partial(_write_part, str(target), run, given.options)
        done: list[Archived] = []
        try:
            files: dict[str, list[ArchivedFile]] = {name: [] for name in given.sources}
            for row in over_parts(spark, work, write, _OUTCOMES).collect():
                outcome = pickle.loads(row.outcome)  # noqa: S301 - of our own tasks
                if isinstance(outcome, ChronicleError):
                    failed.setdefault(row.source, outcome)
                else:
                    files[row.source] += outcome
            for name, source in sorted(given.sources.items()):
                if name not in failed:
                    with noting(failed, name):
                        done.append(_publish(target, given, source, ledgers[name], files[name]))
        finally:
            for name in given.sources:
                _clean(target, name, Ledger.load(target, name))
        if reader is not None:
            verified = {file.path for fresh in files.values() for file in fresh}
            tell_retention(spark, target, given.sources, reader, verified, failed)
        return done, failed


def _let_readers_in(target: Path, sources: Iterable[Source]) -> None:
    """Let those enter the directory that was made for an archive who may read one of its queues."""
    mode = FILE_MODE
    for source in sources:
        mode |= source.readable_mode()
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, directory_mode(mode))
    finally:
        os.close(descriptor)


def _check_target(root: str, out: str) -> None:
    if Path(out).exists() and not Path(out).is_dir():
        raise InvalidArgument("the archive is to be a directory, and this is none", path=out)
    if Path(out).resolve() == Path(root).resolve():
        raise InvalidArgument("is what is to be archived: give another directory", path=out)


def archive_plan(
    root: str, out: str, options: Mapping[str, Given] | None = None
) -> tuple[Input, dict[str, Ledger | None], Failures]:
    """Return what a run would read, the ledgers it would continue, and why not those of other queues."""
    _check_target(root, out)
    failed: Failures = {}
    found = find_input(root, options, failed=failed)
    gaps = not found.options.fail_on_data_loss
    ledgers: dict[str, Ledger | None] = {}
    for name, source in found.sources.items():
        with noting(failed, name):
            ledger = Ledger.load(Path(out).absolute(), name)
            if ledger is not None:
                check_continuity(source, ledger, out, gaps=gaps)
            ledgers[name] = ledger
    if not ledgers:
        raise failure(failed)
    sources = {name: found.sources[name] for name in ledgers}
    start = {
        name: found.start[name] if ledger is None else ledger.next_seq
        for name, ledger in ledgers.items()
    }
    return msgspec.structs.replace(found, sources=sources, start=start), ledgers, failed


def _work(given: Input, ledgers: Mapping[str, Ledger | None]) -> list[_Work]:
    """Cut the input; the first part of a queue takes its last file along, if that is small."""
    work: list[_Work] = []
    begun: set[str] = set()
    for part in given.parts():
        ledger = ledgers[part.source.name]
        last = None if ledger is None or not ledger.files else ledger.files[-1]
        small = last is not None and last.bytes < SMALL_BYTES and part.source.name not in begun
        begun.add(part.source.name)
        work.append(_Work(part=part, before=last if small else None))
    return work


def _write_part(out: str, run: str, options: ReadOptions, work: _Work) -> Iterator[Batch]:
    """Write the files of one part, verify them, and say what they are, or what went wrong."""
    source = work.part.source.name
    files: list[ArchivedFile] = []
    failed: Failures = {}
    with noting(failed, source):
        files = _write_files(Path(out), run, options, work)
    outcome = pickle.dumps(failed.get(source, files))
    yield pa.record_batch({"source": [source], "outcome": [outcome]})


def _write_files(target: Path, run: str, options: ReadOptions, work: _Work) -> list[ArchivedFile]:
    source = work.part.source.name
    batches = read_range(work.part, COLUMNS, options, batch_rows=GROUP_ROWS)
    if work.before is not None:
        batches = _behind(target, source, work.before, batches)
    return [
        _write_file(target, work.part.source, day, run, (batch for _, batch in rows))
        for day, rows in groupby(_by_day(batches), lambda piece: piece[0])
    ]


def _behind(
    target: Path, source: str, before: ArchivedFile, batches: Iterator[Batch]
) -> Iterator[Batch]:
    """Yield the rows of a file, and what follows it if that is of the same day."""
    first = next(batches, None)
    if first is None:
        return
    day = f"date={np.datetime64(int(first.column('timestamp_ns')[0].as_py()) // DAY_NS, 'D')}"
    if before.path.startswith(day):
        yield from read_listed(target, source, before)
    yield first
    yield from batches


def _by_day(batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
    """Cut batches where the day (UTC) changes."""
    for batch in batches:
        days = batch.column("timestamp_ns").to_numpy() // DAY_NS
        cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for first, end in pairwise(cuts):
            yield int(days[first]), batch.slice(first, end - first)


def _write_file(
    target: Path, source: Source, day: int, run: str, batches: Iterator[Batch]
) -> ArchivedFile:
    first = next(batches)
    first_seq = int(first.column("seq")[0].as_py())
    names = (f"date={np.datetime64(day, 'D')}", f"source={escape(source.name)}")
    mode = source.readable_mode()
    name = f"{first_seq:019d}-{run}.parquet"
    digest = StreamDigest([source.name])
    last_seq = first_seq - 1
    proofs: list[Proof] = []
    bytes_checksum: int | None = None

    def rows() -> Iterator[Batch]:
        nonlocal last_seq
        for batch in _chained(first, batches):
            digest.add_batch(batch)
            proofs.append(prove(batch))
            last_seq = batch.column("seq")[-1].as_py()
            yield batch

    def verify_bytes(part: Path) -> None:
        nonlocal bytes_checksum
        bytes_checksum = checksum(part)  # first: so these are the bytes that are verified
        verify(proofs, part)

    with (
        # Held open: whatever has its name a moment later, the file is written into this one.
        Location(root=str(target), names=names).make(directory_mode(mode)) as directory,
        naming(directory.pinned(), str(directory.path)),
    ):
        count = write_parquet(
            rows(),
            first.schema,
            Path(directory.pinned(name)),
            rows_total=0,
            row_group_rows=1,  # so each batch is one, and can be compared with its proof
            compression=COMPRESSION,
            progress=None,
            verify=verify_bytes,
            mode=mode,
        )
        written = directory.find(name)
    return ArchivedFile(
        path="/".join((*names, name)),
        first_seq=first_seq,
        end_seq=last_seq + 1,
        rows=count,
        bytes=0 if written is None else written.st_size,
        digest=digest.hexdigest(),
        checksum=bytes_checksum,
    )


def _chained(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def _publish(
    target: Path, given: Input, source: Source, ledger: Ledger | None, files: list[ArchivedFile]
) -> Archived:
    """Replace the ledger of one queue by one that lists the new files."""
    name, live = source.name, source.live_directory
    fresh = sorted(files, key=lambda file: file.first_seq)
    before = () if ledger is None else ledger.files
    compacted = [file for file in before if fresh and file.end_seq > fresh[0].first_seq]
    listed = (*(file for file in before if file not in compacted), *fresh)
    rows = sum(file.rows for file in listed) - sum(file.rows for file in before)
    _account_for(given, name, rows)
    next_seq = max(given.start[name], given.end[name])
    unchanged = ledger is not None and ledger.next_seq == next_seq
    new = Ledger(
        source=name,
        queue_id=0 if live is None else live.inspect().queue_id,
        next_seq=next_seq,
        rows=sum(file.rows for file in listed),
        last=ledger.last if ledger is not None and unchanged else fingerprint(source, next_seq - 1),
        whole=given.start[name] <= source.earliest() if ledger is None else ledger.whole,
        files=listed,
    )
    mode = source.readable_mode()
    if live is not None:
        keep_schema(target, name, live, mode)
    new.save(target, mode)
    return Archived(
        source=name,
        rows=rows,
        files=len(fresh),
        bytes=sum(file.bytes for file in fresh),
        next_seq=new.next_seq,
    )


def _account_for(given: Input, name: str, rows: int) -> None:
    """Believe in fewer rows than seqs only where the options allow for loss."""
    options = given.options
    if rows != given.messages(name) and options.fail_on_data_loss and not options.skip_corrupt:
        raise ChronicleError(f"{rows} of {given.messages(name)} messages of {name} were archived")


def _clean(target: Path, source: str, ledger: Ledger | None) -> None:
    """Remove the files that the ledger does not list: a run that failed left them.

    Only from directories of ours: others may have put theirs, or links, where everybody may write.
    """
    listed = {file.path for file in (() if ledger is None else ledger.files)}
    for day in sorted(target.glob("date=*")):
        names = (day.name, f"source={escape(source)}")
        with (
            contextlib.suppress(FileNotFoundError, AccessDenied),
            Location(root=str(target), names=names).open() as directory,
        ):
            for file in directory.names():
                if "/".join((*names, file)) not in listed:
                    directory.remove(file)
