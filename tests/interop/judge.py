"""The judge: Java's own Chronicle Queue in one JVM; it writes, reads and checks on request (JSON lines).

    with Judge() as judge, judge.open(path, roll_cycle="TEST_DAILY") as queue:
        index = queue.append_bytes(b"hello")
        [message] = queue.tailer().read()

Every request has a time limit, after which the JVM is killed and `JudgeTimeout` is raised. A Java exception
is raised as `JavaThrew`.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import msgspec

from .building import VERSION, build, environment

MODULES = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED",
    "--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
]
# Without the first property the library reports its use over the network.
PROPERTIES = [
    "-Dchronicle.analytics.disable=true",
    "-Dchronicle.announcer.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",  # the tests are too short for the second compiler to pay off
    "-Xmx512m",
]

Value = Sequence[Any] | None
"""["kind", value] as `judge.Values` of the Java side reads it, or None for null."""

Call = tuple[str, Sequence[Value]]


class JudgeTimeout(Exception):
    """The JVM did not answer in time and was killed."""


class JudgeDied(Exception):
    """The JVM ended; the text has its last output."""


class JavaThrew(Exception):
    """Java threw an exception; ``error`` is its class."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as Java reads it; a long message has only the hash of its payload."""

    index: int
    length: int
    sha256: str
    metadata: bool
    hex: str | None = None

    @property
    def payload(self) -> bytes:
        assert self.hex is not None, f"{self.length} bytes: compare sha256"
        return bytes.fromhex(self.hex)


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """Java's description of a queue; files are the names of its cycles."""

    entry_count: int
    first_index: int
    last_index: int
    first_cycle: int
    last_cycle: int
    cycle: int
    epoch: int
    roll_cycle: str
    files: list[str]


class CycleFile(msgspec.Struct, frozen=True, kw_only=True):
    """The cycle file of a time."""

    epoch: int
    time_ms: int
    cycle: int
    name: str


class RollCycle(msgspec.Struct, frozen=True, kw_only=True):
    """A row of Java's roll cycle table."""

    name: str
    format: str
    length_ms: int
    index_count: int
    index_spacing: int
    shift: int
    max_messages: int
    files: list[CycleFile]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a background appender."""

    written: int
    last_index: int
    thrown: str | None


def pattern(length: int, seed: int) -> bytes:
    """Return the payload that `append_pattern` appends."""
    start = seed * 31 % 251
    repeated = bytes((start + i) % 251 for i in range(251))
    return (repeated * (length // 251 + 1))[:length]


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of all messages: a CRC-32 over the index (8 bytes, little-endian) and payload of each.

    ``gap`` is the first index that does not follow the one before it.
    """

    messages: int
    crc32: int
    cycles: int
    last_index: int
    gap: str | None


def java_command(
    main: str, *arguments: str, version: str = VERSION, properties: Sequence[str] = ()
) -> list[str]:
    """Return the command that starts a class of the judge in a new JVM."""
    built = build(version)
    path = f"{built / 'classes'}:{built / 'lib'}/*"
    return ["java", *MODULES, *PROPERTIES, *properties, "-cp", path, main, *arguments]


