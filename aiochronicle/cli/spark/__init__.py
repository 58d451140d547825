"""``aioc spark JOB``, also ``python -m aiochronicle.spark JOB``: jobs over recorded queues.

One module per job; each is thin over the function of the same name in ``aiochronicle.spark.jobs``. Spark is
imported when a job runs: help and usage errors need neither Spark nor Java.
"""

from collections.abc import Callable

from cyclopts import App

from aiochronicle.cli.spark.archive import archive
from aiochronicle.cli.spark.asof import asof
from aiochronicle.cli.spark.audit import audit
from aiochronicle.cli.spark.bars import bars
from aiochronicle.cli.spark.pack import pack
from aiochronicle.cli.spark.quality import quality
from aiochronicle.cli.spark.replay import replay

__all__ = ["app"]

app = App(
    name="spark",
    help="Run a job over recorded queues on Spark: on this machine, or on a cluster.\n\n"
    "Needs aiochronicle[spark]. python -m aiochronicle.spark is another name for it.\n\n"
    "Example: aioc spark bars /var/lib/feeds --every 1m --out bars.parquet",
    help_format="markdown",
    help_epilogue="",
    version_flags=(),
)
_JOBS: tuple[Callable[..., None], ...] = (bars, archive, audit, asof, quality, replay, pack)
for _order, _job in enumerate(_JOBS):
    app.command(_job, sort_key=_order)
