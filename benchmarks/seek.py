"""How long does finding a message by number or by time take in a 10 GiB queue?

Warm: the reader has sought before, so the indexes and the pages that it walks are in memory. The reader
seeks each of the places, spread over all segments, by number and by time; measured is the time of the call
of ``seek``, and the median of all places counts. The message at the place is checked afterwards.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

from aiochronicle import Reader, open_reader
from benchmarks import large_queue
from benchmarks.measure import Result, percentile

PLACES = 300
SEED = 2


def time_seeks(reader: Reader, seek: Callable[[int], None], places: list[int], to: int) -> float:
    """Return the median time in microseconds of seeking each place, ``to`` above its number."""
    taken_us: list[float] = []
    for place in places:
        started_ns = time.perf_counter_ns()
        seek(place + to)
        taken_us.append((time.perf_counter_ns() - started_ns) / 1000)
        message = reader.poll()
        assert message is not None
        assert message.seq == place
    return percentile(taken_us, 0.5)


def run(directory: Path, quick: bool) -> list[Result]:
    path = directory / "large"
    count = large_queue.build(path, quick)
    dice = random.Random(SEED)
    places = [dice.randrange(count) for _ in range(PLACES)]
    with open_reader(path) as reader:
        time_seeks(reader, reader.seek, places, 0)  # warms up
        by_seq_us = time_seeks(reader, reader.seek, places, 0)
        by_time_us = time_seeks(reader, reader.seek_time, places, large_queue.START_NS)
    detail = f"{count} messages in {large_queue.segments(quick)} segments"
    return [
        Result.at_most("seek", "seek by seq, warm", by_seq_us, 100, "us", detail),
        Result.at_most("seek", "seek by time, warm", by_time_us, 100, "us", detail),
    ]
