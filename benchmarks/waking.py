"""How long does it take to wake a sleeping reader, round by round?

The same as ``benchmarks.wake``, whose figure is the best round of each contestant; here all rounds are kept.
The processors on which the two sides happen to run matter more than anything else, so compare the medians of
many rounds.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from benchmarks import wake
from benchmarks.contestants import LOOPS, skip_missing
from benchmarks.measure import Figure

__all__ = ["figures"]

NAMES = {
    "eventfd": "a bare eventfd, no queue",
    "parked": "aiochronicle",
    "spinning": 'aiochronicle, wait="spin"',
    "pyzmq": "pyzmq",
    "redis": "Redis",
}


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    """Measure the available contestants on each loop."""
    messages, rounds = (wake.MESSAGES_QUICK, 1) if quick else (wake.MESSAGES, wake.ROUNDS)
    for loop_name, loop_factory in LOOPS.items():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            place = directory / f"waking-{loop_name}"
            found = runner.run(wake.measure(place, messages, rounds))
        for name, medians in found.items():
            case = f"{NAMES[name]}, {loop_name}"
            samples = [median / 1000 for median in medians]
            yield Figure(question="waking", case=case, unit="us", samples=samples)
    skip_missing("waking", "pyzmq", "redis")
