"""``aioc spark archive``."""

from typing import Annotated, Literal

from cyclopts import Parameter

from aiochronicle.cli.exits import Refused
from aiochronicle.cli.output import Output
from aiochronicle.cli.spark.arguments import (
    ALL,
    LOCAL,
    Flag,
    Place,
    Reading,
    Root,
    Running,
    place_of_archive,
)
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.reading import chosen, describe
from aiochronicle.cli.spark.running import started
from aiochronicle.cli.units import many

__all__ = ["archive"]

READER = "archive"


@job
def archive(
    root: Root,
    /,
    *,
    out: Annotated[
        Place,
        place_of_archive("DIR", "the archive, which may be s3://BUCKET/PREFIX; made if missing"),
    ],
    reader: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="reader whose position tells retention how far the archive is; default: archive",
        ),
    ] = None,
    no_reader: Annotated[bool, Flag("store no position: for queues that are read-only")] = False,
    allow_loss: Annotated[
        bool,
        Flag(
            "continue at the present start of a queue if messages were removed before they were archived"
        ),
    ] = False,
    table: Annotated[
        Literal["parquet", "delta", "iceberg"],
        Parameter(
            metavar="FORMAT", help="make a table of each type: delta or iceberg; default: parquet"
        ),
    ] = "parquet",
    payload: Annotated[
        bool, Flag("keep the payloads of all messages, not only where fields would not give them")
    ] = False,
    reading: Reading = ALL,
    running: Running = LOCAL,
) -> None:
    """Archive queues as Parquet files by type, date and queue, and verify them.

    Example: aioc spark archive bus/md --out /data/archive
    """
    if no_reader and reader is not None:
        raise Refused("--reader and --no-reader exclude each other")

    from aiochronicle.spark.failures import failure
    from aiochronicle.spark.jobs.archive import archive_each, archive_plan

    position = None if no_reader else reader or READER
    with chosen("archive", root, reading, running) as options:
        if allow_loss:
            options["failOnDataLoss"] = "false"
        found, _, failed = archive_plan(root, out, options)
        if running.dry_run:
            describe(found, f"archive them in {out}", running)
            if failed:
                raise failure(failed)
            return
        with started("archive", running) as spark:
            done, failed = archive_each(
                spark, root, out, table=table, payload=payload, reader=position, options=options
            )
        output = Output(as_json=running.json)
        if running.json:
            errors = {name: str(error) for name, error in failed.items()}
            output.json({"archived": done, "failed": errors})
        for queue in () if running.json else done:
            output.line(
                f"{queue.source}: {many(queue.rows, 'message')} verified in"
                f" {many(queue.files, 'file')} of {queue.bytes:,} bytes; archived up to seq"
                f" {queue.next_seq}"
            )
        if failed:
            raise failure(failed)
