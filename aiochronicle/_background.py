"""What would block the event loop, done in threads: system calls that wait for the disk."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["GroupCommit", "in_background"]

T = TypeVar("T")

_THREADS_MAX = 16

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """In a forked child the pool's threads do not exist."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="aiochronicle")
    return _pool


async def in_background(function: Callable[[], T]) -> T:
    """Run a blocking function in a thread. Cancelled, the function still runs to its end."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), function)


class GroupCommit:
    """Lets any number of tasks wait for durability with one sync at a time.

    A sync covers everything appended before it starts. Whoever asks while one is under way
    therefore waits for the next, together with all others who asked meanwhile.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._running: asyncio.Task[int] | None = None
        self._following: asyncio.Task[int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._durable_seq = 0

    async def wait(self, seq: int) -> int:
        """Return once every message before ``seq`` is durable; the result is at least ``seq``."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._running, self._following = loop, None, None
        while self._durable_seq < seq:
            if self._running is None or self._running.done():
                self._running = loop.create_task(self._run())
                mine = self._running
            else:
                if self._following is None or self._following.done():
                    self._following = loop.create_task(self._run_after(self._running))
                mine = self._following
            # Shielded: one task's cancellation must not take the sync from the others.
            self._durable_seq = max(self._durable_seq, await asyncio.shield(mine))
        return self._durable_seq

    async def _run(self) -> int:
        return await in_background(self._sync)

    async def _run_after(self, running: asyncio.Task[int]) -> int:
        await asyncio.wait([running])
        self._running = asyncio.current_task()
        self._following = None
        return await in_background(self._sync)
