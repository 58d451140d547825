"""Changes below a directory, from a thread of its own.

watchfiles does the watching, through its documented Rust class rather than ``awatch``: so the
import, the setting of watches and the waiting all happen in one thread, which is gone when it was
stopped.
"""

import asyncio
import threading
from collections.abc import Callable

from aiochronicle._background import in_background

__all__ = ["Watcher"]

# A burst of changes is reported after the first pause of STEP_MS, or after DEBOUNCE_MS. The
# thread wakes up once per step, so a shorter one would cost more than it is worth.
STEP_MS = 5
DEBOUNCE_MS = 20


class Watcher:
    """Calls ``changed`` in the loop with what changed, and ``failed`` if it cannot go on."""

    def __init__(
        self,
        root: str,
        changed: Callable[[set[str]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._root = root
        self._changed = changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._watching = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {root}", daemon=True)

    async def start(self) -> None:
        """Return when nothing that changes from now on is missed, or when it failed."""
        self._thread.start()
        await self._watching.wait()

    async def stop(self) -> None:
        """End the thread; its watches are gone when this returns."""
        self._stop.set()
        if self._thread.ident is not None:
            await in_background(self._thread.join)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without stopping us
            self._stop.set()

    def _run(self) -> None:
        try:
            # Here, because it takes longer to import than everything else together.
            from watchfiles._rust_notify import RustNotify

            with RustNotify([self._root], False, False, 0, True, True) as notify:
                self._tell(self._watching.set)
                while not self._stop.is_set():
                    changes = notify.watch(DEBOUNCE_MS, STEP_MS, 0, self._stop)
                    if isinstance(changes, set):
                        self._tell(self._changed, {path for _, path in changes})
        except BaseException as error:  # noqa: BLE001  # whoever follows gets it
            self._tell(self._failed, error)
            self._tell(self._watching.set)
