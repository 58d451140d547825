"""Jobs over market data and orders, each a function and a command.

=========  =====================================================================
archive    queues into Parquet files, verified, only what is new
bars       open, high, low, close, volume and VWAP by time, ticks or volume
asof       each trade with the quote in force at its time
audit      all queues as one ordered stream, and its digest
quality    gaps, duplicates, late and unordered data, latencies, by queue and day
replay     Parquet files back into queues
compact    small files of an archive put together
=========  =====================================================================

``archived`` is an archive as a frame; ``plot_bars``, ``plot_quality`` and ``plot_audit`` draw results. The
commands are ``aioc spark JOB --help``.
"""

from aiochronicle.spark.archive.frame import archived
from aiochronicle.spark.jobs.archive import Archived, archive
from aiochronicle.spark.jobs.asof import asof
from aiochronicle.spark.jobs.audit import Audit, audit
from aiochronicle.spark.jobs.bars import bars
from aiochronicle.spark.jobs.compact import Compacted, compact
from aiochronicle.spark.jobs.plots import Picture, plot_audit, plot_bars, plot_quality
from aiochronicle.spark.jobs.quality import quality
from aiochronicle.spark.jobs.replay import Replayed, replay

__all__ = [
    "Archived",
    "Audit",
    "Compacted",
    "Picture",
    "Replayed",
    "archive",
    "archived",
    "asof",
    "audit",
    "bars",
    "compact",
    "plot_audit",
    "plot_bars",
    "plot_quality",
    "quality",
    "replay",
]
