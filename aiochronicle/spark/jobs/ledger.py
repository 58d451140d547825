"""What an archive of Parquet files holds, queue by queue, and how that is kept.

``_chronicle/NAME.json`` next to the data lists the files of one queue; only listed files count. It is
replaced as a whole, after the files it lists are on disk and were verified, so whatever happens to a
job the archive is as it was before it, or as it should be after it. ``_chronicle/NAME.schema.json``
is the queue's schema. Names are escaped as Spark escapes the values of partition columns.

A ledger decides what is deleted, in the archive and by retention. So jobs use those only that nobody else
can have written; whoever reads an archive may read that of another user.
"""

import errno
import fcntl
import os
import urllib.parse
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aiochronicle._prepared import prepared
from aiochronicle._printable import printable
from aiochronicle._smallfile import read_small_file
from aiochronicle.errors import (
    AccessDenied,
    ExportFailed,
    LockedError,
    NotAQueue,
    QueueNotFound,
    SchemaError,
    UnsupportedVersion,
)
from aiochronicle.registry import FILE_NAME, schema_file
from aiochronicle.spark.found import FoundDirectory
from aiochronicle.spark.options import LEDGERS
from aiochronicle.spark.private_files import FILE_MODE, Location, directory_mode

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
FILE_BYTES_MAX = 256 << 20


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
        try:
            with _location(archive).open() as directory:
                return _decode(file, directory.read(file.name, FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _no_ledger(file, error) from error

    def save(self, archive: Path, mode: int = FILE_MODE) -> None:
        """Replace the ledger, on disk, as a whole."""
        content = msgspec.json.format(msgspec.json.encode(self))
        _replace(_file(archive, self.source), content, mode)


def find_archive(archive: Path, queues: Collection[str] | None = None) -> list[Ledger]:
    """Return the ledgers of an archive, or of some of its queues; none if it is not an archive."""
    if not archive.exists():
        raise QueueNotFound("there is no such archive", path=str(archive), advice="")
    files = sorted((archive / LEDGERS).glob("*.json"))
    read = [_read(file) for file in files if not file.name.endswith(SCHEMA)]
    known = {ledger.source: ledger for ledger in read if ledger is not None}
    if missing := sorted(set(queues or ()) - set(known)):
        there = ", ".join(map(printable, sorted(known))) or "none at all"
        raise QueueNotFound(
            f"no queue {', '.join(map(printable, missing))} in it; there are {there}",
            path=str(archive),
            advice="",
        )
    return [known[name] for name in sorted(queues or known)]


def _read(file: Path) -> Ledger | None:
    try:
        return _decode(file, read_small_file(str(file), FILE_BYTES_MAX))
    except ValueError as error:
        raise _no_ledger(file, error) from error


def _decode(file: Path, content: bytes | None) -> Ledger | None:
    if content is None:
        return None
    try:
        ledger = msgspec.json.decode(content, type=Ledger)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _no_ledger(file, error) from error
    if ledger.version > VERSION:
        raise UnsupportedVersion(f"ledger version {ledger.version}", path=str(file))
    if file.name != f"{escape(ledger.source)}.json":
        raise _no_ledger(file, f"it is that of {ledger.source!r}")
    for name in (ledger.source, *(archived.path for archived in ledger.files)):
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise _no_ledger(file, f"{name!r} is not below the archive")
    return ledger


def _no_ledger(file: Path, why: object) -> NotAQueue:
    return NotAQueue(
        f"not the ledger of an archive: {why}",
        path=str(file),
        advice="Nothing was changed. Restore it from a backup, or archive into another directory.",
    )


def escape(source: str) -> str:
    """Return the name of a queue as one part of a path.

    >>> escape("md/binance")
    'md%2Fbinance'
    """
    return urllib.parse.quote(source, safe=" +,@~")


def schema_copy(archive: Path, source: str) -> Path:
    """Return where the schema of a queue is kept."""
    return archive / LEDGERS / f"{escape(source)}{SCHEMA}"


def keep_schema(archive: Path, source: str, queue: FoundDirectory, mode: int = FILE_MODE) -> None:
    """Copy the schema of a queue, if it has one; SchemaError if that is a link, or too large."""
    try:
        with queue.opened() as directory:
            content = read_small_file(FILE_NAME, FILE_BYTES_MAX, directory=directory)
    except ValueError as error:
        raise SchemaError(str(error), path=schema_file(queue.path)) from error
    if content is not None:
        _replace(schema_copy(archive, source), content, mode)


@contextmanager
def locked(archive: Path) -> Generator[None]:
    """Make sure that one job at a time writes to the archive; LockedError otherwise.

    AccessDenied if others could have changed what the archive says about itself.
    """
    try:
        with _location(archive).make() as directory:
            lock = directory.open_lock("lock")
    except AccessDenied:
        raise
    except OSError as error:
        raise _failed(archive, error) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError("another job is archiving there", path=str(archive)) from error
        yield
    finally:
        os.close(lock)


def _location(archive: Path) -> Location:
    return Location(root=str(archive), names=(LEDGERS,))


def _file(archive: Path, source: str) -> Path:
    return archive / LEDGERS / f"{escape(source)}.json"


def _failed(path: Path, error: OSError) -> ExportFailed:
    return ExportFailed(
        error.strerror or str(error), path=str(path), errno=error.errno or errno.EIO
    )


def _replace(target: Path, content: bytes, mode: int) -> None:
    try:
        with _location(target.parent.parent).make(directory_mode(mode)) as directory:
            directory.replace(target.name, content, mode)
    except AccessDenied:
        raise
    except OSError as error:
        raise _failed(target, error) from error
