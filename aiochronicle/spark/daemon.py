"""Starts Spark's Python workers with what they need already imported.

Spark forks its workers from daemons, one for tasks and one for each step of planning a query over a
Python source; each worker would spend most of a second importing pyarrow and this package.
``session`` names this module as spark.python.daemon.module on a single machine; in a cluster the
package may not be where Spark starts.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

from aiochronicle.spark import source

__all__ = ["manager", "source"]

TASKS = "pyspark.worker"

if __name__ == "__main__":
    if sys.argv[-1] == TASKS:
        # pyarrow imports it, a third of a second, when it first sees an array of numpy.
        importlib.import_module("pandas")
    gc.collect()
    gc.freeze()  # a worker collects after every task, and would look at all that was imported
    manager()
