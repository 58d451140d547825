"""The queue's schema.json: reading it, comparing a program's types with it, bringing it up to date.

The file is data: no name found in it is ever imported or evaluated, and it is checked in full
before anything is made of it. ::

    {"version": 1,
     "types": [{"type_id": 1, "name": "Trade", "format": "msgpack", "fingerprint": "…",
                "fields": [{"name": "price", "type": "float"},
                           {"name": "venue", "type": "str", "required": false, "default": ""}]}]}
"""

import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any

import msgspec

from aiochronicle._description import Field, Record, build, differences
from aiochronicle._prepared import prepared
from aiochronicle._printable import printable
from aiochronicle._smallfile import check_depth, parse_json, read_small_file
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import (
    InvalidArgument,
    QueueGone,
    SchemaError,
    SchemaMismatch,
    UnsupportedVersion,
)
from aiochronicle.registry import TYPE_ID_MAX, RegisteredType, Registry, schema_file

__all__ = ["StoredType", "fingerprint", "read_schema", "reader_types", "writer_types"]

VERSION = 1
FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 256  # a struct inside another one is four levels


class StoredType(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A type as schema.json has it."""

    type_id: Annotated[int, msgspec.Meta(ge=0, le=TYPE_ID_MAX)]
    name: str
    format: Format
    fingerprint: str
    fields: tuple[Field, ...]
    array_like: bool = False
    tag_field: str | None = None
    tag: str | int | None = None

    @classmethod
    def of(cls, entry: RegisteredType, type_id: int) -> "StoredType":
        parts = {name: getattr(entry.record, name) for name in Record.__struct_fields__}
        return cls(type_id=type_id, format=entry.format, fingerprint=entry.fingerprint, **parts)

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
    """Return a digest that is the same if and only if format and description are."""
    return blake2b(msgspec.json.encode((form, record)), digest_size=16).hexdigest()


def read_schema(
    file: str, identity: tuple[int, int, int] | None = None
) -> dict[str, StoredType] | None:
    """Return the types of a schema.json by name; None if there is none.

    With ``identity`` (device, inode and owner) in that directory only: QueueGone if it is another.
    """
    try:
        content = _read_in(file, identity) if identity else read_small_file(file, FILE_BYTES_MAX)
        if content is None:
            return None
        version = parse_json(content, _AnyVersion, depth_max=DEPTH_MAX).version
        if version > VERSION:
            raise UnsupportedVersion(f"schema version {version}, not {VERSION}", path=file)
        types = parse_json(content, _Schema, depth_max=DEPTH_MAX).types
    except ValueError as error:
        raise SchemaError(printable(error), path=file) from error
    stored = {entry.name: entry for entry in types}
    if len(stored) < len(types) or len({entry.type_id for entry in types}) < len(types):
        raise SchemaError("a name or type_id is there twice", path=file)
    for entry in types:
        if entry.fingerprint != fingerprint(entry.format, entry.record):
            what = f"the fingerprint of {printable(entry.name)} is not its own"
            raise SchemaError(what, path=file)
    return stored


def _problems(stored: StoredType, entry: RegisteredType, *, writing: bool) -> list[str]:
    """Say field by field why a program's type is not the one of the queue."""
    if stored.fingerprint == entry.fingerprint:
        return []
    if stored.format != entry.format:
        return [f"format: was {stored.format!r}, is {entry.format!r}"]
    fixed = entry.format == "struct"
    problems = differences(stored.record, entry.record, ordered=fixed)
    # A reader may be older than the writer: the fields it does not know are left out.
    if not writing and not fixed and not differences(entry.record, stored.record, ordered=False):
        return []
    return problems


def _match(
    registry: Registry, stored: Mapping[str, StoredType], file: str, *, writing: bool
) -> dict[int, RegisteredType]:
    """Return the program's types by the queue's ids; SchemaMismatch if they do not agree.

    A writer's new types get ids, a reader's are left out.
    """
    names = {known.type_id: known.name for known in stored.values()}
    matched: dict[int, RegisteredType] = {}
    for entry in registry:
        known = stored.get(entry.name)
        if known is not None:
            problems = _problems(known, entry, writing=writing)
            if registry.fixed_ids and known.type_id != entry.type_id:
                problems.append(f"type_id: was {known.type_id}, is {entry.type_id}")
            if problems:
                raise SchemaMismatch(f"{entry.name} is not as in the queue", problems, path=file)
            matched[known.type_id] = entry
        elif registry.fixed_ids and entry.type_id in names:
            problems = [f"type_id {entry.type_id}: was {names[entry.type_id]}, is {entry.name}"]
            raise SchemaMismatch(f"{entry.name} has no id of its own", problems, path=file)
        elif writing:
            type_id = entry.type_id if registry.fixed_ids else _free_id(names)
            names[type_id] = entry.name
            matched[type_id] = entry
    if stored and not matched and len(registry):
        problems = [f"type_id {type_id}: {name}" for type_id, name in names.items()]
        wanted = ", ".join(entry.name for entry in registry)
        raise SchemaMismatch(f"there is no {wanted} in the queue, which has", problems, path=file)
    return matched


def _free_id(taken: Mapping[int, str]) -> int:
    type_id = max(taken, default=0) + 1
    if type_id <= TYPE_ID_MAX:
        return type_id
    return next(candidate for candidate in range(1, TYPE_ID_MAX + 1) if candidate not in taken)


def writer_types(
    registry: Registry, directory: str
) -> tuple[dict[int, RegisteredType], bytes | None]:
    """Compare with the queue's schema; return the types by id, and the new file if it changes."""
    file = schema_file(directory)
    stored = read_schema(file) or {}
    matched = _match(registry, stored, file, writing=True)
    updated = stored | {
        entry.name: StoredType.of(entry, type_id) for type_id, entry in matched.items()
    }
    if updated == stored:
        return matched, None
    types = tuple(sorted(updated.values(), key=lambda entry: entry.type_id))
    content = msgspec.json.encode(_Schema(version=VERSION, types=types))
    content = msgspec.json.format(content, indent=1) + b"\n"
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"a schema of {len(content)} bytes is too large", path=file)
    try:
        check_depth(content, DEPTH_MAX)
    except ValueError as error:  # no reader would take it
        raise InvalidArgument(f"a schema {error}", path=file) from error
    return matched, content


def _read_in(file: str, identity: tuple[int, int, int]) -> bytes | None:
    path, name = os.path.split(file)
    try:
        directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise QueueGone(f"cannot be opened: {error.strerror}", path=path) from error
    try:
        found = os.fstat(directory)
        if (found.st_dev, found.st_ino, found.st_uid) != identity:
            raise QueueGone("is not the directory that was found here", path=path)
        return read_small_file(name, FILE_BYTES_MAX, directory=directory)
    finally:
        os.close(directory)


def reader_types(
    registry: Registry, directory: str, identity: tuple[int, int, int] | None = None
) -> dict[int, RegisteredType]:
    """Compare with the queue's schema; return the types by id."""
    file = schema_file(directory)
    stored = read_schema(file, identity)
    if stored is None:  # nobody else says what the ids mean
        return {entry.type_id: entry for entry in registry}
    return _match(registry, stored, file, writing=False)
