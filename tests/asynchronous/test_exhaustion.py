"""Reader and writer connect although the process had no descriptors left at first."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiochronicle
from aiochronicle._engine import ffi, lib
from aiochronicle.testing.faults import installed
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import Peer, eventually


@contextmanager
def without_sockets() -> Iterator[list[int]]:
    """Make every socket call of the engine fail as if the process had no descriptor left."""
    numbers = range(lib.ac_os_call_count())
    call_socket = next(n for n in numbers if ffi.string(lib.ac_os_call_name(n)) == b"socket")
    failed: list[int] = []

    def refuse(_context: object, call: int, *_: object) -> int:
        if call != call_socket:
            return 0
        failed.append(threading.get_native_id())
        return errno.EMFILE

    with installed(ffi.callback("ac_os_hook_t", refuse), ffi.NULL):
        yield failed


@on_both_loops
async def test_a_writer_calls_its_readers_as_soon_as_it_can(
    queue_path: Path, loop_name: str
) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 20) as writer:
        with without_sockets() as failed:
            reader = Peer("reader", queue_path, "patient", loop_name)
            await eventually(lambda: len(failed) > 2, 5)
            assert writer.statistics().readers_connected == 0
        with reader:
            await eventually(lambda: writer.statistics().readers_connected == 1)
            writer.append(b"hello")
            assert await reader.heard() == "hello"


@on_both_loops
async def test_a_reader_answers_its_writer_as_soon_as_it_can(queue_path: Path) -> None:
    aiochronicle.open_writer(queue_path, segment_size=1 << 20).close()
    with aiochronicle.open_reader(queue_path) as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        with without_sockets() as failed:
            writer = Peer("writer", queue_path)
            await eventually(lambda: len(failed) > 2, 5)
            before, tries = os.times(), len(failed)
            await asyncio.sleep(0.2)
            after = os.times()
            # It retries from time to time, not in a busy loop.
            assert len(failed) - tries < 50
            assert after.user + after.system - before.user - before.system < 0.1
            assert not reader.attended
        with writer:
            await eventually(lambda: reader.attended)
            writer.say("append hello")
            assert (await asyncio.wait_for(waiting, 5)).payload == b"hello"
