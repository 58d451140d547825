"""Processes that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager

__all__ = ["Victim", "kill_writer", "start_victim"]

_LIMIT_S = 60

_WRITER = """
import os, signal, sys
import aiochronicle

path, unfinished, *payloads = sys.argv[1:]
writer = aiochronicle.open_writer(path)
for payload in payloads:
    writer.append(bytes.fromhex(payload))
if unfinished:
    with writer.reserve(len(unfinished) // 2) as room:
        room[:] = bytes.fromhex(unfinished)
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Victim:
    """A Python program in a separate process, created by ``start_victim``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.poll() is None

    def read_line(self) -> str:
        """Return the next line that it printed, without its end; "" when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def stop(self) -> None:
        """Stop it (SIGSTOP) until ``go_on``."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue it after ``stop``."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (SIGKILL); return when it has ended and its locks are released."""
        self._process.kill()
        self._process.wait(_LIMIT_S)


@contextmanager
def start_victim(program: str, *arguments: str | os.PathLike[str]) -> Generator[Victim, None, None]:
    """Run a Python program in a separate process, which is killed at the end of the block at the latest.

    ``program`` is source text that finds ``arguments`` in ``sys.argv[1:]`` and prints, flushed, lines that
    the test waits for.

    >>> with start_victim("print('ready', flush=True); import time; time.sleep(600)") as victim:
    ...     victim.read_line()
    ...     victim.kill()
    ...     victim.is_alive
    'ready'
    False
    """
    command = [sys.executable, "-c", program, *(os.fspath(one) for one in arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Victim(process)
        finally:
            process.kill()
            process.communicate()


def kill_writer(
    path: str | os.PathLike[str],
    payloads: Iterable[bytes] = (),
    *,
    unfinished: bytes = b"",
) -> None:
    """Start a process that appends to a queue, and kill it with the writer open.

    Returns when it is gone. ``unfinished`` is a message that it was writing when it died.

    >>> kill_writer(tmp_path / "q", [b"one", b"two"], unfinished=b"thr")
    >>> with open_writer(tmp_path / "q") as writer:
    ...     writer.next_seq
    2
    """
    words = [os.fspath(path), unfinished.hex(), *(payload.hex() for payload in payloads)]
    command = [sys.executable, "-c", _WRITER, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended by itself: {done.stderr}")
