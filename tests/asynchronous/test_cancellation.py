"""R11: cancelling at any point loses no message, repeats none, and leaves every object usable."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from asynchronous.both_loops import on_both_loops
from asynchronous.cancels import by_iteration, cancel_at_random
from asynchronous.peers import eventually

CANCELS = 5000  # on each of two loops


@on_both_loops
async def test_random_cancels_lose_and_double_nothing(queue_path: Path, seed: int) -> None:
    await cancel_at_random(queue_path, seed, CANCELS)


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
