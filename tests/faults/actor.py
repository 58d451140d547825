"""A program under test that is told what to do, step by step: a process of its own, which may die.

    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        assert actor.do("writer.append(b'order')") == 0
        failure = actor.fails("writer.flush_now()")
        assert failure.errno == errno.EIO
        actor.kill()

Values and failures come back as Python literals. Whatever the program does, the test lives on and says how
the program ended.
"""

import ast
import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

__all__ = ["Actor", "ActorFailed", "Failure"]

_TIMEOUT_S = 60.0
_PRELUDE = """
import asyncio, os, shutil, signal, sys, time
from pathlib import Path
import aiochronicle
from aiochronicle import *
from aiochronicle import errors
from faults.oracle import payload
"""


class Failure(msgspec.Struct, frozen=True):
    """An exception in the program."""

    kinds: tuple[str, ...]  # its class and the ones above it
    text: str
    errno: int | None
    path: str | None
    offset: int | None

    @property
    def kind(self) -> str:
        """Name of its class."""
        return self.kinds[0]


class ActorFailed(AssertionError):
    """A step that was to succeed raised; ``failure`` says what."""

    def __init__(self, step: str, failure: Failure) -> None:
        super().__init__(f"{step!r} gave {failure.kind}: {failure.text}")
        self.failure = failure


class Actor:
    """Starts the program, and ends it at the latest with the ``with`` block."""

    def __init__(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::ResourceWarning", "-m", "faults.actor"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._received = b""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def do(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Any:
        """Run statements, or an expression, whose value is returned. ``names`` are set before."""
        outcome = self._step(step, timeout_s, names)
        if isinstance(outcome, Failure):
            raise ActorFailed(step, outcome)
        return outcome

    def fails(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Failure:
        """Run what has to raise; return the exception."""
        outcome = self._step(step, timeout_s, names)
        assert isinstance(outcome, Failure), f"{step!r} raised nothing, but returned {outcome!r}"
        return outcome

    def attempt(self, step: str, *, timeout_s: float = _TIMEOUT_S, **names: object) -> Any:
        """Run what may do either; return the value or the Failure."""
        return self._step(step, timeout_s, names)

    def start(self, step: str, **names: object) -> None:
        """Begin a step that takes its time; ``result`` waits for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # how it died is said by whoever waits for it
            self._process.stdin.write(ascii((step, names)).encode() + b"\n")
            self._process.stdin.flush()

    def result(self, step: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """Wait for the step that was started."""
        failed, value = ast.literal_eval(self._line(step, timeout_s))
        return Failure(*value) if failed else value

    def _step(self, step: str, timeout_s: float, names: dict[str, object]) -> Any:
        self.start(step, **names)
        return self.result(step, timeout_s)

    def _line(self, step: str, timeout_s: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                self.kill()
                raise AssertionError(f"{step!r} took more than {timeout_s} s")
            some = os.read(self._process.stdout.fileno(), 1 << 20)
            if not some:
                code = self._process.wait(_TIMEOUT_S)
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise AssertionError(f"the program died of {step!r}: {how}")
            self._received += some
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        """Let it die by SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(_TIMEOUT_S)

    def close(self) -> None:
        """Let it end, or kill it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._process.poll() is None:
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
    """Write it as the other side can read it; of an object that is no literal, its repr."""
    text = ascii(answer)
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return ascii((answer[0], repr(answer[1])))
    return text


def serve() -> None:
    """Perform steps until there are none."""
    names: dict[str, Any] = {}
    exec(_PRELUDE, names)
    answers = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", line_buffering=True)
    os.dup2(2, 1)  # what a step prints is no answer
    for line in sys.stdin:
        step, given = ast.literal_eval(line)
        names.update(given)
        try:
            answer = (False, _perform(step, names))
        except Exception as error:  # noqa: BLE001  told to the test
            answer = (True, _described(error))
        print(_literal(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
