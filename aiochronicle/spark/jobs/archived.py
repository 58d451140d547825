"""An archive of Parquet files as a frame, with the columns that the queues would have.

``spark.read.parquet`` reads an archive too, and faster if payloads are not looked at. This knows which
files are part of it and what they were when they were verified, and the types of the messages, whose
schemas the archive has kept.
"""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aiochronicle.errors import QueueNotFound
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.columns import Shape, frame_schema
from aiochronicle.spark.jobs.ledger import ArchivedFile, find_archive, schema_copy
from aiochronicle.spark.jobs.readback import read_listed
from aiochronicle.spark.options import ReadOptions, read_options
from aiochronicle.spark.queues import Source
from aiochronicle.spark.tasks import over_parts

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

    ``type`` and ``mode`` are its options. ``queues`` and ``days`` (as "2026-11-16", in UTC) choose some;
    the files of others are not touched. Raises QueueNotFound, or UnknownType. A file that is not the one
    which was verified when it was archived fails the task that reads it, before its first row.

    >>> archived(spark, "/data/archive", type="Trade", days=["2026-11-16"])  # doctest: +SKIP
    """
    target = Path(archive).absolute()
    found = find_archive(target, queues)
    if not found:
        raise QueueNotFound(
            "no job has archived anything there",
            path=archive,
            advice='Queues are read by format("chronicle"), other Parquet files by spark.read.parquet.',
        )
    typed = {} if type is None else {"type": type, "mode": mode}
    options = read_options({"path": str(target), **typed})
    sources = {
        ledger.source: Source(
            name=ledger.source,
            live=None,
            archive=str(target),
            schema=str(schema_copy(target, ledger.source)),
        )
        for ledger in found
    }
    schema = frame_schema(options, sources)
    files = [
        (sources[ledger.source], file)
        for ledger in found
        for file in ledger.files
        if days is None or file.path.partition("/")[0].removeprefix("date=") in days
    ]
    return over_parts(spark, files, partial(_read, schema, options), schema)


def _read(
    schema: StructType, options: ReadOptions, work: tuple[Source, ArchivedFile]
) -> Iterator[Batch]:
    source, file = work
    shape = Shape(schema, options, source)
    if not shape.is_empty:
        columns = sorted({*shape.columns, "timestamp_ns"})
        for batch in read_listed(Path(options.path), source.name, file, columns):
            yield shape.fit(batch)
