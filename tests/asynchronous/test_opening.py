"""aopen_writer and aopen_reader open in a thread and leave nothing open when cancelled."""

import asyncio
import contextlib
import errno
import gc
import inspect
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults.system_calls import injected

import aiochronicle
from aiochronicle._base.background import _THREADS_MAX, in_background, in_thread
from aiochronicle.errors import (
    ChronicleError,
    InvalidArgument,
    LockedError,
    QueueNotFound,
    StorageError,
)
from asynchronous.both_loops import on_both_loops
from asynchronous.held import held_opening
from asynchronous.loops import LOOPS
from asynchronous.peers import eventually

SMALL = 1 << 20


class Trade(msgspec.Struct):
    price: float


@contextlib.contextmanager
def busy_pool() -> Iterator[None]:
    """Keep every thread of the pool busy."""
    end, started = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        started.release()
        end.wait(60)

    for _ in range(_THREADS_MAX):
        in_thread(work)
    for _ in range(_THREADS_MAX):
        assert started.acquire(timeout=60)
    try:
        yield
    finally:
        end.set()


def there(path: Path) -> bool:
    return path.exists()


def wait_until_free(path: Path) -> None:
    """Wait until the queue can be opened, which proves that its writer was closed."""
    aiochronicle.open_writer(path, lock_timeout=30).close()


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@on_both_loops
async def test_awaited_and_as_a_context_manager(queue_path: Path) -> None:
    async with aiochronicle.aopen_writer(queue_path, segment_size=SMALL, codec=Trade) as writer:
        writer.send(Trade(1.5))
        reader = await aiochronicle.aopen_reader(queue_path, "name", codec=Trade)
        assert (await reader.next()).decode() == Trade(1.5)
        await reader.aclose()
        opened = await asyncio.create_task(aiochronicle.aopen_reader(queue_path))
        async with opened:
            assert opened.poll() is not None
        assert opened.closed
    assert writer.closed
    writer = await aiochronicle.aopen_writer(queue_path)
    assert writer.recovery.clean
    await writer.aclose()


@pytest.mark.parametrize("which", ["writer", "reader"])
def test_the_parameters_are_those_of_the_blocking_function(which: str) -> None:
    blocking = inspect.signature(getattr(aiochronicle, f"open_{which}"))
    asynchronous = inspect.signature(getattr(aiochronicle, f"aopen_{which}"))
    assert asynchronous.parameters == blocking.parameters


@on_both_loops
async def test_exceptions_are_raised_where_it_is_awaited(queue_path: Path) -> None:
    failing: list[tuple[Awaitable[object], type[Exception]]] = [
        (aiochronicle.aopen_reader(queue_path), QueueNotFound),
        (aiochronicle.aopen_reader(queue_path, burst=0), InvalidArgument),
        (aiochronicle.aopen_writer(queue_path, segment_size=1), InvalidArgument),
        (aiochronicle.aopen_writer(queue_path, lock_timeout=-1), InvalidArgument),
        (aiochronicle.aopen_writer(queue_path, unknown=1), TypeError),  # type: ignore[call-arg]
    ]
    for opening, kind in failing:
        with pytest.raises(kind):
            await opening
    with pytest.raises(QueueNotFound):
        async with aiochronicle.aopen_reader(queue_path):
            pytest.fail("entered")
    assert not there(queue_path)


@on_both_loops
async def test_never_awaited_opens_nothing_and_says_so(queue_path: Path) -> None:
    threads = threading.active_count()
    with pytest.warns(RuntimeWarning, match="aopen_writer.* was never awaited"):
        aiochronicle.aopen_writer(queue_path)
    assert threading.active_count() == threads
    assert not there(queue_path)


