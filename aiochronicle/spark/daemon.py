"""Starts Spark's Python workers with what they need already imported.

Spark forks its workers from a daemon, and plans every query over a Python source in fresh ones; each
would spend most of a second importing pyarrow and this package. ``session`` names this module as
spark.python.daemon.module on a single machine; in a cluster the package may not be where Spark starts.
"""

import gc

import pandas  # pyarrow imports it, a third of a second, when it first sees an array of numpy
from pyspark.daemon import manager

from aiochronicle.spark import source

__all__ = ["manager", "pandas", "source"]

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a worker collects after every task, and would look at all that was imported
    manager()
