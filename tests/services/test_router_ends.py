"""A router leaves nothing behind when it is cancelled, its queues go, or its loop is closed."""

import asyncio
import functools
import gc
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import FanIn, Message, Reader, Responder, Router, Writer, open_reader
from aiochronicle._services.watcher import SELDOM_S
from aiochronicle.errors import QueueGone, ReaderBusy

WITHIN_S = 20.0

open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 16)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


def make(root: Path, *names: str) -> None:
    root.mkdir(exist_ok=True)
    for name in names:
        with open_writer(root / name, ready=True) as writer:
            writer.append(name.encode())


def flip(path: Path, offset: int) -> None:
    """Change a byte of the first segment; a second call repairs it."""
    with (path / "000000000.q").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def watches() -> list[str]:
    """Return the inotify descriptors and threads that discovery uses."""
    found = [thread.name for thread in threading.enumerate() if thread.name.startswith("watch ")]
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
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


def committed(root: Path, *names: str) -> list[int | None]:
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
        router.commit(messages["a"])  # no code ran in between that could have noticed
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


async def consume(router: Router, last: str) -> None:
    """Take messages up to the first message of this queue."""
    async for message in router:
        if message.source == last:
            return


async def test_a_removed_queue_that_fails_while_its_replies_are_closed_is_no_problem(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    make(root, "a", "b")
    async with Router(root, name="router", rescan_s=0.1) as router:
        message = await router.next(timeout=WITHIN_S)
        may_open, open_reply = threading.Event(), router._open_reply

        def open_later(*arguments: Any) -> Writer:
            may_open.wait(WITHIN_S)
            return open_reply(*arguments)

        router._open_reply = open_later  # type: ignore[method-assign,assignment]
        replying = asyncio.create_task(router.reply(message))
        await asyncio.sleep(0)
        path = root / message.source
        shutil.rmtree(path)
        await until(router._changing.locked)  # the detaching waits for the reply queue
        consuming = asyncio.create_task(consume(router, "c"))
        await until(lambda: str(path) in router.problems)
        may_open.set()
        await asyncio.wait([replying])
        await until(lambda: not router._changing.locked())
        assert router.problems == {}
        assert router.statistics().set_aside == 0
        make(root, "c")
        async with asyncio.timeout(WITHIN_S):
            await consuming


@pytest.mark.parametrize("how", ["message", "all", "none"])
async def test_what_was_delivered_before_a_queue_was_set_aside_can_be_committed_and_answered(
    tmp_path: Path, how: str
) -> None:
    root = tmp_path / "root"
    make(root, *["a"] * 6)
    damaged = 64 + 4 * 128 + 64  # the payload of the fifth message
    flip(root / "a", damaged)
    async with Router(root, name="router", rescan_s=0.2) as router:
        messages = [await router.next(timeout=WITHIN_S) for _ in range(4)]
        await until(lambda: router.poll() is None and router.statistics().set_aside)
        writer = await router.reply(messages[0])
        writer.append(b"answer")
        for message in messages[:3] if how == "message" else []:
            router.commit(message)
        if how == "all":
            router.commit()
    expected = {"message": 3, "all": 4, "none": 0}[how]
    assert committed(root, "a") == [expected]
    async with Router(root, name="router", rescan_s=0.1) as router:
        again = [await router.next(timeout=WITHIN_S) for _ in range(expected, 4)]
        assert [message.seq for message in again] == [*range(expected, 4)]
        await until(lambda: router.poll() is None and router.statistics().set_aside)
        if again:
            router.commit(again[0])
        flip(root / "a", damaged)  # repaired
        rest = [await router.next(timeout=WITHIN_S) for _ in range(2)]
        assert [message.seq for message in rest] == [4, 5]  # no message is repeated
        router.commit(rest[0])
    assert committed(root, "a") == [5]


async def test_a_commit_that_cannot_be_stored_is_when_the_queue_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    make(root, *["a"] * 3)
    flip(root / "a", 64 + 128 + 64)
    async with Router(root, name="router", rescan_s=0.1) as router:
        message = await router.next(timeout=WITHIN_S)
        await until(lambda: router.poll() is None and router.statistics().set_aside)
        busy: list[Reader] = []
        await until(lambda: take_name(root / "a", busy))
        router.commit(message)
        router.commit(message)
        await until(lambda: "cannot commit now" in caplog.text)
        busy[0].close()
        flip(root / "a", 64 + 128 + 64)
        assert (await router.next(timeout=WITHIN_S)).seq == 1
    assert committed(root, "a") == [1]
    assert caplog.text.count("cannot commit now") == 1


def take_name(path: Path, readers: list[Reader]) -> bool:
    try:
        readers.append(open_reader(path, "router"))
    except ReaderBusy:
        return False
    return True


@pytest.mark.parametrize("kind", ["router", "responder"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_names_are_free_when_the_loop_was_closed_and_the_router_forgotten(
    tmp_path: Path, kind: str
) -> None:
    make(tmp_path / "root", "a")

    async def begin() -> None:
        if kind == "router":
            router = await Router(tmp_path / "root", name="router").__aenter__()
            await router.next(timeout=WITHIN_S)
        else:
            roots = tmp_path / "root", tmp_path / "answered"
            await anext(await Responder(*roots, name="router").__aenter__())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    del loop
    closed_s = time.monotonic()
    while not is_free(tmp_path / "root" / "a"):
        assert time.monotonic() - closed_s < SELDOM_S / 2  # how often the watcher's thread checks
    eventually(lambda: not [name for name in watches() if str(tmp_path) in name])


def is_free(path: Path) -> bool:
    gc.collect()
    readers: list[Reader] = []
    if not take_name(path, readers):
        return False
    readers[0].close()
    return True
