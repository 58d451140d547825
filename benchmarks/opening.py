"""How long does opening a 10 GiB queue take after a clean close?

Real time, the best of several runs, with the directory and the ends of the queue in the page cache. The
writer's report must say that nothing was scanned.
"""

import time
from pathlib import Path

from aiochronicle import inspect, open_reader, open_writer
from benchmarks import large_queue
from benchmarks.measure import Result

TRIES = 7


def time_reader(path: Path) -> float:
    started_ns = time.perf_counter_ns()
    with open_reader(path) as reader:
        taken_ns = time.perf_counter_ns() - started_ns
        assert reader.poll() is not None
    return taken_ns / 1e6


def time_writer(path: Path) -> float:
    started_ns = time.perf_counter_ns()
    with open_writer(path) as writer:
        taken_ns = time.perf_counter_ns() - started_ns
        assert writer.recovery.clean
        assert writer.recovery.records_scanned == 0
    return taken_ns / 1e6


def run(directory: Path, quick: bool) -> list[Result]:
    path = directory / "large"
    large_queue.build(path, quick)
    count = inspect(path).segments
    size = f"{count * large_queue.SEGMENT_BYTES / (1 << 30):.0f} GiB, {count} segments"
    tries = 2 if quick else TRIES
    reading_ms = [time_reader(path) for _ in range(tries)]
    writing_ms = [time_writer(path) for _ in range(tries)]

    def opened(how: str, taken_ms: list[float]) -> Result:
        detail = f"{size}, worst {max(taken_ms):.1f} ms"
        return Result.at_most("opening", f"open for {how}", min(taken_ms), 50, "ms", detail)

    return [opened("reading", reading_ms), opened("writing", writing_ms)]
