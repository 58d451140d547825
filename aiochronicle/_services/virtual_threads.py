"""Whether the threads of a loop in virtual time are working, or waiting for the loop.

A working thread takes no virtual time, so the clock stands still until it is done. A thread that passes a
coroutine to the loop (``asyncio.run_coroutine_threadsafe``) and waits for it needs the clock to move, or a
coroutine that sleeps would never end. A thread counts as waiting while both of these are true:

1. Something that it passed to the loop is not done yet: a task or a timer created by the function that it
passed to ``call_soon_threadsafe``. Tasks and timers that these create do not count.
2. It sleeps in ``threading.Condition.wait``, where ``Future.result``, ``Event.wait`` and ``queue.Queue.get``
wait. There is no notification for this, so it is polled every millisecond. A thread that waits in another way
is not recognised: it counts as waiting when its work in the loop was not done for `PATIENCE_S` of real time.

A call that is queued in a pool without a free thread counts as waiting too.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["Job", "JobsAtWork"]

PATIENCE_S = 1.0
_LOOK_AGAIN_S = 0.001
_CONDITION_WAIT = threading.Condition.wait.__code__

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Job:
    """One call in a thread, or in a process, that the loop waits for."""

    def __init__(self) -> None:
        self.pool: Executor | None = None  # whose threads may all be taken
        self.thread: int | None = None  # when it has started
        self._handed_in: list[asyncio.Future[Any] | asyncio.TimerHandle] = []
        self._handed_in_at = 0.0

    def hand_in(self, work: "asyncio.Future[Any] | asyncio.TimerHandle") -> None:
        """Note what the loop does for it."""
        self._handed_in.append(work)
        self._handed_in_at = time.monotonic()

    def has_work_in_loop(self) -> bool:
        """Return whether something that it handed in is not done yet."""
        self._handed_in = [work for work in self._handed_in if not _is_done(work)]
        return bool(self._handed_in)

    def is_waiting(self) -> bool:
        """Return whether its thread waits, as far as can be seen."""
        return (
            self.thread is None
            or _sleeps(self.thread)
            or time.monotonic() - self._handed_in_at > PATIENCE_S
        )


class JobsAtWork:
    """The calls in threads whose results the loop has not got yet."""

    def __init__(self) -> None:
        self._expected: set[Job] = set()
        self._by_thread: dict[int, Job] = {}  # also those whose result nobody wants any more
        self._asking: Job | None = None
        self._is_ending = False

    def expect(self, job: Job, result: "asyncio.Future[Any]", pool: Executor | None) -> None:
        """Count a call until its result is there, or not wanted any more."""
        job.pool = pool
        self._expected.add(job)
        result.add_done_callback(lambda _: self._expected.discard(job))

    def end(self, is_ending: bool) -> None:
        """Note that all threads are being waited for, or no longer."""
        self._is_ending = is_ending

    def run(self, job: Job, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do the call; in its thread."""
        job.thread = thread = threading.get_ident()
        self._by_thread[thread] = job
        try:
            return function(*args)
        finally:
            del self._by_thread[thread]

    def of_this_thread(self) -> Job | None:
        """Return the call that this thread is doing, if it is one of ours."""
        return self._by_thread.get(threading.get_ident())

    def call_for(self, job: Job, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call in the loop what a thread gave to ``call_soon_threadsafe``."""
        self._asking = job
        try:
            function(*args)
        finally:
            self._asking = None

    def note_made(self, work: "asyncio.Future[Any] | asyncio.TimerHandle") -> None:
        """Note that the loop made a task or a timer: perhaps for a thread."""
        if self._asking is not None:
            self._asking.hand_in(work)

    def hold_clock_s(self) -> float | None:
        """Return how long the clock must stand still before this is asked again.

        0 if it may go on: all threads wait for the loop. None: until a thread has done something.
        """
        jobs = set(self._expected)
        if self._is_ending:
            jobs.update(list(self._by_thread.values()))
            if not jobs:  # the threads have nothing left to do, and are about to end
                return None
        hold_s = 0.0
        for job in jobs:
            if not job.has_work_in_loop():
                if not _is_in_line(job, jobs):
                    return None
            elif not job.is_waiting():
                hold_s = _LOOK_AGAIN_S
        return hold_s

    def __bool__(self) -> bool:
        return bool(self._expected) or self._is_ending


def _is_done(work: "asyncio.Future[Any] | asyncio.TimerHandle") -> bool:
    if isinstance(work, asyncio.TimerHandle):
        is_set: bool = work._scheduled  # type: ignore[attr-defined]
        return work.cancelled() or not is_set
    return work.done()


def _sleeps(thread: int) -> bool:
    """Return whether a thread is in Condition.wait, and not just for a look."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None or frame.f_code is not _CONDITION_WAIT:
        return False
    timeout = frame.f_locals.get("timeout")
    return timeout is None or timeout > 0


def _is_in_line(job: Job, jobs: Iterable[Job]) -> bool:
    """Return whether its pool has no thread left for it."""
    if job.thread is not None or job.pool is None:
        return False
    taken = sum(other.thread is not None for other in jobs if other.pool is job.pool)
    limit: int | None = getattr(job.pool, "_max_workers", None)
    return limit is not None and taken >= limit
