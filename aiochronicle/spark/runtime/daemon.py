"""Starts Spark's Python workers with their imports already done.

Spark forks its workers from daemons, one for tasks and one for each step of planning a query over a
Python source; each worker would spend most of a second importing pyarrow and this package.
``session`` names this module as spark.python.daemon.module on a single machine, for tasks, and the script
of ``interpreter`` for planning; in a cluster the package may not be where Spark starts.
"""

import gc
import importlib
import sys
from socket import socket

from pyspark import daemon

from aiochronicle.spark import data_source as source
from aiochronicle.spark.runtime import forkserver

__all__ = ["source"]

# Workers that handle rows: tasks, and the commit of a sink.
HANDLE_ROWS = ("pyspark.worker", "pyspark.sql.worker.commit_data_source_write")

_worker = daemon.worker


def quiet_worker(sock: socket, authenticated: bool) -> int:
    """Work for Spark; after Spark has ended, end without a traceback on the user's terminal.

    A worker that waits for work takes the end of its socket for an error, and tries to report it to Spark.
    """
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    if sys.argv[-1] in HANDLE_ROWS:
        # pyarrow imports it, a third of a second, when it first sees an array of numpy.
        importlib.import_module("pandas")
    gc.collect()
    gc.freeze()  # a worker runs the collector after every task, which would scan everything imported
    forkserver.start()
    daemon.worker = quiet_worker
    daemon.manager()
