"""How far Spark is, on standard error, while a job runs."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

__all__ = ["Progress"]

TERMINAL_INTERVAL_S = 0.2
LINES_INTERVAL_S = 5.0


class Progress:
    """Shows finished and running tasks: one line that changes on a terminal, now and then a line elsewhere.

    >>> with Progress(spark, "bars"):  # doctest: +SKIP
    ...     frame.collect()
    """

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._what = what
        self._live = sys.stderr.isatty()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._say("done", "\n")

    def _watch(self) -> None:
        interval_s = TERMINAL_INTERVAL_S if self._live else LINES_INTERVAL_S
        while not self._ended.wait(interval_s):
            stages = [
                info
                for stage in self._tracker.getActiveStageIds()
                if (info := self._tracker.getStageInfo(stage)) is not None
            ]
            if stages:
                done = sum(stage.numCompletedTasks for stage in stages)
                running = sum(stage.numActiveTasks for stage in stages)
                total = sum(stage.numTasks for stage in stages)
                text = f"{done} of {total} tasks done, {running} running"
                self._say(text, "" if self._live else "\n")

    def _say(self, text: str, end: str) -> None:
        start = "\r\x1b[K" if self._live else ""
        elapsed_s = time.monotonic() - self._started_s
        sys.stderr.write(f"{start}{self._what}: {text}, {elapsed_s:.1f} s{end}")
        sys.stderr.flush()
