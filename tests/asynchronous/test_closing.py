"""Closing in the background completes even if the task is cancelled, and does not block other tasks."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle.errors import ChronicleError, LockedError, ReaderBusy
from asynchronous.both_loops import on_both_loops
from asynchronous.held import held_opening
from asynchronous.loops import LOOPS
from asynchronous.peers import Peer, eventually

SMALL = 1 << 16


def open_reader(queue: Path) -> aiochronicle.Reader:
    return aiochronicle.open_reader(queue, "name")


def open_replay(queue: Path) -> aiochronicle.Replay:
    return aiochronicle.replay(queue)


def open_queue(queue: Path) -> aiochronicle.Queue:
    return aiochronicle.Queue(queue)


def open_writer(queue: Path) -> aiochronicle.Writer:
    return aiochronicle.open_writer(queue)


OPENED: list[Callable[[Path], Any]] = [open_reader, open_replay, open_queue, open_writer]


@pytest.mark.parametrize("open_it", OPENED)
@on_both_loops
async def test_cancelled_it_is_closed_all_the_same(
    queue: Path, open_it: Callable[[Path], Any]
) -> None:
    opened = open_it(queue)
    closing = asyncio.ensure_future(opened.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await eventually(lambda: is_closed(opened), 30)
    again = await open_when_free(open_it, queue)
    await again.aclose()
    await again.aclose()  # harmless


async def open_when_free(open_it: Callable[[Path], Any], queue: Path) -> Any:
    """Open the queue as soon as a closing thread has released its locks."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return open_it(queue)
        except (LockedError, ReaderBusy):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


def is_closed(opened: Any) -> bool:
    if not isinstance(opened, aiochronicle.Queue):
        return bool(opened.closed)
    try:
        repr(opened.slice().count)
    except (ChronicleError, ValueError):
        return True
    return False


@on_both_loops
async def test_tasks_that_wait_come_to_the_end(queue: Path) -> None:
    async with (
        aiochronicle.aopen_reader(queue, start="last") as reader,
        aiochronicle.aopen_reader(queue, start="last") as source,
        aiochronicle.FanIn([source]) as fan_in,
    ):
        waiting = [asyncio.ensure_future(count(one)) for one in (reader, reader, fan_in)]
        await asyncio.sleep(0.01)
        await reader.aclose()
        await fan_in.aclose()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*waiting) == [0, 0, 0]


async def count(messages: Any) -> int:
    return sum([1 async for _ in messages])


@on_both_loops
async def test_a_source_can_be_read_alone_after_its_fan_in_was_closed(queue: Path) -> None:
    async with (
        aiochronicle.aopen_writer(queue) as writer,
        aiochronicle.aopen_reader(queue, "name", start="last") as reader,
    ):
        for number in range(20):
            async with aiochronicle.FanIn([reader]) as fan_in:
                waiting = asyncio.ensure_future(fan_in.next())
                await eventually(lambda: reader.attended, 30)
                writer.append(b"%d" % number)
                assert (await waiting).payload == b"%d" % number
            waiting = asyncio.ensure_future(reader.next())
            await eventually(lambda: reader.attended, 30)
            writer.append(b"alone")
            assert (await asyncio.wait_for(waiting, 30)).payload == b"alone"


@on_both_loops
async def test_closing_while_others_read_wait_and_close(tmp_path: Path, seed: int) -> None:
    """Threads close readers and their fan-in in any order while tasks use them."""
    rng = random.Random(seed)
    paths = [tmp_path / f"q{number}" for number in range(4)]
    writers = [aiochronicle.open_writer(path, segment_size=SMALL) for path in paths]
    for _ in range(60):
        readers = [await aiochronicle.aopen_reader(path, "name") for path in paths]
        fan_in = aiochronicle.FanIn(readers[:3])
        using = [asyncio.ensure_future(use(one)) for one in (fan_in, readers[3], readers[3])]
        for _ in range(rng.randrange(5)):
            rng.choice(writers).append(bytes(rng.randrange(3000)))
            await asyncio.sleep(rng.choice([0, 0, 0.001]))
        closing: list[Any] = [fan_in, *readers]
        rng.shuffle(closing)
        await asyncio.gather(*(one.aclose() for one in closing))
        async with asyncio.timeout(30):
            await asyncio.gather(*using)
        assert all(one.closed for one in closing)
    for writer in writers:
        await writer.aclose()


class ClosesWhenAsked(asyncio.SelectorEventLoop):
    """A loop in which a thread closes an object at the moment its polling timer is created."""

    closing: Any = None

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, **options: Any
    ) -> Any:
        if self.closing is not None and callback.__name__ == "_poll_timer":
            thread = threading.Thread(target=self.closing.close)
            thread.start()
            thread.join()
        return super().call_later(delay, callback, *args, **options)


