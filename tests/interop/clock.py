"""A clock that is set, for our own processes: see `preload/set_clock.c`."""

import mmap
import struct
import time
from pathlib import Path

from .building import environment, preloaded

__all__ = ["SetClock"]


class SetClock:
    """A file that says what time it is to every process started with its environment."""

    def __init__(self, path: Path, time_ms: int, *, speed: int = 0) -> None:
        """Let the clock stand, or run so many times as fast as the real one."""
        self.path = path
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._version = 0
        self.set(time_ms, speed=speed)

    def set(self, time_ms: int, *, speed: int = 0) -> None:
        """Set it to a Unix time in milliseconds."""
        self._map[:8] = struct.pack("<q", self._version + 1)
        self._map[8:32] = struct.pack("<3q", time.time_ns(), time_ms * 1_000_000, speed)
        self._map[:8] = struct.pack("<q", self._version + 2)
        self._version += 2

    def environment(self) -> dict[str, str]:
        """For `subprocess.Popen`."""
        library = str(preloaded("set_clock"))
        return environment() | {"LD_PRELOAD": library, "SET_CLOCK": str(self.path)}
