"""What people run over market data and orders, each job a function and a command.

=========  =====================================================================
archive    queues into Parquet files, verified, only what is new
bars       open, high, low, close, volume and VWAP by time, ticks or volume
asof       each trade with the quote that was in force
audit      all queues as one ordered stream, and its digest
quality    gaps, duplicates, late and unordered data, latencies, by queue and day
replay     Parquet files back into queues
=========  =====================================================================

``archived`` is an archive as a frame. The commands are ``python -m aiochronicle.spark JOB --help``.
"""

from aiochronicle.spark.jobs.archive import Archived, archive
from aiochronicle.spark.jobs.archived import archived
from aiochronicle.spark.jobs.asof import asof
from aiochronicle.spark.jobs.audit import Audit, audit
from aiochronicle.spark.jobs.bars import bars
from aiochronicle.spark.jobs.quality import quality
from aiochronicle.spark.jobs.replay import Replayed, replay

__all__ = [
    "Archived",
    "Audit",
    "Replayed",
    "archive",
    "archived",
    "asof",
    "audit",
    "bars",
    "quality",
    "replay",
]
