"""Writers to be killed: a server that forks one per job, and its client.

``python -m faults.victim`` reads jobs, one JSON object per line. For each it forks a child, prints
its pid, waits for its end and prints the status. The server opens no queue itself and so has no
threads: every child is as good as a fresh process, a hundred times cheaper.
"""

import mmap
import os
import random
import signal
import subprocess
import sys
import traceback
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import msgspec

from aiochronicle import Batch, Retention, Roll, Writer, open_reader, open_writer
from aiochronicle.errors import PositionLost

from .operations import Abort, Operation, apply
from .oracle import payload

__all__ = ["READER", "Ledger", "RandomJob", "ScriptJob", "VictimServer", "Word"]

READER = "audit"
_OPERATIONS_MAX = 300


class RandomJob(msgspec.Struct, frozen=True, tag=True):
    """Apply random operations to a queue until the kill comes; note each promise in the ledger."""

    path: str
    salt: int
    seed: int
    segment_size: int
    ledger: str


class ScriptJob(msgspec.Struct, frozen=True, tag=True):
    """Apply exactly these operations, then kill itself; ``unfinished`` stays an open reservation."""

    path: str
    segment_size: int
    roll_messages: int | None
    operations: tuple[Operation, ...]
    unfinished: bytes | None


Job = RandomJob | ScriptJob


class Word(IntEnum):
    """The offsets of the ledger's fields."""

    ACKNOWLEDGED = 0  # every seq below was acknowledged
    ATTEMPTED = 1  # next seq if the call under way takes effect
    OPENED = 2
    COMMITTED = 3  # 1 + seq at which the reader resumes; 0 = never committed
    COMMIT_ATTEMPTED = 4
    OPERATIONS = 5
    RETAINED = 6


class Ledger:
    """Words in a file that the victim and its judge map; each store is atomic."""

    def __init__(self, path: str) -> None:
        """Map the file; create it if necessary."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        self._map.close()


# --- the child ---------------------------------------------------------------------------------


def _open_some(job: RandomJob, ledger: Ledger, dice: random.Random) -> Writer:
    retention = dice.random() < 0.25
    if retention:
        ledger[Word.RETAINED] = 1
    writer = open_writer(
        job.path,
        segment_size=job.segment_size,
        roll=Roll(
            bytes=dice.choice((None, 64 * dice.randint(1, 60))),
            messages=dice.choice((None, dice.randint(1, 20))),
        ),
        flush=dice.choice(("async", "sync", Batch(dice.randint(64, 4096), 0.0003))),
        # The reader opens and closes, and must not lose anything in between.
        retention=Retention(
            max_bytes=4 * job.segment_size, reader_ttl_s=3600.0, check_interval_s=0.0005
        )
        if retention
        else None,
        verify=dice.random() < 0.25,
        _inline_housekeeping=dice.random() < 0.25,
    )
    ledger[Word.OPENED] = 1
    return writer


def _append_some(writer: Writer, job: RandomJob, ledger: Ledger, dice: random.Random) -> None:
    seq = ledger[Word.ACKNOWLEDGED]
    count = 1 if dice.random() < 0.7 else dice.randint(2, 4)
    payloads = [payload(job.salt, seq + i) for i in range(count)]
    ledger[Word.ATTEMPTED] = seq + count
    if count > 1:
        assert writer.append_many(payloads) == range(seq, seq + count)
    elif dice.random() < 0.2:
        with writer.reserve(len(payloads[0])) as room:
            room[:] = payloads[0]
    else:
        assert writer.append(payloads[0]) == seq
    ledger[Word.ACKNOWLEDGED] = seq + count


def _read_some(job: RandomJob, ledger: Ledger, dice: random.Random) -> None:
    try:
        reader = open_reader(job.path, READER)
    except PositionLost:
        # Retention does not wait for a name that registers while retention runs.
        assert ledger[Word.RETAINED]
        assert not ledger[Word.COMMIT_ATTEMPTED]
        return
    with reader:
        expected = ledger[Word.COMMITTED]
        for message in reader.read_batch(dice.randint(1, 60)):
            assert not expected or message.seq + 1 == expected
            assert message.payload == payload(job.salt, message.seq)
            expected = message.seq + 2
        if expected:
            ledger[Word.COMMIT_ATTEMPTED] = expected
            reader.commit()
            ledger[Word.COMMITTED] = expected


def _run_random(job: RandomJob) -> None:
    dice = random.Random(job.seed)
    ledger = Ledger(job.ledger)
    writer = _open_some(job, ledger, dice)
    for _ in range(_OPERATIONS_MAX):
        kind = dice.random()
        if kind < 0.75:
            _append_some(writer, job, ledger, dice)
        elif kind < 0.8:
            apply(writer, Abort(dice.randbytes(dice.randint(0, 300))))
        elif kind < 0.85:
            assert writer.flush_now() >= ledger[Word.ACKNOWLEDGED]
        elif kind < 0.9:
            writer.heartbeat()
        elif kind < 0.97:
            _read_some(job, ledger, dice)
        else:
            writer.close()
            writer = _open_some(job, ledger, dice)
        ledger[Word.OPERATIONS] += 1
    while True:
        signal.pause()


def _run_script(job: ScriptJob) -> None:
    roll = None if job.roll_messages is None else Roll(messages=job.roll_messages)
    writer = open_writer(job.path, segment_size=job.segment_size, roll=roll)
    for operation in job.operations:
        apply(writer, operation)
    if job.unfinished is not None:
        reservation = writer.reserve(len(job.unfinished))
        reservation.__enter__()[:] = job.unfinished
    os.kill(os.getpid(), signal.SIGKILL)


def _run(job: Job) -> NoReturn:
    try:
        if isinstance(job, RandomJob):
            _run_random(job)
        else:
            _run_script(job)
    finally:
        traceback.print_exc()
        os._exit(1)


def serve() -> None:
    """Read jobs until the end of standard input."""
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        pid = os.fork()
        if pid == 0:
            _run(job)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


# --- the other side ----------------------------------------------------------------------------


class VictimServer:
    """Starts the server and gives it jobs, one at a time."""

    def __init__(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.victim"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, job: Job) -> int:
        """Start a victim; return its pid. ``wait`` must follow."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        return self._number()

    def wait(self) -> int:
        """Return how the victim ended: the exit code, or minus the signal."""
        return self._number()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Stop the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=600)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


if __name__ == "__main__":
    serve()
