"""R11 and R12: cancellations and wake-ups, on both event loops in turn."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asynchronous.cancels import cancel_at_random
from asynchronous.loops import LOOPS
from asynchronous.ping_pong import ping_pong

from torture.portions import in_portions
from torture.registry import Run, campaign

_CANCELS = 5_000
_WAKE_UPS = 10_000
_WAKE_UPS_PER_ROUND = 2


def _on_each_loop(work: Callable[[Path, str], Coroutine[Any, Any, None]]) -> None:
    for name, factory in LOOPS.items():
        with (
            tempfile.TemporaryDirectory() as directory,
            asyncio.Runner(loop_factory=factory) as runner,
        ):
            runner.run(work(Path(directory), name))


def _cancel(seed: int, *, count: int) -> None:
    _on_each_loop(
        lambda directory, _: cancel_at_random(directory / "queue", seed, count // len(LOOPS))
    )


def _wake(seed: int, *, count: int) -> None:
    rounds = count // len(LOOPS) // _WAKE_UPS_PER_ROUND
    _on_each_loop(lambda directory, name: ping_pong(directory, name, seed, rounds))


@campaign("cancel", "R11: readers cancelled at random moments", goal=1_000_000)
def cancels(run: Run) -> str:
    """Cancel tasks; no message may be lost or come twice."""
    for _ in in_portions(run, _CANCELS, _cancel):
        pass
    return f"on {' and '.join(LOOPS)}"


@campaign("wake", "R12: processes that wake each other, without a poll", goal=100_000_000)
def wake_ups(run: Run) -> str:
    """Play ping-pong; a lost wake-up causes a time-out."""
    for _ in in_portions(run, _WAKE_UPS, _wake):
        pass
    return f"on {' and '.join(LOOPS)}"
