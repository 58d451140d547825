"""Counting the turns that a loop gets while something else is done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["counted_turns"]


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """Give a list that grows by one with every turn of the loop, until the block is left."""
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
