"""Run the command as users do: in a separate process, with pipes or a terminal."""

import atexit
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

COMMAND = (sys.executable, "-m", "aiochronicle")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Trade(msgspec.Struct):
    symbol: str
    price: float
    size: int


class Quote(msgspec.Struct):
    bid: float
    ask: float


def environment(**variables: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")
    }
    return {**kept, "TERM": "xterm-256color", **variables}


class Done(msgspec.Struct):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


def started(*arguments: str | Path, cwd: Path | None = None, **variables: str) -> Done:
    """Run a command to its end as a shell does, with pipes."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**variables),
        cwd=cwd,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


class Server:
    """Starts commands in separate processes without importing everything each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        command = [sys.executable, str(Path(__file__).with_name("server.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )

    def run(
        self, arguments: Sequence[str], given: str, cwd: Path | None, variables: dict[str, str]
    ) -> Done:
        files = [self._directory / name for name in ("in", "out", "err")]
        files[0].write_text(given, errors="surrogateescape")
        request = {
            "arguments": [os.fsencode(argument) for argument in arguments],
            "files": [str(file) for file in files],
            "cwd": None if cwd is None else str(cwd),
            "variables": variables,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(request) + b"\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        out, err = (file.read_text(errors="surrogateescape") for file in files[1:])
        return Done(status, out, err)


_servers: list[Server] = []


def _server() -> Server:
    if not _servers:
        directory = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, directory)
        _servers.append(Server(Path(directory)))
        atexit.register(_servers[0].process.kill)
    return _servers[0]


def aioc(
    *arguments: str | Path, given: str = "", cwd: Path | None = None, **variables: str
) -> Done:
    """Run a command to its end in a separate process, with files for its output."""
    done = _server().run([str(argument) for argument in arguments], given, cwd, variables)
    assert "Traceback" not in done.err, done.err
    return done


class Terminal:
    """A command in a terminal of this many columns."""

    def __init__(
        self,
        columns: int,
        arguments: Sequence[str | Path],
        *,
        command: Sequence[str] = COMMAND,
        **variables: str,
    ) -> None:
        self.output = ""
        own = environment(**variables)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            os.execve(command[0], [*command, *map(str, arguments)], own)

    def read_until(self, wanted: str | None, timeout_s: float = 20.0) -> str:
        """Read until the text appears, or to the end if None."""

        def is_there() -> bool:
            return wanted is not None and wanted in self.output

        ended = not self.read_while(lambda: not is_there(), timeout_s)
        assert wanted is None or not ended, self.output
        return self.output

    def read_while(self, lacks: Callable[[], bool], timeout_s: float = 20.0) -> bool:
        """Read while the condition holds; return False if the command ended first."""
        until_s = time.monotonic() + timeout_s
        while lacks():
            left_s = until_s - time.monotonic()
            assert left_s > 0, self.output
            if select.select([self._fd], [], [], left_s)[0]:
                try:
                    piece = os.read(self._fd, 65536)
                except OSError:  # the other side is closed
                    piece = b""
                if not piece:
                    return False
                self.output += piece.decode(errors="replace")
        return True

    def interrupt(self) -> None:
        self.type("\x03")

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        self.read_until(None)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._fd)


def in_terminal(columns: int, *arguments: str | Path, **variables: str) -> tuple[int, str]:
    """Run a command to its end in a terminal; return the exit status and the output."""
    terminal = Terminal(columns, arguments, **variables)
    try:
        return terminal.end(), terminal.output
    finally:
        terminal.kill()


def lines_of(output: str) -> list[str]:
    """Return the lines of a terminal without colours."""
    return [
        line.rpartition("\r")[2]
        for line in ESCAPE.sub("", output).replace("\r\n", "\n").split("\n")
    ]
