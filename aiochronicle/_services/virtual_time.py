"""An event loop whose clock follows recorded messages instead of the time of day.

An event loop waits when nothing is ready. This one moves its clock instead, to the next timer or the next
message of a replay. ``asyncio.sleep``, timeouts and ``loop.time()`` behave as they did when the messages were
recorded, and hours of history pass in seconds. Nothing depends on the speed of the machine, so the same
program over the same recording does the same things in the same order.

The order is: everything that is ready runs; then the timers that are due up to and including the time of the
next message; then that message is delivered. Times are compared as whole nanoseconds, so a timer that is due
1 ns after a message runs after it. Timers of the same nanosecond run in the order in which they were set.
virtual_timers.py describes how floats become nanoseconds.

The clock stands still while threads work (a flush, ``asyncio.to_thread``), because that takes no virtual
time. The exception is a thread that passed work to the loop, for example with
``asyncio.run_coroutine_threadsafe``, and waits for it: the clock moves while all threads wait in this way.
virtual_threads.py describes how waiting threads are detected.
"""

import asyncio
import concurrent.futures
import heapq
import selectors
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from aiochronicle._core.reader import unix_ns
from aiochronicle._services.virtual_threads import Job, RunningJobs
from aiochronicle._services.virtual_timers import Timers, ns_between
from aiochronicle.errors import VirtualTimeDeadlock

if TYPE_CHECKING:
    import collections
    from datetime import datetime