class Judge:
    """A JVM with the official library; requests are answered one at a time."""

    def __init__(
        self, *, version: str = VERSION, timeout_s: float = 60.0, properties: Sequence[str] = ()
    ) -> None:
        self.version = version
        self.timeout_s = timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            java_command("judge.Main", version=version, properties=properties),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(),
        )
        self._pending = b""
        self.ask("hello")

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """Return the output of the JVM and its libraries so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def ask(self, op: str, *, timeout_s: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for the answer."""
        given = {name: value for name, value in fields.items() if value is not None}
        self.send(op, **given)
        return self.answer(timeout_s)

    def send(self, op: str, **fields: Any) -> None:
        """Send a request; `answer` fetches the answer later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def answer(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the answer to the oldest unanswered request."""
        line = self._line(self.timeout_s if timeout_s is None else timeout_s)
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise JavaThrew(answer["error"], answer["message"])
        return answer

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise JudgeTimeout(f"no answer in {timeout_s} s\n{self.log()[-4000:]}")
                received = os.read(self._process.stdout.fileno(), 1 << 20)
                if not received:
                    raise self._death()
                self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _death(self) -> JudgeDied:
        status = self._process.wait(self.timeout_s)
        return JudgeDied(f"the JVM ended with status {status}\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """Kill the JVM with SIGKILL and reap it: a zombie would still count as a live lock holder."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, stopped: bool = True) -> None:
        """Freeze the JVM and wait until all its threads have stopped; or resume it."""
        self._process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
        if stopped:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """End the JVM in order; it closes everything that is open."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(
        self,
        path: Path,
        *,
        roll_cycle: str | None = None,
        time_ms: int | None = None,
        shift_ms: int | None = None,
        since_ms: int | None = None,
        speed: int | None = None,
        timeout_ms: int | None = None,
        epoch: int | None = None,
        roll_time: str | None = None,
        block_size: int | None = None,
        index_count: int | None = None,
        index_spacing: int | None = None,
        source_id: int | None = None,
        wire_type: str | None = None,
        sync_mode: str | None = None,
        read_only: bool = False,
    ) -> "JudgeQueue":
        """Open or create a queue.

        The clock is fixed at time_ms, or shift_ms ahead of the real one, or runs at speed times real time
        since since_ms.
        """
        answer = self.ask(
            "open",
            path=str(path),
            roll_cycle=roll_cycle,
            time_ms=time_ms,
            shift_ms=shift_ms,
            since_ms=since_ms,
            speed=speed,
            timeout_ms=timeout_ms,
            epoch=epoch,
            roll_time=roll_time,
            block_size=block_size,
            index_count=index_count,
            index_spacing=index_spacing,
            source_id=source_id,
            wire_type=wire_type,
            sync_mode=sync_mode,
            read_only=read_only,
        )
        return JudgeQueue(self, answer["number"])

    def roll_cycles(self, times_ms: Sequence[int], epochs: Sequence[int] = (0,)) -> list[RollCycle]:
        """Return Java's table, with the cycle file of every time in every epoch."""
        answer = self.ask("roll-cycles", times_ms=list(times_ms), epochs=list(epochs))
        return msgspec.convert(answer["roll_cycles"], list[RollCycle])

    def encode(self, values: Iterable[Value]) -> list[bytes]:
        """Return the bytes that Java writes for each value."""
        answer = self.ask("encode", values=list(values))
        return [bytes.fromhex(text) for text in answer["encoded"]]

    def decode(self, encoded: Iterable[bytes], as_: str = "object") -> list[Any]:
        """Return what Java reads as [class, value]; as_ is "object", "i64", "f64", "text", "fields" …"""
        answer = self.ask("decode", encoded=[each.hex() for each in encoded], read_as=as_)
        decoded: list[Any] = answer["decoded"]
        return decoded


class _Handle:
    _name: str

    def __init__(self, judge: Judge, number: int) -> None:
        self.judge = judge
        self.number = number

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.judge.ask(op, **{self._name: self.number}, **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.judge.is_running():
            self.close()

    def close(self) -> None:
        raise NotImplementedError


class JudgeQueue(_Handle):
    """A queue that the JVM has open."""

    _name = "queue"

    def append(self, *messages: dict[str, Any]) -> list[int]:
        """Append messages in the form that the Java class `judge.Append` reads; return their indexes."""
        indexes: list[int] = self._ask("append", messages=list(messages))["indexes"]
        return indexes

    def append_text(self, *texts: str) -> list[int]:
        return self.append(*({"kind": "text", "text": text} for text in texts))

    def append_bytes(self, *payloads: bytes) -> list[int]:
        return self.append(*({"kind": "bytes", "hex": payload.hex()} for payload in payloads))

    def append_pattern(self, length: int, seed: int = 0) -> int:
        """Append `pattern(length, seed)`, which the JVM computes itself."""
        return self.append({"kind": "fill", "length": length, "seed": seed})[0]

    def append_fields(self, fields: Sequence[tuple[str, Value]]) -> int:
        """Append a document with these fields, each written by the wire's typed method."""
        return self.append({"kind": "fields", "fields": list(fields)})[0]

    def append_quote(self, **fields: Any) -> int:
        """Append a Quote, a SelfDescribingMarshallable, as a document."""
        return self.append({"kind": "dto", "quote": fields})[0]

    def append_calls(self, *chains: Sequence[Call]) -> list[int]:
        """Append a message per chain of calls with a generated method writer."""
        return self.append(*({"kind": "calls", "calls": list(chain)} for chain in chains))

    def append_empty(self) -> int:
        return self.append({"kind": "empty"})[0]

    def append_metadata(self, payload: bytes) -> None:
        """Append a metadata document, which has no index and which tailers skip."""
        self.append({"kind": "metadata", "hex": payload.hex()})

    def roll_back(self, payload: bytes) -> None:
        """Begin a message, write the payload, and roll it back."""
        self.append({"kind": "rollback", "hex": payload.hex()})

    def start_append(
        self,
        *,
        prefix: str = "j",
        count: int | None = None,
        rate_hz: int | None = None,
        calls: bool = False,
        ledger: Path | None = None,
        stamps: Path | None = None,
    ) -> None:
        """Append b"prefix:0", b"prefix:1" … in the background, or call text("prefix:0") …

        The first 8 bytes of the ledger count the completed appends, even if the JVM is killed. The stamps
        have the completion time of each append: 8 bytes each, monotonic clock, in nanoseconds.
        """
        self._ask(
            "start-append",
            prefix=prefix,
            count=count,
            rate_hz=rate_hz,
            calls=calls,
            ledger=None if ledger is None else str(ledger),
            stamps=None if stamps is None else str(stamps),
        )

    def stop_append(self, *, let_finish: bool = False) -> Written:
        """Stop the background appender, or wait until it has written its count."""
        return msgspec.convert(self._ask("stop-append", let_finish=let_finish), Written)

    def bench_append(
        self, payload: bytes, count: int, rounds: int = 1, *, is_durable: bool = False
    ) -> list[float]:
        """Append in rounds, syncing each message if durable; return each round's ns per message."""
        answer = self._ask(
            "bench-append", hex=payload.hex(), count=count, rounds=rounds, durable=is_durable
        )
        ns: list[float] = answer["ns"]
        return ns

    def bench_tail(self, rounds: int) -> list[float]:
        """Read the whole queue in each round; return each round's ns per message."""
        ns: list[float] = self._ask("bench-tail", rounds=rounds)["ns"]
        return ns

    def tailer(
        self,
        name: str | None = None,
        *,
        start: int | Literal["start", "end"] | None = None,
        backward: bool = False,
    ) -> "JudgeTailer":
        """Open a tailer; a named one resumes at its position unless start is given."""
        where = None if start is None else str(start)
        answer = self._ask("tailer", name=name, start=where, backward=backward)
        return JudgeTailer(self.judge, answer["number"])

    def read_all(self) -> list[Message]:
        """Return all messages, read by a new tailer."""
        with self.tailer(start="start") as tailer:
            return tailer.read()

    def set_time(self, time_ms: int) -> None:
        """Set the clock of a queue that was opened with time_ms."""
        self._ask("set-time", time_ms=time_ms)

    def hold_lock(self, written: bytes = b"") -> None:
        """Begin a message, which takes the write lock, and write this part of it."""
        self._ask("hold-lock", hex=written.hex())

    def release_lock(self, *, rollback: bool = True) -> None:
        """Complete that message."""
        self._ask("release-lock", rollback=rollback)

    def hold_append_lock(self, held: bool = True) -> None:
        """Forbid all appends, as a replication sink does, or allow them again."""
        self._ask("append-lock", held=held)

    def sync(self) -> None:
        self._ask("sync")

    def dump(self) -> str:
        """Return the text of every record of every file."""
        text: str = self._ask("dump")["text"]
        return text

    def info(self) -> Info:
        return msgspec.convert(self._ask("info"), Info)

    def close(self) -> None:
        self._ask("close")


class JudgeTailer(_Handle):
    """A tailer that the JVM has open."""

    _name = "tailer"

    def read(
        self, limit: int | None = None, *, wait_s: float = 0.0, metadata: bool = False
    ) -> list[Message]:
        """Return up to limit messages; stop early when none arrives for wait_s."""
        answer = self._ask("read", limit=limit, wait_ms=round(wait_s * 1000), metadata=metadata)
        return msgspec.convert(answer["messages"], list[Message])

    def digest(self, limit: int | None = None, *, wait_s: float = 0.0) -> Digest:
        """Return the digest of up to limit messages; stop early when none arrives for wait_s."""
        self.start_digest(limit, wait_s=wait_s)
        return self.finish_digest()

    def start_digest(self, limit: int | None = None, *, wait_s: float) -> None:
        """Start a digest in the background; the JVM answers no other request until it is done."""
        fields = {"tailer": self.number, "wait_ms": round(wait_s * 1000)}
        self.judge.send("digest", **fields, **({} if limit is None else {"limit": limit}))

    def finish_digest(self, timeout_s: float | None = None) -> Digest:
        """Wait for the digest and return it."""
        return msgspec.convert(self.judge.answer(timeout_s), Digest)

    def read_calls(self, limit: int | None = None) -> list[tuple[str, list[Any]]]:
        """Return the calls that Java's method reader makes, with arguments as [class, value]."""
        answer = self._ask("read-calls", limit=limit)
        return [(name, arguments) for name, arguments in answer["calls"]]

    def forward(self, queue: JudgeQueue, limit: int | None = None) -> int:
        """Let Java's method reader call the method writer of another queue; return the number of messages.

        If that queue has a source_id, its messages start with their history.
        """
        read: int = self._ask("forward", queue=queue.number, limit=limit)["read"]
        return read

    def seek(self, *indexes: int) -> list[bool]:
        """Call moveToIndex for each index; return the results. The tailer stays at the last one."""
        found: list[bool] = self._ask("seek", indexes=list(indexes))["found"]
        return found

    def close(self) -> None:
        self._ask("close-tailer")
