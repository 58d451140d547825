"""Every awaitable operation that waits for the disk, run once each by a test.

``python -m asynchronous.disk_work ROOT LOOP DELAY_S``, with disk_calls.c preloaded, prints, for each
operation, the disk calls that the loop's thread made meanwhile and the loop's longest pause. Each call that
writes to the disk takes DELAY_S longer, in every thread.

A reader that waits in the loop looks for files in the loop's thread and creates one in the queue's wake
directory, as docs/guide/asyncio.md says. For operations that include a reader's first wait, these calls are
not reported.
"""

import asyncio
import contextlib
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiochronicle
from asynchronous.loops import LOOPS

__all__ = ["WORK"]

SEGMENT = 4 << 20
LOOKS = ("open", "open64", "openat", "openat64")
WAKE_FILE = b".efd"

SERVICE = Path(__file__).parents[1] / "helpers" / "responder.py"

Work = Callable[[Path], AsyncIterator[Callable[[], Awaitable[Any]]]]
WORK: dict[str, Work] = {}
FIRST_WAITS: set[str] = set()


def work(function: Work) -> Work:
    """Register an operation. Only the yielded callable is measured, not the setup and cleanup around it."""
    WORK[function.__name__] = function
    return function


def first_wait(function: Work) -> Work:
    """Register an operation that includes a reader's first wait."""
    FIRST_WAITS.add(function.__name__)
    return work(function)


def filled(path: Path, megabytes: int = 3) -> aiochronicle.Writer:
    writer = aiochronicle.open_writer(path, segment_size=SEGMENT)
    for _ in range(megabytes):
        writer.append(bytes(1 << 20))
    return writer


@contextlib.asynccontextmanager
async def waiting_reader(path: Path, name: str | None) -> AsyncIterator[aiochronicle.Reader]:
    """Yield a reader that has read everything and has waited once, so writers are connected to it."""
    with filled(path), aiochronicle.open_reader(path, name) as reader:
        assert sum(1 for _ in reader) == 3
        with contextlib.suppress(TimeoutError):
            await reader.next(timeout=0.01)
        yield reader


