"""Reader.wait(), for programs without a loop."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import SpinThenPark
from aiochronicle._core.reader import WaitStrategy
from aiochronicle.errors import ClosedError, InvalidArgument
from asynchronous.peers import Peer


class Thread(threading.Thread):
    """A thread that stores its function's result or exception."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
        self._function = function
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._function()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.outcome = error

    def result(self) -> object:
        self.join(10)
        assert not self.is_alive()
        return self.outcome


def until_parked(reader: aiochronicle.Reader) -> None:
    deadline = time.monotonic() + 5
    while not reader.statistics().waits:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("wait", ["park", "spin", SpinThenPark(100)])
def test_wait_returns_when_there_is_something(queue_path: Path, wait: WaitStrategy) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, wait=wait) as reader,
    ):
        for number in range(20):
            thread = Thread(reader.wait)
            if wait == "park" and number == 0:
                until_parked(reader)
            writer.append(b"%d" % number)
            assert thread.result() is True
            assert [message.payload for message in reader] == [b"%d" % number]


def test_wait_times_out(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    with aiochronicle.open_reader(queue_path) as reader:
        started = time.monotonic()
        assert reader.wait(0.05) is False
        assert time.monotonic() - started > 0.04
        assert reader.wait(0) is False
        with pytest.raises(InvalidArgument):
            reader.wait(-1)


def test_closing_from_another_thread_ends_a_wait(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    fastest_s = 60.0
    for _ in range(20):
        reader = aiochronicle.open_reader(queue_path)
        threads = [Thread(reader.wait) for _ in range(3)]
        until_parked(reader)
        started = time.monotonic()
        reader.close()
        for thread in threads:
            assert isinstance(thread.result(), ClosedError)
        fastest_s = min(fastest_s, time.monotonic() - started)
    assert fastest_s < 0.1  # close() woke all of them; none noticed it by polling


def test_a_thread_is_woken_across_processes(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        Peer("sleepy_thread", queue_path) as reader,
    ):
        for number in range(200):
            eventually(reader.sleeps)  # otherwise no reader would be waiting
            writer.append(b"%d" % number)
            assert reader.hear() == str(number)
            if number == 0:  # the reader may poll until the writer has connected
                eventually(lambda: writer.statistics().readers_connected == 1)
        assert writer.statistics().wakeups > 10


def test_a_signal_interrupts_a_wait(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with aiochronicle.open_reader(queue_path) as reader:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                reader.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_share_the_messages_of_one_reader(queue_path: Path) -> None:
    taken: list[int] = []
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        reader = aiochronicle.open_reader(queue_path)

        def work() -> None:
            try:
                while True:
                    reader.wait()
                    taken.extend(message.seq for message in reader)
            except ClosedError:
                return

        threads = [Thread(work) for _ in range(4)]
        for number in range(5000):
            writer.append(b"%d" % number)
        deadline = time.monotonic() + 20
        while len(taken) < 5000:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        reader.close()
        for thread in threads:
            assert thread.result() is None
    assert sorted(taken) == list(range(5000))


def test_loops_in_several_threads(queue_path: Path) -> None:
    """Each thread has its own loop and reader; one reader cannot wait in two loops at once."""
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:

        async def read() -> list[int]:
            with aiochronicle.open_reader(queue_path) as reader:
                return [(await reader.next(timeout=10)).seq for _ in range(100)]

        threads = [Thread(lambda: asyncio.run(read())) for _ in range(4)]
        for number in range(100):
            writer.append(b"%d" % number)
        for thread in threads:
            assert thread.result() == list(range(100))

    with aiochronicle.open_reader(queue_path, start="last") as shared:

        async def wait_in_two() -> None:
            waiting = asyncio.ensure_future(shared.next())
            await asyncio.sleep(0)

            async def second() -> None:
                await shared.next()

            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, second())
            waiting.cancel()

        asyncio.run(wait_in_two())


class ClosingLoop(asyncio.SelectorEventLoop):
    """A loop that runs its thread between a reader's leaving the loop and its closing.

    The woken task finds the reader open and watches it again; the loop holds the task there until the reader
    is closed.
    """

    def __init__(self, reader: aiochronicle.Reader) -> None:
        super().__init__()
        self.reader = reader
        self.watched = threading.Event()
        self.watched_again = threading.Event()
        self.closed_reader = threading.Event()
        self.closer: threading.Thread | None = None
        self.calls_of_closer = 0

    def close_reader(self) -> None:
        assert self.watched.wait(10)
        self.closer = threading.current_thread()
        self.reader.close()
        self.closed_reader.set()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        if threading.current_thread() is self.closer:
            self.calls_of_closer += 1
            if (
                self.calls_of_closer == 2
            ):  # the first has the eventfd forgotten, this one woke the task
                assert self.watched_again.wait(10)
        return handle

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        if self.watched.is_set():
            self.watched_again.set()
            assert self.closed_reader.wait(10)
        super().add_reader(fd, callback, *args)
        self.watched.set()


def test_a_task_that_comes_back_while_its_reader_is_being_closed(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20),
        aiochronicle.open_reader(queue_path) as reader,
    ):
        loop = ClosingLoop(reader)
        closing = Thread(loop.close_reader)
        with asyncio.Runner(loop_factory=lambda: loop) as runner, pytest.raises(ClosedError):
            runner.run(reader.next(60))
        assert closing.result() is None
        assert loop.watched_again.is_set()
