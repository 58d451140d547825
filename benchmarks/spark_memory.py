"""Measure how much memory Spark's Python workers need for reading, beyond what they start with."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["WatchedWorkers"]

INTERVAL_S = 0.01


class WatchedWorkers:
    """Polls the workers; ``growth_bytes`` is the largest growth of one of them.

    A worker is forked from a daemon that has imported everything and reads nothing, so its additional memory
    is for its task. Pages of the segments belong to the page cache and are not counted.
    """

    def __init__(self) -> None:
        self.growth_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
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

    def _watch(self) -> None:
        daemons: list[int] = []
        while not self._ended.wait(INTERVAL_S):
            daemons = daemons or [p for p in _descendants(os.getpid()) if _is_daemon(p)]
            for daemon in daemons:
                before = _anonymous_bytes(daemon)
                for worker in _children(daemon):
                    grown = _anonymous_bytes(worker) - before
                    self.growth_bytes = max(self.growth_bytes, grown)


def _descendants(process: int) -> Iterator[int]:
    for child in _children(process):
        yield child
        yield from _descendants(child)


def _children(process: int) -> list[int]:
    """Return the children of all threads: the JVM may start a daemon in any of them."""
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(child) for child in _text(file).split()]
    return found


def _is_daemon(process: int) -> bool:
    """Return whether tasks run in the children of this process."""
    return _text(Path(f"/proc/{process}/cmdline")).rstrip("\0").endswith("\0pyspark.worker")


def _anonymous_bytes(process: int) -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", _text(Path(f"/proc/{process}/status")))
    return int(found[1]) * 1024 if found else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""
