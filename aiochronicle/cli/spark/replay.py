"""``aioc spark replay``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from aiochronicle.cli.output import Output
from aiochronicle.cli.spark.arguments import LOCAL, Place, Running, place, place_of_archive
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.running import started
from aiochronicle.cli.units import many
from aiochronicle.errors import QueueNotFound

if TYPE_CHECKING:
    from aiochronicle.spark.archive.manifest import Manifest

__all__ = ["replay"]


@job
def replay(
    files: Annotated[
        Place,
        place_of_archive(
            "DIR", "directory that contains the files, at any depth; an archive may be in s3://"
        ),
    ],
    /,
    *,
    out: Annotated[Place, place("DIR", "root of the queues")],
    queues: Annotated[
        str | None, Parameter(metavar="NAME,NAME", help="only these queues of an archive")
    ] = None,
    queue: Annotated[
        str | None, Parameter(metavar="NAME", help="write everything into one queue of this name")
    ] = None,
    running: Running = LOCAL,
) -> None:
    """Write an archive, or other Parquet files, into queues.

    Example: aioc spark replay /data/archive --out bus/again
    """
    from aiochronicle.spark import jobs
    from aiochronicle.spark.archive.manifest import find_archive
    from aiochronicle.spark.jobs.replay import check_times

    names = None if queues is None else queues.split(",")
    found = find_archive(files, names)
    place_of_files = Path(files)
    if not found and place_of_files.is_dir() and not any(place_of_files.rglob("*.parquet")):
        raise QueueNotFound(
            "there is neither an archive nor any Parquet file",
            path=files,
            advice="Give the directory that archive has written to; queues themselves are not replayed.",
        )
    output = Output(as_json=running.json)
    if running.dry_run:
        _describe(output, found, out)
        check_times(files, found, out, queue)
        return
    with started("replay", running) as spark:
        done = jobs.replay(spark, files, out, queues=names, queue=queue)
    if running.json:
        output.json(done)
        return
    verified = " and verified" if found and queue is None else ""
    for one in done:
        output.line(f"{one.source}: {many(one.rows, 'message')} written{verified}")


def _describe(output: Output, found: "list[Manifest]", out: str) -> None:
    would = f"write {'them' if found else 'Parquet files'} into queues in {out}"
    if output.as_json:
        queues = [
            {"source": one.source, "messages": one.rows, "files": len(one.files)} for one in found
        ]
        output.json({"would": would, "queues": queues})
        return
    for one in found:
        output.line(f"{one.source}: {many(one.rows, 'message')} in {many(len(one.files), 'file')}")
    output.line(f"would {would}")
