"""Readers and writers leave nothing in a queue that another program would take for a reader.

For another implementation, an empty ``readers/`` means that no reader needs anything, and it deletes sealed
segments.
"""

import asyncio
from pathlib import Path

import aiochronicle
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import Peer, eventually


def names(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*")}


@on_both_loops
async def test_nobody_has_a_position_nobody_makes_the_directory_of_positions(
    queue_path: Path,
) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        assert "readers" not in names(queue_path)
        async with aiochronicle.open_reader(queue_path) as reader:
            waiting = asyncio.ensure_future(reader.next())
            await eventually(lambda: reader.attended)
            writer.append(b"1")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"1"
            assert "readers" not in names(queue_path)
        with aiochronicle.open_reader(queue_path, "named") as reader:
            assert (await reader.next()).payload == b"1"
            waiting = asyncio.ensure_future(reader.next())
            await eventually(lambda: reader.attended)
            waiting.cancel()
            assert {n for n in names(queue_path) if n.startswith("readers")} == {
                "readers",
                "readers/named.meta",
            }
    assert "readers" in names(queue_path)


@on_both_loops
async def test_nothing_appears_in_the_queue_of_another_program(queue_path: Path) -> None:
    with Peer("foreign", queue_path) as writer:
        before = names(queue_path)
        async with aiochronicle.open_reader(queue_path) as reader:
            for number in range(3):
                waiting = asyncio.ensure_future(reader.next())
                await asyncio.sleep(0.02)
                writer.ask(f"append {number}")
                assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % number
                assert names(queue_path) == before
        with aiochronicle.open_reader(queue_path, "named") as reader:
            waiting = asyncio.ensure_future(reader.next())
            assert (await waiting).payload == b"0"
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.02)
            assert names(queue_path) - before == {"readers", "readers/named.meta"}
            waiting.cancel()


@on_both_loops
async def test_a_queue_of_ours_that_another_program_writes_to_now(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    with Peer("foreign", queue_path) as foreign:
        before = names(queue_path)
        async with aiochronicle.open_reader(queue_path) as reader:
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.02)
            foreign.ask("append 0")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"0"
            assert names(queue_path) == before
            assert foreign.finish() == 0
            # When a writer of ours is back, it wakes the reader again.
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.02)
            with Peer("writer", queue_path) as ours:
                await eventually(lambda: reader.attended, 5)
                ours.ask("append 1")
                assert (await asyncio.wait_for(waiting, 5)).payload == b"1"


@on_both_loops
async def test_a_reader_that_waited_for_its_queue_is_woken(queue_path: Path) -> None:
    async with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0.02)
        with Peer("writer", queue_path) as ours:
            await eventually(lambda: reader.attended, 5)
            ours.ask("append 0")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"0"
            assert "readers" not in names(queue_path)
