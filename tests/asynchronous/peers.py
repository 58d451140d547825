"""Start other processes, drive them line by line, and wait for their effects."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["NOTICED_AT_ONCE_S", "Peer", "eventually"]

# "At once" means milliseconds; a loaded machine may need longer.
NOTICED_AT_ONCE_S = 1.0

_TESTS = Path(__file__).parent.parent


async def eventually(condition: Callable[[], bool], within_s: float = NOTICED_AT_ONCE_S) -> None:
    """Wait until the condition holds; fail if it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.001)


class Peer:
    """A process that runs a role of peer.py. Leaving the block kills it if it still runs."""

    def __init__(self, role: str, *arguments: object, within: Sequence[str] = ()) -> None:
        """Start the process. ``within`` is a command to run it under, ``unshare`` for example."""
        paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [
                *within,
                *[sys.executable, "-W", "error", "-m", "asynchronous.peer", role],
                *map(str, arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.expect("open")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def sleeps(self) -> bool:
        """Whether the main thread of the process is asleep."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "S"

    def say(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Block until the process prints a line; return the line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    async def heard(self) -> str:
        """Wait until the process prints a line; return the line."""
        return await asyncio.to_thread(self.hear)

    def expect(self, line: str) -> None:
        """Block until the process prints a line; fail if it is not this one."""
        assert self.hear() == line

    def ask(self, line: str) -> str:
        """Send a command; block until the answer comes, and return it."""
        self.say(line)
        return self.hear()

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> int:
        """Let the process exit normally; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # the process did not read the last command
                    continue
