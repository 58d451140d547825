"""Bounded polling: for writers that wake no readers, and for readers that cannot be woken."""

import asyncio
import os
import time
from pathlib import Path

import pytest

import aiochronicle
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import Peer, eventually

NOBODY = 65534


@on_both_loops
async def test_messages_of_a_foreign_writer_arrive_within_the_bound(queue_path: Path) -> None:
    with (
        Peer("foreign", queue_path) as writer,
        aiochronicle.open_reader(queue_path, poll_max_us=20_000) as reader,
    ):
        late: list[float] = []
        for number in range(20):
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0.03)  # long enough for the interval to grow to its bound
            assert await asyncio.to_thread(writer.ask, f"append {number}") == str(number)
            appended = time.monotonic()
            assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % number
            late.append(time.monotonic() - appended)
        # The bound, plus what a busy machine may add to the better half of the rounds.
        assert sorted(late)[10] < 0.020 + 0.010
        assert not reader.attended


@on_both_loops
async def test_polling_is_adaptive(queue_path: Path) -> None:
    """Polling is frequent after a message and slows down to the bound while no message comes."""
    with (
        Peer("foreign", queue_path) as writer,
        aiochronicle.open_reader(queue_path, poll_max_us=10_000) as reader,
    ):
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        parks = reader.statistics().parks
        await asyncio.sleep(0.5)
        polled = reader.statistics().parks - parks
        assert 5 < polled <= 0.5 / 0.010 + 30  # about 24 before the interval reaches its bound
        writer.ask("append x")
        assert (await asyncio.wait_for(waiting, 5)).payload == b"x"


@on_both_loops
async def test_a_foreign_writer_that_starts_while_the_reader_is_parked(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        writer.append(b"ours")
    with aiochronicle.open_reader(queue_path) as reader:
        assert (await reader.next()).payload == b"ours"
        waiting = asyncio.create_task(reader.next())
        # Not in its first step if the previous message took a while: then the loop gets a turn first.
        await eventually(lambda: reader.statistics().parks == 1)
        await asyncio.sleep(0.05)
        assert reader.statistics().parks == 1  # no writer, no polling
        with Peer("foreign", queue_path) as foreign:
            foreign.ask("append theirs")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"theirs"
            assert foreign.finish() == 0
        # Then a writer that signals takes over again.
        waiting = asyncio.create_task(reader.next())
        with Peer("writer", queue_path) as ours:
            await eventually(lambda: reader.attended)
            ours.ask("append ours again")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"ours again"


@on_both_loops
async def test_a_foreign_writer_that_takes_over_from_a_killed_one(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20):
        pass
    with aiochronicle.open_reader(queue_path) as reader:
        waiting = asyncio.create_task(reader.next())
        with Peer("writer", queue_path) as ours:
            await eventually(lambda: reader.attended)
            ours.kill()
        with Peer("foreign", queue_path) as foreign:
            foreign.ask("append theirs")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"theirs"


def test_a_thread_reads_from_a_foreign_writer(queue_path: Path) -> None:
    with Peer("foreign", queue_path) as writer, Peer("sleepy_thread", queue_path) as reader:
        for number in range(20):
            writer.ask(f"append {number}")
            assert reader.hear() == str(number)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("rights", [0o755, 0o700], ids=["no_write_in_wake", "no_wake"])
async def test_a_reader_with_read_rights_only_polls(tmp_path: Path, rights: int) -> None:
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    path = tmp_path / "queue"
    with aiochronicle.open_writer(path, segment_size=1 << 20, mode=0o644) as writer:
        (path / "wake").chmod(rights)
        with Peer("other_user", path, NOBODY, "") as reader:
            for number in range(5):
                writer.append(b"%d" % number)
                assert await reader.heard() == f"{number} False"
        assert writer.statistics().readers_connected == 0
