"""Queues into Parquet files: typed, partitioned by date and source, incremental, compacted, verified.

::

    OUT/type=Trade/date=2026-11-16/source=binance/0000000000000000000-5f3a….parquet
    OUT/_chronicle/binance.json          what is archived of the queue: see manifest.py

Each task reads a range of a queue, writes its rows with pyarrow, a dataset for each type (datasets.py),
reads each file back and compares number, order and content with what it wrote (verify.py). When all tasks
have done so, the manifests are replaced, and then the reader by which retention deletes is moved
(retention_position.py). An error of one queue does not stop the others: they are archived, and then the
error is raised.

A later run continues at the end of the manifest, if the queue still has the last archived message. A small
last file of a day is rewritten together with the messages that follow it, so that frequent runs do not leave
many small files.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from aiochronicle._base.arguments import one_of
from aiochronicle._base.locations import archive_path, is_object_url, local_path
from aiochronicle._base.prepared import prepared
from aiochronicle._base.report import HtmlList, HtmlStruct
from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.spark.archive.continuity import check_continuity, fingerprint
from aiochronicle.spark.archive.datasets import Datasets
from aiochronicle.spark.archive.manifest import VERSION, ArchivedFile, Manifest, keep_schema
from aiochronicle.spark.archive.merging import merged_by_seq
from aiochronicle.spark.archive.names import directory_of
from aiochronicle.spark.archive.retention_position import tell_retention
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.archive.tables import TABLES, Catalog, TableFormat, commit_tables
from aiochronicle.spark.archive.verify import COLUMNS, read_listed
from aiochronicle.spark.archive.writing import DAY_NS, FileWriter, directory_names
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.failures import Failures, decode_error, encode_error, failure, noting
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.options import Given, ReadOptions
from aiochronicle.spark.private_files import FILE_MODE
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.tasks import run_tasks

__all__ = ["Archived", "archive", "archive_each", "archive_plan"]

READER = "archive"
SMALL_BYTES = 32 << 20  # last files below this are compacted
SMALL_TYPED_BYTES = 4 << 20  # for these, payloads are encoded from fields again
READ_ROWS = 1 << 17

# Of each part: what was written, or the error.
_OUTCOMES = "source string, files binary, error binary"
_OUTCOME_SCHEMA = pa.schema({"source": pa.string(), "files": pa.binary(), "error": pa.binary()})


@prepared
class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """The new files of a part, and the files that they replace."""

    files: tuple[ArchivedFile, ...] = ()
    replaced: tuple[str, ...] = ()


_WRITTEN = msgspec.msgpack.Decoder(_Written)


class Archived(HtmlStruct, frozen=True, kw_only=True):
    """What a run did for one queue; everything before ``next_seq`` is archived and verified.

    ``payloads`` of the rows have their original payload: all rows without a type, those whose fields would
    not give the same bytes, or all rows on request.
    """

    source: str
    rows: int
    files: int
    bytes: int
    next_seq: int
    payloads: int = 0


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of all tasks."""

    store: Store
    run: str
    options: ReadOptions
    payload: bool
    table: TableFormat = "parquet"


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one task does: a range, after the rows of the files to compact.

    An archive that was begun without types continues without them.
    """

    part: Range
    before: tuple[ArchivedFile, ...] = ()
    has_types: bool = True


def archive(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    table: TableFormat = "parquet",
    catalog: Catalog = None,
    payload: bool = False,
    reader: str | None = READER,
    options: Mapping[str, Given] | None = None,
) -> list[Archived]:
    """Archive new messages of all queues under a root, and return what was archived.

    ``out`` is a directory, or ``s3://BUCKET/PREFIX``. Messages of a type in the queue's schema.json are in
    ``type=NAME``, with their fields as columns; all others in ``type=raw``. Rows of a type have their payload
    if ``payload`` is true, or if their fields would not give the same bytes again.
    With ``table="delta"`` or ``"iceberg"`` each dataset is a table, in ``NAME``; ``catalog`` is the name or
    the properties of a catalog of pyiceberg, by default a SQLite file in the archive.
    ``reader`` is the named reader whose position says how far the archive is, for retention; None for
    read-only queues. Interrupted anywhere, the archive stays as it was, and a next run cleans up.
    Where to start (options) is for the first run; an archive that does not begin with the first
    message of its queue does not reach retention.
    The error of a queue is raised after the other queues have been archived: ExportFailed if the disk is
    full, CorruptionError if the queue is damaged or a file is not what was written to it, now or in an
    earlier run (of those whose messages the queue still has, and keeps then), PositionLost if
    messages were removed before they were archived or if the queue has lost archived ones, NotAQueue if
    it is another one; and for several queues a ChronicleError that names them all.

    >>> archive(spark, "bus/md", "/data/archive")  # doctest: +SKIP
    """
    done, failed = archive_each(
        spark,
        root,
        out,
        table=table,
        catalog=catalog,
        payload=payload,
        reader=reader,
        options=options,
    )
    if failed:
        raise failure(failed)
    return HtmlList(done)


def archive_each(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    table: TableFormat = "parquet",
    catalog: Catalog = None,
    payload: bool = False,
    reader: str | None = READER,
    options: Mapping[str, Given] | None = None,
) -> tuple[list[Archived], Failures]:
    """As archive, but also return the errors."""
    one_of("table", dict.fromkeys(TABLES), table)
    root, out = local_path(root), archive_path(out)
    _check_target(root, out)  # create nothing at a place that cannot be meant
    store = open_store(out, spark)
    is_new = not store.exists()
    with store.locked():
        given, manifests, failed = archive_plan(root, out, options, store=store)
        if is_new:
            _let_readers_in(store, given.sources.values())
        known = [one for one in manifests.values() if one is not None]
        _check_table(known, table, out)
        commit = partial(
            commit_tables, store, table, schemas=_schemas(given, table), catalog=catalog
        )
        commit(known)  # commits that a killed driver did not make
        store.clean({name: _listed(manifests[name]) for name in given.sources})
        task = _Task(
            store=store,
            run=uuid.uuid4().hex[:12],
            options=given.options,
            payload=payload,
            table=table,
        )
        done: list[Archived] = []
        try:
            written: dict[str, list[_Written]] = {name: [] for name in given.sources}
            work = _work(given, manifests, compacts=table == "parquet")
            for row in run_tasks(spark, work, partial(_write_part, task), _OUTCOMES).collect():
                if row.error is not None:
                    failed.setdefault(row.source, decode_error(row.error))
                else:
                    written[row.source].append(_WRITTEN.decode(row.files))
            for name, source in sorted(given.sources.items()):
                if name not in failed:
                    with noting(failed, name):
                        done.append(_publish(task, given, source, manifests[name], written[name]))
        finally:
            store.clean({name: _listed(Manifest.load(store, name)) for name in given.sources})
        commit(filter(None, [Manifest.load(store, one.source) for one in done]))
        if reader is not None:
            fresh = {file.path for parts in written.values() for one in parts for file in one.files}
            tell_retention(spark, store, given.sources, reader, fresh, failed)
        return done, failed


def _listed(manifest: Manifest | None) -> set[str]:
    return {file.path for file in (() if manifest is None else manifest.files)}


def _let_readers_in(store: Store, sources: Iterable[Source]) -> None:
    """Give access to a new archive's directory to those who may read one of its queues."""
    mode = FILE_MODE
    for source in sources:
        mode |= source.readable_mode()
    store.make(mode)


