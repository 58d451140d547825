"""The engine's hook on its system calls, as a context manager.

The hook runs before each call. It answers 0 (go on), an errno (fail with it), or for read and
write a negative number (let at most so many bytes through).
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiochronicle._engine import ffi, lib

__all__ = ["CALL_NAMES", "FOR_EVER", "Call", "Injection", "injected", "observed"]

CALL_NAMES = [
    ffi.string(lib.ac_os_call_name(number)).decode() for number in range(lib.ac_os_call_count())
]

FOR_EVER = 2**63

_active: list[tuple[Any, Any]] = []  # the innermost hook is the one that is asked
_finished: deque[tuple[Any, Any]] = deque(maxlen=1000)


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

    with _installed(ffi.callback("ac_os_hook_t", hook), ffi.NULL):
        yield
    if failures:
        raise failures[0]


@contextmanager
def injected(
    name: str | None, answer: int, *, first: int = 1, times: int = FOR_EVER
) -> "Iterator[Injection]":
    """Give this answer to calls of one kind (None: all), in every thread.

    No Python runs in the hook: a thread of the engine that waited for the interpreter there, with a
    lock in its hands, would never get it from a caller that wants that lock.
    """
    injection = ffi.new("ac_injection_t *")
    injection.call = -1 if name is None else CALL_NAMES.index(name)
    injection.answer, injection.first, injection.times = answer, first, times
    with _installed(ffi.addressof(lib, "ac_os_inject"), injection):
        yield Injection(injection)


class Injection:
    """How many calls of the kind there have been."""

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def seen(self) -> int:
        return int(self._record.seen)


@contextmanager
def _installed(hook: Any, context: Any) -> Iterator[None]:
    _active.append((hook, context))
    lib.ac_os_set_hook(*_active[-1])
    try:
        yield
    finally:
        # A thread of the engine may still be in it.
        _finished.append(_active.pop())
        lib.ac_os_set_hook(*(_active[-1] if _active else (ffi.NULL, ffi.NULL)))
