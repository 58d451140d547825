"""Fails the Nth system call of a program that uses everything, and looks at what is left.

The story below reaches every kind of system call of the engine. For each kind and each error it is
run with the first call failing, then the second, until it gets through without meeting the fault.
"""

import errno
import faulthandler
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from aiochronicle import Message, Reader, Retention, Roll, Writer, errors, open_reader, open_writer
from aiochronicle._binding import check, ffi, lib, new_error

from .system_calls import Call, observed

__all__ = ["FAULTS", "SHORT", "Nth", "calls_of_the_story", "fail_every_call", "run_story"]

SHORT = -1  # the answer that lets one byte through
FAULTS = [
    errno.ENOSPC,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.EAGAIN,
    SHORT,
]
HANG_S = 30
SEGMENT_SIZE = 12288

# What a failing system call may come out as. EAGAIN is also how flock says that it is taken.
DOCUMENTED = (
    errors.StorageError,
    errors.WriterPoisoned,
    errors.LockedError,
    errors.ReaderBusy,
)
# These never report EINTR in real life, or report it to a caller that looks again anyway.
NOT_INTERRUPTED = {"alloc", "copy", "list", "map", "thread", "wait"}


class Outcome(msgspec.Struct):
    """What one run came to."""

    acknowledged: int = 0
    retained: bool = False
    error: Exception | None = None


def _payload(seq: int) -> bytes:
    return f"message {seq} ".encode() * (1 + seq % 40)