@on_both_loops
async def test_awaited_twice_is_an_error(queue_path: Path) -> None:
    opening = aiochronicle.aopen_writer(queue_path, segment_size=SMALL)
    async with opening:
        with pytest.raises(RuntimeError, match="already awaited"):
            await opening
        with pytest.raises(RuntimeError, match="already awaited"):
            async with opening:
                pytest.fail("entered")


@on_both_loops
async def test_cancelled_while_a_thread_opens(queue_path: Path) -> None:
    with held_opening() as held:
        opening = asyncio.ensure_future(aiochronicle.aopen_writer(queue_path, segment_size=SMALL))
        await asyncio.to_thread(held.arrived.wait, 60)
        await cancelled(opening)  # at once: the thread is still held
        assert not held.go.is_set()
    await asyncio.to_thread(wait_until_free, queue_path)
    gc.collect()  # a ResourceWarning would be an error


@on_both_loops
async def test_a_reader_whose_opening_was_cancelled_releases_its_name(queue: Path) -> None:
    for _ in range(20):
        opening = asyncio.ensure_future(aiochronicle.aopen_reader(queue, "audit"))
        await asyncio.sleep(0)
        await cancelled(opening)
        await eventually(lambda: can_be_read_as_audit(queue), 30)
    gc.collect()


def can_be_read_as_audit(queue: Path) -> bool:
    try:
        aiochronicle.open_reader(queue, "audit").close()
    except ChronicleError:
        return False
    return True


@on_both_loops
async def test_cancelled_before_a_thread_has_time_opens_nothing(queue_path: Path) -> None:
    with busy_pool():
        opening = asyncio.ensure_future(aiochronicle.aopen_writer(queue_path))
        await asyncio.sleep(0.01)
        await cancelled(opening)
    with busy_pool():  # all threads of the pool, after the queued work
        assert not there(queue_path)


