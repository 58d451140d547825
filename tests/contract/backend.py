"""The implementations that the contract suite tests.

To test another one, write a Backend for it and add it to BACKENDS. ``features`` names its optional features;
tests that need a missing feature do not run for that backend.
"""

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import aiochronicle
from aiochronicle import Reader, Writer

TESTS = Path(__file__).resolve().parent.parent
SMALL_SEGMENT = 4096
"""Room for 31 messages of up to 64 bytes: a few dozen appends reach the next segment."""


class Backend(ABC):
    """Opens the writers and readers of one implementation."""

    name: ClassVar[str]
    features: ClassVar[frozenset[str]]

    segments: ClassVar[str]
    """Which files hold the messages."""

    @abstractmethod
    def open_writer(self, path: Path, **options: Any) -> Writer:
        """Open a writer, with the options of aiochronicle.open_writer."""

    @abstractmethod
    def open_reader(self, path: Path, name: str | None = None, **options: Any) -> Reader:
        """Open a reader, with the options of aiochronicle.open_reader."""

    def fill(self, path: Path, count: int, **options: Any) -> None:
        """Append the payloads b"0", b"1", … and close."""
        with self.open_writer(path, **options) as writer:
            for number in range(count):
                writer.append(b"%d" % number)

    def payloads(self, path: Path, name: str | None = None, **options: Any) -> list[bytes]:
        """Return the payloads that a new reader gets."""
        with self.open_reader(path, name, **options) as reader:
            return [message.payload for message in reader]

    def start(self, code: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """Run code in another process, with this backend as ``backend`` and the arguments in
        ``sys.argv``."""
        prelude = (
            f"import os, sys, time; from contract.backend import BACKENDS\n"
            f"backend = BACKENDS[{self.name!r}]\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", prelude + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
        )


class Native(Backend):
    """The queues of this package's own engine."""

    name = "native"
    features = frozenset(
        {
            "atomic batches",
            "batch flush",
            "capacity",
            "cause",
            "codec formats",
            "configure",
            "empty payloads",
            "expiry",
            "flush",
            "groups",
            "heartbeat",
            "keys and headers",
            "max_ahead_s",
            "memlock",
            "one reader per name",
            "one writer",
            "recovery",
            "reserve",
            "retention",
            "roll",
            "segments",
            "timestamps",
            "types",
            "verify",
        }
    )
    segments = "*.q"

    def open_writer(self, path: Path, **options: Any) -> Writer:
        options.setdefault("segment_size", 1 << 16)  # the default costs 128 MiB per test
        return aiochronicle.open_writer(path, **options)

    def open_reader(self, path: Path, name: str | None = None, **options: Any) -> Reader:
        return aiochronicle.open_reader(path, name, **options)


class Cq4(Backend):
    """Chronicle Queues of Java.

    Their epoch is a moment ago, so today's cycle is number 0 and an index equals a seq: the number of the
    message.
    """

    name = "cq4"
    features = frozenset({"flush"})
    segments = "*.cq4"

    def open_writer(self, path: Path, **options: Any) -> Writer:
        options.pop("segment_size", None)  # ignored: a cycle lasts a day
        if not Path(path).exists():
            options.setdefault("epoch", time.time_ns() // 1_000_000 - 1000)
        return aiochronicle.open_writer(path, format="cq4", **options)

    def open_reader(self, path: Path, name: str | None = None, **options: Any) -> Reader:
        return aiochronicle.open_reader(path, name, **options)


NATIVE, CQ4 = Native(), Cq4()
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (NATIVE, CQ4)}
