"""Waiting for a thing to happen, with a limit; never for time to pass."""

import time
from collections.abc import Callable


def eventually(happened: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Return as soon as it has happened; fail the test if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s"
        time.sleep(0.001)
