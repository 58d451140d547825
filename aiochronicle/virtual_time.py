"""An event loop whose clock follows recorded messages instead of the time of day.

An event loop waits when nothing is ready. This one looks ahead instead: whatever comes next, a
timer or the next message of a replay, becomes now. So ``asyncio.sleep``, timeouts and
``loop.time()`` behave as they did when the messages were recorded, hours of history pass in
seconds, and since nothing depends on how fast the machine is, the same program over the same
recording does the same things in the same order.

The order is: everything that is ready runs; then the timers that are due up to and including the
time of the next message; then that message, and whatever it sets off. Work in threads (a flush,
``asyncio.to_thread``) is waited for while the clock stands still.
"""

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from aiochronicle.errors import VirtualTimeDeadlock
from aiochronicle.reader import unix_ns

if TYPE_CHECKING:
    from datetime import datetime

    from aiochronicle.replay import Replay

__all__ = ["VirtualTimeLoop", "run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TASKS_SHOWN = 5


def run_virtual(
    main: Coroutine[Any, Any, T],
    *recordings: "Replay",
    start: "int | datetime | None" = None,
) -> T:
    """Run a coroutine in virtual time and return its result, like ``asyncio.run``.

    The clock begins at ``start`` (Unix nanoseconds or an aware datetime), or else at the first
    message of the recordings, which are the replays that ``main`` iterates over.

    >>> async def main(messages):
    ...     return [message.payload async for message in messages]
    >>> with replay(queue) as history:
    ...     run_virtual(main(history), history)
    [b'hello']
    """
    if start is None:
        first = [recording.next_timestamp_ns for recording in recordings]
        start_ns = min((timestamp_ns for timestamp_ns in first if timestamp_ns), default=0)
    else:
        start_ns = unix_ns(start, "start")
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start_ns)) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; ``run_virtual`` makes one, runs a coroutine and closes it.

    ``time()`` counts seconds from ``start_ns``. ``time_ns()`` is the time of day in the recording,
    to the nanosecond: give it to whatever asks for a clock, ``open_writer(clock=loop.time_ns)``
    for instance, whose messages then have the same timestamps in every run.

    Files and sockets are looked at, but not waited for: their data comes at times of its own. If
    nothing can happen any more, VirtualTimeDeadlock says which tasks wait where.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._arrivals: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals_count = 0  # keeps those of one moment in order
        self._threads_at_work = 0
        super().__init__(_Selector(self._go_on))

    def time(self) -> float:
        """Return the virtual time in seconds since the start."""
        return (self._now_ns - self._start_ns) / 1e9

    def time_ns(self) -> int:
        """Return the virtual time of day in Unix nanoseconds; a clock like ``time.time_ns``."""
        return self._now_ns

    @property
    def _clock_resolution(self) -> float:
        """How much earlier than its time asyncio may call a timer.

        At least the distance to the next float: a timer that is due now would never be, after some
        months, if adding the resolution to the time made no difference.
        """
        return max(1e-9, math.ulp(self.time()))

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None:
        """Ignore what asyncio knows of the real clock."""

    def arrival(self, timestamp_ns: int) -> "asyncio.Future[None]":
        """Return a future that is done at this time, when nothing else is left to do before it.

        A time that has passed means now. Cancel the future to give it up.
        """
        future: asyncio.Future[None] = self.create_future()
        self._arrivals_count += 1
        heapq.heappush(self._arrivals, (timestamp_ns, self._arrivals_count, future))
        return future

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; the clock stands still until it has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._threads_at_work += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, future: "asyncio.Future[Any]") -> None:
        self._threads_at_work -= 1

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """Wait for the threads of ``asyncio.to_thread`` to end."""
        self._threads_at_work += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._threads_at_work -= 1

    def _go_on(self, timer_in_s: float | None) -> bool:
        """Nothing is left to do now: make the next thing that happens the present.

        False if that comes out of a thread, and has to be waited for.
        """
        if self._threads_at_work:
            return False
        while self._arrivals and self._arrivals[0][2].done():
            heapq.heappop(self._arrivals)
        timer_ns = None
        if timer_in_s is not None:
            timer_ns = self._now_ns + max(1, math.ceil(timer_in_s * 1e9))
        if self._arrivals and (timer_ns is None or self._arrivals[0][0] < timer_ns):
            timestamp_ns, _, future = heapq.heappop(self._arrivals)
            self._now_ns = max(self._now_ns, timestamp_ns)
            future.set_result(None)
        elif timer_ns is not None:
            self._now_ns = timer_ns
        else:
            raise VirtualTimeDeadlock(
                f"at {self.time():.9f} s of virtual time nothing is scheduled, no message is to"
                f" come, and {_where_tasks_wait(self)}"
            )
        return True


class _Selector(selectors.EpollSelector):
    """Where an event loop sleeps, this one has its clock moved."""

    def __init__(self, go_on: Callable[[float | None], bool]) -> None:
        super().__init__()
        self._go_on = go_on

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0) or self._go_on(timeout):
            return events
        return super().select(None)


def _where_tasks_wait(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    places: list[str] = []
    for task in tasks[:_TASKS_SHOWN]:
        stack = task.get_stack()
        code = stack[-1].f_code if stack else None
        place = f" in {code.co_name}, {code.co_filename}:{stack[-1].f_lineno}" if code else ""
        places.append(f"{task.get_name()}{place}")
    more = len(tasks) - len(places)
    return "still waiting are " + "; ".join(places) + (f"; and {more} more" if more else "")
