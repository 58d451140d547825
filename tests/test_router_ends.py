"""What a router leaves behind: when it is cancelled, when its queues go, when its loop is closed."""

import asyncio
import functools
import gc
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import FanIn, Message, Router, open_reader
from aiochronicle.errors import QueueGone

WITHIN_S = 20.0

open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 16)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


def make(root: Path, *names: str) -> None:
    for name in names:
        with open_writer(root / name, ready=True) as writer:
            writer.append(name.encode())


def watches() -> list[str]:
    """What discovery costs: inotify descriptors and threads."""
    found = [thread.name for thread in threading.enumerate() if thread.name.startswith("watch ")]
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except FileNotFoundError:
            continue
        if "inotify" in target:
            found.append(target)
    return sorted(found)


async def cancelled_in_aclose(root: Path) -> None:
    router = await Router(root, name="router").__aenter__()
    closing = asyncio.create_task(router.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])


async def cancelled_twice(root: Path) -> None:
    entered = asyncio.Event()

    async def follow() -> None:
        async with Router(root, name="router") as router:
            entered.set()
            async for _ in router:
                pass

    following = asyncio.create_task(follow())
    async with asyncio.timeout(WITHIN_S):
        await entered.wait()
    following.cancel()
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])


@pytest.mark.parametrize("end", [cancelled_in_aclose, cancelled_twice])
async def test_a_router_whose_closing_is_cancelled_stops_watching(
    tmp_path: Path, end: Callable[[Path], Awaitable[None]]
) -> None:
    make(tmp_path, "a", "b")
    tasks, before = asyncio.all_tasks(), watches()
    for _ in range(3):
        await end(tmp_path)
    gc.collect()
    await until(lambda: asyncio.all_tasks() == tasks and watches() == before)
    with open_reader(tmp_path / "a", "router"):  # the name is free
        pass


async def three(router: FanIn) -> dict[str, Message]:
    messages = [await router.next(timeout=WITHIN_S) for _ in range(3)]
    return {message.source: message for message in messages}


def committed(root: Path, *names: str) -> list[int]:
    found = []
    for name in names:
        with open_reader(root / name, "router") as reader:
            found.append(reader.committed_seq)
    return found


async def test_commits_pass_over_a_queue_that_was_removed_just_now(tmp_path: Path) -> None:
    make(tmp_path, "a", "b", "c")
    async with Router(tmp_path, name="router", rescan_s=60) as router:
        messages = await three(router)
        shutil.rmtree(tmp_path / "a")
        sources = {path: source for source, path in router.paths().items()}
        router.commit(messages["a"])  # nothing ran in between that could have found out
        router.commit(sources[str(tmp_path / "a")])
        router.commit()
    assert committed(tmp_path, "b", "c") == [1, 1]


@pytest.mark.parametrize("taken", [1, 3])
async def test_a_conflation_commits_what_is_left_of_a_router(tmp_path: Path, taken: int) -> None:
    make(tmp_path, "a", "b", "c")
    async with Router(tmp_path, name="router", rescan_s=60) as router:
        conflation = router.conflate(lambda message: message.source)
        async with asyncio.timeout(WITHIN_S):
            for _ in range(taken):
                await anext(conflation)
        shutil.rmtree(tmp_path / "a")
        conflation.commit()
    assert committed(tmp_path, "b", "c") == ([1, 1] if taken == 3 else [0, 0])


def test_a_fan_in_commits_the_others_and_raises_the_first_failure(tmp_path: Path) -> None:
    make(tmp_path, "a", "b", "c")
    readers = [open_reader(tmp_path / name, "router") for name in "abc"]
    with FanIn(readers) as fan_in:
        assert len(list(fan_in)) == 3
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "b")
        with pytest.raises(QueueGone, match="/a: "):
            fan_in.commit()
    for reader in readers:
        reader.close()
    assert committed(tmp_path, "c") == [1]
