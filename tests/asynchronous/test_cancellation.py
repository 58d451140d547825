"""R11: cancelling anywhere loses nothing, doubles nothing, and leaves everything usable."""

# A comprehension would lose what it has when it is cancelled.

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import eventually

CANCELS = 5000  # on each of two loops

Way = Callable[[aiochronicle.Reader, list[int]], Awaitable[None]]


async def by_next(reader: aiochronicle.Reader, taken: list[int]) -> None:
    while True:
        taken.append((await reader.next()).seq)


async def by_next_with_timeout(reader: aiochronicle.Reader, taken: list[int]) -> None:
    while True:
        try:
            message = await reader.next(timeout=0.0003)
        except TimeoutError:
            continue
        taken.append(message.seq)


async def by_iteration(reader: aiochronicle.Reader, taken: list[int]) -> None:
    async for message in reader:
        taken.append(message.seq)


async def by_batches(reader: aiochronicle.Reader, taken: list[int]) -> None:
    async for batch in reader.batches(max_messages=5):
        taken.extend(message.seq for message in batch)


async def by_patient_batches(reader: aiochronicle.Reader, taken: list[int]) -> None:
    async for batch in reader.batches(max_messages=5, max_wait=0.0005):
        taken.extend(message.seq for message in batch)


async def by_wait_for(reader: aiochronicle.Reader, taken: list[int]) -> None:
    while True:
        try:
            message = await asyncio.wait_for(reader.next(), 0.0003)
        except TimeoutError:
            continue
        taken.append(message.seq)


async def by_timeout_around_iteration(reader: aiochronicle.Reader, taken: list[int]) -> None:
    while True:
        try:
            async with asyncio.timeout(0.0003):
                async for message in reader:
                    taken.append(message.seq)
        except TimeoutError:
            continue


async def by_task_group(reader: aiochronicle.Reader, taken: list[int]) -> None:
    async def take() -> None:
        async for message in reader:
            taken.append(message.seq)

    async with asyncio.TaskGroup() as group:
        group.create_task(take())
        group.create_task(take())


WAYS: list[Way] = [
    by_next,
    by_next_with_timeout,
    by_iteration,
    by_batches,
    by_patient_batches,
    by_wait_for,
    by_timeout_around_iteration,
    by_task_group,
]


async def cancelled(task: asyncio.Future[None]) -> None:
    """Return when the task has ended by its cancellation."""
    # wait_for of Python 3.11 swallows a cancellation that meets its result: then once more.
    while not (await asyncio.wait([task], timeout=0.01))[0]:
        task.cancel()
    with pytest.raises((asyncio.CancelledError, BaseExceptionGroup)):
        await task


@on_both_loops
async def test_random_cancels_lose_and_double_nothing(queue_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    taken: list[int] = []
    appended = checked = 0
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, "cancelled", burst=3) as reader,
    ):
        for number in range(CANCELS):
            way = rng.choice(WAYS)
            task = asyncio.ensure_future(way(reader, taken))
            for _ in range(rng.randrange(4)):
                for _ in range(rng.randrange(3)):
                    writer.append(b"%d" % appended)
                    appended += 1
                await asyncio.sleep(0 if rng.random() < 0.9 else rng.random() * 0.001)
            task.cancel()
            if rng.random() < 0.5:  # appended between the cancel and its delivery
                writer.append(b"%d" % appended)
                appended += 1
            await cancelled(task)
            assert taken[checked:] == list(range(checked, len(taken))), (number, way)
            checked = len(taken)
        finishing = asyncio.ensure_future(by_iteration(reader, taken))
        await eventually(lambda: len(taken) == appended, 10)
        finishing.cancel()
    assert taken == list(range(appended))
    assert appended > CANCELS


@on_both_loops
async def test_cancelling_one_of_several_tasks_passes_its_turn_on(
    queue_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    taken: list[int] = []
    appended = 0
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        tasks = [asyncio.ensure_future(by_iteration(reader, taken)) for _ in range(5)]
        for _ in range(1000):
            victim = rng.randrange(len(tasks))
            if rng.random() < 0.7:
                writer.append(b"%d" % appended)
                appended += 1
            tasks[victim].cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            tasks[victim] = asyncio.ensure_future(by_iteration(reader, taken))
            if rng.random() < 0.3:
                await eventually(lambda: len(taken) == appended, 5)  # noqa: B023
        await eventually(lambda: len(taken) == appended, 5)
        assert taken == list(range(appended))
        reader.close()
        await asyncio.gather(*tasks)


@on_both_loops
async def test_one_iterator_survives_its_cancelled_tasks(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        iterator, batches = aiter(reader), aiter(reader.batches())
        for number in range(50):
            for waiting in (
                asyncio.ensure_future(anext(iterator)),
                asyncio.ensure_future(anext(batches)),
            ):
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            writer.append_many([b"%d" % number, b"again"])
            assert (await anext(iterator)).payload == b"%d" % number
            assert [message.payload for message in await anext(batches)] == [b"again"]


@on_both_loops
async def test_the_message_of_a_cancel_arrives(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    with aiochronicle.open_reader(queue_path) as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        waiting.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await waiting
        waiting = asyncio.ensure_future(reader.next())
        waiting.cancel()  # before its first step
        with pytest.raises(asyncio.CancelledError):
            await waiting


@on_both_loops
async def test_cancelled_flushes_and_drains_harm_nobody(queue_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with aiochronicle.open_writer(
        queue_path, segment_size=1 << 20, capacity=1 << 16
    ) as writer:
        with aiochronicle.open_reader(queue_path, "slow") as reader:
            for _ in range(200):
                seq = writer.append(b"x" * 100)
                waiting: list[asyncio.Task[Any]] = [
                    asyncio.create_task(writer.flush()) for _ in range(3)
                ]
                waiting.append(asyncio.create_task(writer.append_durable(b"y" * 100)))
                draining: asyncio.Task[Any] = asyncio.create_task(writer.drain())
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                cancelled = rng.sample(waiting, rng.randrange(1, 4))
                for task in cancelled:
                    task.cancel()
                draining.cancel()
                done = await asyncio.gather(*waiting, draining, return_exceptions=True)
                for task, result in zip(waiting, done, strict=False):
                    if task not in cancelled and task is not waiting[3]:
                        assert isinstance(result, int)
                        assert result > seq
                assert await writer.flush() == writer.next_seq
                for _ in reader:
                    pass
                reader.commit()
            await writer.drain()
            assert writer.statistics().durable_seq == writer.next_seq
