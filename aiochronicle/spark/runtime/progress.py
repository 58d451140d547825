"""The progress of Spark's running stages."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec
from pyspark.sql import SparkSession

__all__ = ["Tasks", "watch_tasks"]


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of the stages that run now."""

    stages: str
    done: int
    running: int
    total: int


@contextmanager
def watch_tasks(
    spark: SparkSession, tell: Callable[[Tasks], None], interval_s: float
) -> Generator[None]:
    """Call ``tell`` from a thread, at this interval and while something runs, until the block ends.

    >>> with watch_tasks(spark, print, 1.0):  # doctest: +SKIP
    ...     frame.collect()
    """
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(interval_s):
            stages = [
                info
                for stage in sorted(tracker.getActiveStageIds())
                if (info := tracker.getStageInfo(stage)) is not None
            ]
            if stages:
                numbers = ", ".join(str(stage.stageId) for stage in stages)
                tell(
                    Tasks(
                        stages=f"stage{'s' if len(stages) > 1 else ''} {numbers}",
                        done=sum(stage.numCompletedTasks for stage in stages),
                        running=sum(stage.numActiveTasks for stage in stages),
                        total=sum(stage.numTasks for stage in stages),
                    )
                )

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
