"""What an archive of Parquet files holds, queue by queue, and how that is kept.

``_chronicle/NAME.json`` next to the data lists the files of one queue; only listed files count. It is
replaced as a whole, after the files it lists are on disk and were verified, so whatever happens to a
job the archive is as it was before it, or as it should be after it. ``_chronicle/NAME.schema.json``
is the queue's schema. Names are escaped as Spark escapes the values of partition columns.
"""

import contextlib
import errno
import fcntl
import os
import urllib.parse
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aiochronicle._directories import make_directory, sync_directory
from aiochronicle._prepared import prepared
from aiochronicle.errors import (
    ExportFailed,
    LockedError,
    NotAQueue,
    QueueNotFound,
    UnsupportedVersion,
)
from aiochronicle.spark.options import LEDGERS

__all__ = [
    "ArchivedFile",
    "Ledger",
    "escape",
    "find_archive",
    "keep_schema",
    "locked",
    "schema_copy",
]

VERSION = 1
SCHEMA = ".schema.json"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: messages of one queue and day, in order. ``path`` is relative to the archive.

    ``digest`` is that of the messages, ``checksum`` of the bytes; older ledgers have none.
    """

    path: str
    first_seq: int
    end_seq: int
    rows: int
    bytes: int
    digest: str
    checksum: int | None = None


@prepared
class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All files of one queue; what is before ``next_seq`` is archived and verified.

    ``last`` is the fingerprint of the message before that, if it could be read. Not ``whole`` is an
    archive that began behind the first message of the queue.
    """

    version: int = VERSION
    source: str
    queue_id: int
    next_seq: int
    rows: int
    last: str | None = None
    whole: bool = True
    files: tuple[ArchivedFile, ...] = ()

    @classmethod
    def load(cls, archive: Path, source: str) -> "Ledger | None":
        """Read the ledger of a queue; None if it was never archived."""
        file = _file(archive, source)
        return _read(file) if file.exists() else None

    def save(self, archive: Path) -> None:
        """Replace the ledger, on disk, as a whole."""
        _replace(_file(archive, self.source), msgspec.json.format(msgspec.json.encode(self)))


def find_archive(archive: Path, queues: Collection[str] | None = None) -> list[Ledger]:
    """Return the ledgers of an archive, or of some of its queues; none if it is not an archive."""
    if not archive.exists():
        raise QueueNotFound("there is no such archive", path=str(archive), advice="")
    files = sorted((archive / LEDGERS).glob("*.json"))
    read = [_read(file) for file in files if not file.name.endswith(SCHEMA)]
    known = {ledger.source: ledger for ledger in read}
    if missing := sorted(set(queues or ()) - set(known)):
        there = ", ".join(sorted(known)) or "none at all"
        raise QueueNotFound(
            f"no queue {', '.join(missing)} in it; there are {there}",
            path=str(archive),
            advice="",
        )
    return [known[name] for name in sorted(queues or known)]


def _read(file: Path) -> Ledger:
    try:
        ledger = msgspec.json.decode(file.read_bytes(), type=Ledger)
    except msgspec.DecodeError as error:
        raise NotAQueue(f"not the ledger of an archive: {error}", path=str(file)) from error
    if ledger.version > VERSION:
        raise UnsupportedVersion(f"ledger version {ledger.version}", path=str(file))
    return ledger


def escape(source: str) -> str:
    """Return the name of a queue as one part of a path.

    >>> escape("md/binance")
    'md%2Fbinance'
    """
    return urllib.parse.quote(source, safe=" +,@~")


def schema_copy(archive: Path, source: str) -> Path:
    """Return where the schema of a queue is kept."""
    return archive / LEDGERS / f"{escape(source)}{SCHEMA}"


def keep_schema(archive: Path, source: str, schema: Path) -> None:
    """Copy the schema of a queue, if it has one."""
    with contextlib.suppress(FileNotFoundError):
        _replace(schema_copy(archive, source), schema.read_bytes())


@contextmanager
def locked(archive: Path) -> Generator[None]:
    """Make sure that one job at a time writes to the archive; LockedError otherwise."""
    directory = archive / LEDGERS
    try:
        make_directory(directory)
        lock = (directory / "lock").open("w", encoding="utf-8")
    except OSError as error:
        raise _failed(archive, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError("another job is archiving there", path=str(archive)) from error
        yield


def _file(archive: Path, source: str) -> Path:
    return archive / LEDGERS / f"{escape(source)}.json"


def _failed(path: Path, error: OSError) -> ExportFailed:
    return ExportFailed(
        error.strerror or str(error), path=str(path), errno=error.errno or errno.EIO
    )


def _replace(target: Path, content: bytes) -> None:
    fresh = target.with_name(f"{target.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise _failed(target, error) from error