__all__ = ["VirtualTimeLoop", "run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TASKS_SHOWN = 5


class Recording(Protocol):
    """The part of a replay that matters here: the time of its next message."""

    @property
    def next_timestamp_ns(self) -> int | None: ...


def run_virtual(
    main: Coroutine[Any, Any, T],
    *recordings: Recording,
    start: "int | datetime | None" = None,
) -> T:
    """Run a coroutine in virtual time and return its result, like ``asyncio.run``.

    The clock begins at ``start`` (Unix nanoseconds or an aware datetime). By default it begins at the first
    message of ``recordings``, the replays that ``main`` iterates over.

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
    """An event loop in virtual time; ``run_virtual`` creates one, runs a coroutine and closes it.

    ``time()`` counts seconds from ``start_ns``. ``time_ns()`` is the time of day in the recording, to the
    nanosecond. Use it as a clock, for example in ``open_writer(clock=loop.time_ns)``: messages then have the
    same timestamps in every run.

    ``asyncio.sleep`` and ``call_later`` are exact to the nanosecond at any point of a run, for delays of up
    to 97 days. ``asyncio.timeout`` and ``call_at`` use ``time()`` plus a delay, a float whose precision
    decreases with time: they are exact for the first 48 days of a run, and later off by at most its last bit
    (2 ns after 100 days).

    Files and sockets are polled, but virtual time does not wait for them. If nothing can happen any more,
    VirtualTimeDeadlock names the tasks and where they wait.
    """

    if TYPE_CHECKING:  # attributes of asyncio's own loops
        _scheduled: list[asyncio.TimerHandle]  # stays empty: asyncio compares floats
        _ready: collections.deque[asyncio.Handle]
        _default_executor: ThreadPoolExecutor | None

        def _check_callback(self, callback: object, method: str) -> None: ...

    def __init__(self, start_ns: int = 0) -> None:
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._timers = Timers()
        self._arrivals: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals_count = 0  # keeps arrivals of the same time in order
        self._jobs = RunningJobs()
        super().__init__(_Selector(self._advance))

    def time(self) -> float:
        """Return the virtual time in seconds since the start."""
        return (self._now_ns - self._start_ns) / 1e9

    def time_ns(self) -> int:
        """Return the virtual time of day in Unix nanoseconds; a clock like ``time.time_ns``."""
        return self._now_ns

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function after ``delay`` seconds, rounded to the nearest nanosecond."""
        left_ns = ns_between(0.0, 0.0 + delay)
        when = self.time() + delay
        return self._set_timer(left_ns, super().call_at(when, callback, *args, context=context))

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function at a time of this clock, rounded to the nearest nanosecond."""
        left_ns = ns_between(self.time(), 0.0 + when)
        return self._set_timer(left_ns, super().call_at(when, callback, *args, context=context))

    def _set_timer(self, left_ns: int | None, timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        self._scheduled.clear()
        if left_ns is None:
            timer._scheduled = False  # type: ignore[attr-defined]
        else:
            self._timers.add(self._now_ns + left_ns, timer)
            self._jobs.add_work(timer)
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        if timer._scheduled:  # type: ignore[attr-defined]
            self._timers.count_cancelled()

    def _process_events(self, event_list: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Make callbacks of files and due timers ready, in this order, once per iteration of the loop."""
        super()._process_events(event_list)  # type: ignore[misc]
        for timer in self._timers.take_due(self._now_ns):
            timer._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(timer)

    def close(self) -> None:
        """Close the loop and drop everything that was scheduled."""
        super().close()
        self._timers.clear()
        self._arrivals.clear()

    def arrival(self, timestamp_ns: int) -> "asyncio.Future[None]":
        """Return a future that completes at this time, after everything that is due before it.

        A time in the past means now. Cancel the future to stop waiting.
        """
        future: asyncio.Future[None] = self.create_future()
        self._arrivals_count += 1
        heapq.heappush(self._arrivals, (timestamp_ns, self._arrivals_count, future))
        return future

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; the clock stands still until it returns or waits for the loop.

        It can wait for the loop with ``asyncio.run_coroutine_threadsafe``, for example.
        """
        job = Job()
        if not _runs_in_this_interpreter(executor):
            future = super().run_in_executor(executor, func, *args)
            self._jobs.expect(job, future, None)
            return future
        if self.get_debug():
            self._check_callback(func, "run_in_executor")
        future = super().run_in_executor(executor, self._jobs.run, job, func, *args)
        self._jobs.expect(job, future, executor or self._default_executor)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """Wait for the threads of ``asyncio.to_thread`` to end."""
        self._jobs.end(True)
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._jobs.end(False)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function in the loop, from any thread."""
        job = self._jobs.of_this_thread()
        if job is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        call_for = self._jobs.call_for
        return super().call_soon_threadsafe(call_for, job, callback, *args, context=context)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any
    ) -> "asyncio.Task[T]":
        """Run a coroutine as a task."""
        task = super().create_task(coro, **options)
        self._jobs.add_work(task)
        return task

    def _advance(self) -> float | None:
        """Move the clock to the next event, because nothing is ready now.

        Returns how long to wait for a thread instead: 0 not at all, None until it calls.
        """
        if self._ready:  # a thread has added a callback
            return 0
        if self._jobs:
            hold_s = self._jobs.hold_clock_s()
            if hold_s != 0:
                return hold_s
        while self._arrivals and self._arrivals[0][2].done():
            heapq.heappop(self._arrivals)
        timer_ns = self._timers.next_ns()
        if self._arrivals and (timer_ns is None or self._arrivals[0][0] < timer_ns):
            timestamp_ns, _, future = heapq.heappop(self._arrivals)
            self._now_ns = max(self._now_ns, timestamp_ns)
            future.set_result(None)
        elif timer_ns is not None:
            self._now_ns = max(self._now_ns, timer_ns)
        elif self._jobs:  # a thread may stop waiting for the loop
            return None
        else:
            raise VirtualTimeDeadlock(
                f"at {self.time():.9f} s of virtual time nothing is scheduled, no message will"
                f" arrive, and {_where_tasks_wait(self)}"
            )
        return 0


class _Selector(selectors.EpollSelector):
    """Moves the clock of its loop instead of sleeping."""

    def __init__(self, advance: Callable[[], float | None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout is not None:
            return events
        wait_s = self._advance()
        return events if wait_s == 0 else super().select(wait_s)


def _runs_in_this_interpreter(executor: Executor | None) -> bool:
    """Return whether functions in this executor can use the loop's objects."""
    elsewhere = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
    in_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
    return in_threads and not isinstance(executor, elsewhere)


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
