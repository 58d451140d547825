"""Opens queues without blocking an event loop: aopen_writer and aopen_reader.

Opening waits for the disk, so it runs in a thread, which passes the new handle to the waiting task. If that
task was cancelled, or its loop closed, the thread closes the handle. Waiting for another writer's lock may
take long, and uses no thread.
"""

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from aiochronicle._base.background import in_background, in_thread
from aiochronicle._core.reader import open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer, pauses_s
from aiochronicle.errors import ChronicleError, LockedError

__all__ = [
    "Opening",
    "aopen_reader",
    "aopen_writer",
    "open_in_background",
    "when_unlocked",
    "with_parameters_of",
]

_log = logging.getLogger("aiochronicle.opening")


class _Closable(Protocol):
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


P = ParamSpec("P")
Opened = TypeVar("Opened", bound=_Closable)
R = TypeVar("R")


class Opening(Coroutine[Any, Any, Opened]):
    """Returned by ``aopen_writer`` and ``aopen_reader``: await it, or use ``async with``, once.

    Nothing is opened before that. It is a coroutine, so ``create_task`` accepts it.
    """

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._opening.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.aclose()

    def send(self, value: Any) -> Any:
        """Resume it, as event loops do."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception where it waits, as event loops do."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """Abandon the opening."""
        self._opening.close()


class _OpeningInThread(Generic[Opened]):
    """One call of an opening function in a thread.

    Its result stays in ``_opened`` until the task takes it or the thread closes it.
    """

    def __init__(self, open_it: Callable[[], Opened]) -> None:
        self._open_it = open_it
        self._opened: deque[Opened] = deque()
        self._abandoned = False
        self._loop = asyncio.get_running_loop()

    async def result(self) -> Opened:
        try:
            await in_background(self._open)
            return self._opened.pop()
        except BaseException:  # also GeneratorExit, when the loop was closed
            self._abandoned = True
            if self._opened:
                in_thread(self._close)
            raise

    def _open(self) -> None:
        if self._is_abandoned():  # before the thread started
            return
        try:
            self._opened.append(self._open_it())
        except Exception:
            if self._is_abandoned():  # nothing was opened, and nobody waits for the exception
                return
            raise
        # Check after the append: then either this thread or the abandoning task sees the other's change.
        if self._is_abandoned():
            self._close()

    def _is_abandoned(self) -> bool:
        return self._abandoned or self._loop.is_closed()

    def _close(self) -> None:
        try:
            opened = self._opened.pop()
        except IndexError:
            return  # the task or the thread has already closed it
        try:
            opened.close()
        except ChronicleError as error:
            _log.warning("closing after a cancelled opening failed: %s", error)


async def when_unlocked(attempt: Callable[[bool], Awaitable[R]], lock_timeout: float | None) -> R:
    """Call ``attempt`` until the queue is not locked or the timeout has passed.

    Its argument says whether to try only once. Between attempts the task sleeps in the loop: it uses no
    thread, and ends at once if cancelled.
    """
    if lock_timeout is None:
        return await attempt(False)
    for pause_s in pauses_s(lock_timeout):
        try:
            return await attempt(True)
        except LockedError:
            await asyncio.sleep(pause_s)
    return await attempt(True)


async def open_in_background(open_it: Callable[[], Opened]) -> Opened:
    """Call an opening function in a thread. If the caller is cancelled, its result is closed."""
    return await _OpeningInThread(open_it).result()


def with_parameters_of(
    function: Callable[P, Opened],
) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], Callable[P, Opening[Opened]]]:
    """Give a coroutine function the parameters of another function, and make it return an Opening."""
    signature = inspect.signature(function)

    def decorate(open_it: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[P, Opening[Opened]]:
        @functools.wraps(open_it)
        def asynchronous(*arguments: P.args, **options: P.kwargs) -> Opening[Opened]:
            return Opening(open_it(*arguments, **options))

        asynchronous.__signature__ = signature.replace(  # type: ignore[attr-defined]
            return_annotation=f"Opening[{signature.return_annotation}]"
        )
        return asynchronous

    return decorate


@with_parameters_of(open_writer)
async def aopen_writer(*arguments: Any, **options: Any) -> Any:
    """Open a queue for appending without blocking the event loop: ``open_writer`` for coroutines.

    It has the parameters of open_writer, and raises the same exceptions when it is awaited. Use
    ``writer = await aopen_writer(path)``, or ``async with``, which also closes in the background.
    With ``lock_timeout`` the task waits for the lock without using a thread.

    If it is cancelled while it opens, the thread closes the writer again, which soon releases the lock.

    >>> import asyncio
    >>> async def main():
    ...     async with aopen_writer(tmp_path / "ticks") as writer:
    ...         return writer.append(b"hello")
    >>> asyncio.run(main())
    0
    """

    def attempt(try_once: bool) -> Coroutine[Any, Any, Writer]:
        opening = functools.partial(open_writer, *arguments, **options, _try_once=try_once)
        return open_in_background(opening)

    return await when_unlocked(attempt, options.get("lock_timeout"))


@with_parameters_of(open_reader)
async def aopen_reader(*arguments: Any, **options: Any) -> Any:
    """Open a queue for reading without blocking the event loop: ``open_reader`` for coroutines.

    It has the parameters of open_reader, and raises the same exceptions when it is awaited. Use
    ``reader = await aopen_reader(path)``, or ``async with``, which also closes in the background.

    If it is cancelled while it opens, the thread closes the reader again.

    >>> import asyncio
    >>> async def main():
    ...     async with aopen_reader(queue) as reader:
    ...         return (await reader.next()).payload
    >>> asyncio.run(main())
    b'hello'
    """
    return await open_in_background(functools.partial(open_reader, *arguments, **options))
