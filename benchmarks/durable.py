"""How many messages become durable per second when a thousand tasks wait for it together?

Each task appends a message and awaits ``flush``, several times; the other side appends one message at a time
and syncs it before the next. Both write to queues on the same disk, in turns. Real time, because the disk
dominates.
"""

import asyncio
import time
from pathlib import Path

from aiochronicle import open_writer
from benchmarks.measure import PAYLOAD_BYTES, Result

TASKS = 1000
ROUNDS = 10
SINGLE = 200
SINGLE_QUICK = 20


async def flush_together(path: Path, payload: bytes) -> tuple[float, int]:
    async with open_writer(path) as writer:

        async def work() -> None:
            for _ in range(ROUNDS):
                writer.append(payload)
                await writer.flush()

        before = writer.statistics().syncs
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(work())
        spent_s = time.perf_counter() - started_s
        return spent_s / (TASKS * ROUNDS), writer.statistics().syncs - before


def flush_each(path: Path, payload: bytes, count: int) -> float:
    with open_writer(path) as writer:
        started_s = time.perf_counter()
        for _ in range(count):
            writer.append(payload)
            writer.flush_now()
        return (time.perf_counter() - started_s) / count


def run(directory: Path, quick: bool) -> list[Result]:
    payload = bytes(PAYLOAD_BYTES)
    together_s, each_s, syncs = float("inf"), float("inf"), 0
    for number in range(1 if quick else 5):
        spent_s, syncs = asyncio.run(flush_together(directory / f"together-{number}", payload))
        together_s = min(together_s, spent_s)
        each = flush_each(directory / f"each-{number}", payload, SINGLE_QUICK if quick else SINGLE)
        each_s = min(each_s, each)
    detail = f"{together_s * 1e6:.1f} us with {syncs} syncs / {each_s * 1e6:.1f} us"
    what = "a message among 1,000 tasks x flush() / one sync each"
    return [Result.at_most("durable", what, together_s / each_s, 1 / 20, "x", detail)]
