"""The fan-in in event loops: waking, cancelling, sources that come and go while a task sleeps."""

import asyncio
import contextlib
import functools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import aiochronicle
from aiochronicle import FanIn, Message, open_reader

# A segment is allocated when it is created: test queues of the default size would fill the disk.
open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 20)

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

WITHIN_S = 20.0


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(WITHIN_S):
                return await main

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(bounded())

    return run_in_loop


@pytest.fixture
def queues(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}" for number in range(4)]
    for path in paths:
        open_writer(path).close()
    return paths


WRITER = """
import sys, aiochronicle
with aiochronicle.open_writer(sys.argv[1], segment_size=1 << 20) as writer:
    print("ready", flush=True)
    for line in sys.stdin:
        kind, value = line.split()
        if kind == "append":
            writer.append(value.encode())
        else:
            writer.heartbeat(int(value))
"""


class WriterProcess:
    """A writer in a process of its own, which takes commands line by line."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, kind: str, value: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {value}\n")
        self.process.stdin.flush()

    def __enter__(self) -> "WriterProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may have been killed
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def eventfds() -> int:
    """Return how many eventfds this process has."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            count += "eventfd" in str(fd.readlink())
    return count


async def asleep(task: "asyncio.Task[Any]", fan_in: FanIn, attended: int) -> None:
    """Wait until the task sleeps and this many sources have a writer that would wake it."""
    while True:
        await asyncio.sleep(0.001)
        connected = sum(fan_in.source_statistics(one).attended for one in fan_in.sources())
        if connected >= attended or task.done():
            return


