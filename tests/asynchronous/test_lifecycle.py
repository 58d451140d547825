"""Loops that end, processes that fork, debug mode, idle readers, and leaks."""

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle.errors import ForkedError
from asynchronous.both_loops import on_both_loops
from asynchronous.loops import LOOPS
from asynchronous.peers import Peer, eventually


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_a_reader_outlives_the_loop_that_was_closed_while_it_was_parked(
    queue_path: Path, loop_name: str
) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        for number in range(3):
            loop = LOOPS[loop_name]()
            task = loop.create_task(read_one(reader))
            loop.run_until_complete(asyncio.sleep(0.01))
            assert not task.done()
            loop.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            del task, loop
            gc.collect()

            async def go_on() -> bytes:
                waiting = asyncio.create_task(read_one(reader))
                await eventually(lambda: reader.attended)
                writer.append(b"%d" % number)  # noqa: B023
                return await asyncio.wait_for(waiting, 5)

            with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
                assert runner.run(go_on()) == b"%d" % number


async def read_one(reader: aiochronicle.Reader) -> bytes:
    return (await reader.next()).payload


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_one_reader_in_one_loop_after_the_other(queue_path: Path, loop_name: str) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        loops = [LOOPS[loop_name]() for _ in range(3)]
        for number in range(30):
            loop = loops[number % 3]
            loop.call_later(0.001, writer.append, b"%d" % number)
            assert loop.run_until_complete(read_one(reader)) == b"%d" % number
        for loop in loops:
            loop.close()


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_debug_mode(queue_path: Path, loop_name: str) -> None:
    async def main() -> None:
        async with (
            aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
            aiochronicle.open_reader(queue_path) as reader,
        ):
            waiting = asyncio.create_task(reader.next())
            cancelled = asyncio.ensure_future(reader.next())
            await eventually(lambda: reader.attended)
            assert "next" in repr(waiting) or "Awaitable" in repr(waiting)
            cancelled.cancel()
            writer.append(b"x")
            assert (await waiting).payload == b"x"
            await writer.flush()
            with pytest.raises(TimeoutError):
                await reader.next(timeout=0.01)
            reading = asyncio.ensure_future(anext(reader.batches(max_wait=0.001)))
            writer.append(b"y")
            assert len(await reading) == 1

    with asyncio.Runner(loop_factory=LOOPS[loop_name], debug=True) as runner:
        runner.run(main())


@on_both_loops
async def test_a_forked_child_has_closed_handles_and_harms_nobody(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        waiting = asyncio.create_task(reader.next())
        await eventually(lambda: reader.attended)
        release_read, release_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.read(release_read, 1)
                reader.poll()
            except ForkedError:
                reader.close()  # must not remove the eventfd from the parent's loop
                writer.close()
                code = 0
            finally:
                os._exit(code)
        # The child holds nothing that keeps the parent's connections alive or wakes a reader.
        writer.append(b"while it lives")
        assert (await asyncio.wait_for(waiting, 5)).payload == b"while it lives"
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0.01)
        os.write(release_write, b"x")
        status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
        assert os.waitstatus_to_exitcode(status) == 0
        writer.append(b"after its end")
        assert (await asyncio.wait_for(waiting, 5)).payload == b"after its end"
        assert reader.attended
        assert writer.statistics().readers_connected == 1
        os.close(release_read)
        os.close(release_write)


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_a_child_that_closes_its_copy_leaves_the_loop_of_the_parent_alone(
    queue_path: Path, loop_name: str
) -> None:
    async def begin() -> asyncio.Task[bytes]:
        waiting = asyncio.create_task(read_one(reader))
        await eventually(lambda: reader.attended)
        return waiting

    async def end() -> bytes:
        writer.append(b"for the parent")
        return await asyncio.wait_for(waiting, 5)

    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
        asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner,
    ):
        waiting = runner.run(begin())
        pid = os.fork()
        if pid == 0:
            try:
                reader.close()  # the loop's epoll is shared with the parent
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert runner.run(end()) == b"for the parent"


@on_both_loops
async def test_a_forked_child_can_read_and_write_with_handles_of_its_own(
    queue_path: Path, loop_name: str
) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path, "parent") as reader,
    ):
        waiting = asyncio.create_task(reader.next())
        await eventually(lambda: reader.attended)
        pid = os.fork()
        if pid == 0:
            os._exit(child_reads(queue_path, loop_name))
        await eventually(lambda: writer.statistics().readers_connected == 2, 5)
        writer.append(b"for both")
        assert (await asyncio.wait_for(waiting, 5)).payload == b"for both"
        status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
        assert os.waitstatus_to_exitcode(status) == 0


def child_reads(path: Path, loop_name: str) -> int:
    try:
        asyncio._set_running_loop(None)

        async def main() -> bytes:
            async with aiochronicle.open_reader(path, "child") as reader:
                return (await reader.next(timeout=10)).payload

        loop = LOOPS[loop_name]()
        return int(loop.run_until_complete(main()) != b"for both")
    except BaseException:  # noqa: BLE001 - nothing may leave the child but its exit code
        return 2


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_two_hundred_parked_readers_use_no_cpu(queue_path: Path, loop_name: str) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20),
        Peer("idle", queue_path, 200, 3, loop_name) as idle,
    ):
        cpu_s, switches = idle.hear().split()
    assert float(cpu_s) < 0.03
    assert int(switches) < 10


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def in_use() -> tuple[int, int, int]:
    return descriptors(), threads(), threading.active_count()


@on_both_loops
async def test_a_thousand_times_opened_and_closed_leaves_nothing(queue_path: Path) -> None:
    async def once(writer: aiochronicle.Writer, number: int) -> None:
        with aiochronicle.open_reader(queue_path, f"reader{number % 7}", start="last") as reader:
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0)
            if number % 50 == 0:
                await eventually(lambda: reader.attended, 30)
                writer.append(b"x")
                await asyncio.wait_for(waiting, 30)
            waiting.cancel()

    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        await once(writer, 0)
        await eventually(lambda: writer.statistics().readers_connected == 0, 30)
        before = in_use()
        for number in range(1000):
            await once(writer, number)
        await eventually(lambda: writer.statistics().readers_connected == 0, 30)
        # Objects that earlier tests closed in the background may have gone in the meantime.
        await eventually(
            lambda: all(now <= then for now, then in zip(in_use(), before, strict=True)), 30
        )
        assert not list((queue_path / "wake").glob("*.efd"))
        assert not list((queue_path / "wake").glob("*.tmp"))


@on_both_loops
async def test_one_socket_serves_all_readers_of_a_process(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        first = aiochronicle.open_reader(queue_path, "first")
        waiting = [asyncio.ensure_future(first.next())]
        await eventually(lambda: first.attended)
        before = descriptors()
        readers = [aiochronicle.open_reader(queue_path, f"reader{n}") for n in range(20)]
        waiting += [asyncio.ensure_future(reader.next()) for reader in readers]
        await eventually(lambda: all(reader.attended for reader in readers))
        # Each: its eventfd, and both ends of its connection and the writer's copy of the eventfd,
        # because the writer is here as well.
        assert descriptors() - before <= 20 * 4
        # The reader that owns the socket may close; writers still find the others.
        first.close()
        writer.append(b"x")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(result, aiochronicle.Message) for result in results) == 20
        late = aiochronicle.open_reader(queue_path, "late", start="last")
        waiting = [asyncio.ensure_future(late.next())]
        await eventually(lambda: late.attended)
        late.close()
        with pytest.raises(aiochronicle.errors.ClosedError):
            await waiting[0]
        for reader in readers:
            reader.close()
