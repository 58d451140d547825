"""Reads and formats the queue's schema.json.

The file is data: no name in it is ever imported or evaluated, and the whole file is checked before any type
is created from it. ::

    {"version": 1,
     "types": [{"type_id": 1, "name": "Trade", "format": "msgpack", "fingerprint": "…",
                "fields": [{"name": "price", "type": "float"},
                           {"name": "venue", "type": "str", "required": false, "default": ""}]}]}
"""

import os
from hashlib import blake2b
from typing import Annotated, Any

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._base.printable import printable
from aiochronicle._base.system_errors import storage_error
from aiochronicle._files import parse_json, read_small_file
from aiochronicle._layout import TYPE_ID_MAX
from aiochronicle._typed.description import Field, Record, build
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import (
    QueueGone,
    SchemaError,
    UnsupportedVersion,
)

__all__ = [
    "DEPTH_MAX",
    "FILE_BYTES_MAX",
    "VERSION",
    "StoredType",
    "fingerprint",
    "parse_schema",
    "read_schema",
    "schema_of",
]

VERSION = 1
FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 256  # a struct inside another one is four levels


class StoredType(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A type as schema.json stores it."""

    type_id: Annotated[int, msgspec.Meta(ge=0, le=TYPE_ID_MAX)]
    name: str
    format: Format
    fingerprint: str
    fields: tuple[Field, ...]
    array_like: bool = False
    tag_field: str | None = None
    tag: str | int | None = None

    @property
    def record(self) -> Record:
        return Record(**{name: getattr(self, name) for name in Record.__struct_fields__})

    def build(self) -> Codec[Any]:
        return build(self.record, self.format)


@prepared
class _Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    types: tuple[StoredType, ...]


@prepared
class _AnyVersion(msgspec.Struct, frozen=True):
    version: int


def fingerprint(form: Format, record: Record) -> str:
    """Return a digest of format and description; equal digests mean equal types."""
    return blake2b(msgspec.json.encode((form, record)), digest_size=16).hexdigest()


def schema_of(types: tuple[StoredType, ...]) -> bytes:
    """Return the content of a schema.json that has these types."""
    content = msgspec.json.encode(_Schema(version=VERSION, types=types))
    return msgspec.json.format(content, indent=1) + b"\n"


def read_schema(
    file: str, identity: tuple[int, int, int] | None = None
) -> dict[str, StoredType] | None:
    """Return the types of a schema.json by name; None if there is no such file.

    ``identity`` is device, inode and owner of its directory: QueueGone if another directory is there now.
    """
    try:
        content = _read_in(file, identity) if identity else read_small_file(file, FILE_BYTES_MAX)
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, printable(error), file) from error
        raise SchemaError(printable(error), path=file) from error
    return None if content is None else parse_schema(content, file)


def parse_schema(content: bytes, file: str) -> dict[str, StoredType]:
    """Return the types in the content of a schema.json by name; errors name the file."""
    try:
        version = parse_json(content, _AnyVersion, depth_max=DEPTH_MAX).version
        if version > VERSION:
            raise UnsupportedVersion(
                f"the schema has version {version}, this program knows {VERSION}", path=file
            )
        types = parse_json(content, _Schema, depth_max=DEPTH_MAX).types
    except ValueError as error:
        raise SchemaError(printable(error), path=file) from error
    stored = {entry.name: entry for entry in types}
    if len(stored) < len(types) or len({entry.type_id for entry in types}) < len(types):
        raise SchemaError("a name or type_id occurs twice", path=file)
    for entry in types:
        if entry.fingerprint != fingerprint(entry.format, entry.record):
            what = f"the fingerprint of {printable(entry.name)} does not match its description"
            raise SchemaError(what, path=file)
    return stored


def _read_in(file: str, identity: tuple[int, int, int]) -> bytes | None:
    path, name = os.path.split(file)
    try:
        directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise QueueGone(f"the directory cannot be opened: {error.strerror}", path=path) from error
    try:
        found = os.fstat(directory)
        if (found.st_dev, found.st_ino, found.st_uid) != identity:
            raise QueueGone("another directory has replaced the one that was found here", path=path)
        return read_small_file(name, FILE_BYTES_MAX, directory=directory)
    finally:
        os.close(directory)
