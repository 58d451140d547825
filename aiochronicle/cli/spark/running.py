"""The Spark of a job: started, watched, stopped."""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from aiochronicle.cli.output import is_terminal
from aiochronicle.cli.progress import progress
from aiochronicle.cli.spark.arguments import Running
from aiochronicle.cli.spark.job import note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aiochronicle.spark.runtime.progress import Tasks

__all__ = ["started"]

TERMINAL_INTERVAL_S = 0.2
LINES_INTERVAL_S = 5.0
LINES_MAX = 20
STDERR = 2

# Errors are reported once, by us. Without an appender Spark would take its own configuration instead.
NO_LOGGING = """
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""


@contextmanager
def started(name: str, running: Running) -> Generator["SparkSession", None, None]:
    """Yield a session, show its progress, and stop it unless it existed before."""
    from aiochronicle.spark.runtime.progress import watch_tasks
    from aiochronicle.spark.runtime.session import active_session

    began_s = time.monotonic()
    live = is_terminal()
    before = active_session()
    if not logging.getLogger().handlers:
        # The bridge to Java logs a traceback when it is interrupted, to whatever the root logger has.
        logging.getLogger().addHandler(logging.NullHandler())
    note(name, "starting Spark")
    with tempfile.TemporaryFile() as java_log:
        try:
            with _errors_into(java_log):
                spark = _start(name, running)
            try:
                if running.ui and (url := spark.sparkContext.uiWebUrl):
                    note(name, f"Spark's page is {url}")
                with progress(is_bytes=False) as advance:

                    def tell(tasks: "Tasks") -> None:
                        counts = (
                            f"{tasks.done} of {tasks.total} tasks done, {tasks.running} running"
                        )
                        if live:
                            advance(f"{name}: {tasks.stages}", tasks.done, tasks.total)
                        else:
                            note(name, f"{counts}, {time.monotonic() - began_s:.1f} s")

                    interval_s = TERMINAL_INTERVAL_S if live else LINES_INTERVAL_S
                    with watch_tasks(spark, tell, interval_s):
                        yield spark
            finally:
                if before is None:  # another one is not ours to stop
                    spark.stop()
        except Exception as error:
            _show_last_words(java_log, error)
            raise
    note(name, f"done, {time.monotonic() - began_s:.1f} s")


def _start(name: str, running: Running) -> "SparkSession":
    from aiochronicle.spark import session

    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write(NO_LOGGING)
        settings.flush()
        config = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings.name}"}
        app_name = f"aiochronicle {name}"
        return session(app_name, master=running.master, config=config, ui=running.ui)


@contextmanager
def _errors_into(file: IO[bytes]) -> Generator[None]:
    """Use this file as the standard error of processes that are started in the block.

    At each start, Java and Spark print three lines there that say nothing about the job.
    """
    sys.stderr.flush()
    kept = os.dup(STDERR)
    try:
        os.dup2(file.fileno(), STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, STDERR)
        os.close(kept)


def _show_last_words(file: IO[bytes], error: Exception) -> None:
    """Print Java's output if it has ended, because nothing else knows why."""
    from aiochronicle.spark.runtime.explain import is_java_gone

    if is_java_gone(error):
        file.seek(0)
        for line in file.read().decode(errors="replace").splitlines()[-LINES_MAX:]:
            note("java", line)
