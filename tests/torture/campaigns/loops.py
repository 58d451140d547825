"""R11 and R12: cancels and wake-ups, on both event loops in turn."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asynchronous.cancels import cancel_at_random
from asynchronous.loops import LOOPS
from asynchronous.ping_pong import ping_pong

from torture.registry import Run, campaign

_CANCELS = 5_000
_ROUNDS = 25_000
_WAKE_UPS_PER_ROUND = 2


def _in_portions(
    run: Run, portion: int, work: Callable[[Path, str, int], Coroutine[Any, Any, None]]
) -> str:
    """Do the work again and again, each time from its own seed and in a directory of its own."""
    done = 0
    names = list(LOOPS)
    while done < run.goal and run.progress(done):
        loop_name = names[done // portion % len(names)]
        with (
            tempfile.TemporaryDirectory() as directory,
            asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner,
        ):
            runner.run(work(Path(directory), loop_name, run.seed + done))
        done += portion
    run.progress(done)
    return f"on {' and '.join(names)}"


@campaign("cancel", "R11: readers cancelled at random moments", goal=1_000_000)
def cancels(run: Run) -> str:
    """Cancel tasks; nothing may be lost and nothing doubled."""

    async def work(directory: Path, loop_name: str, seed: int) -> None:
        await cancel_at_random(directory / "queue", seed, _CANCELS)

    return _in_portions(run, _CANCELS, work)


@campaign("wake", "R12: processes that wake each other, without a poll", goal=100_000_000)
def wake_ups(run: Run) -> str:
    """Play ping-pong; a lost wake-up is a time-out."""

    async def work(directory: Path, loop_name: str, seed: int) -> None:
        await ping_pong(directory, loop_name, seed, _ROUNDS)

    return _in_portions(run, _ROUNDS * _WAKE_UPS_PER_ROUND, work)
