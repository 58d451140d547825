"""What does an append cost, next to a queue in memory and to a C call that does nothing?

All loops call a method with one argument, ``object.method(payload)``, so each figure includes the same cost
of interpreter and loop. ``gc.is_tracked`` is a C function that returns at once. An append reads the clock,
copies, computes the checksum and publishes, into a queue on disk whose segments the housekeeper prepares, as
in any program. A round is short enough for the housekeeper to keep up.
"""

import asyncio
import gc
from itertools import repeat
from pathlib import Path

from aiochronicle import open_writer
from benchmarks.measure import PAYLOAD, Result, compare

MESSAGES = 20_000
BATCH = 100


def run(directory: Path, quick: bool) -> list[Result]:
    payload = PAYLOAD
    batch = [payload] * BATCH
    memory: asyncio.Queue[bytes] = asyncio.Queue()

    def append() -> int:
        for _ in repeat(None, MESSAGES):
            writer.append(payload)
        return MESSAGES

    def append_many() -> int:
        for _ in repeat(None, MESSAGES // BATCH):
            writer.append_many(batch)
        return MESSAGES

    def put_nowait() -> int:
        for _ in repeat(None, MESSAGES):
            memory.put_nowait(payload)
        return MESSAGES

    def nothing() -> int:
        for _ in repeat(None, MESSAGES):
            gc.is_tracked(payload)
        return MESSAGES

    def get_nowait() -> int:
        for _ in repeat(None, MESSAGES):
            memory.get_nowait()
        return MESSAGES

    contestants = {
        "nothing": nothing,
        "append": append,
        "append_many": append_many,
        "put_nowait": put_nowait,
        "get_nowait": get_nowait,  # not measured: empties the queue in memory for the next round
    }
    with open_writer(directory / "append") as writer:
        best = compare(contestants, rounds=3 if quick else 60)

    def against(measured: str, yardstick: str, bar: float, what: str) -> Result:
        ratio = best.ratio(measured, yardstick)
        return Result.at_most("append", what, ratio, bar, "x", best.describe(measured, yardstick))

    return [
        against("append", "put_nowait", 1.0, "append / asyncio.Queue.put_nowait"),
        against("append", "nothing", 4.0, "append / empty C method call"),
        against("append_many", "append", 0.6, f"append_many of {BATCH}, per message / append"),
    ]
