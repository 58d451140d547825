"""What a sink has written: the fence that keeps a batch from being written twice.

    ROOT/.sink/WRITER.json      and WRITER.lock, held by whoever uses it

A writer is a stream, by the id of its query, or whatever users call one. A write without a name is a
writer of its own, whose journal is deleted when it is done.

A batch becomes part of its queues in three steps, each durable before the next: the journal names
the runs, and where in each queue they will begin; the rows are appended; the journal says that the
batch is done. A driver that dies between two of them leaves the journal to the next one, which
finds out how far the append came, notes that, and goes on from there, with the same runs: others may
have written to the queues meanwhile, and it may die as well. What the next driver has computed for
the same batch is thrown away.

Runs are named by their paths below the root, which may be moved or mounted elsewhere before the next
driver comes. (Version 2 had absolute ones, which are read as such; the runs of 3 have no differences.)
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from aiochronicle._directories import make_directory, sync_directory
from aiochronicle._prepared import prepared
from aiochronicle._smallfile import read_small_file
from aiochronicle.errors import CorruptionError, InvalidArgument, UnsupportedVersion
from aiochronicle.spark.runs import Run
from aiochronicle.spark.written import Written

__all__ = ["Journal", "Pending", "Target", "held", "is_nameless", "nameless", "of_query", "writers"]

SINK = ".sink"
OURS = "+"  # is in no name that users may give
VERSION = 4
READABLE = (2, 3, VERSION)
FILE_BYTES_MAX = 256 << 20
_GIVE_UP = (
    "delete it: nobody knows then what this writer has written, so see to it that nothing is written"
    " twice."
)


def nameless() -> str:
    """Return the id of a write that nobody has given a name."""
    return f"{OURS}{uuid.uuid4().hex}"


def is_nameless(writer_id: str) -> bool:
    """Tell whether this writer is one write, which will never come back."""
    return writer_id.startswith(OURS)


def of_query(query_id: str) -> str:
    """Return the id of a stream that nobody has given a name."""
    return f"stream{OURS}{query_id}"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a batch goes on in one queue: at which seq, and the time before which none may be.

    ``done_rows``, the first ones of the batch, are before that: whoever completes a batch begins behind
    what others have written since.
    """

    queue: str
    start_seq: int
    floor_ns: int
    done_rows: int = 0


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is being written."""

    batch_id: int
    runs: list[Run]
    targets: list[Target]
    hold_late: bool = False


@prepared
class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """What journals of all versions have."""

    version: int


@prepared
class _Content(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    query: str | None = None
    written: Written = Written()
    pending: Pending | None = None


class Journal:
    """The journal of one writer. Use it while it is ``held``."""

    def __init__(self, root: str, writer_id: str) -> None:
        self.writer_id = writer_id
        self.path = Path(root) / SINK / f"{writer_id}.json"
        self._root = Path(os.path.abspath(root))
        try:
            content = read_small_file(str(self.path), FILE_BYTES_MAX)
            self._content = _Content(version=VERSION) if content is None else self._decode(content)
        except (ValueError, msgspec.DecodeError) as error:
            raise CorruptionError(
                f"not the journal of a sink: {error}",
                path=str(self.path),
                advice=f"Restore it, or {_GIVE_UP}",
            ) from error

    def _decode(self, content: bytes) -> _Content:
        version = msgspec.json.decode(content, type=_Version).version
        if version not in READABLE:
            raise UnsupportedVersion(
                f"a journal of version {version}, not {VERSION}",
                path=str(self.path),
                advice=f"Write with the version of aiochronicle that wrote it, or {_GIVE_UP}",
            )
        return _with_paths(
            msgspec.json.decode(content, type=_Content), lambda path: self._root / path
        )

    def check_query(self, query: str | None) -> None:
        """Raise InvalidArgument unless all batches are of this query, or all of none.

        With a new checkpoint a stream is a new query and counts its batches from 0 again.
        """
        known = self._content
        if known.query != query and (known.written.ranges or known.pending is not None):
            names = [
                "no stream" if name is None else f"the stream {name}"
                for name in (known.query, query)
            ]
            raise InvalidArgument(
                f"the batches of writer {self.writer_id} so far are of {names[0]}, this one is of"
                f" {names[1]}, and its id says nothing about those; give it another writerId, or"
                " the checkpoint that belongs to this one",
                path=str(self.path),
            )
        self._content = msgspec.structs.replace(known, query=query)

    def has_written(self, batch_id: int) -> bool:
        """Tell whether a batch is written completely."""
        return self._content.written.has(batch_id)

    @property
    def pending(self) -> Pending | None:
        """The batch that is written in part, perhaps."""
        return self._content.pending

    def begin(self, pending: Pending) -> None:
        """Note that a batch is about to be written."""
        self._store(msgspec.structs.replace(self._content, pending=pending))

    def go_on(self, targets: list[Target]) -> None:
        """Note how far the pending batch has come; what is done must be durable."""
        assert self.pending is not None
        self.begin(msgspec.structs.replace(self.pending, targets=targets))

    def end(self, batch_id: int) -> None:
        """Note that it is written."""
        written = self._content.written.adding(batch_id)
        self._store(msgspec.structs.replace(self._content, written=written, pending=None))

    def delete(self) -> None:
        """Forget everything: of a writer that will never come back."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)

    def _store(self, content: _Content) -> None:
        stored = msgspec.structs.replace(_with_paths(content, self._below_root), version=VERSION)
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(stored))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path)
        sync_directory(self.path.parent)
        self._content = content

    def _below_root(self, path: Path) -> Path:
        return path.relative_to(self._root) if path.is_relative_to(self._root) else path


def _with_paths(content: _Content, change: Callable[[Path], Path]) -> _Content:
    """Return the same with other paths of runs."""
    if (pending := content.pending) is None:
        return content
    runs = [msgspec.structs.replace(run, path=str(change(Path(run.path)))) for run in pending.runs]
    return msgspec.structs.replace(content, pending=msgspec.structs.replace(pending, runs=runs))


@contextlib.contextmanager
def held(root: str, writer_id: str, *, wait: bool = True) -> Generator[Journal | None]:
    """Give a journal that nobody else uses meanwhile; None if it is in use and we do not ``wait``.

    A driver that was killed may have left a process that goes on writing for a moment.
    """
    directory = Path(root) / SINK
    make_directory(directory)
    lock = os.open(directory / f"{writer_id}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield Journal(root, writer_id)
    finally:
        os.close(lock)


def writers(root: str) -> list[str]:
    """Return the ids of all writers that have a journal here."""
    return sorted(path.stem for path in (Path(root) / SINK).glob("*.json"))
