"""Split campaigns into portions, several of which run at once.

Most campaigns wait more than they work: for a timer, or for a killed process to be gone, which takes the
kernel 10 to 20 ms if the process had a writer.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Protocol, TypeVar

from faults.processes import in_processes

from .registry import Run

__all__ = ["in_portions"]

_PROCESSES = 8

Result = TypeVar("Result", covariant=True)


class Work(Protocol[Result]):
    """A module-level function, because another process calls it."""

    def __call__(self, seed: int, *, count: int) -> Result:
        """Run this many cases from this seed."""
        ...


def in_portions(run: Run, portion: int, work: Work[Result]) -> Iterator[Result]:
    """Yield what each portion returns; count its cases as done, and stop when the run says so."""
    seeds = range(run.seed, run.seed + run.goal, portion)
    call: Callable[[int], Result] = partial(work, count=portion)
    with closing(in_processes(call, seeds, processes=_PROCESSES)) as results:
        for number, result in enumerate(results, start=1):
            yield result
            if not run.progress(number * portion):
                return