def test_writers_in_other_processes_wake_one_eventfd(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writers = [stack.enter_context(WriterProcess(path)) for path in queues]
            readers = [stack.enter_context(open_reader(path)) for path in queues]
            async with FanIn(readers) as fan_in:
                task = asyncio.ensure_future(anext(aiter(fan_in)))
                await asyncio.sleep(0)
                before = eventfds()
                for round_number in range(50):
                    await asleep(task, fan_in, len(writers))
                    assert not task.done()
                    writers[round_number % 4].tell("append", round_number)
                    message = await task
                    assert message.payload == b"%d" % round_number
                    task = asyncio.ensure_future(anext(aiter(fan_in)))
                    await asyncio.sleep(0)
                # All sources share the descriptor that the loop watches: none was added per source.
                assert eventfds() == before
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(main())


def test_a_heartbeat_of_another_process_wakes_strict_order(
    run: Run[Any], queues: list[Path]
) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            a, b = (stack.enter_context(WriterProcess(path)) for path in queues[:2])
            readers = [stack.enter_context(open_reader(path)) for path in queues[:2]]
            async with FanIn(readers, order="strict") as fan_in:
                for number in range(10):
                    task = asyncio.ensure_future(fan_in.next())
                    await asleep(task, fan_in, 2)
                    a.tell("append", number)
                    while not fan_in.source_statistics(0).has_message:
                        await asyncio.sleep(0.001)
                    assert not task.done()
                    assert fan_in.statistics().blocked_by == 1
                    b.tell("heartbeat", time.time_ns())
                    assert (await task).payload == b"%d" % number

    run(main())


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_strict_order_learns_how_a_writer_ended(
    how: str, run: Run[Any], queues: list[Path]
) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            readers = [stack.enter_context(open_reader(path)) for path in queues[:2]]
            writer = stack.enter_context(open_writer(queues[0]))
            other = stack.enter_context(WriterProcess(queues[1]))
            async with FanIn(readers, order="strict") as fan_in:
                task = asyncio.ensure_future(fan_in.next())
                await asleep(task, fan_in, 2)
                writer.append(b"1")
                while fan_in.statistics().blocked_by != 1:
                    await asyncio.sleep(0.001)
                if how == "closed":
                    other.close()
                    assert (await task).payload == b"1"
                    return
                other.process.kill()
                other.process.wait()
                while fan_in.source_statistics(1).attended:
                    await asyncio.sleep(0.001)
                assert not task.done()  # it may come back with an older message
                assert fan_in.statistics().blocked_by == 1
                with open_writer(queues[1]) as successor:
                    successor.heartbeat()
                    assert (await task).payload == b"1"

    run(main())


def test_sources_come_and_go_while_a_task_sleeps(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writers = [stack.enter_context(open_writer(path)) for path in queues]
            readers = [stack.enter_context(open_reader(path)) for path in queues]
            async with FanIn() as fan_in:
                for number in range(100):
                    task = asyncio.ensure_future(fan_in.next())
                    await asyncio.sleep(0)
                    reader = readers[number % 4]
                    if number % 2:
                        writers[number % 4].append(b"%d" % number)
                        source = fan_in.attach(reader)
                    else:
                        source = fan_in.attach(reader)
                        await asyncio.sleep(0)
                        writers[number % 4].append(b"%d" % number)
                    assert (await task).payload == b"%d" % number
                    assert fan_in.detach(source) is reader

    run(main())


def test_detaching_the_silent_source_wakes_strict_order(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writer = stack.enter_context(open_writer(queues[0]))
            stack.enter_context(open_writer(queues[1]))
            readers = [stack.enter_context(open_reader(path)) for path in queues[:2]]
            async with FanIn(readers, order="strict") as fan_in:
                writer.append(b"1")
                task = asyncio.ensure_future(fan_in.next())
                await asyncio.sleep(0.01)
                assert not task.done()
                fan_in.detach(1)
                assert (await task).payload == b"1"

    run(main())


def test_max_wait_ends_by_the_clock(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writer = stack.enter_context(open_writer(queues[0]))
            stack.enter_context(open_writer(queues[1]))
            readers = [stack.enter_context(open_reader(path)) for path in queues[:2]]
            async with FanIn(readers, order="strict", max_wait=0.05) as fan_in:
                started_s = time.monotonic()  # uvloop's own counts in milliseconds
                writer.append(b"1")
                assert (await fan_in.next()).payload == b"1"
                assert time.monotonic() - started_s >= 0.05

    run(main())


def test_close_ends_iteration_and_next(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with open_reader(queues[0]) as reader:
            fan_in = FanIn([reader])

            async def iterate() -> list[Message]:
                return [message async for message in fan_in]

            async def batch() -> list[list[Message]]:
                return [batch async for batch in fan_in.batches()]

            tasks = [asyncio.ensure_future(iterate()), asyncio.ensure_future(batch())]
            waiting = asyncio.ensure_future(fan_in.next())
            await asyncio.sleep(0.01)
            fan_in.close()
            assert await asyncio.gather(*tasks) == [[], []]
            with pytest.raises(aiochronicle.errors.ClosedError):
                await waiting

    run(main())


def test_next_times_out_and_takes_nothing(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with open_writer(queues[0]) as writer, open_reader(queues[0]) as reader:
            async with FanIn([reader]) as fan_in:
                with pytest.raises(TimeoutError):
                    await fan_in.next(timeout=0.01)
                writer.append(b"1")
                assert (await fan_in.next(timeout=10)).payload == b"1"

    run(main())


@pytest.mark.parametrize("kind", ["next", "async for", "batches"])
def test_cancelling_loses_nothing(kind: str, run: Run[Any], queues: list[Path], seed: int) -> None:
    """The consumer is cancelled at random moments while four threads append."""
    chance = random.Random(seed)
    total = 4_000

    def produce(path: Path, count: int) -> None:
        with open_writer(path) as writer:
            for number in range(count):
                writer.append(b"%d" % number)
                if number % 20 == 0:
                    time.sleep(0.0005)  # so that the consumer falls asleep between

    async def consume(fan_in: FanIn, batches: Any, received: list[Message]) -> None:
        if kind == "next":
            while True:
                received.append(await fan_in.next())
        if kind == "async for":
            async for message in fan_in:
                received += [message]  # one at a time: the task may be cancelled
        async for batch in batches:  # the same iterator, again and again
            received += batch

    async def main() -> int:
        received: list[Message] = []
        cancelled = 0
        with ExitStack() as stack:
            readers = [stack.enter_context(open_reader(path)) for path in queues]
            async with FanIn(readers) as fan_in:
                batches = fan_in.batches(max_messages=7)
                threads = [threading.Thread(target=produce, args=(p, total // 4)) for p in queues]
                for thread in threads:
                    thread.start()
                while len(received) < total:
                    task = asyncio.ensure_future(consume(fan_in, batches, received))
                    await asyncio.sleep(chance.choice((0, 0, 0.0001, 0.001)))
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    cancelled += 1
                for thread in threads:
                    thread.join()
                assert fan_in.poll() is None
        for path in queues:
            mine = [message for message in received if message.source == path.name]
            assert [message.seq for message in mine] == [*range(total // 4)]
            assert all(message.payload == b"%d" % message.seq for message in mine)
        return cancelled

    assert run(main()) >= 10


def test_asking_for_the_next_batch_commits_the_last(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            readers: list[aiochronicle.Reader] = []
            for path in queues[:2]:
                stack.enter_context(open_writer(path)).append_many([b"1", b"2"])
                readers.append(stack.enter_context(open_reader(path, "last", commit="auto")))
            first = [reader.committed for reader in readers]
            fan_in = stack.enter_context(FanIn(readers))
            batches = fan_in.batches()
            assert len(await anext(batches)) == 4
            assert [reader.committed for reader in readers] == first
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            assert [reader.committed for reader in readers] == [one.position for one in readers]
            fan_in.close()
            with pytest.raises(StopAsyncIteration):
                await waiting

    run(main())


def test_batches_fill_up_when_they_may_wait(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writers = [stack.enter_context(open_writer(path)) for path in queues]
            readers = [stack.enter_context(open_reader(path)) for path in queues]
            async with FanIn(readers) as fan_in:
                batches = fan_in.batches(max_messages=8, max_wait=5)
                for writer in writers:
                    writer.append_many([b"1", b"2", b"3"])
                assert fan_in.lag.messages == 12
                batch = await anext(batches)
                assert len(batch) == 8
                writers[0].append_many([b"4"] * 4)
                assert len(await anext(batches)) == 8
                with pytest.raises(aiochronicle.errors.InvalidArgument):
                    fan_in.batches(max_messages=0)

    run(main())


def test_the_loop_gets_its_turn_while_messages_abound(run: Run[Any], queues: list[Path]) -> None:
    async def main() -> None:
        with open_writer(queues[0]) as writer, open_reader(queues[0]) as reader:
            writer.append_many([b""] * 10_000)
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            async with FanIn([reader], burst=100) as fan_in:
                task = asyncio.ensure_future(other())
                count = 0
                async for _ in fan_in:
                    count += 1
                    if count == 10_000:
                        break
                task.cancel()
            assert turns >= 90

    run(main())


def test_a_thread_waits_without_a_loop(queues: list[Path]) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(open_reader(path)) for path in queues]
        writer = stack.enter_context(open_writer(queues[2]))
        fan_in = stack.enter_context(FanIn(readers))
        assert not fan_in.wait(timeout=0.01)
        thread = threading.Thread(target=lambda: writer.append(b"1"))
        thread.start()
        assert fan_in.wait(timeout=WITHIN_S)
        thread.join()
        message = fan_in.poll()
        assert message is not None
        assert message.source == "2"


def test_a_failure_ends_async_for_and_the_next_one_goes_on(
    run: Run[Any], queues: list[Path]
) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            writers = [stack.enter_context(open_writer(path)) for path in queues]
            readers = [stack.enter_context(open_reader(path)) for path in queues]
            async with FanIn(readers) as fan_in:
                for number, writer in enumerate(writers):
                    writer.append(b"1", timestamp_ns=number)
                assert (await fan_in.next()).source == "0"
                readers[1].close()
                received: list[str] = []
                failure: Exception | None = None
                try:
                    async for message in fan_in:
                        received += [message.source]
                except aiochronicle.errors.ClosedError as error:
                    failure = error
                assert failure is not None
                received.append((await fan_in.next()).source)
                received.append((await fan_in.next()).source)
                assert sorted(received) == ["2", "3"]

    run(main())
