"""Keeps an object to one event loop at a time.

Locks, events, tasks and futures of asyncio belong to the loop in which they are first used. A service
that outlives its loop must create them again in the next one. It cannot serve two loops at once: it
raises an exception instead of waiting forever.
"""

import asyncio

from aiochronicle.errors import InvalidArgument

__all__ = ["OneLoop"]


class OneLoop:
    """Remembers the loop in which an object is used."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> bool:
        """Return whether the running loop is a new one; InvalidArgument if the previous one is not closed."""
        running = asyncio.get_running_loop()
        before = self.loop
        if before is running:
            return False
        if before is not None and not before.is_closed():
            raise InvalidArgument(
                f"{self._what} is in use in another event loop, {before!r}, which is not closed; use it"
                " in that loop, close that loop first, or create one for each loop"
            )
        self.loop = running
        return True
