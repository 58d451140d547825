"""Iteration, single messages, batches; several tasks on one reader; turns for other tasks."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle import SpinThenPark
from aiochronicle._core.reader import WaitStrategy
from aiochronicle.errors import ClosedError, InvalidArgument
from asynchronous.both_loops import on_both_loops
from asynchronous.loops import LOOPS
from asynchronous.peers import NOTICED_AT_ONCE_S, eventually


def fill(path: Path, count: int, size: int = 10) -> None:
    with aiochronicle.open_writer(path, segment_size=16 << 20) as writer:
        for first in range(0, count, 1000):
            writer.append_many(
                [b"%0*d" % (size, n) for n in range(first, min(first + 1000, count))]
            )


async def take(reader: aiochronicle.Reader, count: int) -> list[int]:
    seqs: list[int] = []
    async for message in reader:
        seqs.append(message.seq)
        if len(seqs) == count:
            break
    return seqs


@on_both_loops
async def test_iteration_goes_on_with_what_comes_later(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        writer.append(b"before")
        iterator = aiter(reader)
        assert (await anext(iterator)).payload == b"before"
        asyncio.get_running_loop().call_later(0.01, writer.append, b"after")
        assert (await anext(iterator)).payload == b"after"
        # A new iterator continues at the reader's position.
        writer.append(b"later")
        assert (await anext(aiter(reader))).payload == b"later"


@on_both_loops
async def test_iteration_across_segments(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        reading = asyncio.create_task(take(reader, 5000))
        for number in range(5000):
            writer.append(b"%0100d" % number)
            if number % 50 == 0:
                await asyncio.sleep(0)
        assert await asyncio.wait_for(reading, 20) == list(range(5000))
        assert writer.statistics().rolls > 5


@on_both_loops
async def test_what_next_returns_is_awaited_and_not_iterated_over(queue_path: Path) -> None:
    fill(queue_path, 2)

    class Delegating:
        def __init__(self, reader: aiochronicle.Reader) -> None:
            self._reader = reader

        def __await__(self) -> Generator[Any, Any, aiochronicle.Message]:
            return (yield from self._reader.next().__await__())

    with aiochronicle.open_reader(queue_path) as reader:
        mistakes: list[Callable[[Any], object]] = [iter, list, set]
        for mistake in mistakes:
            with pytest.raises(TypeError, match="awaited, not iterated over"):
                mistake(reader.next())
        assert (await reader.next()).seq == 0
        assert (await Delegating(reader)).seq == 1


def has_parked_since(reader: aiochronicle.Reader, parks: int) -> bool:
    return reader.statistics().parks > parks


@on_both_loops
async def test_a_task_that_waits_looks_where_the_reader_is_sent(queue_path: Path) -> None:
    fill(queue_path, 1)
    with aiochronicle.open_reader(queue_path) as reader:
        first = reader.position
        seeks: list[Callable[[], object]] = [
            reader.seek_first,
            lambda: reader.seek(0),
            lambda: reader.seek_time(0),
            lambda: reader.seek_position(first),
        ]
        for seek in seeks:
            reader.seek_last()
            waiting = asyncio.create_task(take(reader, 1))
            await eventually(partial(has_parked_since, reader, reader.statistics().parks))
            seek()
            assert await asyncio.wait_for(waiting, 5) == [0]


@on_both_loops
async def test_next_waits_no_longer_than_it_is_told(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await reader.next(timeout=0.02)
        assert time.monotonic() - started >= 0.015
        with pytest.raises(TimeoutError):
            await reader.next(timeout=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reader.next()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.01)
        writer.append(b"still there")
        assert (await reader.next(timeout=5)).payload == b"still there"


@on_both_loops
async def test_next_is_a_coroutine_to_tasks_and_task_groups(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(as_coroutine(reader.next()))
            second = group.create_task(as_coroutine(reader.next(timeout=5)))
            third = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0)
            writer.append_many([b"a", b"b", b"c"])
        assert {first.result().payload, second.result().payload, (await third).payload} == {
            b"a",
            b"b",
            b"c",
        }


def as_coroutine(awaitable: Any) -> Coroutine[Any, Any, aiochronicle.Message]:
    assert asyncio.iscoroutine(awaitable)
    return awaitable


@on_both_loops
async def test_a_failing_task_group_leaves_the_reader_usable(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        sleeping: asyncio.Task[Any] | None = None
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                sleeping = group.create_task(take(reader, 1))
                await asyncio.sleep(0)
                group.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.001))
        assert sleeping is not None
        assert sleeping.cancelled()
        writer.append(b"x")
        assert await take(reader, 1) == [0]


@on_both_loops
async def test_aclosing(queue_path: Path) -> None:
    async with contextlib.aclosing(
        aiochronicle.open_writer(queue_path, segment_size=1 << 20)
    ) as writer:
        writer.append(b"x")
        async with contextlib.aclosing(aiochronicle.open_reader(queue_path)) as reader:
            assert (await reader.next()).payload == b"x"
            async with contextlib.aclosing(reader.batches()) as batches:
                writer.append(b"y")
                assert [m.payload for m in await anext(batches)] == [b"y"]
            usable_after_batches = not reader.closed
        assert usable_after_batches
        assert reader.closed
    assert writer.closed


@on_both_loops
async def test_several_tasks_share_one_reader_in_order(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        taken: list[tuple[int, int]] = []

        async def work(number: int) -> None:
            async for message in reader:
                taken.append((number, message.seq))
                await asyncio.sleep(0)

        workers = [asyncio.create_task(work(number)) for number in range(4)]
        await asyncio.sleep(0)
        for seq in range(4):
            writer.append(b"%d" % seq)
            await eventually(lambda: len(taken) == seq + 1)  # noqa: B023
        # The task that has waited longest is served first.
        assert taken == [(0, 0), (1, 1), (2, 2), (3, 3)]
        for number in range(1000):
            writer.append(b"%d" % number)
        await eventually(lambda: len(taken) == 1004, 5)
        assert [seq for _, seq in taken] == list(range(1004))
        assert {number for number, _ in taken[4:]} == {0, 1, 2, 3}
        reader.close()
        await asyncio.wait_for(asyncio.gather(*workers), 5)


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_an_exit_from_one_task_does_not_cost_the_others_their_wake_up(
    queue_path: Path, loop_name: str
) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
        asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner,
    ):

        async def leave() -> None:
            await reader.next()
            raise SystemExit(3)

        async def stay() -> bytes:
            return (await reader.next()).payload

        async def begin() -> tuple[asyncio.Task[None], asyncio.Task[bytes]]:
            tasks = asyncio.create_task(leave()), asyncio.create_task(stay())
            await eventually(lambda: reader.attended)
            return tasks

        async def both() -> None:
            writer.append_many([b"a", b"b"])
            await asyncio.sleep(60)

        async def end(staying: asyncio.Task[bytes]) -> bytes:
            return await asyncio.wait_for(staying, 5)

        leaving, staying = runner.run(begin())
        with pytest.raises(SystemExit):  # takes its turn in the loop after everything else
            runner.run(both())
        assert runner.run(end(staying)) == b"b"
        assert isinstance(leaving.exception(), SystemExit)


@on_both_loops
async def test_batches_by_count(queue_path: Path) -> None:
    fill(queue_path, 2500)
    with aiochronicle.open_reader(queue_path) as reader:
        batches = reader.batches(max_messages=1000)
        sizes = [len(await anext(batches)) for _ in range(3)]
        assert sizes == [1000, 1000, 500]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.01)


@on_both_loops
async def test_batches_by_bytes(queue_path: Path) -> None:
    fill(queue_path, 100, size=100)
    with aiochronicle.open_reader(queue_path) as reader:
        seqs: list[int] = []
        async for batch in reader.batches(max_bytes=1000):
            assert 1 <= len(batch) <= 10
            seqs += [message.seq for message in batch]
            if len(seqs) == 100:
                break
        assert seqs == list(range(100))
        with aiochronicle.open_reader(queue_path) as other:
            # A batch may always have one message, however large.
            assert len(await anext(other.batches(max_bytes=1))) == 1


@on_both_loops
async def test_batches_by_time(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        batches = reader.batches(max_messages=10, max_wait=0.1)
        waiting = asyncio.ensure_future(anext(batches))
        await eventually(lambda: reader.attended)
        writer.append(b"first")
        started = time.monotonic()
        await asyncio.sleep(0.02)
        assert not waiting.done()
        writer.append(b"second")
        assert len(await waiting) == 2
        assert time.monotonic() - started >= 0.09
        # A full batch is returned before max_wait has passed.
        patient = reader.batches(max_messages=10, max_wait=60)
        writer.append_many([b"x"] * 10)
        assert len(await asyncio.wait_for(anext(patient), 5)) == 10


@on_both_loops
@pytest.mark.parametrize("size", [10, 100, 10_000])
async def test_a_batch_is_handed_over_when_it_becomes_full(queue_path: Path, size: int) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        payload = bytes(size)
        for limits in ({"max_messages": 10}, {"max_bytes": 10 * size}):
            writer.append(payload)
            waiting = asyncio.ensure_future(anext(reader.batches(**limits, max_wait=60)))
            await asyncio.sleep(0)  # has the first message and waits for more
            for _ in range(9):
                writer.append(payload)
            batch = await asyncio.wait_for(waiting, NOTICED_AT_ONCE_S)
            # Bytes are counted in records of multiples of 64.
            assert len(batch) == 10 or (size < 10_000 and "max_bytes" in limits)
            reader.seek_last()


@on_both_loops
async def test_a_batch_that_is_filling_when_the_reader_closes_is_not_taken(
    queue_path: Path,
) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"unread")
        reader = aiochronicle.open_reader(queue_path, "batching", commit="auto")
        waiting = asyncio.ensure_future(anext(reader.batches(max_messages=10, max_wait=0.05)))
        await asyncio.sleep(0)
        reader.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        with aiochronicle.open_reader(queue_path, "batching") as again:
            assert (await again.next(timeout=5)).payload == b"unread"


@on_both_loops
async def test_asking_for_the_next_batch_commits_the_last(queue_path: Path) -> None:
    """Even when no next batch is available yet: a writer may be waiting for room."""
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, "last", commit="auto") as reader,
    ):
        first = reader.committed
        writer.append_many([b"1", b"2"])
        batches = reader.batches()
        assert len(await anext(batches)) == 2
        assert reader.committed == first
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        assert reader.committed == reader.position
        writer.append(b"3")
        assert len(await waiting) == 1
        reader.close()
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


async def test_limits_of_batches_are_checked(queue: Path) -> None:
    with aiochronicle.open_reader(queue) as reader:
        limits: list[dict[str, Any]] = [{"max_messages": 0}, {"max_bytes": 0}, {"max_wait": -1.0}]
        for wrong in limits:
            with pytest.raises(InvalidArgument):
                reader.batches(**wrong)


async def test_ways_to_wait_are_checked(queue: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"wait": "sleep"},
        {"wait": SpinThenPark(-1)},
        {"burst": 0},
        {"poll_max_us": 1},
        {"poll_max_us": 2_000_000},
    ]
    for wrong in ways:
        with pytest.raises(InvalidArgument):
            aiochronicle.open_reader(queue, **wrong)


@on_both_loops
@pytest.mark.parametrize("burst", [1, 7, 256])
async def test_the_loop_gets_a_turn_after_every_burst(queue_path: Path, burst: int) -> None:
    fill(queue_path, 5000)
    loop = asyncio.get_running_loop()
    turn = 0

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns)

    per_turn: dict[int, int] = {}
    with aiochronicle.open_reader(queue_path, burst=burst) as reader:
        loop.call_soon(count_turns)
        async for message in reader:
            per_turn[turn] = per_turn.get(turn, 0) + 1
            if message.seq == 4999:
                break
    assert max(per_turn.values()) <= burst
    assert sum(per_turn.values()) == 5000


@contextlib.contextmanager
def undisturbed_clock() -> Iterator[Callable[[], float]]:
    """Run with real-time priority and yield a monotonic clock. Where that is not permitted, yield the CPU
    time of this thread."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield time.thread_time
        return
    try:
        yield time.monotonic
    finally:
        os.sched_setscheduler(0, policy, parameters)


