"""Queues as Spark frames, and frames as queues.

``session()`` starts a Spark session in which ``spark.read.format("chronicle")`` works; ``register`` adds the
format to an existing session. Needs ``pip install "aiochronicle[spark]"``, which includes a Java.
"""

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    raise ImportError(
        'aiochronicle.spark needs PySpark: pip install "aiochronicle[spark]"', name="pyspark"
    )

from aiochronicle.spark.runtime.explain import explain
from aiochronicle.spark.runtime.session import register, session
from aiochronicle.spark.source.bad_records import BadRecords, bad_records
from aiochronicle.spark.source.scan import count, scan, scan_stream
from aiochronicle.spark.stream_progress import (
    ProgressListener,
    QueueProgress,
    StreamProgress,
    stream_progress,
)

__all__ = [
    "BadRecords",
    "ProgressListener",
    "QueueProgress",
    "StreamProgress",
    "bad_records",
    "count",
    "explain",
    "register",
    "scan",
    "scan_stream",
    "session",
    "stream_progress",
]