@on_both_loops
async def test_cancelled_when_it_is_open_already_or_nearly_so(queue: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        opening = asyncio.ensure_future(aiochronicle.aopen_writer(queue))
        await asyncio.sleep(0)
        # Block the loop on purpose, so that the thread finishes before the task learns of it.
        time.sleep(rng.random() * 0.03)  # noqa: ASYNC251
        await cancelled(opening)
        await asyncio.to_thread(wait_until_free, queue)
    gc.collect()


@on_both_loops
async def test_what_fails_after_it_was_given_up_is_logged_once(
    queue: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged by us, not by asyncio as an exception that was never retrieved."""
    for call, logged in (("sync_dir", 0), ("sync", 1)):  # while it opens, and while it closes
        caplog.clear()
        with held_opening() as held:
            opening = asyncio.ensure_future(aiochronicle.aopen_writer(queue))
            await asyncio.to_thread(held.arrived.wait, 60)
            await cancelled(opening)
            held.answer = errno.EIO if call == "sync_dir" else 0
            with injected(call, errno.EIO) as injection:
                held.go.set()
                await eventually(lambda: injection.seen > 0 or held.answer != 0, 30)
                await eventually(lambda: is_closed(queue), 30)
        gc.collect()
        assert caplog.text.count("closing after a cancelled opening failed") == logged, caplog.text
        assert "never retrieved" not in caplog.text
    await asyncio.to_thread(wait_until_free, queue)


def is_closed(path: Path) -> bool:
    """Return whether no descriptor of this process is open in the queue."""
    return not any(
        str(found.readlink()).startswith(str(path))
        for found in Path("/proc/self/fd").iterdir()
        if found.is_symlink()
    )


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_the_loop_is_closed_while_a_thread_opens(queue_path: Path, loop_name: str) -> None:
    loop = LOOPS[loop_name]()

    async def begin() -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(aiochronicle.aopen_writer(queue_path, segment_size=SMALL))
        await asyncio.to_thread(held.arrived.wait, 60)
        return task

    with held_opening() as held:
        task = loop.run_until_complete(begin())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    wait_until_free(queue_path)
    del task, loop
    gc.collect()


@on_both_loops
async def test_tasks_that_wait_for_a_lock_take_no_thread(queue_path: Path, tmp_path: Path) -> None:
    async with (
        aiochronicle.aopen_writer(queue_path, segment_size=SMALL),
        aiochronicle.aopen_writer(tmp_path / "other", segment_size=SMALL) as other,
    ):
        waiting = [
            asyncio.ensure_future(aiochronicle.aopen_writer(queue_path, lock_timeout=300))
            for _ in range(3 * _THREADS_MAX)
        ]
        async with asyncio.timeout(60):
            for _ in range(10):
                other.append(b"x")
                await other.flush()
        for task in waiting:
            await cancelled(task)
        with busy_pool():  # none of its threads is waiting any more
            pass
    await asyncio.to_thread(wait_until_free, queue_path)


@on_both_loops
async def test_the_lock_is_had_when_its_holder_closes(queue_path: Path) -> None:
    first = await aiochronicle.aopen_writer(queue_path, segment_size=SMALL)
    with pytest.raises(LockedError):
        await aiochronicle.aopen_writer(queue_path, lock_timeout=0.02)
    with pytest.raises(LockedError):
        await aiochronicle.aopen_writer(queue_path, lock_timeout=0)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(aiochronicle.aopen_writer(queue_path, lock_timeout=60))
        first.append(b"first")
        await first.aclose()
    assert second.result().append(b"second") == 1
    await second.result().aclose()


@on_both_loops
async def test_an_error_of_closing_comes_out_of_the_block(queue_path: Path) -> None:
    opened: list[aiochronicle.Writer] = []
    with contextlib.ExitStack() as failing, pytest.raises(StorageError):
        async with aiochronicle.aopen_writer(queue_path, segment_size=SMALL) as writer:
            opened.append(writer)
            writer.append(b"x")
            failing.enter_context(injected("sync_map", errno.EIO))
    assert opened[0].closed


PROGRAM = """
import asyncio, sys
import aiochronicle

async def main():
    global opening
    opening = asyncio.ensure_future(aiochronicle.aopen_writer(sys.argv[1]))
    await asyncio.sleep(float(sys.argv[2]))
    if sys.argv[3] == "kept":
        loop = asyncio.get_running_loop()
        loop.opening = opening
        opening._log_destroy_pending = False
        loop.stop()

if sys.argv[3] == "kept":  # neither cancelled nor awaited when the interpreter ends
    loop = asyncio.new_event_loop()
    loop.create_task(main())
    loop.run_forever()
    loop.close()
else:
    asyncio.run(main())
if opening.done() and not opening.cancelled():  # in time, or in the very last turn of the loop
    opening.result().close()
"""


@pytest.mark.parametrize("way", ["cancelled", "kept"])
@pytest.mark.parametrize("after_s", [0, 0.0005, 0.001, 0.002])
def test_a_program_that_ends_while_a_thread_opens(queue: Path, after_s: float, way: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(queue), str(after_s), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with aiochronicle.open_writer(queue) as writer:
        assert writer.recovery.clean


async def errors_of_nobody(begin: Callable[[], Awaitable[object]], end: Callable[[], None]) -> int:
    """Cancel a waiting task, make the operation it waited for fail, and count the loop's error reports."""
    loop, reported = asyncio.get_running_loop(), 0

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported
        reported += 1

    loop.set_exception_handler(report)
    waiting = asyncio.ensure_future(begin())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    end()
    await asyncio.to_thread(lambda: None)
    for _ in range(20):
        await asyncio.sleep(0.01)
        gc.collect()
    return reported


async def test_what_fails_after_its_waiter_was_cancelled_is_no_error_of_the_program() -> None:
    may_fail = threading.Event()

    def fail() -> None:
        may_fail.wait(60)
        raise OSError("nobody waits for this")

    async def wait() -> None:
        await in_background(fail)

    assert await errors_of_nobody(wait, may_fail.set) == 0
