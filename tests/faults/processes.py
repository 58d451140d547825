"""Run the same work for one seed after the other, in several processes at once."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["in_processes"]

Result = TypeVar("Result")


def in_processes(
    work: Callable[[int], Result], seeds: Iterable[int], *, processes: int
) -> Generator[Result, None, None]:
    """Yield what ``work(seed)`` returns, in the order of the seeds, which may be endless.

    After the generator is closed, or after the first exception, calls that have begun still finish.
    """
    waiting = iter(seeds)
    begun: deque[Future[Result]] = deque()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            while True:
                missing = 2 * processes - len(begun)
                begun.extend(pool.submit(work, seed) for seed in islice(waiting, missing))
                if not begun:
                    return
                yield begun.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
