"""How the demo's services read: in batches, and to the end after a request to stop."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiochronicle
from aiochronicle.demo.reports import Stop

__all__ = ["batches_until"]

BATCH = 512
WAIT_S = 0.05


async def batches_until(
    stop: Stop, source: aiochronicle.Reader[Any] | aiochronicle.FanIn[Any]
) -> AsyncIterator[list[aiochronicle.Message[Any]]]:
    """Yield batches, and an empty one now and then while there are no messages.

    Ends when ``stop`` is set and everything that was appended before that has been delivered.
    """
    while True:
        stopping = stop.is_set()  # before the look, so that nothing appended until then is missed
        batch = source.read_batch(BATCH)
        if not batch:
            try:
                batch = [await source.next(timeout=WAIT_S)]
            except TimeoutError:
                if stopping and source.lag.messages == 0:
                    return
        yield batch
        await asyncio.sleep(0)
