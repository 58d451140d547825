"""The journal of a sink, which prevents writing a batch twice.

    ROOT/.sink/WRITER.json      and WRITER.lock, locked by its user

A writer is a stream, by the id of its query, or has a name chosen by the user. A write without a name is its
own writer, whose journal is deleted when it is done.

A batch becomes part of its queues in three steps, each durable before the next: the journal names
the runs, and where in each queue they will begin; the rows are appended; the journal says that the
batch is done. A driver that dies between two steps leaves the journal to the next one, which finds out how
far the append came, records that, and continues from there, with the same runs: others may have written to
the queues since, and it may die as well. The next driver's own runs for the same batch are discarded.

Runs are named by their paths below the root, which may be moved or mounted elsewhere before the next driver
comes. (Version 2 had absolute ones, of which these are the end; the runs of 3 have no differences.) A
journal can cause rows to be moved and deleted, so it is used only if no other user could have written it,
and if everything that it names is what this writer may have staged for the batch.
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Generator
from pathlib import Path

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle.errors import CorruptionError, InvalidArgument, UnsupportedVersion
from aiochronicle.spark.private_files import Location, PrivateDirectory
from aiochronicle.spark.sink.batch_ids import BatchIds
from aiochronicle.spark.sink.runs import Run
from aiochronicle.spark.sink.staging import check_path

__all__ = [
    "Journal",
    "Pending",
    "Target",
    "is_nameless",
    "nameless",
    "of_query",
    "open_exclusively",
    "writers",
]

SINK = ".sink"
OURS = "+"  # cannot be in a name given by users
VERSION = 4
OF_ABSOLUTE_PATHS = 2
READABLE = (OF_ABSOLUTE_PATHS, 3, VERSION)
FILE_BYTES_MAX = 256 << 20
_GIVE_UP = (
    "delete it: nobody knows then what this writer has written, so see to it that nothing is written"
    " twice."
)


def nameless() -> str:
    """Return the id of a write without a name."""
    return f"{OURS}{uuid.uuid4().hex}"


def is_nameless(writer_id: str) -> bool:
    """Return whether this writer is a single write, which will never come back."""
    return writer_id.startswith(OURS)


def of_query(query_id: str) -> str:
    """Return the id of a stream without a name."""
    return f"stream{OURS}{query_id}"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a batch continues in one queue: its seq, and the earliest time allowed.

    ``done_rows``, the first ones of the batch, are before that: a driver that completes a batch begins after
    messages that others have written since.
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
    """The fields of journals of all versions."""

    version: int


@prepared
class _Content(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    query: str | None = None
    written: BatchIds = BatchIds()
    pending: Pending | None = None


class Journal:
    """The journal of one writer. Use it while it is ``held``."""

    def __init__(self, root: str, writer_id: str, directory: PrivateDirectory) -> None:
        self.writer_id = writer_id
        self.path = Path(root) / SINK / f"{writer_id}.json"
        self._root = Path(os.path.abspath(root))
        self._directory = directory
        try:
            content = directory.read(self.path.name, FILE_BYTES_MAX)
            self._content = _Content(version=VERSION) if content is None else self._decode(content)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
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
        decoded = msgspec.json.decode(content, type=_Content)
        if (pending := decoded.pending) is None:
            return decoded
        if version == OF_ABSOLUTE_PATHS:
            pending = _with_paths(pending, [_last_parts(run.path) for run in pending.runs])
        _check(pending)
        paths = [self._staged_path(run, pending.batch_id) for run in pending.runs]
        return msgspec.structs.replace(
            decoded, pending=_with_paths(pending, [str(self._root / path) for path in paths])
        )

    def _staged_path(self, run: Run, batch_id: int) -> str:
        """Return the path of a run below the root; ValueError if it is not one of this batch's."""
        return "/".join(check_path(run.path, self.writer_id, batch_id))

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
        """Return whether a batch is written completely."""
        return self._content.written.has(batch_id)

    @property
    def pending(self) -> Pending | None:
        """The batch that may be partly written; None if there is none."""
        return self._content.pending

    def begin(self, pending: Pending) -> None:
        """Record that a batch is about to be written."""
        self._store(msgspec.structs.replace(self._content, pending=pending))

    def go_on(self, targets: list[Target]) -> None:
        """Record the progress of the pending batch; what is done must be durable."""
        assert self.pending is not None
        self.begin(msgspec.structs.replace(self.pending, targets=targets))

    def end(self, batch_id: int) -> None:
        """Record that the pending batch is written."""
        written = self._content.written.adding(batch_id)
        self._store(msgspec.structs.replace(self._content, written=written, pending=None))

    def delete(self) -> None:
        """Delete the journal of a writer that will never come back."""
        self._directory.remove(self.path.name)
        self._directory.remove(f"{self.writer_id}.lock")

    def _store(self, content: _Content) -> None:
        stored = msgspec.structs.replace(content, version=VERSION)
        if (pending := content.pending) is not None:
            below = _with_paths(pending, [_last_parts(run.path) for run in pending.runs])
            for run in below.runs:
                self._staged_path(run, pending.batch_id)
            stored = msgspec.structs.replace(stored, pending=below)
        self._directory.replace(self.path.name, msgspec.json.encode(stored))
        self._content = content


def _last_parts(path: str) -> str:
    """Return the part of an absolute path below the root."""
    return "/".join(path.split("/")[-4:])


def _with_paths(pending: Pending, paths: list[str]) -> Pending:
    runs = zip(pending.runs, paths, strict=True)
    return msgspec.structs.replace(
        pending, runs=[msgspec.structs.replace(run, path=path) for run, path in runs]
    )


def _check(pending: Pending) -> None:
    """Raise ValueError if a batch cannot be one that a writer has begun."""
    shares = [share for run in pending.runs for share in run.shares]
    targets = pending.targets
    if {share.queue for share in shares} != {target.queue for target in targets}:
        raise ValueError("its queues are not those of its rows")
    numbers = [number for share in shares for number in (share.rows, *share.batches)]
    numbers += [n for to in targets for n in (to.start_seq, to.floor_ns, to.done_rows)]
    if any(number < 0 for number in numbers):
        raise ValueError("there is a number below 0")


@contextlib.contextmanager
def open_exclusively(root: str, writer_id: str, *, wait: bool = True) -> Generator[Journal | None]:
    """Yield a journal with its lock held; None if it is in use and ``wait`` is false.

    A killed driver may have left a process that goes on writing for a moment.
    """
    with _location(root).make() as directory:
        lock = directory.open_lock(f"{writer_id}.lock")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield Journal(root, writer_id, directory)
        finally:
            os.close(lock)


def writers(root: str) -> list[str]:
    """Return the ids of all writers that have a journal here."""
    try:
        with _location(root).open() as directory:
            return [
                name.removesuffix(".json") for name in directory.names() if name.endswith(".json")
            ]
    except FileNotFoundError:
        return []


def _location(root: str) -> Location:
    return Location(root=root, names=(SINK,))
