"""Detects whether the threads of a loop in virtual time are working, or waiting for the loop.

Work in a thread takes no virtual time, so the clock stands still until it ends. A thread that passes a
coroutine to the loop (``asyncio.run_coroutine_threadsafe``) and waits for it needs the clock to move;
otherwise a coroutine that sleeps would never end. A thread counts as waiting while both of these are true:

1. Work that it passed to the loop has not ended: a task or a timer that was created by the function that it
passed to ``call_soon_threadsafe``. Tasks and timers that these create do not count. 2. It sleeps in
``threading.Condition.wait``, as ``Future.result``, ``Event.wait`` and ``queue.Queue.get`` do. There is no
notification for this, so it is polled every millisecond. A thread that waits in another way is not
detected: it counts as waiting if its work in the loop has not ended after `WORK_MAX_S` of real time.

A call that is queued in a pool without a free thread also counts as waiting.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["Job", "RunningJobs"]

WORK_MAX_S = 1.0
_POLL_INTERVAL_S = 0.001
_CONDITION_WAIT = threading.Condition.wait.__code__

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Job:
    """One call in a thread or a process that the loop waits for."""

    def __init__(self) -> None:
        self.pool: Executor | None = None  # all its threads may be in use
        self.thread: int | None = None  # None before the call has started
        self._submitted: list[asyncio.Future[Any] | asyncio.TimerHandle] = []
        self._submitted_at_s = 0.0

    def submit(self, work: "asyncio.Future[Any] | asyncio.TimerHandle") -> None:
        """Record work that the loop does for this call."""
        self._submitted.append(work)
        self._submitted_at_s = time.monotonic()

    def has_work_in_loop(self) -> bool:
        """Return whether work that this call submitted has not ended."""
        self._submitted = [work for work in self._submitted if not _is_done(work)]
        return bool(self._submitted)

    def is_waiting(self) -> bool:
        """Return whether its thread is waiting, as far as can be detected."""
        return (
            self.thread is None
            or _is_sleeping(self.thread)
            or time.monotonic() - self._submitted_at_s > WORK_MAX_S
        )


class RunningJobs:
    """The calls in threads whose results the loop does not have yet."""

    def __init__(self) -> None:
        self._expected: set[Job] = set()
        self._by_thread: dict[int, Job] = {}  # also calls whose result is no longer wanted
        self._submitting: Job | None = None
        self._is_ending = False

    def expect(self, job: Job, result: "asyncio.Future[Any]", pool: Executor | None) -> None:
        """Count a call until its result arrives, or is no longer wanted."""
        job.pool = pool
        self._expected.add(job)
        result.add_done_callback(lambda _: self._expected.discard(job))

    def end(self, is_ending: bool) -> None:
        """Record whether the loop is waiting for all threads to end."""
        self._is_ending = is_ending

    def run(self, job: Job, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run the call, in its thread."""
        job.thread = thread = threading.get_ident()
        self._by_thread[thread] = job
        try:
            return function(*args)
        finally:
            del self._by_thread[thread]

    def of_this_thread(self) -> Job | None:
        """Return the call that runs in this thread, if it is a job of this loop."""
        return self._by_thread.get(threading.get_ident())

    def call_for(self, job: Job, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call, in the loop, a function that a thread passed to ``call_soon_threadsafe``."""
        self._submitting = job
        try:
            function(*args)
        finally:
            self._submitting = None

    def add_work(self, work: "asyncio.Future[Any] | asyncio.TimerHandle") -> None:
        """Record that the loop created a task or a timer, possibly for a thread."""
        if self._submitting is not None:
            self._submitting.submit(work)

    def hold_clock_s(self) -> float | None:
        """Return how long the clock must stand still before the next check.

        0 if it may move, because all threads wait for the loop. None: until a thread calls the loop.
        """
        jobs = set(self._expected)
        if self._is_ending:
            jobs.update(list(self._by_thread.values()))
            if not jobs:  # the threads are idle and about to end
                return None
        hold_s = 0.0
        for job in jobs:
            if not job.has_work_in_loop():
                if not _is_queued(job, jobs):
                    return None
            elif not job.is_waiting():
                hold_s = _POLL_INTERVAL_S
        return hold_s

    def __bool__(self) -> bool:
        return bool(self._expected) or self._is_ending


def _is_done(work: "asyncio.Future[Any] | asyncio.TimerHandle") -> bool:
    if isinstance(work, asyncio.TimerHandle):
        is_set: bool = work._scheduled  # type: ignore[attr-defined]
        return work.cancelled() or not is_set
    return work.done()


def _is_sleeping(thread: int) -> bool:
    """Return whether a thread is in Condition.wait with a timeout above 0, or without one."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None or frame.f_code is not _CONDITION_WAIT:
        return False
    timeout = frame.f_locals.get("timeout")
    return timeout is None or timeout > 0


def _is_queued(job: Job, jobs: Iterable[Job]) -> bool:
    """Return whether the call waits for a free thread of its pool."""
    if job.thread is not None or job.pool is None:
        return False
    taken = sum(other.thread is not None for other in jobs if other.pool is job.pool)
    limit: int | None = getattr(job.pool, "_max_workers", None)
    return limit is not None and taken >= limit
