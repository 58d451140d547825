"""Parked readers wake up: within a process, across processes, in any order of start, after kills."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle.errors import ClosedError
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import NOTICED_AT_ONCE_S, Peer, eventually
from asynchronous.ping_pong import ping_pong

ROUNDS = 25_000  # of two wake-ups each, on each of two loops


def make_queue(path: Path) -> None:
    aiochronicle.open_writer(path, segment_size=1 << 20).close()


@on_both_loops
async def test_a_parked_reader_gets_what_is_appended_in_its_own_process(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        for text in (b"one", b"two", b"three"):
            waiting = asyncio.create_task(reader.next())
            await eventually(lambda: reader.attended)
            await asyncio.sleep(0)
            assert not waiting.done()
            writer.append(text)
            assert (await asyncio.wait_for(waiting, 5)).payload == text
        assert reader.statistics().parks >= 3


@on_both_loops
async def test_a_parked_reader_gets_what_another_process_appends(queue_path: Path) -> None:
    with Peer("writer", queue_path) as writer, aiochronicle.open_reader(queue_path) as reader:
        for number in range(20):
            waiting = asyncio.create_task(reader.next())
            await eventually(lambda: reader.attended)
            writer.say(f"append {number}")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % number
            writer.hear()


@on_both_loops
async def test_appending_in_a_thread_wakes_the_loop(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        producing = asyncio.create_task(
            asyncio.to_thread(lambda: [writer.append(b"%d" % n) for n in range(2000)])
        )
        for number in range(2000):
            assert (await reader.next(timeout=5)).payload == b"%d" % number
        await producing


@on_both_loops
async def test_a_reader_may_be_there_before_the_writer(queue_path: Path) -> None:
    make_queue(queue_path)
    with aiochronicle.open_reader(queue_path) as reader:
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        assert reader.statistics().announced
        assert not reader.attended
        with Peer("writer", queue_path) as writer:
            writer.say("append hello")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"hello"
            await eventually(lambda: reader.attended)


@on_both_loops
async def test_a_writer_that_comes_back_finds_its_parked_readers(queue_path: Path) -> None:
    make_queue(queue_path)
    with aiochronicle.open_reader(queue_path) as reader:
        for life in range(5):
            waiting = asyncio.create_task(reader.next())
            with Peer("writer", queue_path) as writer:
                await eventually(lambda: reader.attended)
                writer.say(f"append {life}")
                assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % life
                if life % 2:
                    writer.kill()
                else:
                    assert writer.hear()
                    assert writer.finish() == 0
            await eventually(lambda: not reader.attended)


@on_both_loops
async def test_the_death_of_the_writer_is_noticed_at_once(queue_path: Path) -> None:
    with Peer("writer", queue_path) as writer, aiochronicle.open_reader(queue_path) as reader:
        waiting = asyncio.create_task(reader.next())
        await eventually(lambda: reader.attended)
        writer.kill()
        await eventually(lambda: not reader.attended, NOTICED_AT_ONCE_S)
        assert not waiting.done()
        # The reader does not poll for a new writer: it sleeps until one connects.
        await asyncio.sleep(0.05)
        parks = reader.statistics().parks
        await asyncio.sleep(0.2)
        assert reader.statistics().parks == parks
        waiting.cancel()


@on_both_loops
async def test_the_death_of_a_reader_is_noticed_at_once(queue_path: Path, loop_name: str) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        with Peer("reader", queue_path, "mortal", loop_name) as reader:
            await eventually(lambda: writer.statistics().readers_connected == 1, 5)
            reader.kill()
            await eventually(lambda: writer.statistics().readers_connected == 0, NOTICED_AT_ONCE_S)
        assert writer.append(b"into the void") == 0


@on_both_loops
async def test_a_reader_that_comes_back_is_found_again(queue_path: Path, loop_name: str) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        for life in range(4):
            with Peer("reader", queue_path, "phoenix", loop_name) as reader:
                await eventually(lambda: writer.statistics().readers_connected == 1, 5)
                writer.append(b"%d" % life)
                # The first line repeats the messages that the killed process had not committed.
                while (heard := await reader.heard()) != str(life):
                    assert heard == str(life - 1)
                reader.kill()


@on_both_loops
async def test_a_name_may_change_hands_faster_than_anybody_looks(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        keeper = aiochronicle.open_reader(queue_path, "keeper")
        kept = asyncio.ensure_future(keeper.next())
        await asyncio.sleep(0)
        for life in range(100):
            reader = aiochronicle.open_reader(queue_path, "busy", start="last")
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0)
            if life % 10 == 9:
                await eventually(lambda: reader.attended)  # noqa: B023
                writer.append(b"%d" % life)
                assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % life
            waiting.cancel()
            reader.close()
        assert (await kept).payload == b"9"
        keeper.close()
        await eventually(lambda: writer.statistics().readers_connected == 0)


@on_both_loops
async def test_every_one_of_several_readers_gets_every_message(
    queue_path: Path, loop_name: str
) -> None:
    texts = [str(number) for number in range(200)]
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        readers = [Peer("reader", queue_path, f"reader{n}", loop_name) for n in range(3)]
        await eventually(lambda: writer.statistics().readers_connected == 3, 5)
        for text in texts:
            writer.append(text.encode())
            await asyncio.sleep(0)
        for reader in readers:
            with reader:
                assert [await reader.heard() for _ in texts] == texts


@on_both_loops
async def test_more_readers_than_the_parked_word_has_bits(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        readers = [aiochronicle.open_reader(queue_path) for _ in range(150)]
        for round_number in range(5):
            waiting = [asyncio.ensure_future(reader.next()) for reader in readers]
            await eventually(lambda: all(reader.attended for reader in readers), 5)
            writer.append(b"%d" % round_number)
            done = await asyncio.wait_for(asyncio.gather(*waiting), 10)
            assert {message.payload for message in done} == {b"%d" % round_number}
        assert writer.statistics().readers_connected == 150
        for reader in readers:
            reader.close()
        await eventually(lambda: writer.statistics().readers_connected == 0)


@on_both_loops
async def test_at_most_one_signal_per_sleeping_reader_per_sleep(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        waiting = asyncio.ensure_future(reader.next())
        await eventually(lambda: reader.attended)
        await asyncio.sleep(0.01)
        for number in range(1000):
            writer.append(b"%d" % number)
        assert writer.statistics().wakeups == 1
        await waiting
        assert len([message async for message in until(reader, 998)]) == 999
        assert writer.statistics().wakeups == 1


async def until(reader: aiochronicle.Reader, seq: int):  # type: ignore[no-untyped-def]
    async for message in reader:
        yield message
        if message.seq > seq:
            return


@pytest.mark.parametrize("stopped", ["reader", "writer"])
@on_both_loops
async def test_a_stopped_process_goes_on_where_it_was(
    queue_path: Path, loop_name: str, stopped: str
) -> None:
    with (
        Peer("writer", queue_path) as writer,
        Peer("reader", queue_path, "patient", loop_name) as reader,
    ):
        deadline = time.monotonic() + 5
        while writer.ask("readers") != "1":
            assert time.monotonic() < deadline
        sleeper = reader if stopped == "reader" else writer
        sleeper.signal(signal.SIGSTOP)
        for number in range(50):
            writer.say(f"append {number}")
        sleeper.signal(signal.SIGCONT)
        assert [await reader.heard() for _ in range(50)] == [str(n) for n in range(50)]
        # Neither side takes the pause for the death of the other.
        for _ in range(50):
            writer.hear()
        assert writer.ask("readers") == "1"


@on_both_loops
async def test_closing_ends_waiting_and_iteration(queue_path: Path) -> None:
    make_queue(queue_path)
    reader = aiochronicle.open_reader(queue_path)

    async def iterate() -> list[bytes]:
        return [message.payload async for message in reader]

    async def batches() -> list[object]:
        return [batch async for batch in reader.batches()]

    iterating = [asyncio.create_task(iterate()) for _ in range(3)]
    batching = asyncio.create_task(batches())
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.close()
    assert await asyncio.wait_for(asyncio.gather(*iterating), 5) == [[], [], []]
    assert await asyncio.wait_for(batching, 5) == []
    with pytest.raises(ClosedError):
        await asyncio.wait_for(waiting, 5)
    assert [message async for message in reader] == []


@on_both_loops
async def test_closing_from_another_thread_ends_waiting(queue_path: Path) -> None:
    make_queue(queue_path)
    for _ in range(50):
        reader = aiochronicle.open_reader(queue_path)
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        await asyncio.to_thread(reader.close)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 5)
    # The loop's own watchers are unchanged.
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7


@pytest.mark.timeout(110)
@on_both_loops
async def test_no_wake_up_is_ever_lost(tmp_path: Path, loop_name: str, seed: int) -> None:
    await ping_pong(tmp_path, loop_name, seed, ROUNDS)
