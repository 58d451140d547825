"""The engine's hook on its system calls, as a context manager.

The hook runs before each call. It answers 0 (go on), an errno (fail with it), or for read and
write a negative number (let at most this many bytes through).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aiochronicle._engine import ffi
from aiochronicle.testing.faults import CALL_NAMES, FOR_EVER, installed
from aiochronicle.testing.faults import FaultPlan as Injection
from aiochronicle.testing.faults import fault_plan as injected

__all__ = ["CALL_NAMES", "FOR_EVER", "Call", "Injection", "injected", "observed"]


class Call(NamedTuple):
    """A system call that is about to be made."""

    name: str
    path: str | None
    fd: int
    offset: int
    length: int


@contextmanager
def observed(answer: Callable[[Call], int]) -> Iterator[None]:
    """Call ``answer`` before each system call of the engine; raise its exception at the end."""
    failures: list[BaseException] = []

    def hook(context: object, number: int, path: object, fd: int, offset: int, length: int) -> int:
        try:
            text = None if path == ffi.NULL else ffi.string(path).decode()
            return answer(Call(CALL_NAMES[number], text, fd, offset, length))
        except BaseException as failure:  # noqa: BLE001  nothing may leave a C callback
            failures.append(failure)
            return 0

    with installed(ffi.callback("ac_os_hook_t", hook), ffi.NULL):
        yield
    if failures:
        raise failures[0]