@pytest.mark.parametrize("kind", ["reader", "fan-in"])
def test_a_thread_closes_while_the_task_falls_asleep(queue_path: Path, kind: str) -> None:
    with (
        Peer("foreign", queue_path),  # does not signal, so that the reader polls by a timer
        aiochronicle.open_reader(queue_path) as reader,
        aiochronicle.FanIn([reader] if kind == "fan-in" else []) as fan_in,
        asyncio.Runner(loop_factory=ClosesWhenAsked) as runner,
    ):
        loop: Any = runner.get_loop()
        loop.closing = reader if kind == "reader" else fan_in

        async def read() -> int:
            return await asyncio.wait_for(count(loop.closing), 5)

        assert runner.run(read()) == 0


class AskedByThread(asyncio.SelectorEventLoop):
    """A loop that, when the closing thread calls is_closed, closes the writer and signals the eventfd."""

    closing: threading.Thread
    writer: aiochronicle.Writer
    on_signal: Callable[[], object]
    signalled = False

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        if "_on_signal" in repr(callback):
            self.on_signal = callback
        super().add_reader(fd, callback, *args)

    def is_closed(self) -> bool:
        if threading.current_thread() is getattr(self, "closing", None) and not self.signalled:
            self.writer.close()
            done = threading.Event()
            self.call_soon_threadsafe(self.on_signal)
            self.call_soon_threadsafe(done.set)
            self.signalled = done.wait(30)
        return super().is_closed()


@pytest.mark.parametrize("kind", ["reader", "fan-in"])
def test_a_signal_while_a_thread_closes(queue_path: Path, kind: str) -> None:
    """A wake-up between detaching the reader from the loop and waking its task starts no polling."""
    with (
        aiochronicle.open_writer(queue_path, segment_size=SMALL) as writer,
        aiochronicle.open_reader(queue_path) as reader,
        aiochronicle.FanIn([reader] if kind == "fan-in" else []) as fan_in,
        asyncio.Runner(loop_factory=AskedByThread) as runner,
    ):
        messages: Any = reader if kind == "reader" else fan_in
        loop: Any = runner.get_loop()
        loop.closing, loop.writer = threading.Thread(target=messages.close), writer

        async def read() -> int:
            reading = asyncio.ensure_future(count(messages))
            await eventually(lambda: writer.statistics().readers_connected == 1, 30)
            await asyncio.sleep(0.1)  # its polling timer expires, and it parks
            loop.closing.start()
            await asyncio.to_thread(loop.closing.join, 30)
            return await asyncio.wait_for(reading, 30)

        assert runner.run(read()) == 0
        assert loop.signalled


async def use(messages: Any) -> None:
    try:
        async for _ in messages:
            _ = messages.lag, messages.statistics(), repr(messages)
    except ChronicleError:
        pass  # a source was closed before its fan-in


@on_both_loops
async def test_a_reader_is_usable_while_the_bus_opens_another(tmp_path: Path) -> None:
    async with aiochronicle.Bus(tmp_path / "bus") as bus:
        await bus.aappend("a", b"x")
        await bus.aappend("b", b"y")
        await bus.areader("a", "name")
        with held_opening() as held:
            opening = asyncio.ensure_future(bus.areader("b", "name"))
            await asyncio.to_thread(held.arrived.wait, 60)
            assert [message.payload for message in bus.read_batch("a", "name")] == [b"x"]
            bus.commit("a", "name")
            assert not held.went_on  # no call waited for the opening
        assert (await opening).name == "name"
        assert bus.reader("b", "name") is await opening


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_the_loop_is_closed_while_a_thread_closes(
    queue: Path, loop_name: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        loop = LOOPS[loop_name]()
        reader = aiochronicle.open_reader(queue, "name", start="last")
        reading = loop.create_task(count(reader))
        loop.run_until_complete(asyncio.sleep(0.001))
        closing = loop.create_task(reader.aclose())
        for _ in range(rng.randrange(3)):
            loop.run_until_complete(asyncio.sleep(0))
        tasks: list[Any] = [reading, closing]
        while tasks:
            task = tasks.pop()
            task._log_destroy_pending = False
            if rng.random() < 0.5:
                task.cancel()
            del task
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        deadline = time.monotonic() + 30
        while not reader.closed:
            if closing.done() or time.monotonic() > deadline:  # cancelled before it began
                reader.close()
        del reading, closing, loop
        gc.collect()
    assert caplog.text == ""
