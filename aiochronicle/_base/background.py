"""Runs calls that wait for the disk in threads, to keep them off the event loop."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["GroupCommit", "in_background", "in_thread", "shielded"]

T = TypeVar("T")

_THREADS_MAX = 16

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """Drop the pool in a forked child, where its threads do not exist."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="aiochronicle")
    return _pool


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Run a blocking function in a thread, for callers that may be in another loop when it ends.

    Runs it in the calling thread while the interpreter shuts down, when no thread can be started.
    """
    try:
        return _threads().submit(function)
    except RuntimeError:
        return _run_now(function)


def _run_now(function: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
        future.set_exception(error)
    return future


def in_background(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a blocking function in a thread. If the caller is cancelled, the function still runs to its end."""
    # Shielded: otherwise a call that no thread has started yet would be cancelled with its waiter.
    # Not a task: a program that cancels all tasks would leave open what the function opens.
    return shielded(asyncio.get_running_loop().run_in_executor(_threads(), function))


def shielded(inner: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future that completes like ``inner``, but may be cancelled on its own.

    Unlike asyncio.shield it does not report an exception that arrives after the cancellation.
    """
    outer: asyncio.Future[T] = inner.get_loop().create_future()

    def hand_over(_: asyncio.Future[T]) -> None:
        error = None if inner.cancelled() else inner.exception()
        if outer.done():
            return
        if inner.cancelled():
            outer.cancel()
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    inner.add_done_callback(hand_over)
    return outer


class GroupCommit(Generic[T]):
    """Runs one sync at a time for any number of waiting tasks.

    A sync covers everything appended before it starts. A caller that arrives during a sync therefore waits
    for the next one, which it shares with all other such callers. Each event loop runs its own syncs, because
    only its own loop may complete a future.
    """

    def __init__(self, sync: Callable[[], T]) -> None:
        self._sync = sync
        # By loop: the task that syncs, and the futures that wait for its next sync.
        self._groups: dict[
            asyncio.AbstractEventLoop, tuple[asyncio.Task[None], list[asyncio.Future[T]]]
        ] = {}

    async def wait(self) -> T:
        """Return the result of a sync that starts after this call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        nobody: list[asyncio.Future[T]] = []
        task, waiting = self._groups.get(loop, (None, nobody))
        waiting.append(future)
        if task is None or task.done():
            self._forget_closed_loops()
            self._groups[loop] = loop.create_task(self._run(loop, waiting)), waiting
        # A cancelled task cancels its own future only; the sync continues for the others.
        return await future

    def _forget_closed_loops(self) -> None:
        """Remove the entries of loops that were closed during a sync; their tasks never end."""
        for loop in list(self._groups):  # a copy, because loops in other threads change the dict
            if loop.is_closed():
                self._groups.pop(loop, None)

    async def _run(self, loop: asyncio.AbstractEventLoop, waiting: list[asyncio.Future[T]]) -> None:
        try:
            while waiting:
                group = waiting.copy()
                waiting.clear()
                await self._sync_for(group)
        finally:
            self._groups.pop(loop, None)
            if not loop.is_closed():  # a closed loop has no task to wake
                for future in waiting:  # this task was cancelled
                    future.cancel()

    async def _sync_for(self, group: list[asyncio.Future[T]]) -> None:
        try:
            result = await in_background(self._sync)
        except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
            for future in group:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:
            for future in group:
                future.cancel()
            raise
        else:
            for future in group:
                if not future.done():
                    future.set_result(result)