def _check_target(root: str, out: str) -> None:
    if is_object_url(out):
        return
    if Path(out).exists() and not Path(out).is_dir():
        raise InvalidArgument("the archive must be a directory, and this is not one", path=out)
    if Path(out).resolve() == Path(root).resolve():
        raise InvalidArgument("is the source of the archive: give another directory", path=out)


def archive_plan(
    root: str,
    out: str,
    options: Mapping[str, Given] | None = None,
    *,
    store: Store | None = None,
) -> tuple[Input, dict[str, Manifest | None], Failures]:
    """Return what a run would read, the manifests it would continue, and the errors of other queues."""
    root, out = local_path(root), archive_path(out)
    _check_target(root, out)
    store = open_store(out) if store is None else store
    failed: Failures = {}
    found = find_input(root, options, failed=failed)
    gaps = not found.options.fail_on_data_loss
    manifests: dict[str, Manifest | None] = {}
    for name, source in found.sources.items():
        with noting(failed, name):
            manifest = Manifest.load(store, name)
            if manifest is not None:
                check_continuity(source, manifest, out, gaps=gaps)
            manifests[name] = manifest
    if not manifests:
        raise failure(failed)
    sources = {name: found.sources[name] for name in manifests}
    start = {
        name: found.start[name] if manifest is None else manifest.next_seq
        for name, manifest in manifests.items()
    }
    return msgspec.structs.replace(found, sources=sources, start=start), manifests, failed


def _schemas(given: Input, table: TableFormat) -> dict[str, dict[str, pa.Schema]]:
    """Return the schemas of the datasets of each queue, for tables."""
    sources = {} if table == "parquet" else given.sources
    return {name: Datasets(source, payload=False).schemas() for name, source in sources.items()}


def _check_table(manifests: Iterable[Manifest], table: TableFormat, out: str) -> None:
    for manifest in manifests:
        if manifest.files and manifest.table != table:
            raise InvalidArgument(
                f"{manifest.source} is archived there as table={manifest.table!r}, not {table!r}: give"
                " another directory",
                path=out,
            )


def _work(given: Input, manifests: Mapping[str, Manifest | None], *, compacts: bool) -> list[_Work]:
    """Divide the input; the first part of a queue includes its last files, if they are small."""
    work: list[_Work] = []
    begun: set[str] = set()
    for part in given.parts():
        manifest = manifests[part.source.name]
        is_first = part.source.name not in begun
        begun.add(part.source.name)
        has_types = manifest is None or _has_types(manifest)
        is_continued = is_first and compacts
        before = _small_last(manifest) if manifest is not None and is_continued else ()
        work.append(_Work(part=part, before=before, has_types=has_types))
    return work