async def beat_p99_s(beats: int, clock: Callable[[], float]) -> float:
    """Return the 99th percentile of the time that a sleep of 1 ms takes, in seconds."""
    taken: list[float] = []
    for _ in range(beats):
        started = clock()
        await asyncio.sleep(0.001)
        taken.append(clock() - started)
    taken.sort()
    return taken[math.ceil(len(taken) * 0.99) - 1]


@on_both_loops
@pytest.mark.parametrize("work_us", [0, 1000], ids=["quick", "slow"])
async def test_a_ticker_beside_a_saturated_reader_keeps_its_beat(
    queue_path: Path, work_us: int
) -> None:
    fill(queue_path, 50_000)
    with aiochronicle.open_reader(queue_path) as reader:

        async def saturate() -> None:
            async for message in reader:
                if message.seq == 49_999:
                    reader.seek_first()
                until = time.thread_time() + work_us / 1e6
                while time.thread_time() < until:
                    pass

        reading = asyncio.create_task(saturate())
        with undisturbed_clock() as clock:  # load can only increase it: the best round counts
            p99_s = min([await beat_p99_s(100, clock) for _ in range(3)])
        messages = reader.statistics().messages
        reading.cancel()
    assert messages > 200
    assert p99_s < 0.005


@on_both_loops
@pytest.mark.parametrize("wait", ["spin", SpinThenPark(200)], ids=["spin", "spin_then_park"])
async def test_spinning_readers_get_everything(queue_path: Path, wait: WaitStrategy) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, wait=wait) as reader,
    ):
        reading = asyncio.create_task(take(reader, 100))
        for number in range(100):
            writer.append(b"%d" % number)
            await asyncio.sleep(0.0005)
        assert await asyncio.wait_for(reading, 10) == list(range(100))
        # Other tasks run while the reader spins, and closing it ends the spinning.
        spinning = asyncio.create_task(take(reader, 1))
        if wait == "spin":
            await asyncio.sleep(0.01)
            assert reader.statistics().parks == 0
        else:
            await eventually(lambda: reader.statistics().parks > 0)
        reader.close()
        assert await asyncio.wait_for(spinning, 5) == []


@on_both_loops
async def test_a_closed_reader_says_so(queue: Path) -> None:
    reader = aiochronicle.open_reader(queue)
    reader.close()
    assert [message async for message in reader] == []
    assert [batch async for batch in reader.batches()] == []
    with pytest.raises(ClosedError):
        await reader.next()
    with pytest.raises(ClosedError):
        await reader.next(timeout=1)


@on_both_loops
async def test_errors_reach_whoever_waits(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        waiting = [asyncio.ensure_future(reader.next()) for _ in range(2)]
        await eventually(lambda: reader.attended)
        position = writer.position
        writer.append(b"good")
        segment = queue_path / "000000000.q"
        with segment.open("r+b") as file:  # damage the next message before the reader gets to it
            writer.append(b"damaged")
            file.seek(position.offset + 128 + 64)
            file.write(b"D")
        assert (await waiting[0]).payload == b"good"
        with pytest.raises(aiochronicle.errors.CorruptionError):
            await asyncio.wait_for(waiting[1], 5)
        with pytest.raises(aiochronicle.errors.CorruptionError):
            await reader.next()
