"""Hold a thread in the middle of opening a queue, for as long as a test needs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from faults.system_calls import Call, observed

__all__ = ["Held", "held_opening"]


class Held:
    """Hold threads that open a queue before they sync its directory, until ``go`` is set.

    The sync then returns ``answer``: 0, or the errno of a failure.
    """

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go = threading.Event()
        self.went_on = False
        self.answer = 0
        self._loops_thread = threading.get_ident()

    def __call__(self, call: Call) -> int:
        if call.name == "sync_dir" and threading.get_ident() != self._loops_thread:
            self.arrived.set()
            self.go.wait(60)
            self.went_on = True
            return self.answer
        return 0


@contextmanager
def held_opening() -> Iterator[Held]:
    """Hold all threads except this one."""
    held = Held()
    with observed(held):
        try:
            yield held
        finally:
            held.go.set()
