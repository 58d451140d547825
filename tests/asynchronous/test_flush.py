"""Durability and back-pressure by await."""

import asyncio
import time
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import Batch, Capacity
from aiochronicle._engine import ffi, lib
from aiochronicle.errors import CapacityTimeout, QueueFull
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import eventually


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


@on_both_loops
async def test_the_loop_runs_while_a_flush_waits_for_the_disk(queue_path: Path) -> None:
    """A sync that is held up by a system call of 50 ms must not hold up the loop."""
    calls = {ffi.string(lib.ac_os_call_name(n)): n for n in range(lib.ac_os_call_count())}
    slow = {number for name, number in calls.items() if b"sync" in name}
    assert slow

    @ffi.callback("int(void *, int, const char *, int, uint64_t, uint64_t)")  # type: ignore[untyped-decorator]
    def delay(context: object, call: int, *_: object) -> int:
        if call in slow:
            time.sleep(0.05)
        return 0

    async with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"x")
        lib.ac_os_set_hook(delay, ffi.NULL)
        try:
            flushing = asyncio.create_task(writer.flush())
            turns = 0
            while not flushing.done():
                await asyncio.sleep(0)
                turns += 1
            assert await flushing == 1
        finally:
            lib.ac_os_set_hook(ffi.NULL, ffi.NULL)
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


@on_both_loops
async def test_drain_waits_for_the_slowest_live_reader(queue_path: Path) -> None:
    async with aiochronicle.open_writer(
        queue_path, segment_size=1 << 20, capacity=20_000
    ) as writer:
        await writer.drain()  # nobody is behind
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
