"""R1 in C: kill a writer at a random instant, recover in fresh processes, compare.

csrc/tests/kill_writer.c kills, recovers and checks. This module adds up its numbers and checks some of the
queues again, with the decoder that shares no code with the engine.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from .oracle import BrokenPromiseError, check_queue, require
from .programs import program
from .scratch import in_memory

__all__ = ["KillLoop", "Tally", "memory_directory"]

# A killed process takes a while to end, and needs no processor meanwhile.
_LANES = 48
_JUDGED_TWICE_EVERY = 5


def memory_directory() -> Path:
    """Return a new directory in memory if the machine has such a file system, else on disk."""
    return Path(tempfile.mkdtemp(prefix="aiochronicle-kill-", dir=in_memory()))


class Tally(msgspec.Struct):
    """Where the kills hit, to show that they hit everything."""

    cycles: int = 0
    in_a_call: int = 0  # … that adds records
    took_effect: int = 0  # of those, the records are there
    before_first_open: int = 0
    after_clean_close: int = 0
    inside_recovery: int = 0
    messages: int = 0
    judged_twice: int = 0  # queues

    def add(self, numbers: dict[str, int]) -> None:
        """Add the numbers of one queue."""
        for name, number in numbers.items():
            setattr(self, name, getattr(self, name) + number)


def _judge_again(words: dict[str, str]) -> None:
    path = Path(words["path"])
    late = filter(None, words["late"].split(","))
    check_queue(path, int(words["salt"]), tolerated=[f"reader {r}: segment removed" for r in late])
    shutil.rmtree(path.parent)  # with its archive


class KillLoop:
    """Runs cycles over queues that are replaced now and then, several queues at a time."""

    def __init__(self, seed: int) -> None:
        """Create the directory of the queues."""
        self._seed = seed
        self._root = memory_directory()

    def run(self, cycles: int, go_on: Callable[[Tally], bool] = lambda _: True) -> Tally:
        """Run this many cycles, or until ``go_on``, called after each queue, returns false."""
        tally = Tally()
        numbers = (self._seed, cycles, _LANES, _JUDGED_TWICE_EVERY)
        with subprocess.Popen(
            [program("kill_writer"), self._root, *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_BIND_NOW": "1"},  # compile once, not in every child
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(line, tally)
                    if not process.stdin.closed and not go_on(tally):
                        process.stdin.close()
            except BrokenPromiseError as violation:
                process.kill()
                raise BrokenPromiseError(f"{violation}\nseed {self._seed}") from None
        require(process.returncode == 0, "kill_writer ended with {}", process.returncode)
        return tally

    @staticmethod
    def _take(line: str, tally: Tally) -> None:
        kind, _, rest = line.rstrip("\n").partition(" ")
        require(kind in ("tally", "kept"), "{}", line)
        words = dict(word.split("=", 1) for word in rest.split(" "))
        if kind == "tally":
            tally.add({name: int(number) for name, number in words.items()})
        else:
            _judge_again(words)
            tally.judged_twice += 1

    def close(self, *, keep_queues: bool) -> None:
        """Remove the queues unless they are kept as evidence."""
        if not keep_queues:
            shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(keep_queues=kind is not None and issubclass(kind, BrokenPromiseError))
