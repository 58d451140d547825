"""Does an append notice that a new segment begins?

Every append is timed on its own, in real time, over many segment rolls, as fast as the loop goes;
the best of several runs counts. One append in 43,690 rolls, so the 99.9th percentile shows whether
what goes on around rolls (preparing, populating, sealing and syncing, in other threads) disturbs
appends; the worst append, and how many rolls found no segment prepared, are in the details. The
time of an append includes the call of the clock around it.
"""

import time
from pathlib import Path

from aiochronicle import Writer, open_writer
from benchmarks.measure import PAYLOAD, Result, percentile

SEGMENT_BYTES = 8 << 20
RECORD_BYTES = 192
ROLLS = 12


def time_appends(writer: Writer, count: int) -> list[float]:
    clock = time.perf_counter_ns
    taken_ns = [0.0] * count
    for number in range(count):
        started_ns = clock()
        writer.append(PAYLOAD)
        taken_ns[number] = clock() - started_ns
    return taken_ns


def run(directory: Path, quick: bool) -> list[Result]:
    rolls = 2 if quick else ROLLS
    count = SEGMENT_BYTES // RECORD_BYTES * rolls + 1
    attempts: list[tuple[float, str]] = []
    for attempt in range(1 if quick else 3):
        with open_writer(directory / f"roll{attempt}", segment_size=SEGMENT_BYTES) as writer:
            taken_ns = time_appends(writer, count)
            statistics = writer.statistics()
        median_ns = percentile(taken_ns, 0.5)
        tail_ns = percentile(taken_ns, 0.999)
        detail = (
            f"{tail_ns:.0f} ns / {median_ns:.0f} ns, {statistics.rolls} rolls,"
            f" {statistics.rolls_unprepared} unprepared, worst {max(taken_ns) / 1000:.0f} us"
        )
        attempts.append((tail_ns / median_ns, detail))
    ratio, detail = min(attempts)
    return [Result.at_most("roll", "p99.9 / median of append over rolls", ratio, 20, "x", detail)]
