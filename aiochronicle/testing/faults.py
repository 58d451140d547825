"""Fault plans: system calls of the engine that fail, in this process."""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from aiochronicle._base.arguments import one_of
from aiochronicle._engine import ffi, lib
from aiochronicle.errors import InvalidArgument

__all__ = ["CALL_NAMES", "FOR_EVER", "FaultPlan", "fault_plan", "installed"]

CALL_NAMES = tuple(
    ffi.string(lib.ac_os_call_name(number)).decode() for number in range(lib.ac_os_call_count())
)

FOR_EVER = 2**63

_active: list[tuple[Any, Any]] = []  # the innermost hook is the one that is asked
_finished: deque[tuple[Any, Any]] = deque(maxlen=1000)


class FaultPlan:
    """Returned by ``fault_plan``: counts the calls."""

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def seen(self) -> int:
        """How many calls of the kind there have been, whether they failed or not."""
        return int(self._record.seen)


@contextmanager
def fault_plan(
    call: str | None, error: int, *, first: int = 1, times: int = FOR_EVER
) -> Generator[FaultPlan, None, None]:
    """Make calls of one kind fail with an errno: ``times`` calls, beginning with the ``first``.

    ``call`` is one of CALL_NAMES, None: any. A negative ``error`` lets that many bytes of a read or write
    through. Applies to all threads of this process, including the engine's own.

    >>> import errno
    >>> with fault_plan("open", errno.EMFILE):
    ...     open_reader(queue)
    Traceback (most recent call last):
    ...
    aiochronicle.errors.StorageError: ...
    """
    if call is not None:
        one_of("call", dict.fromkeys(CALL_NAMES), call)
    if first < 1 or times < 1:
        raise InvalidArgument("first and times of a fault are 1 or more")
    injection = ffi.new("ac_injection_t *")
    injection.call = -1 if call is None else CALL_NAMES.index(call)
    injection.answer, injection.first, injection.times = error, first, times
    with installed(ffi.addressof(lib, "ac_os_inject"), injection):
        yield FaultPlan(injection)


@contextmanager
def installed(hook: Any, context: Any) -> Generator[None, None, None]:
    """Install a C function that is called before each system call of the engine."""
    _active.append((hook, context))
    lib.ac_os_set_hook(*_active[-1])
    try:
        yield
    finally:
        # A thread of the engine may still be in it.
        _finished.append(_active.pop())
        lib.ac_os_set_hook(*(_active[-1] if _active else (ffi.NULL, ffi.NULL)))