@work
async def aopen_writer_of_a_new_queue(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    opened = []

    async def measured() -> None:
        opened.append(await aiochronicle.aopen_writer(root / "q", segment_size=SEGMENT))

    yield measured
    opened[0].close()


@work
async def async_with_aopen_writer(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    filled(root / "q").close()

    async def measured() -> None:
        async with aiochronicle.aopen_writer(root / "q") as writer:
            writer.append(b"x")

    yield measured


@work
async def async_with_aopen_reader(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    filled(root / "q").close()

    async def measured() -> None:
        async with aiochronicle.aopen_reader(root / "q", "name") as reader:
            assert reader.poll() is not None

    yield measured


@work
async def writer_flush(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with filled(root / "q") as writer:
        yield writer.flush


@work
async def writer_append_durable(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with filled(root / "q") as writer:
        yield lambda: writer.append_durable(b"x")


@work
async def writer_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    yield filled(root / "q").aclose


@work
async def reader_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with waiting_reader(root / "q", "name") as reader:
        yield reader.aclose


@work
async def anonymous_reader_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with waiting_reader(root / "q", None) as reader:
        yield reader.aclose


@work
async def fan_in_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with waiting_reader(root / "a", "name") as a, waiting_reader(root / "b", None) as b:
        fan_in = aiochronicle.FanIn([a, b])
        with contextlib.suppress(TimeoutError):
            await fan_in.next(timeout=0.01)
        yield fan_in.aclose


@work
async def fan_in_aclose_after_its_readers(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    filled(root / "q").close()
    with aiochronicle.open_reader(root / "q") as reader:
        fan_in = aiochronicle.FanIn([reader])
        fan_in.poll()
    yield fan_in.aclose


@work
async def replay_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    filled(root / "a").close()
    filled(root / "b").close()
    history = aiochronicle.replay(root)
    assert sum(1 for _ in history) == 6
    assert history.lag.messages == 0
    yield history.aclose


@work
async def bus_prepare(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with aiochronicle.Bus(root / "bus") as bus:
        yield lambda: bus.prepare("a", "b")


@work
async def bus_aappend(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with aiochronicle.Bus(root / "bus", namespace="of/two") as bus:
        yield lambda: bus.aappend("topic", b"x")
        assert bus.append("topic", b"y") == 1


@work
async def bus_awriter(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with aiochronicle.Bus(root / "bus") as bus:
        yield lambda: bus.awriter("topic", segment_size=SEGMENT)
        assert bus.append("topic", b"x") == 0


@work
async def bus_areader(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with aiochronicle.Bus(root / "bus") as bus:
        bus.append("topic", b"x")
        yield lambda: bus.areader("topic", "name")
        assert bus.read_batch("topic", "name")[0].payload == b"x"


@work
async def bus_flush(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    with aiochronicle.Bus(root / "bus") as bus:
        bus.append("a", bytes(1 << 20))
        bus.append("b", bytes(1 << 20))
        yield bus.flush


@work
async def bus_aclose(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    bus = aiochronicle.Bus(root / "bus")
    bus.append("a", bytes(1 << 20))
    assert len(bus.read_batch("a", "name")) == 1
    anonymous = bus.reader("a")
    assert anonymous.poll() is not None
    yield bus.aclose
    assert anonymous.closed


@work
async def waiting_for_a_lock(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async def measured() -> None:
        with contextlib.suppress(aiochronicle.errors.LockedError):
            await aiochronicle.aopen_writer(root / "q", lock_timeout=0.05)

    with filled(root / "q"):
        yield measured


async def first_of(reader: aiochronicle.Reader) -> bytes:
    async for message in reader:
        return message.payload
    raise AssertionError("closed")


@first_wait
async def queue_that_a_named_reader_waits_for(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with aiochronicle.aopen_reader(root / "q", "name", wait_for_queue=True) as reader:
        waiting = asyncio.ensure_future(first_of(reader))
        await asyncio.sleep(0.01)

        async def measured() -> None:
            async with aiochronicle.aopen_writer(root / "q", segment_size=SEGMENT) as writer:
                writer.append(b"x")
                assert await waiting == b"x"

        yield measured
        reader.commit()
        assert reader.name == "name"


@first_wait
async def queue_that_came_before_the_first_step(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with aiochronicle.aopen_reader(root / "q", "name", wait_for_queue=True) as reader:
        with filled(root / "q", megabytes=1):
            yield lambda: first_of(reader)


@first_wait
async def queue_that_an_anonymous_reader_waits_for(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with aiochronicle.aopen_reader(root / "q", wait_for_queue=True) as reader:
        with filled(root / "q", megabytes=1):
            yield reader.next


@first_wait
async def batches_of_a_queue_that_comes_later(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with aiochronicle.aopen_reader(root / "q", "name", wait_for_queue=True) as reader:
        with filled(root / "q", megabytes=1):

            async def measured() -> None:
                async for batch in reader.batches():
                    assert len(batch) == 1
                    break

            yield measured


@first_wait
async def topic_that_a_reader_waits_for(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with aiochronicle.Bus(root / "bus") as bus:
        reader = await bus.areader("topic", "name")
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0.01)

        async def measured() -> None:
            await bus.aappend("topic", b"x")
            assert (await waiting).payload == b"x"

        yield measured


@first_wait
async def first_answer_of_a_requester(root: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(SERVICE), str(root)], stdout=subprocess.PIPE
    )
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        async with aiochronicle.Requester(root / "asked", root / "answered", "desk") as desk:

            async def measured() -> None:
                assert (await desk.request(b"21")).payload == b"42"

            yield measured
    finally:
        service.kill()
        service.communicate()


@first_wait
async def close_while_the_queue_is_being_opened(
    root: Path,
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    reader = await aiochronicle.aopen_reader(root / "q", "name", wait_for_queue=True)
    with filled(root / "q", megabytes=0):

        async def measured() -> None:
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.001)
            await reader.aclose()
            with contextlib.suppress(aiochronicle.errors.ClosedError):
                await waiting

        yield measured
        aiochronicle.open_reader(root / "q", "name").close()


async def longest_pause_s(awaitable: Awaitable[Any]) -> float:
    """Await this; return the longest time in which the loop ran no other task."""
    longest_s, last_s = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest_s, last_s
        while True:
            await asyncio.sleep(0.001)
            now_s = time.monotonic()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    beating = asyncio.ensure_future(beat())
    try:
        await awaitable
    finally:
        await asyncio.sleep(0.002)
        beating.cancel()
    return max(longest_s, time.monotonic() - last_s)


async def main(root: Path, delay_s: float) -> None:
    library = ctypes.PyDLL(None)
    library.disk_calls_of_this_thread.restype = ctypes.c_char_p
    for name, function in WORK.items():
        directory = root / name
        directory.mkdir()
        library.disk_calls_ignore(WAKE_FILE if name in FIRST_WAITS else None)
        async for measured in function(directory):
            library.disk_calls_delay(round(delay_s * 1e6))
            library.disk_calls_of_this_thread()
            pause_s = await longest_pause_s(measured())
            calls = library.disk_calls_of_this_thread().decode().splitlines()
            library.disk_calls_delay(0)
            if name in FIRST_WAITS:
                calls = [call for call in calls if call.split(" ")[0] not in LOOKS]
            print(json.dumps([name, calls, pause_s]), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOPS[sys.argv[2]]) as runner:
        runner.run(main(Path(sys.argv[1]), float(sys.argv[3])))
