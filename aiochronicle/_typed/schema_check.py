"""A program's types compared with those of the queue's schema.json, and the ids that they get."""

from collections.abc import Mapping

from aiochronicle._files import check_depth
from aiochronicle._layout import TYPE_ID_MAX, schema_path
from aiochronicle._typed.description import Record, differences
from aiochronicle._typed.registry import RegisteredType, Registry
from aiochronicle._typed.schema_file import (
    DEPTH_MAX,
    FILE_BYTES_MAX,
    StoredType,
    read_schema,
    schema_of,
)
from aiochronicle.errors import (
    InvalidArgument,
    SchemaMismatch,
)

__all__ = ["reader_types", "writer_types"]


def _store_type(entry: RegisteredType, type_id: int) -> StoredType:
    parts = {name: getattr(entry.record, name) for name in Record.__struct_fields__}
    return StoredType(type_id=type_id, format=entry.format, fingerprint=entry.fingerprint, **parts)


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
    file = schema_path(directory)
    stored = read_schema(file) or {}
    matched = _match(registry, stored, file, writing=True)
    updated = stored | {
        entry.name: _store_type(entry, type_id) for type_id, entry in matched.items()
    }
    if updated == stored:
        return matched, None
    types = tuple(sorted(updated.values(), key=lambda entry: entry.type_id))
    content = schema_of(types)
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"a schema of {len(content)} bytes is too large", path=file)
    try:
        check_depth(content, DEPTH_MAX)
    except ValueError as error:  # no reader would take it
        raise InvalidArgument(f"a schema {error}", path=file) from error
    return matched, content


def reader_types(
    registry: Registry, directory: str, identity: tuple[int, int, int] | None = None
) -> dict[int, RegisteredType]:
    """Compare with the queue's schema; return the types by id."""
    file = schema_path(directory)
    stored = read_schema(file, identity)
    if stored is None:  # nothing else defines the ids
        return {entry.type_id: entry for entry in registry}
    return _match(registry, stored, file, writing=False)
