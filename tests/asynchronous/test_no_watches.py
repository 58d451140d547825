"""When inotify watches run out, readers poll instead, and no message goes unnoticed."""

import asyncio
from pathlib import Path

import pytest
from helpers.limits import can_limit, limited

import aiochronicle
from asynchronous.peers import Peer

WITHIN_S = 10.0


pytestmark = pytest.mark.skipif(not can_limit(), reason="needs user namespaces")

LIMITS = ["max_inotify_watches", "max_inotify_instances"]


async def hears(reader: Peer) -> str:
    return await asyncio.wait_for(reader.heard(), WITHIN_S)


@pytest.fixture
def queue(queue_path: Path) -> Path:
    """Return a queue that one of our writers has closed."""
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    return queue_path


@pytest.mark.parametrize("name", ["named", ""])
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_writer_of_another_program_that_comes_later_is_heard(
    queue: Path, limit: str, name: str
) -> None:
    within = limited(limit, 0)
    with Peer("reader", queue, name, "asyncio", within=within) as reader:
        await asyncio.sleep(0.3)  # time to park, if it could
        with Peer("foreign", queue) as writer:
            for number in range(3):
                writer.ask(f"append {number}")
                assert await hears(reader) == str(number)


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_writer_that_cannot_watch_either_is_heard(queue: Path, limit: str) -> None:
    within = limited(limit, 0)
    with Peer("reader", queue, "named", "asyncio", within=within) as reader:
        await asyncio.sleep(0.3)
        with Peer("writer", queue, within=within) as writer:
            for number in range(3):
                writer.ask(f"append {number}")
                assert await hears(reader) == str(number)
            assert writer.ask("readers") == "0"


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_writer_that_can_watch_still_wakes_the_reader(queue: Path, limit: str) -> None:
    with Peer("reader", queue, "named", "asyncio", within=limited(limit, 0)) as reader:
        await asyncio.sleep(0.3)
        with Peer("writer", queue) as writer:
            for number in range(3):
                writer.ask(f"append {number}")
                assert await hears(reader) == str(number)


@pytest.mark.parametrize("count", [0, 1])
async def test_a_queue_that_comes_later_is_found(queue_path: Path, count: int) -> None:
    within = limited("max_inotify_watches", count)
    with Peer("reader", queue_path, "named", "asyncio", "wait", within=within) as reader:
        await asyncio.sleep(0.3)
        with Peer("foreign", queue_path) as writer:
            writer.ask("append 0")
            assert await hears(reader) == "0"


async def test_a_lock_file_that_is_missing_is_no_reason_to_sleep(queue: Path) -> None:
    (queue / "writer.lock").unlink()
    with Peer("reader", queue, "named", "asyncio") as reader:
        await asyncio.sleep(0.3)
        with Peer("foreign", queue) as writer:
            writer.ask("append 0")
            assert await hears(reader) == "0"


async def test_a_lock_file_that_was_made_again_is_watched(queue: Path) -> None:
    with Peer("reader", queue, "named", "asyncio") as reader:
        await asyncio.sleep(0.3)
        (queue / "writer.lock").unlink()
        with Peer("writer", queue) as writer:  # connects: the reader relies on its watch again
            writer.ask("append 0")
            assert await hears(reader) == "0"
            assert writer.finish() == 0
        await asyncio.sleep(0.3)
        with Peer("foreign", queue) as foreign:
            foreign.ask("append 1")
            assert await hears(reader) == "1"