def _has_types(manifest: Manifest) -> bool:
    return manifest.version > 1 or not manifest.files


def _small_last(manifest: Manifest) -> tuple[ArchivedFile, ...]:
    """Return the last file of each dataset on the last day, if it is small."""
    last: dict[str | None, ArchivedFile] = {}
    day = max((file.day for file in manifest.files), default="")
    for file in manifest.files:
        if file.day == day:
            last[file.type] = file
    return tuple(
        file
        for file in last.values()
        if file.bytes < (SMALL_BYTES if file.type is None else SMALL_TYPED_BYTES)
    )


def _write_part(task: _Task, work: _Work) -> Iterator[Batch]:
    """Write and verify the files of one part, and yield their descriptions, or the error."""
    source = work.part.source.name
    written = _Written()
    failed: Failures = {}
    with noting(failed, source):
        written = _write_files(task, work)
    error = encode_error(failed[source]) if source in failed else None
    row: dict[str, list[object]] = {
        "source": [source],
        "files": [msgspec.msgpack.encode(written)],
        "error": [error],
    }
    yield pa.record_batch(row, schema=_OUTCOME_SCHEMA)


def _write_files(task: _Task, work: _Work) -> _Written:
    batches = read_range(work.part, COLUMNS, task.options, batch_rows=READ_ROWS)
    first = next(batches, None)
    if first is None:
        return _Written()
    day = str(np.datetime64(int(first.column("timestamp_ns")[0].as_py()) // DAY_NS, "D"))
    compacted = [file for file in work.before if file.day == day]
    source = work.part.source
    before = merged_by_seq([read_listed(task.store, source.name, file) for file in compacted])
    datasets = Datasets(source if work.has_types else None, payload=task.payload)
    files: list[ArchivedFile] = []
    with ExitStack() as open_files:
        writers: dict[str, FileWriter] = {}
        writing: int | None = None
        for number, batch in _by_day(_chain(before, first, batches)):
            if number != writing:
                files += [writer.close() for writer in writers.values()]
                writers, writing = {}, number
            for dataset, rows, messages in datasets.split(batch):
                if dataset not in writers:
                    writer = _writer(task, work, dataset, number)
                    writers[dataset] = open_files.enter_context(writer)
                writers[dataset].add(rows, messages)
        files += [writer.close() for writer in writers.values()]
    return _Written(files=tuple(files), replaced=tuple(file.path for file in compacted))


def _writer(task: _Task, work: _Work, dataset: str, day: int) -> FileWriter:
    source = work.part.source
    names = directory_names(day, source.name)
    if work.has_types:
        names = (directory_of(dataset, is_table=task.table != "parquet"), *names)
    return FileWriter(
        task.store,
        source.name,
        names,
        dataset,
        task.run,
        mode=source.readable_mode(),
        named=task.table == "iceberg",
    )


def _by_day(batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
    """Split batches where the day (UTC) changes."""
    for batch in batches:
        days = batch.column("timestamp_ns").to_numpy() // DAY_NS
        cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for first, end in pairwise(cuts):
            yield int(days[first]), batch.slice(first, end - first)


def _chain(before: Iterator[Batch], first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield from before
    yield first
    yield from rest


def _publish(
    task: _Task,
    given: Input,
    source: Source,
    manifest: Manifest | None,
    written: list[_Written],
) -> Archived:
    """Replace the manifest of one queue by one that lists the new files."""
    store, name, live = task.store, source.name, source.live_directory
    fresh = [file for part in written for file in part.files]
    replaced = {path for part in written for path in part.replaced}
    before = () if manifest is None else manifest.files
    kept = [file for file in before if file.path not in replaced]
    listed = tuple(sorted((*kept, *fresh), key=lambda file: file.first_seq))
    rows = sum(file.rows for file in listed) - sum(file.rows for file in before)
    _account_for(given, name, rows)
    next_seq = max(given.start[name], given.end[name])
    unchanged = manifest is not None and manifest.next_seq == next_seq
    new = Manifest(
        version=VERSION if manifest is None or _has_types(manifest) else manifest.version,
        source=name,
        queue_id=0 if live is None else live.inspect().queue_id,
        next_seq=next_seq,
        rows=sum(file.rows for file in listed),
        last=manifest.last
        if manifest is not None and unchanged
        else fingerprint(source, next_seq - 1),
        whole=given.start[name] <= source.earliest() if manifest is None else manifest.whole,
        table=task.table,
        files=listed,
    )
    mode = source.readable_mode()
    if live is not None:
        keep_schema(store, name, live, mode)
    new.save(store, mode)
    return Archived(
        source=name,
        rows=rows,
        files=len(fresh),
        bytes=sum(file.bytes for file in fresh),
        next_seq=new.next_seq,
        payloads=sum(file.kept or 0 for file in fresh),
    )


def _account_for(given: Input, name: str, rows: int) -> None:
    """Accept fewer rows than seqs only where the options allow loss."""
    options = given.options
    if rows != given.messages(name) and options.fail_on_data_loss and not options.skip_corrupt:
        raise ChronicleError(f"{rows} of {given.messages(name)} messages of {name} were archived")