class _Story:
    def __init__(self, queue: Path, archive: Path) -> None:
        self.queue = queue
        self.archive = archive
        self.outcome = Outcome()
        self.writer: Writer | None = None
        self.reader: Reader | None = None

    def open_writer(self) -> Writer:
        self.writer = open_writer(
            self.queue,
            segment_size=SEGMENT_SIZE,
            roll=Roll(messages=4),
            retention=Retention(max_bytes=SEGMENT_SIZE, archive=str(self.archive)),
            memlock=True,
            _inline_housekeeping=True,
        )
        return self.writer

    def append(self, count: int) -> None:
        assert self.writer is not None
        for _ in range(count):
            self.writer.append(_payload(self.outcome.acknowledged))
            self.outcome.acknowledged += 1

    def tell(self) -> None:
        writer = self.open_writer()
        writer.mark_ready()
        self.reader = open_reader(self.queue, "audit")
        self.append(3)
        first = self.outcome.acknowledged
        writer.append_many([_payload(first), _payload(first + 1)])
        self.outcome.acknowledged += 2
        payload = _payload(self.outcome.acknowledged)
        with writer.reserve(len(payload)) as room:
            room[:] = payload
        self.outcome.acknowledged += 1
        writer.flush_now()
        for _ in range(4):
            self.reader.poll()
        self.reader.commit()
        self.sync_position()
        self.reader.seek(1)
        self.reader.seek_last()
        self.reader.wait(0.0001)
        self.append(8)
        self.reader.seek_last()
        self.reader.commit()
        self.outcome.retained = True
        writer.reader_lag()
        writer.retain_now()
        self.repair()
        self.append(2)
        self.reader.close()
        assert self.writer is not None
        self.writer.close()

    def sync_position(self) -> None:
        assert self.reader is not None
        at, error = self.reader.position, new_error()
        handle = ffi.cast("ac_reader_t *", self.reader._address)
        check(lib.ac_reader_commit(handle, at.segment, at.offset, 1, error), error)

    def repair(self) -> None:
        """Give up the writer as a kill does, with a record begun: the next one has to repair it."""
        assert self.writer is not None
        position = self.writer.position
        self.kill()
        segment = self.queue / f"{position.segment:09}.q"
        with segment.open("r+b") as file:
            file.seek(position.offset)
            file.write(b"\x30\0\0\0\x01" + b"\x55" * 100)
        self.open_writer()

    def kill(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            with observed(lambda _: errno.EIO):
                try:
                    writer.close()
                except errors.ChronicleError:
                    assert writer.closed

    def end(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self.writer is not None:
            try:
                self.writer.close()
            except DOCUMENTED:
                assert self.writer.closed


def _held() -> tuple[int, int]:
    """Count this process's file descriptors and its mappings of queue files."""
    fds = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            fds += "eventfd" not in str(fd.readlink())
        except FileNotFoundError:
            continue  # the one that listed the directory
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return fds, sum("nth-fault-" in line for line in maps)


def _usable(queue: Path, outcome: Outcome) -> None:
    """The queue holds exactly what was acknowledged and takes more."""
    with open_writer(queue, segment_size=SEGMENT_SIZE, _inline_housekeeping=True) as writer:
        assert writer.next_seq == outcome.acknowledged, (writer.next_seq, outcome)
        assert writer.append(_payload(outcome.acknowledged)) == outcome.acknowledged
    with open_reader(queue, start="first") as reader:
        seqs = []
        message: Message
        for message in reader:
            assert message.payload == _payload(message.seq)
            seqs.append(message.seq)
    first = seqs[0]
    assert first == 0 or outcome.retained, outcome
    assert seqs == list(range(first, outcome.acknowledged + 1)), (seqs, outcome)
    with open_reader(queue, "audit") as reader:
        for message in reader:
            assert message.payload == _payload(message.seq)


def run_story(answer: Callable[[Call], int]) -> Outcome:
    """Run the story with this hook and check everything that must hold whatever failed."""
    scratch = Path(tempfile.mkdtemp(prefix="nth-fault-", dir=_memory()))
    try:
        before = _held()
        story = _Story(scratch / "queue", scratch / "archive")

        def across_file_systems(call: Call) -> int:
            given = answer(call)
            if given == 0 and call.name == "rename" and call.fd >= 0:
                directory = Path(f"/proc/self/fd/{call.fd}").readlink()
                return errno.EXDEV if "archive" in str(directory) else 0
            return given

        started = time.monotonic()
        with observed(across_file_systems):
            try:
                story.tell()
            except DOCUMENTED as error:
                story.outcome.error = error
            story.end()
        text = str(story.outcome.error or scratch)
        assert str(scratch) in text, f"no path in: {text}"
        assert time.monotonic() - started < HANG_S
        assert _held() == before, (before, _held(), story.outcome)
        _usable(story.queue, story.outcome)
        assert _held() == before
        return story.outcome
    finally:
        shutil.rmtree(scratch)


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Nth:
    """Fails call number ``n`` of a kind once."""

    def __init__(self, name: str, n: int, answer: int) -> None:
        self.name, self.left, self.given = name, n, answer

    def __call__(self, call: Call) -> int:
        if call.name != self.name:
            return 0
        self.left -= 1
        return self.given if self.left == 0 else 0

    @property
    def met(self) -> bool:
        return self.left <= 0


def _met_in_child(name: str, fault: int, nth: Nth) -> bool:
    """Run it in a fork, where the housekeeping threads are not started yet."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _judge(name, fault, run_story(nth))
            status = 2 if nth.met else 0
        except BaseException as error:  # noqa: BLE001  the child must not return
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 2), "see the output of the child"
    return status == 2


def _judge(name: str, fault: int, outcome: Outcome) -> None:
    transparent = fault == SHORT or (fault == errno.EINTR and name not in NOT_INTERRUPTED)
    if transparent:
        assert outcome.error is None, f"{name}: {outcome.error!r}"
    error = outcome.error
    if isinstance(error, errors.DiskFull):
        assert fault == errno.ENOSPC


def fail_every_call(name: str, fault: int) -> int:
    """Fail the 1st, 2nd, … call of this kind, until there are no more; return their number."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fresh = name in ("eventfd", "thread")
    n = 0
    while True:
        n += 1
        faulthandler.dump_traceback_later(2 * HANG_S, exit=True)
        nth = Nth(name, n, fault)
        try:
            if fresh:
                met = _met_in_child(name, fault, nth)
            else:
                _judge(name, fault, run_story(nth))
                met = nth.met
        except Exception as error:
            what = "short" if fault == SHORT else errno.errorcode[fault]
            raise AssertionError(f"{name} number {n} failing with {what}: {error!r}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        if not met:
            return n - 1


def calls_of_the_story() -> Counter[str]:
    """Count the calls of each kind in a run without faults."""
    seen: Counter[str] = Counter()

    def count(call: Call) -> int:
        seen[call.name] += 1
        return 0

    outcome = run_story(count)
    assert outcome.error is None
    return seen
