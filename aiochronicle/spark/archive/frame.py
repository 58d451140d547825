"""An archive of Parquet files as a frame, with the columns that the queues would have.

``spark.read.parquet`` reads an archive too, and faster if payloads are not needed. This module knows which
files belong to the archive, their checksums, and the types of the messages, whose schemas the archive keeps.
"""

from collections.abc import Collection, Iterator
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aiochronicle.errors import QueueNotFound
from aiochronicle.spark.archive.datasets import Typed
from aiochronicle.spark.archive.manifest import ArchivedFile, find_archive, schema_copy
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.archive.verify import read_fields, read_listed
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.source.columns import Shape, frame_schema
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.typed import find_type, rows_of_types
from aiochronicle.spark.tasks import run_tasks

__all__ = ["archived"]


def archived(
    spark: SparkSession,
    archive: str,
    *,
    type: str | None = None,  # noqa: A002 - as the option is called
    mode: str = "PERMISSIVE",
    queues: Collection[str] | None = None,
    days: Collection[str] | None = None,
) -> DataFrame:
    """Return the messages of an archive, as ``format("chronicle")`` returns those of queues.

    ``type`` and ``mode`` are options of that format. ``queues`` and ``days`` (as "2026-11-16", in UTC) select
    files; others are not read. Raises QueueNotFound, or UnknownType. If a file has changed since it was
    verified, the task that reads it fails before its first row.

    >>> archived(spark, "/data/archive", type="Trade", days=["2026-11-16"])  # doctest: +SKIP
    """
    store = open_store(archive, spark)
    found = find_archive(store, queues)
    if not found:
        raise QueueNotFound(
            "no job has archived anything there",
            path=archive,
            advice='Queues are read by format("chronicle"), other Parquet files by spark.read.parquet.',
        )
    typed = {} if type is None else {"type": type, "mode": mode}
    options = read_options({"path": "/", **typed})  # which is not asked: each file is named
    sources = {
        manifest.source: Source(
            name=manifest.source,
            live=None,
            archive=None,
            schema=schema_copy(store, manifest.source),
        )
        for manifest in found
    }
    schema = frame_schema(options, sources)
    files = [
        (sources[manifest.source], file)
        for manifest in found
        for file in manifest.files
        if days is None or file.day in days
    ]
    return run_tasks(spark, files, partial(_read, store, schema, options), schema)


def _read(
    store: Store, schema: StructType, options: ReadOptions, work: tuple[Source, ArchivedFile]
) -> Iterator[Batch]:
    source, file = work
    shape = Shape(schema, options, source)
    if shape.is_empty:
        return
    if file.type is not None and options.type is not None:
        if (fields := _fields(source, options.type, file)) is not None:
            columns = [name for name in shape.columns if name in schema.names]
            for batch in read_fields(store, source.name, file, [*columns, *fields.values()]):
                yield shape.place(batch, fields)
        return
    columns = sorted({*shape.columns, "timestamp_ns", "type_id"})
    for batch in read_listed(store, source.name, file, columns):
        rows = batch if shape.types is None else rows_of_types(batch, shape.types)
        yield shape.fit(rows)


def _fields(source: Source, name: str, file: ArchivedFile) -> dict[str, str] | None:
    """Return the columns of the fields of a type in a file; None if it has another type."""
    entry = find_type(source, name)
    if entry is None or Typed(entry).name != file.type:
        return None
    return Typed(entry).columns
