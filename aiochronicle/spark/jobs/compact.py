"""Merges small files of an archive, which frequent runs leave.

Of each dataset, queue and day, small files that follow each other become one, verified like any other. The
manifest is replaced, and then the table, if the archive has tables, by one commit for each. A job that is
killed in between leaves that to the next run of ``archive`` or ``compact``.
"""

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import groupby

import msgspec
from pyspark.sql import SparkSession

from aiochronicle._base.locations import archive_path
from aiochronicle._base.report import HtmlList, HtmlStruct
from aiochronicle.errors import QueueNotFound
from aiochronicle.spark.archive.datasets import Datasets, typed_of
from aiochronicle.spark.archive.manifest import (
    ArchivedFile,
    Manifest,
    find_archive,
    schema_copy,
)
from aiochronicle.spark.archive.names import RAW
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.archive.tables import Catalog, commit_tables
from aiochronicle.spark.archive.verify import read_whole
from aiochronicle.spark.archive.writing import FileWriter
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.failures import Failures, decode_error, encode_error, failure, noting
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.tasks import run_tasks

__all__ = ["Compacted", "compact"]

SMALL_BYTES = 64 << 20

_OUTCOMES = "source string, file binary, error binary"
_OUTCOME_SCHEMA = pa.schema({"source": pa.string(), "file": pa.binary(), "error": pa.binary()})
_FILE = msgspec.msgpack.Decoder(ArchivedFile)


class Compacted(HtmlStruct, frozen=True, kw_only=True):
    """The number of a queue's files before and after."""

    source: str
    before: int
    after: int


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    files: tuple[ArchivedFile, ...]
    table: str
    mode: int


def compact(
    spark: SparkSession, archive: str, *, catalog: Catalog = None, small_bytes: int = SMALL_BYTES
) -> list[Compacted]:
    """Merge small files of an archive, and return what was done for each queue.

    ``catalog`` is that of the ``archive`` job. Files of a table that were replaced are deleted by the next
    run of ``archive``: until then older versions of the table can be read.

    >>> compact(spark, "/data/archive")  # doctest: +SKIP
    """
    store = open_store(archive_path(archive), spark)
    if not (found := find_archive(store)):
        raise QueueNotFound("no job has archived anything there", path=archive, advice="")
    with store.locked():
        manifests = [one for each in found if (one := Manifest.load(store, each.source))]
        _commit(store, manifests, catalog)  # commits that a killed driver did not make
        groups = [group for one in manifests for group in _groups(store, one, small_bytes)]
        merge = partial(_merge_group, store, uuid.uuid4().hex[:12])
        merged: list[tuple[_Group, ArchivedFile]] = []
        failed: Failures = {}
        rows = run_tasks(spark, groups, merge, _OUTCOMES).collect() if groups else []
        for group, row in zip(groups, rows, strict=True):
            if row.error is not None:
                failed.setdefault(row.source, decode_error(row.error))
            else:
                merged.append((group, _FILE.decode(row.file)))
        done = [_replace(store, one, merged) for one in manifests if one.source not in failed]
        now = [one for each in found if (one := Manifest.load(store, each.source))]
        _commit(store, now, catalog)
        store.clean(
            {one.source: {file.path for file in one.files} for one in now if one.table == "parquet"}
        )
        if failed:
            raise failure(failed)
        return HtmlList(done)


def _commit(store: Store, manifests: list[Manifest], catalog: Catalog) -> None:
    for table, some in groupby(sorted(manifests, key=lambda one: one.table), lambda one: one.table):
        listed = list(some)
        schemas = {
            one.source: Datasets(
                Source(
                    name=one.source, live=None, archive=None, schema=schema_copy(store, one.source)
                ),
                payload=False,
            ).schemas()
            for one in listed
        }
        commit_tables(store, table, listed, schemas, catalog)


def _groups(store: Store, manifest: Manifest, small_bytes: int) -> Iterator[_Group]:
    """Yield runs of adjacent small files of one dataset, day and type."""

    def kind(file: ArchivedFile) -> tuple[str, str | None, bool]:
        return _directory(file), file.fingerprint, file.bytes < small_bytes

    files = sorted(manifest.files, key=lambda file: (_directory(file), file.first_seq))
    for (_, _, is_small), some in groupby(files, kind):
        together = tuple(some)
        if is_small and len(together) > 1:
            yield _Group(
                source=manifest.source,
                files=together,
                table=manifest.table,
                mode=store.mode_of(together[0].path),
            )


def _directory(file: ArchivedFile) -> str:
    return file.path.rpartition("/")[0]


def _merge_group(store: Store, run: str, group: _Group) -> Iterator[Batch]:
    """Merge files into one, and yield its description, or the error."""
    failed: Failures = {}
    written: ArchivedFile | None = None
    with noting(failed, group.source):
        written = _merged(store, run, group)
    error = encode_error(failed[group.source]) if failed else None
    row: dict[str, list[object]] = {
        "source": [group.source],
        "file": [msgspec.msgpack.encode(written)],
        "error": [error],
    }
    yield pa.record_batch(row, schema=_OUTCOME_SCHEMA)


def _merged(store: Store, run: str, group: _Group) -> ArchivedFile:
    names = tuple(_directory(group.files[0]).split("/"))
    dataset = group.files[0].type or RAW
    with FileWriter(
        store, group.source, names, dataset, run, mode=group.mode, named=group.table == "iceberg"
    ) as writer:
        for file in group.files:
            for rows in read_whole(store, group.source, file):
                typed = typed_of(rows.schema)
                messages = rows if typed is None else typed.restored(rows)
                kept = [name for name in rows.schema.names if name != "source"]
                writer.add(rows.select(kept), messages)
        return writer.close()


def _replace(
    store: Store, manifest: Manifest, merged: list[tuple[_Group, ArchivedFile]]
) -> Compacted:
    of_queue = [(group, file) for group, file in merged if group.source == manifest.source]
    gone = {file.path for group, _ in of_queue for file in group.files}
    listed = [file for file in manifest.files if file.path not in gone]
    listed += [file for _, file in of_queue]
    new = msgspec.structs.replace(
        manifest, files=tuple(sorted(listed, key=lambda file: file.first_seq))
    )
    if of_queue:
        new.save(store, of_queue[0][0].mode)
    return Compacted(source=manifest.source, before=len(manifest.files), after=len(new.files))
