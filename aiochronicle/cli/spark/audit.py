"""``aioc spark audit``."""

from typing import Annotated

from cyclopts import Parameter

from aiochronicle.cli.exits import FAILED, Refused
from aiochronicle.cli.output import Output
from aiochronicle.cli.spark.arguments import ALL, LOCAL, Place, Reading, Root, Running, place
from aiochronicle.cli.spark.job import job
from aiochronicle.cli.spark.reading import chosen, describe
from aiochronicle.cli.spark.running import started
from aiochronicle.cli.units import many

__all__ = ["audit"]


@job
def audit(
    root: Root,
    /,
    *,
    out: Annotated[Place | None, place("DIR", "write the stream there, as Parquet")] = None,
    expect: Annotated[
        str | None, Parameter(metavar="DIGEST", help="fail if the digest differs from this one")
    ] = None,
    reading: Reading = ALL,
    running: Running = LOCAL,
) -> None:
    """Merge all queues into one ordered stream, and print its digest.

    Example: aioc spark audit bus --start 2026-11-16T08:00Z --end 2026-11-16T16:30Z
    """
    from aiochronicle.spark import jobs
    from aiochronicle.spark.jobs.inputs import find_input

    with chosen("audit", root, reading, running) as options:
        found = find_input(root, options)
        if running.dry_run:
            describe(found, "merge them", running)
            return
        with started("audit", running) as spark:
            done = jobs.audit(spark, root, out=out, options=options)
        output = Output(as_json=running.json)
        if running.json:
            output.json(done)
        else:
            output.line(f"{many(done.messages, 'message')} of {many(len(done.sources), 'queue')}")
            output.line(done.digest)
        if expect is not None and expect != done.digest:
            raise Refused(f"the digest is not {expect}", FAILED)
