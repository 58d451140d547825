"""Awaiting durability and back-pressure."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import aiochronicle
from aiochronicle import Batch, Capacity
from aiochronicle._engine import ffi, lib
from aiochronicle.errors import CapacityTimeout, QueueFull
from aiochronicle.testing.faults import installed
from asynchronous.both_loops import on_both_loops
from asynchronous.loops import LOOPS
from asynchronous.peers import eventually

T = TypeVar("T")


@on_both_loops
async def test_a_thousand_tasks_share_a_few_syncs(queue_path: Path) -> None:
    async with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        before = writer.statistics().syncs

        async def durable(number: int) -> None:
            seq = writer.append(b"%d" % number)
            assert await writer.flush() > seq
            assert writer.statistics().durable_seq > seq

        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(durable(number))
        assert writer.statistics().durable_seq == 1000
        assert writer.statistics().syncs - before <= 5


@on_both_loops
async def test_append_durable(queue_path: Path) -> None:
    async with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        seqs = await asyncio.gather(*(writer.append_durable(b"%d" % n) for n in range(200)))
        assert sorted(seqs) == list(range(200))
        assert writer.statistics().durable_seq == 200
        assert writer.statistics().syncs < 20
        seq = await writer.append_durable(b"typed", type_id=7, timestamp_ns=2**62)
        with aiochronicle.open_reader(queue_path, start=seq) as reader:
            message = await reader.next()
            assert (message.type_id, message.timestamp_ns) == (7, 2**62)


@on_both_loops
async def test_flushing_nothing_costs_nothing(queue_path: Path) -> None:
    async with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"x")
        assert await writer.flush() == 1
        syncs = writer.statistics().syncs
        for _ in range(100):
            assert await writer.flush() == 1
        assert writer.statistics().syncs == syncs


@contextmanager
def before_each_sync(function: Callable[[], object]) -> Iterator[None]:
    """Call the function before each system call that syncs, in the thread that makes the call."""
    calls = {ffi.string(lib.ac_os_call_name(n)): n for n in range(lib.ac_os_call_count())}
    syncs = {number for name, number in calls.items() if b"sync" in name}
    assert syncs

    def hook(context: object, call: int, *_: object) -> int:
        if call in syncs:
            function()
        return 0

    with installed(ffi.callback("ac_os_hook_t", hook), ffi.NULL):
        yield


@on_both_loops
async def test_the_loop_runs_while_a_flush_waits_for_the_disk(queue_path: Path) -> None:
    """A sync that takes 50 ms in a system call does not block the loop."""
    async with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"x")
        with before_each_sync(lambda: time.sleep(0.05)):
            flushing = asyncio.create_task(writer.flush())
            turns = 0
            while not flushing.done():
                await asyncio.sleep(0)
                turns += 1
            assert await flushing == 1
        assert turns > 50


@on_both_loops
async def test_flush_in_the_other_modes(tmp_path: Path) -> None:
    async with aiochronicle.open_writer(
        tmp_path / "sync", segment_size=1 << 20, flush="sync"
    ) as writer:
        seq = writer.append(b"x")
        assert writer.statistics().durable_seq > seq
        assert await writer.flush() == 1
    async with aiochronicle.open_writer(
        tmp_path / "batch", segment_size=1 << 20, flush=Batch(1 << 30, 0.02)
    ) as writer:
        writer.append(b"x")
        await eventually(lambda: writer.statistics().durable_seq == 1, 5)
        writer.append(b"y")
        assert await writer.flush() == 2
    async with aiochronicle.open_writer(
        tmp_path / "bytes", segment_size=1 << 20, flush=Batch(10_000, 3600)
    ) as writer:
        for _ in range(200):
            writer.append(b"z" * 100)
        assert writer.statistics().durable_seq >= 100


@on_both_loops
async def test_one_writer_flushed_in_one_loop_after_the_other(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        for number in range(3):
            writer.append(b"in a loop of its own thread")
            assert await asyncio.to_thread(asyncio.run, writer.flush()) == 2 * number + 1
            writer.append(b"here")
            assert await writer.flush() == 2 * number + 2


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_loop_closed_during_its_flush_is_forgotten(
    queue_path: Path, loop_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def flush_twice() -> None:
        flushes = [asyncio.create_task(writer.flush())]
        assert await asyncio.to_thread(syncing.wait, 10)
        flushes.append(asyncio.create_task(writer.flush()))  # waits for the next sync
        await asyncio.sleep(0)

    syncing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        syncing.set()
        assert go_on.wait(10)

    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"x")
        loop = LOOPS[loop_name]()
        with before_each_sync(hold):
            loop.run_until_complete(flush_twice())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            forgotten = weakref.ref(loop)
            del loop
            go_on.set()
            assert asyncio.run(writer.flush()) == 1
        # The thread of the held sync keeps its loop alive until the thread ends.
        asyncio.run(eventually(lambda: gc.collect() >= 0 and forgotten() is None, 10))
    caplog.clear()  # asyncio has logged the pending tasks


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self, loop_name: str) -> None:
        self._loop = LOOPS[loop_name]()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start the coroutine; return when it has reached its first wait."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        for _ in range(2):  # one turn creates its task, one starts the task
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(10)
        return future

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("loop_name", LOOPS)
def test_one_writer_flushed_in_two_loops_at_the_same_time(queue_path: Path, loop_name: str) -> None:
    """A task that waits for the next sync in one loop is still woken after another loop flushes."""
    syncing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        syncing.set()
        assert go_on.wait(10)

    loops = [LoopThread(loop_name) for _ in range(2)]
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        before_each_sync(hold),
    ):
        try:
            writer.append(b"1")
            flushes = [loops[0].begin(writer.flush())]
            assert syncing.wait(10)
            for number in range(6):
                writer.append(b"2")
                flushes.append(loops[number % 2].begin(writer.flush()))
            go_on.set()
            assert all(flush.result(10) >= 1 for flush in flushes)
            assert [flush.result() for flush in flushes[1:]] == [7] * 6
        finally:
            go_on.set()
            for loop in loops:
                loop.stop()


@on_both_loops
async def test_drain_waits_for_the_slowest_live_reader(queue_path: Path) -> None:
    async with aiochronicle.open_writer(
        queue_path, segment_size=1 << 20, capacity=20_000
    ) as writer:
        await writer.drain()  # no reader is behind
        with (
            aiochronicle.open_reader(queue_path, "quick") as quick,
            aiochronicle.open_reader(queue_path, "slow") as slow,
        ):
            with pytest.raises(QueueFull):
                for _ in range(1000):
                    writer.append(b"x" * 100)
            draining = asyncio.create_task(writer.drain())
            for _ in quick:
                pass
            quick.commit()
            await asyncio.sleep(0.03)
            assert not draining.done()
            for _ in slow:
                pass
            slow.commit()
            await asyncio.wait_for(draining, 5)
            writer.append(b"there is room again")


@on_both_loops
async def test_a_producer_that_drains_never_fails(queue_path: Path) -> None:
    async with aiochronicle.open_writer(
        queue_path, segment_size=1 << 20, capacity=Capacity(50_000)
    ) as writer:
        with aiochronicle.open_reader(queue_path, "consumer") as reader:

            async def consume() -> int:
                count = 0
                async for message in reader:
                    count += 1
                    if count % 50 == 0:
                        reader.commit(message)
                    if message.payload == b"end":
                        break
                return count

            consuming = asyncio.create_task(consume())
            drains = 0
            for number in range(3000):
                try:
                    writer.append(b"%0100d" % number)
                except QueueFull:
                    drains += 1
                    await writer.drain()
                    writer.append(b"%0100d" % number)
            await asyncio.sleep(0)
            while True:
                try:
                    writer.append(b"end")
                    break
                except QueueFull:
                    await writer.drain()
            assert await asyncio.wait_for(consuming, 10) == 3001
            assert drains > 3


def append_too_much(writer: aiochronicle.Writer) -> None:
    for _ in range(1000):
        writer.append(b"x" * 100)


def test_a_blocking_capacity_times_out(queue_path: Path) -> None:
    capacity = Capacity(20_000, policy="block", timeout_s=0.05)
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20, capacity=capacity) as writer,
        aiochronicle.open_reader(queue_path, "asleep"),
        pytest.raises(CapacityTimeout),
    ):
        append_too_much(writer)
