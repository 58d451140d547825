"""Readers that are opened before their queue exists."""

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from reference.format import ForeignWriter

import aiochronicle
from aiochronicle.errors import InvalidName, NotAQueue, QueueNotFound
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import Peer, eventually


async def idle_turns() -> None:
    """Give the other tasks a few turns, so that they reach their waits."""
    for _ in range(3):
        await asyncio.sleep(0)


@on_both_loops
async def test_opening_returns_at_once_and_waiting_waits(queue_path: Path) -> None:
    with aiochronicle.open_reader(queue_path, "early", wait_for_queue=True) as reader:
        assert reader.poll() is None
        assert list(reader) == []
        assert reader.lag.messages == 0
        assert str(queue_path) in repr(reader)
        assert not reader.attended
        waiting = asyncio.create_task(reader.next())
        await idle_turns()
        with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
            writer.append(b"first")
            message = await asyncio.wait_for(waiting, 5)
            assert message.payload == b"first"
            reader.commit(message)
            waiting = asyncio.create_task(reader.next())
            await eventually(lambda: reader.attended)
            writer.append(b"second")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"second"
            assert reader.statistics().queue_id == writer.statistics().queue_id
    with aiochronicle.open_reader(queue_path, "early") as again:
        assert [m.payload for m in again] == [b"second"]


@on_both_loops
@pytest.mark.parametrize("start", ["committed", "first", "last"])
async def test_everything_in_a_queue_that_comes_later_is_new(queue_path: Path, start: str) -> None:
    with (
        aiochronicle.open_reader(
            queue_path,
            start=start,  # type: ignore[arg-type]
            wait_for_queue=True,
        ) as reader,
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
    ):
        writer.append(b"before anybody looked")
        assert (await reader.next(timeout=5)).payload == b"before anybody looked"


@on_both_loops
async def test_the_way_to_the_queue_may_grow_and_shrink(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c" / "queue"
    with aiochronicle.open_reader(path, wait_for_queue=True) as reader:
        waiting = asyncio.create_task(reader.next())
        await idle_turns()
        (tmp_path / "a").mkdir()
        await idle_turns()
        (tmp_path / "a" / "b").mkdir()
        await asyncio.sleep(0.01)
        shutil.rmtree(tmp_path / "a")
        await asyncio.sleep(0.01)
        # The rest of the path appears at once, by a rename.
        other = tmp_path / "other"
        (other / "b" / "c").mkdir(parents=True)
        with aiochronicle.open_writer(other / "b" / "c" / "queue", segment_size=1 << 20) as writer:
            writer.append(b"moved here")
        other.rename(tmp_path / "a")
        assert (await asyncio.wait_for(waiting, 5)).payload == b"moved here"


@on_both_loops
async def test_a_directory_that_is_not_yet_a_queue(queue_path: Path) -> None:
    os.mkdir(queue_path)  # noqa: PTH102
    with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
        waiting = asyncio.create_task(reader.next())
        await idle_turns()
        (queue_path / "notes.txt").write_text("nothing to see here")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
            writer.append(b"now")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"now"


@on_both_loops
async def test_nothing_polls_for_the_queue(tmp_path: Path) -> None:
    with aiochronicle.open_reader(tmp_path / "queue", wait_for_queue=True) as reader:
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0.05)
        before = os.times()
        for number in range(20):  # an unrelated file
            (tmp_path / f"file{number}").write_text("x")
        await asyncio.sleep(0.5)
        after = os.times()
        assert after.user + after.system - before.user - before.system < 0.1
        waiting.cancel()


@on_both_loops
async def test_a_queue_made_by_another_process(queue_path: Path, loop_name: str) -> None:
    with (
        Peer("reader", queue_path, "early", loop_name, "wait") as reader,
        Peer("writer", queue_path) as writer,
    ):
        writer.ask("append hello")
        assert await reader.heard() == "hello"


@on_both_loops
async def test_a_queue_made_by_another_program(queue_path: Path) -> None:
    for number in range(10):
        path = queue_path.with_name(f"foreign{number}")
        with aiochronicle.open_reader(path, wait_for_queue=True) as reader:
            waiting = asyncio.create_task(reader.next())
            await idle_turns()
            making = asyncio.create_task(asyncio.to_thread(make_foreign, path))
            assert (await asyncio.wait_for(waiting, 5)).payload == b"from abroad"
            await making


def make_foreign(path: Path) -> None:
    with ForeignWriter(path) as writer:
        writer.append(b"from abroad", 0, time.time_ns())


@on_both_loops
async def test_several_readers_wait_for_one_queue(queue_path: Path) -> None:
    readers = [
        aiochronicle.open_reader(queue_path, f"reader{n}", wait_for_queue=True) for n in range(20)
    ]
    waiting = [asyncio.create_task(reader.next()) for reader in readers]
    await asyncio.sleep(0)
    readers.pop().close()  # a reader that gives up does not remove the watch of the others
    leaving = waiting.pop()
    with pytest.raises(aiochronicle.errors.ClosedError):
        await leaving
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"for all")
        messages = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert [message.payload for message in messages] == [b"for all"] * 19
    for reader in readers:
        reader.close()


def test_a_thread_waits_for_the_queue(queue_path: Path) -> None:
    with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
        assert not reader.wait(0.01)
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(reader.wait(10)))
        thread.start()
        with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
            writer.append(b"x")
            thread.join(10)
            assert found == [True]


def test_what_needs_the_queue_says_that_there_is_none(queue_path: Path) -> None:
    with aiochronicle.open_reader(queue_path, "early", wait_for_queue=True) as reader:
        for call in (reader.seek_first, reader.seek_last, reader.commit, lambda: reader.seek(5)):
            with pytest.raises(QueueNotFound):
                call()
        with pytest.raises(QueueNotFound):
            _ = reader.committed
        assert reader.statistics().queue_id == 0


def test_what_can_never_become_a_queue_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAQueue):
        aiochronicle.open_reader(tmp_path / "file", wait_for_queue=True)
    with pytest.raises(InvalidName):
        aiochronicle.open_reader(tmp_path / "queue", "../name", wait_for_queue=True)
    with pytest.raises(QueueNotFound):
        aiochronicle.open_reader(tmp_path / "queue")


def test_an_existing_queue_is_opened_as_usual(queue: Path) -> None:
    with aiochronicle.open_reader(queue, start="last", wait_for_queue=True) as reader:
        assert reader.poll() is None
        reader.seek_first()
        message = reader.poll()
        assert message is not None
        assert message.payload == b"hello"


@on_both_loops
async def test_an_error_of_the_queue_that_came_reaches_the_waiter(queue_path: Path) -> None:
    with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
        waiting = asyncio.create_task(reader.next())
        await idle_turns()
        newer = queue_path.with_name("newer")
        aiochronicle.open_writer(newer, segment_size=1 << 20).close()
        with (newer / "control.meta").open("r+b") as file:
            file.seek(4)
            file.write((99).to_bytes(4, "little"))
        newer.rename(queue_path)
        with pytest.raises(aiochronicle.errors.UnsupportedVersion):
            await asyncio.wait_for(waiting, 5)


def test_forked_while_waiting(queue_path: Path) -> None:
    with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
        reader.wait(0.001)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                reader.poll()
            except aiochronicle.errors.ForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
            writer.append(b"x")
            assert reader.wait(5)
