"""Queues as Spark frames, and frames as queues.

``session()`` starts a Spark in which ``spark.read.format("chronicle")`` works; ``register`` does the
same for a session of one's own. Needs ``pip install "aiochronicle[spark]"``; Java is brought along
where there is none.
"""

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    raise ImportError(
        'aiochronicle.spark needs PySpark: pip install "aiochronicle[spark]"', name="pyspark"
    )

from aiochronicle.spark.badrecords import BadRecords, bad_records
from aiochronicle.spark.explain import explain
from aiochronicle.spark.scan import count, scan, scan_stream
from aiochronicle.spark.session import register, session

__all__ = [
    "BadRecords",
    "bad_records",
    "count",
    "explain",
    "register",
    "scan",
    "scan_stream",
    "session",
]
