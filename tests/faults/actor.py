"""Drive a program under test step by step, in a process of its own that may die.

    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        assert actor.do("writer.append(b'order')") == 0
        failure = actor.fails("writer.flush_now()")
        assert failure.errno == errno.EIO
        actor.kill()

Values and failures come back as Python literals. Whatever the program does, the test survives and reports
how the program ended.

A server forks the programs. It has imported everything and opened nothing, so it has no threads: a child of
it is as good as a fresh process, and starts a tenth of a second sooner.
"""

import ast
import atexit
import contextlib
import io
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec

__all__ = ["Actor", "ActorFailed", "Failure"]

_TIMEOUT_S = 60.0
_PRELUDE = """
import asyncio, os, resource, shutil, signal, sys, time
from pathlib import Path
import aiochronicle
from aiochronicle import *
from aiochronicle import errors
from faults.oracle import payload
"""


class Failure(msgspec.Struct, frozen=True):
    """An exception in the program."""

    kinds: tuple[str, ...]  # its class and the base classes
    text: str
    errno: int | None
    path: str | None
    offset: int | None

    @property
    def kind(self) -> str:
        """Name of its class."""
        return self.kinds[0]


class ActorFailed(AssertionError):
    """A step that should have succeeded raised ``failure``."""

    def __init__(self, step: str, failure: Failure) -> None:
        super().__init__(f"{step!r} gave {failure.kind}: {failure.text}")
        self.failure = failure


_NUMBER = struct.Struct("<i")
_COMMAND = [sys.executable, "-W", "ignore::ResourceWarning", "-m", "faults.actor"]
_TESTS = Path(__file__).parents[1]


class _Server:
    """The process that forks programs."""

    def __init__(self, *prefix: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, *_COMMAND, str(theirs.fileno())],
                cwd=_TESTS,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, *fds: int) -> None:
        socket.send_fds(self._socket, [b"start"], fds)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(_TIMEOUT_S)


@cache
def _server() -> _Server:
    started = _Server()
    atexit.register(started.close)
    return started


class Actor:
    """Starts the program, and ends it no later than the ``with`` block."""

    def __init__(self, *, inotify_instances: int | None = None) -> None:
        """Start the program; if a number is given, in a user namespace with this many inotify instances."""
        self._own_server = None
        if inotify_instances is not None:
            limit = f"echo {inotify_instances} > /proc/sys/user/max_inotify_instances"
            self._own_server = _Server("unshare", "-r", "sh", "-c", f'{limit} && exec "$@"', "sh")
        steps, self._steps = os.pipe()
        self._answers, answers = os.pipe()
        self._status, status = os.pipe()
        (self._own_server or _server()).start(steps, answers, status)
        for fd in (steps, answers, status):
            os.close(fd)
        self._received = b""
        self._ended: int | None = None
        self.pid = self._number(_TIMEOUT_S)
        assert self.pid is not None, "no program was started"

    def _number(self, timeout_s: float) -> int | None:
        if not select.select([self._status], [], [], timeout_s)[0]:
            return None
        (number,) = _NUMBER.unpack(os.read(self._status, _NUMBER.size))
        assert isinstance(number, int)
        return number

    def _wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or minus the signal; None while the program runs."""
        if self._ended is None:
            self._ended = self._number(timeout_s)
        return self._ended

    def do(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Any:
        """Run statements, or an expression, whose value is returned. ``names`` are set before."""
        outcome = self._step(step, timeout_s, names)
        if isinstance(outcome, Failure):
            raise ActorFailed(step, outcome)
        return outcome

    def fails(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Failure:
        """Run a step that must raise; return the exception."""
        outcome = self._step(step, timeout_s, names)
        assert isinstance(outcome, Failure), f"{step!r} raised nothing, but returned {outcome!r}"
        return outcome

    def attempt(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Any:
        """Run a step that may succeed or raise; return the value or the Failure."""
        return self._step(step, timeout_s, names)

    def start(self, step: str, **names: object) -> None:
        """Start a long step without waiting for it; ``result`` waits."""
        with contextlib.suppress(BrokenPipeError):  # `result` reports how the program died
            os.write(self._steps, ascii((step, names)).encode() + b"\n")

    def result(self, step: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """Wait for the step that ``start`` began."""
        failed, value = ast.literal_eval(self._line(step, timeout_s))
        return Failure(*value) if failed else value

    def _step(self, step: str, timeout_s: float, names: dict[str, object]) -> Any:
        self.start(step, **names)
        return self.result(step, timeout_s)

    def _line(self, step: str, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._answers], [], [], left_s)[0]:
                self.kill()
                raise AssertionError(f"{step!r} took more than {timeout_s} s")
            some = os.read(self._answers, 1 << 20)
            if not some:
                code = self._wait(_TIMEOUT_S) or 0
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise AssertionError(f"the program died of {step!r}: {how}")
            self._received += some
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, usually during a step that ``start`` began."""
        if self._wait(0) is None and self.pid is not None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program with SIGKILL and wait until it is gone."""
        self.signal(signal.SIGKILL)
        assert self._wait(_TIMEOUT_S) is not None, "it cannot be killed"

    def close(self) -> None:
        """Let the program end, or kill it."""
        if self._steps < 0:
            return
        os.close(self._steps)
        self._steps = -1
        if self._wait(10) is None:
            self.kill()
        os.close(self._answers)
        os.close(self._status)
        if self._own_server is not None:
            self._own_server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()


# --- the program -------------------------------------------------------------------------------


def _described(error: BaseException) -> tuple[object, ...]:
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    known = (getattr(error, name, None) for name in ("errno", "path", "offset"))
    return kinds, str(error), *known


def _perform(step: str, names: dict[str, Any]) -> object:
    try:
        code = compile(step, "<step>", "eval")
    except SyntaxError:
        exec(compile(step, "<step>", "exec"), names)
        return None
    return eval(code, names)  # noqa: S307  from the test itself


def _literal(answer: tuple[bool, object]) -> str:
    """Return the value as a literal that the other side can parse; its repr if it is no literal."""
    text = ascii(answer)
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return ascii((answer[0], repr(answer[1])))
    return text


def perform_all(names: dict[str, Any], steps: int, answers: int) -> None:
    """Run steps until the input ends."""
    output = io.TextIOWrapper(os.fdopen(answers, "wb"), encoding="utf-8")
    with os.fdopen(steps, encoding="utf-8") as lines:
        for line in lines:
            step, given = ast.literal_eval(line)
            names.update(given)
            try:
                answer = (False, _perform(step, names))
            except Exception as error:  # noqa: BLE001  told to the test
                answer = (True, _described(error))
            print(_literal(answer), file=output, flush=True)


def _keep(names: dict[str, Any], steps: int, answers: int, status: int) -> NoReturn:
    """Act as the program's parent: print its pid, wait for it, and print how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        code = 1
        try:
            perform_all(names, steps, answers)
            code = 0
        finally:
            os._exit(code)
    os.close(steps)
    os.close(answers)
    os.write(status, _NUMBER.pack(pid))
    os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def serve(orders: socket.socket) -> None:
    """Fork a program for each request, until the other side closes."""
    names: dict[str, Any] = {}
    exec(_PRELUDE, names)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(orders, 16, 3)
        if not message:
            return
        if os.fork() == 0:
            orders.close()
            _keep(names, *fds)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        serve(given)
