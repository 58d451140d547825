"""Fail the Nth system call of a program that uses everything, and check what is left.

The story below reaches every kind of system call of the engine. For each kind and each error it runs with
the first call failing, then the second, and so on, until it ends without meeting the fault.
"""

import errno
import faulthandler
import os
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from aiochronicle import Message, Reader, Retention, Roll, Writer, errors, open_reader, open_writer
from aiochronicle._base.binding import check, ffi, lib, new_error

from .system_calls import CALL_NAMES, injected

__all__ = ["FAULTS", "SHORT", "calls_of_the_story", "fail_every_call", "run_story"]

SHORT = -1  # the hook's answer that lets one byte through
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

# The errors that a failing system call may cause. EAGAIN is also flock's answer for a lock that is taken.
DOCUMENTED = (
    errors.StorageError,
    errors.WriterPoisoned,
    errors.LockedError,
    errors.ReaderBusy,
)
# These calls never report EINTR in practice, or their callers check again anyway.
NOT_INTERRUPTED = {"alloc", "copy", "list", "map", "thread", "wait"}


class Outcome(msgspec.Struct):
    """The result of one run."""

    acknowledged: int = 0
    retained: bool = False
    error: Exception | None = None
    calls: int = 0


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
        """Drop the writer as a kill does, with an unfinished record that the next writer has to repair."""
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
            with injected(None, errno.EIO):
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
    """Count this process's file descriptors and its mappings of queue files.

    Descriptors of the housekeeping threads stay open; all are anonymous (eventfd, epoll, inotify).
    """
    fds = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            fds += not str(fd.readlink()).startswith("anon_inode:")
        except FileNotFoundError:
            continue  # the fd that listed the directory
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return fds, sum("nth-fault-" in line for line in maps)


def _usable(queue: Path, outcome: Outcome) -> None:
    """Check that the queue holds exactly what was acknowledged, and that it accepts more."""
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


def run_story(name: str | None = None, fault: int = 0, n: int = 1, times: int = 1) -> Outcome:
    """Fail call number ``n`` of a kind in the story; check what must hold whatever failed."""
    with (
        TemporaryDirectory(prefix="nth-fault-", dir=_memory()) as here,
        TemporaryDirectory(prefix="nth-fault-") as other_file_system,
    ):
        before = _held()
        story = _Story(Path(here, "queue"), Path(other_file_system, "archive"))
        outcome = story.outcome
        started = time.monotonic()
        with injected(name, fault, first=n, times=times) as injection:
            try:
                story.tell()
            except DOCUMENTED as error:
                outcome.error = error
            story.end()
            outcome.calls = injection.seen
        assert time.monotonic() - started < HANG_S
        text = str(outcome.error or here)
        assert here in text or other_file_system in text, f"no path in: {text}"
        assert _held() == before, (before, _held(), outcome)
        _usable(story.queue, outcome)
        assert _held() == before
        return outcome


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _calls_in_child(name: str, fault: int, n: int) -> int:
    """Run the case in a fork, where the engine has not started its threads yet."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = run_story(name, fault, n)
            _judge(name, fault, outcome)
            os.write(send, str(outcome.calls).encode())
        except BaseException as error:  # noqa: BLE001  the child must not return
            os.write(send, f"{type(error).__name__}: {error}"[:4000].encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert said.isdigit(), said or "the child died"
    return int(said)


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
    n = calls = 1
    while n <= calls:
        faulthandler.dump_traceback_later(2 * HANG_S, exit=True)
        try:
            if name == "thread":
                calls = _calls_in_child(name, fault, n)
            else:
                outcome = run_story(name, fault, n)
                _judge(name, fault, outcome)
                calls = outcome.calls
        except Exception as error:
            what = "short" if fault == SHORT else errno.errorcode[fault]
            raise AssertionError(f"{name} number {n} failing with {what}: {error!r}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        n += 1
    return calls


def calls_of_the_story() -> dict[str, int]:
    """Count the calls of each kind in runs without faults, each as if it were the first."""
    return {name: _calls_in_child(name, 0, 1) for name in CALL_NAMES}
