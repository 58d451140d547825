"""R11: tasks that read through every interface, cancelled at random moments."""

# The tasks append in a loop: a cancelled comprehension would lose the items it had collected.

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import aiochronicle
from asynchronous.peers import eventually

__all__ = ["by_iteration", "cancel_at_random", "cancelled"]

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
    """Cancel the task; return when the cancellation has ended it."""
    # In Python 3.11, wait_for swallows a cancellation that arrives together with the result: cancel again.
    while not (await asyncio.wait([task], timeout=0.01))[0]:
        task.cancel()
    with pytest.raises((asyncio.CancelledError, BaseExceptionGroup)):
        await task


async def cancel_at_random(queue_path: Path, seed: int, cancels: int) -> None:
    """Cancel this many tasks; check after each that no message was lost or repeated."""
    rng = random.Random(seed)
    taken: list[int] = []
    appended = checked = 0
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, "cancelled", burst=3) as reader,
    ):
        for number in range(cancels):
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
    assert appended > cancels
