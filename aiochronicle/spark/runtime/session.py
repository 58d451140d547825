"""A Spark session that is set up for queues."""

import os
from collections.abc import Mapping
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from aiochronicle.spark.data_source import ChronicleSource
from aiochronicle.spark.private_files import temporary_directory
from aiochronicle.spark.runtime.interpreter import DAEMON, chosen_interpreter
from aiochronicle.spark.runtime.java import ensure_java

__all__ = ["active_session", "register", "session"]

SOCKETS = "spark.python.unix.domain.socket.dir"
SOCKET_NAME_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")
SOCKET_PATH_BYTES_MAX = 107

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A third less time per micro-batch than the default one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Limits batches of rows for Python by number only, as all Sparks before 4.1 do. Counting the bytes after
    # each row costs more than passing the row on; a small number of rows bounds large payloads.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2048",
    "spark.ui.showConsoleProgress": "false",
}

# On one machine: nothing listens to the outside, a shuffle makes no 200 tiny files, and workers start with
# this package in memory. Over TCP, the first data that Spark sends to a worker waits 40 ms, in every task,
# for a delayed acknowledgement.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.python.daemon.module": DAEMON,
    "spark.python.unix.domain.socket.enabled": "true",
    # A row to Python and back passes through a dozen small methods, some of which Java's compiler would not
    # inline once they are compiled: 3 to 6 % of the JVM's time. Your own options,
    # spark.driver.extraJavaOptions, come after these.
    "spark.driver.defaultJavaOptions": "-XX:InlineSmallCode=5000",
    "spark.sql.shuffle.partitions": str(max(2, len(os.sched_getaffinity(0)))),
}

# Spark checks nulls and bounds itself before it reads or writes a value of an Arrow batch; Arrow's second
# check takes a tenth of the time of a write.
_LOCAL_ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true",
    "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false",
}


def session(
    app_name: str = "aiochronicle",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    ui: bool = False,
) -> SparkSession:
    """Return a Spark session in which ``format("chronicle")`` works; starts one if necessary.

    ``master`` defaults to the one of spark-submit, or ``local[*]``. A local session listens on the loopback
    interface only. ``ui`` gives a local session Spark's web page (stages, tasks, plans), at
    ``spark.sparkContext.uiWebUrl``. ``config`` has settings of Spark, which override ours. JavaNotFound if
    there is no Java; its text says what to do. Stop it with ``spark.stop()``.

    >>> spark = session()  # doctest: +SKIP
    >>> spark.read.format("chronicle").load("bus/md").count()  # doctest: +SKIP
    """
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not under_submit:
        ensure_java()
        master = master or "local[*]"
    is_local = (master or _submitted_master()).startswith("local")
    settings = dict(_SETTINGS)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    if is_local:
        settings |= _LOCAL_SETTINGS
        if SparkSession.getActiveSession() is None and (place := _place_for_sockets()):
            settings[SOCKETS] = place
        if ui:
            settings["spark.ui.enabled"] = "true"
        for name, value in _LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    for name, value in {**settings, **(config or {})}.items():
        builder = builder.config(name, value)
    with chosen_interpreter(is_local=is_local):
        spark = builder.getOrCreate()
    register(spark)
    return spark


def active_session() -> SparkSession | None:
    """Return the running session of this thread."""
    return SparkSession.getActiveSession()


def _submitted_master() -> str:
    """Return the master given to spark-submit, which has started the JVM."""
    SparkContext._ensure_initialized()  # pyright: ignore[reportPrivateUsage]
    return SparkConf().get("spark.master") or ""


def _place_for_sockets() -> str | None:
    """Create a directory that is removed with this process, because Spark leaves a socket if it is not
    stopped.

    None if the path of a socket in it would be too long for the kernel: then Spark chooses a place.
    """
    directory = temporary_directory()
    if len(os.fsencode(directory)) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES_MAX:
        directory.rmdir()
        return None
    return str(directory)


def register(spark: SparkSession) -> None:
    """Register ``format("chronicle")`` with an existing session.

    Where aiochronicle is installed, Spark also finds the format by itself.

    >>> register(spark)  # doctest: +SKIP
    """
    if not _is_known(spark):
        spark.dataSource.register(ChronicleSource)


def _is_known(spark: SparkSession) -> bool:
    """Return whether Spark has found the format by itself; registering it twice causes repeated warnings."""
    jvm_session: Any = getattr(spark, "_jsparkSession", None)
    if jvm_session is None:  # Spark Connect
        return False
    return bool(jvm_session.sessionState().dataSourceManager().dataSourceExists("chronicle"))
