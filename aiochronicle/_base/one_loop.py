"""Objects that belong to one event loop at a time.

Locks, events, tasks and futures of asyncio serve the loop that they were first used in. A service
that lives longer than its loop has to make them again in the next one; two loops at once it cannot
serve at all, and says so instead of waiting forever.
"""

import asyncio

from aiochronicle.errors import InvalidArgument

__all__ = ["OneLoop"]


class OneLoop:
    """Remembers in which loop something is used."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> bool:
        """Return whether the running loop is a new one; InvalidArgument if the other one still lives."""
        running = asyncio.get_running_loop()
        before = self.loop
        if before is running:
            return False
        if before is not None and not before.is_closed():
            raise InvalidArgument(
                f"{self._what} is used in another event loop, {before!r}, which is not closed; use it"
                " in that loop, close that loop first, or make one for each loop"
            )
        self.loop = running
        return True
