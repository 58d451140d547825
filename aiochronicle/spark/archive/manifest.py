"""The content of an archive of Parquet files, queue by queue, and how it is stored.

``_chronicle/NAME.json`` next to the data lists the files of one queue; only listed files count. It is
replaced as a whole, after the files it lists are on disk and verified. So whatever happens to a job, the
archive is in the state before it or in the complete state after it. ``_chronicle/NAME.schema.json``
is the queue's schema. Names are escaped as Spark escapes the values of partition columns.

A manifest decides what is deleted, in the archive and by retention. Jobs therefore use only manifests that no
other user can have written. Reading the archive of another user is allowed.
"""

from collections.abc import Collection
from pathlib import Path

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._base.printable import printable
from aiochronicle._files import read_small_file
from aiochronicle._layout import SCHEMA as QUEUE_SCHEMA
from aiochronicle._layout import schema_path
from aiochronicle.errors import (
    NotAQueue,
    QueueNotFound,
    SchemaError,
    UnsupportedVersion,
)
from aiochronicle.spark.archive.names import escape
from aiochronicle.spark.archive.store import Store, open_store
from aiochronicle.spark.options import MANIFESTS
from aiochronicle.spark.private_files import FILE_MODE
from aiochronicle.spark.source.found import FoundDirectory

__all__ = [
    "ArchivedFile",
    "Manifest",
    "find_archive",
    "keep_schema",
    "schema_copy",
]

VERSION = 2  # 1 had no types: all files have unchanged messages
SCHEMA = ".schema.json"
FILE_BYTES_MAX = 256 << 20


@prepared
class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: messages of one queue and day, in order. ``path`` is relative to the archive.

    ``digest`` is that of the messages, ``checksum`` of the bytes; older manifests have none. ``type`` is
    the dataset, if the file has the fields of a type as columns, with the type's ``fingerprint``; ``kept`` of
    its rows have their payload.
    """

    path: str
    first_seq: int
    end_seq: int
    rows: int
    bytes: int
    digest: str
    checksum: int | None = None
    type: str | None = None
    fingerprint: str | None = None
    kept: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None

    @property
    def day(self) -> str:
        """Return the day of its messages, as in 2026-11-16."""
        part = next(name for name in self.path.split("/") if name.startswith("date="))
        return part.removeprefix("date=")


@prepared
class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All files of one queue; everything before ``next_seq`` is archived and verified.

    ``last`` is the fingerprint of the message before that, if it could be read. An archive that began after
    the first message of the queue is not ``whole``.
    """

    version: int = VERSION
    source: str
    queue_id: int
    next_seq: int
    rows: int
    last: str | None = None
    whole: bool = True
    table: str = "parquet"
    files: tuple[ArchivedFile, ...] = ()

    @classmethod
    def load(cls, archive: Store | Path | str, source: str) -> "Manifest | None":
        """Read the manifest of a queue; None if it was never archived."""
        store, name = open_store(archive), f"{escape(source)}.json"
        try:
            return _decode(store, name, store.read_own(name, FILE_BYTES_MAX))
        except ValueError as error:
            raise _not_a_manifest(store, name, error) from error

    def save(self, archive: Store | Path | str, mode: int = FILE_MODE) -> None:
        """Replace the manifest atomically and durably."""
        content = msgspec.json.format(msgspec.json.encode(self))
        open_store(archive).replace(f"{escape(self.source)}.json", content, mode)


def find_archive(
    archive: Store | Path | str, queues: Collection[str] | None = None
) -> list[Manifest]:
    """Return the manifests of an archive, or of some of its queues; none if it is not an archive."""
    store = open_store(archive)
    if not store.exists():
        raise QueueNotFound("there is no such archive", path=store.root, advice="")
    names = store.manifests()
    read = [_read(store, name) for name in names if not name.endswith(SCHEMA)]
    known = {manifest.source: manifest for manifest in read if manifest is not None}
    if missing := sorted(set(queues or ()) - set(known)):
        there = ", ".join(map(printable, sorted(known))) or "none at all"
        raise QueueNotFound(
            f"no queue {', '.join(map(printable, missing))} in it; there are {there}",
            path=store.root,
            advice="",
        )
    return [known[name] for name in sorted(queues or known)]


def _read(store: Store, name: str) -> Manifest | None:
    try:
        return _decode(store, name, store.read_any(name, FILE_BYTES_MAX))
    except ValueError as error:
        raise _not_a_manifest(store, name, error) from error


def _decode(store: Store, name: str, content: bytes | None) -> Manifest | None:
    if content is None:
        return None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_a_manifest(store, name, error) from error
    if manifest.version > VERSION:
        what = f"manifest version {manifest.version}"
        raise UnsupportedVersion(what, path=_place(store, name))
    if name != f"{escape(manifest.source)}.json":
        raise _not_a_manifest(store, name, f"it is that of {manifest.source!r}")
    for path in (manifest.source, *(archived.path for archived in manifest.files)):
        if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
            raise _not_a_manifest(store, name, f"{path!r} is not below the archive")
    return manifest


def _not_a_manifest(store: Store, name: str, why: object) -> NotAQueue:
    return NotAQueue(
        f"not the manifest of an archive: {why}",
        path=_place(store, name),
        advice="Nothing was changed. Restore it from a backup, or archive into another directory.",
    )


def _place(store: Store, name: str) -> str:
    return f"{store.root}/{MANIFESTS}/{name}"


def schema_copy(archive: Store | Path | str, source: str) -> bytes | None:
    """Return the schema of a queue, as stored in the archive; None if it had none."""
    store, name = open_store(archive), f"{escape(source)}{SCHEMA}"
    try:
        return store.read_any(name, FILE_BYTES_MAX)
    except ValueError as error:
        raise SchemaError(str(error), path=_place(store, name)) from error


def keep_schema(store: Store, source: str, queue: FoundDirectory, mode: int = FILE_MODE) -> None:
    """Copy the schema of a queue, if it has one; SchemaError if that is a link, or too large."""
    try:
        with queue.opened() as directory:
            content = read_small_file(QUEUE_SCHEMA, FILE_BYTES_MAX, directory=directory)
    except ValueError as error:
        raise SchemaError(str(error), path=schema_path(queue.path)) from error
    if content is not None:
        store.replace(f"{escape(source)}{SCHEMA}", content, mode)
