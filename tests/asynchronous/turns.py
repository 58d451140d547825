"""Count and time the turns of a loop while other work runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["counted_turns", "longest_pause"]


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """Yield a list that grows by one item with every turn of the loop, until the block ends."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()


@asynccontextmanager
async def longest_pause() -> AsyncIterator[list[float]]:
    """Yield a list whose only item is the longest time between two turns, in seconds."""
    longest = [0.0]

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    beating = asyncio.create_task(beat())
    try:
        yield longest
    finally:
        await asyncio.sleep(0)
        beating.cancel()
