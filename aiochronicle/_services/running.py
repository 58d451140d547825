"""``run``: asyncio.run, on uvloop if that is installed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(
    main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]],
    *,
    debug: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine, or an async function without arguments, on a new event loop; return its result.

    This is ``asyncio.run`` with uvloop as the default loop. If uvloop cannot be imported, it uses
    asyncio's own loop. ``loop_factory`` chooses another loop, for example
    ``asyncio.new_event_loop``; ``debug`` is that of ``asyncio.run``. SIGINT cancels ``main``, then
    raises KeyboardInterrupt.

    >>> async def main():
    ...     async with aopen_writer(tmp_path / "ticks") as writer:
    ...         return writer.append(b"hello")
    >>> run(main())
    0
    """
    if asyncio._get_running_loop() is not None:
        # Before a Runner exists, which would raise again when it closes.
        raise RuntimeError(
            "aiochronicle.run() cannot be called from a running event loop: await the coroutine there"
        )
    # asyncio.run has no loop_factory on Python 3.11, but Runner has.
    with asyncio.Runner(debug=debug, loop_factory=loop_factory or _default_loop) as runner:
        return runner.run(main() if callable(main) else main)


def _default_loop() -> asyncio.AbstractEventLoop:
    # Imported here, because programs without an event loop do not need it.
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
