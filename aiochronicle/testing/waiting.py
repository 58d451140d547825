"""Waiting for an event, with a limit."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["aeventually", "eventually"]

_LOOK_EVERY_S = 0.001


def eventually(happened: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Return as soon as the function is true; AssertionError after ``timeout_s``.

    >>> done = []
    >>> eventually(lambda: not done)
    """
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s"
        time.sleep(_LOOK_EVERY_S)


async def aeventually(happened: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Do what ``eventually`` does, and let other tasks run. By the loop's clock, virtual or not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not happened():
        assert loop.time() < deadline, f"did not happen within {timeout_s} s"
        await asyncio.sleep(_LOOK_EVERY_S)
