"""R12: two processes that wake each other; a lost wake-up would hang them, because neither polls."""

import asyncio
import random
import time
from pathlib import Path

import aiochronicle
from asynchronous.peers import Peer, eventually

__all__ = ["ping_pong"]


async def ping_pong(directory: Path, loop_name: str, seed: int, rounds: int) -> None:
    """Send a message and wait for the answer, this many times. Each message wakes a parked reader."""
    rng = random.Random(seed)
    aiochronicle.open_writer(directory / "pong", segment_size=1 << 20).close()
    with (
        aiochronicle.open_writer(directory / "ping", segment_size=1 << 20) as questions,
        aiochronicle.open_reader(directory / "pong") as answers,
        Peer("ponger", directory / "ping", directory / "pong", loop_name, seed),
    ):
        first = asyncio.ensure_future(answers.next())
        await eventually(lambda: answers.attended, 5)
        await eventually(lambda: questions.statistics().readers_connected == 1, 5)
        for number in range(rounds):
            questions.append(b"%d" % number)
            async with asyncio.timeout(20):
                answer = await (first if number == 0 else answers.next())
            assert answer.payload == b"%d" % number
            pause_ns = rng.randrange(40_000)
            started = time.perf_counter_ns()
            while time.perf_counter_ns() - started < pause_ns:
                pass
        assert answers.attended
        assert answers.statistics().parks > rounds // 10
        questions.append(b"")
