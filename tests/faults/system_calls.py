"""The engine's hook on its system calls, as a context manager.

The hook runs before each call. It answers 0 (go on), an errno (fail with it), or for read and
write a negative number (let at most so many bytes through).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiochronicle._engine import ffi, lib

__all__ = ["CALL_NAMES", "Call", "observed"]

CALL_NAMES = [
    ffi.string(lib.ac_os_call_name(number)).decode() for number in range(lib.ac_os_call_count())
]

_active: list[Any] = []  # the innermost hook is the one that is asked


class Call(NamedTuple):
    """One system call that is about to happen."""

    name: str
    path: str | None
    fd: int
    offset: int
    length: int


@contextmanager
def observed(answer: Callable[[Call], int]) -> Iterator[None]:
    """Ask ``answer`` before each system call of the engine; its exception is raised at the end."""
    failures: list[BaseException] = []

    def hook(context: object, number: int, path: object, fd: int, offset: int, length: int) -> int:
        try:
            text = None if path == ffi.NULL else ffi.string(path).decode()
            return answer(Call(CALL_NAMES[number], text, fd, offset, length))
        except BaseException as failure:  # noqa: BLE001  nothing may leave a C callback
            failures.append(failure)
            return 0

    callback = ffi.callback("ac_os_hook_t", hook)
    _active.append(callback)
    lib.ac_os_set_hook(callback, ffi.NULL)
    try:
        yield
    finally:
        _active.pop()
        lib.ac_os_set_hook(_active[-1] if _active else ffi.NULL, ffi.NULL)
        if failures:
            raise failures[0]
