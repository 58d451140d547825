"""Our appenders in separate processes, driven like the judge: `python -m interop.ours`.

    with Ours() as ours:
        queue = ours.open(path, roll_cycle="TEST_SECONDLY")
        indexes = ours.append(b"one", b"two")

A process that has opened nothing can also fork writers to be killed: `Ours.fork`.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
from faults.victim import Ledger, Word

from aiochronicle import Message, Reader, Writer, open_reader, open_writer

from .building import environment, preloaded
from .judge import Digest

__all__ = ["Ours", "digest", "read_ours"]

_TESTS = Path(__file__).parents[1]
_NUMBERED = re.compile(rb"(\w+):(\d+)$")  # alone, or as the argument of a call


# --- reading, in this process ------------------------------------------------------------------


def read_ours(
    path: Path, limit: int | None = None, *, wait_s: float = 0.0
) -> Iterator[tuple[int, bytes]]:
    """Yield all messages, up to the limit; stop when none arrives for wait_s."""
    left = sys.maxsize if limit is None else limit
    with open_reader(path) as reader:
        while left > 0 and (message := reader.poll() or _wait(reader, wait_s)):
            yield message.seq, bytes(message.payload)
            left -= 1


def _wait(reader: Reader, wait_s: float) -> Message | None:
    return reader.poll() if wait_s and reader.wait(wait_s) else None


def digest(
    path: Path, limit: int | None = None, *, wait_s: float = 0.0, shift: int = 32
) -> tuple[Digest, dict[str, int]]:
    """Return what `JudgeTailer.digest` returns, and the number of messages of each "prefix:number" writer.

    Raises AssertionError if a writer's numbers are not 0, 1, 2 …
    """
    crc = cycles = messages = 0
    last, gap = -1, None
    counts: dict[str, int] = {}
    for index, payload in read_ours(path, limit, wait_s=wait_s):
        is_new_cycle = last == -1 or index >> shift > last >> shift
        follows = index & ((1 << shift) - 1) == 0 if is_new_cycle else index == last + 1
        if not follows and gap is None:
            gap = f"{index:x} after {last:x}"
        cycles += is_new_cycle
        last = index
        messages += 1
        crc = zlib.crc32(payload, zlib.crc32(index.to_bytes(8, "little"), crc))
        match = _NUMBERED.search(payload)
        assert match is not None, payload
        prefix, expected = match[1].decode(), counts.get(match[1].decode(), 0)
        assert int(match[2]) == expected, f"{payload!r} at {index:x}, expected number {expected}"
        counts[prefix] = expected + 1
    found = Digest(messages=messages, crc32=crc, cycles=cycles, last_index=last, gap=gap)
    return found, counts


# --- the other process -------------------------------------------------------------------------


class Flood(msgspec.Struct, kw_only=True):
    """Append b"prefix:0", b"prefix:1" … to a queue."""

    path: str
    prefix: str
    options: dict[str, Any]
    count: int | None = None
    rate_hz: int = 0
    seconds: float | None = None
    ledger: str | None = None

    def run(self) -> dict[str, int]:
        """Append until the count is reached, the time is up, or the process is killed."""
        ledger = Ledger(self.ledger) if self.ledger else None
        number, last_index = 0, -1
        due = time.monotonic()
        deadline = due + self.seconds if self.seconds else None
        with open_writer(self.path, **self.options) as writer:
            while self.count is None or number < self.count:
                if ledger:
                    ledger[Word.ATTEMPTED] = number + 1
                last_index = writer.append(b"%s:%d" % (self.prefix.encode(), number))
                number += 1
                if ledger:
                    ledger[Word.ACKNOWLEDGED] = number
                if self.rate_hz:
                    # No catching up: a burst might not fit into a cycle.
                    due = max(due + 1 / self.rate_hz, time.monotonic())
                    time.sleep(max(0.0, due - time.monotonic()))
                if deadline and not number & 63 and time.monotonic() >= deadline:
                    break
        return {"written": number, "last_index": last_index}


class _Side:
    """Performs the requests that arrive as lines of JSON."""

    def __init__(self) -> None:
        self.writer: Writer | None = None
        self.now_ns = 0

    def perform(self, op: str, request: dict[str, Any]) -> Any:
        match op:
            case "open":
                options = request["options"]
                if request["time_ms"] is not None:
                    self.now_ns = request["time_ms"] * 1_000_000
                    options["clock"] = lambda: self.now_ns
                self.writer = open_writer(request["path"], **options)
                return None
            case "set-time":
                self.now_ns = request["time_ms"] * 1_000_000
                return None
            case "append":
                assert self.writer is not None
                return [self.writer.append(bytes.fromhex(each)) for each in request["payloads"]]
            case "close":
                assert self.writer is not None
                self.writer.close()
                return None
            case "flood":
                return msgspec.convert(request["flood"], Flood).run()
            case "digest":
                found, counts = digest(Path(request["path"]), **request["settings"])
                return [msgspec.to_builtins(found), counts]
            case "fork":
                return self._fork(msgspec.convert(request["flood"], Flood))
            case "reap":
                return os.waitpid(request["pid"], 0)[1]
        raise ValueError(op)

    @staticmethod
    def _fork(flood: Flood) -> int:
        pid = os.fork()
        if not pid:
            _child(flood)
        return pid

    def serve(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"value": self.perform(request["op"], request)}
            except Exception as error:  # noqa: BLE001  whoever asked is told
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


def _child(flood: Flood) -> NoReturn:
    status = 1
    try:
        flood.run()
        status = 0
    except Exception as error:  # noqa: BLE001  it has no other way to tell
        print(f"{flood.prefix}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


# --- this process ------------------------------------------------------------------------------


class OursFailed(Exception):
    """Our process raised an exception."""


class Ours:
    """A process with our library; requests are answered one at a time.

    Its clock is the real one, or runs at speed times real time since since_ms. ``preload`` names a library
    of preload/ that replaces system calls.
    """

    def __init__(
        self,
        *,
        since_ms: int = 0,
        speed: int = 1,
        timeout_s: float = 60.0,
        preload: str | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        given = environment()
        if preload is not None:
            given["LD_PRELOAD"] = str(preloaded(preload))
        if speed > 1:
            given["LD_PRELOAD"] = str(preloaded("fast_clock"))
            given["FAST_CLOCK"] = f"{since_ms} {speed}"
        given["PYTHONPATH"] = os.pathsep.join(
            [str(_TESTS), *([given["PYTHONPATH"]] if "PYTHONPATH" in given else [])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "interop.ours"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=given,
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, op: str, **fields: Any) -> None:
        """Send a request; `answer` fetches the answer later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the oldest unanswered request."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise OursFailed("no answer in time")
                received = os.read(self._process.stdout.fileno(), 1 << 20)
                if not received:
                    raise OursFailed(f"it ended with status {self._process.wait()}")
                self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise OursFailed(answer["error"])
        return answer["value"]

    def ask(self, op: str, **fields: Any) -> Any:
        self.send(op, **fields)
        return self.answer()

    def open(self, path: Path, *, time_ms: int | None = None, **options: Any) -> None:
        """Open the writer that `append` and `close_writer` use."""
        options = {"format": "cq4", **options}
        self.ask("open", path=str(path), time_ms=time_ms, options=options)

    def set_time(self, time_ms: int) -> None:
        """Set the clock of a queue that was opened with time_ms."""
        self.ask("set-time", time_ms=time_ms)

    def append(self, *payloads: bytes) -> list[int]:
        """Append payloads; return their indexes."""
        indexes: list[int] = self.ask("append", payloads=[each.hex() for each in payloads])
        return indexes

    def close_writer(self) -> None:
        self.ask("close")

    def start_flood(self, path: Path, prefix: str, **settings: Any) -> None:
        """Append with a separate writer; `finish_flood` waits for its end."""
        self.send("flood", flood=_flood(path, prefix, settings))

    def finish_flood(self, timeout_s: float | None = None) -> dict[str, int]:
        written: dict[str, int] = self.answer(timeout_s)
        return written

    def start_digest(self, path: Path, limit: int, *, wait_s: float, shift: int = 32) -> None:
        """Start to follow the queue; `finish_digest` waits for the end."""
        settings = {"limit": limit, "wait_s": wait_s, "shift": shift}
        self.send("digest", path=str(path), settings=settings)

    def finish_digest(self, timeout_s: float | None = None) -> tuple[Digest, dict[str, int]]:
        """Wait for the digest and return it."""
        found, counts = self.answer(timeout_s)
        return msgspec.convert(found, Digest), counts

    def fork(self, path: Path, prefix: str, **settings: Any) -> int:
        """Append in a forked process; return its pid."""
        pid: int = self.ask("fork", flood=_flood(path, prefix, settings))
        return pid

    def reap(self, pid: int) -> int:
        """Reap a forked process and return its status; until then it is a zombie, which counts as alive."""
        status: int = self.ask("reap", pid=pid)
        return status

    def kill(self) -> None:
        """Kill the process with SIGKILL and reap it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _flood(path: Path, prefix: str, settings: dict[str, Any]) -> dict[str, Any]:
    known = {"count", "rate_hz", "seconds", "ledger"}
    given = {name: settings.pop(name) for name in known & settings.keys()}
    options = {"format": "cq4", **settings}
    return {"path": str(path), "prefix": prefix, "options": options, **given}


if __name__ == "__main__":
    _Side().serve()
