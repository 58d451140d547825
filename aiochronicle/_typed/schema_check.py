"""Compares a program's types with those of the queue's schema.json, and assigns their type_ids."""

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


def _find_problems(stored: StoredType, entry: RegisteredType, *, writing: bool) -> list[str]:
    """Return, field by field, how a program's type differs from that of the queue."""
    if stored.fingerprint == entry.fingerprint:
        return []
    if stored.format != entry.format:
        return [f"format: was {stored.format!r}, is {entry.format!r}"]
    fixed = entry.format == "struct"
    problems = differences(stored.record, entry.record, ordered=fixed)
    # A reader may be older than the writer: it ignores fields that it does not know.
    if not writing and not fixed and not differences(entry.record, stored.record, ordered=False):
        return []
    return problems


def _match(
    registry: Registry, stored: Mapping[str, StoredType], file: str, *, writing: bool
) -> dict[int, RegisteredType]:
    """Return the program's types by the queue's ids; SchemaMismatch if they do not agree.

    New types of a writer get ids; those of a reader are ignored.
    """
    names = {known.type_id: known.name for known in stored.values()}
    matched: dict[int, RegisteredType] = {}
    for entry in registry:
        known = stored.get(entry.name)
        if known is not None:
            problems = _find_problems(known, entry, writing=writing)
            if registry.fixed_ids and known.type_id != entry.type_id:
                problems.append(f"type_id: was {known.type_id}, is {entry.type_id}")
            if problems:
                raise SchemaMismatch(
                    f"{entry.name} differs from the queue's type", problems, path=file
                )
            matched[known.type_id] = entry
        elif registry.fixed_ids and entry.type_id in names:
            problems = [f"type_id {entry.type_id}: was {names[entry.type_id]}, is {entry.name}"]
            raise SchemaMismatch(
                f"the type_id of {entry.name} belongs to another type", problems, path=file
            )
        elif writing:
            type_id = entry.type_id if registry.fixed_ids else _free_id(names)
            names[type_id] = entry.name
            matched[type_id] = entry
    if stored and not matched and len(registry):
        problems = [f"type_id {type_id}: {name}" for type_id, name in names.items()]
        wanted = ", ".join(entry.name for entry in registry)
        raise SchemaMismatch(f"the queue has no type {wanted}; it has", problems, path=file)
    return matched


def _free_id(taken: Mapping[int, str]) -> int:
    type_id = max(taken, default=0) + 1
    if type_id <= TYPE_ID_MAX:
        return type_id
    return next(candidate for candidate in range(1, TYPE_ID_MAX + 1) if candidate not in taken)


def writer_types(
    registry: Registry, directory: str
) -> tuple[dict[int, RegisteredType], bytes | None]:
    """Compare with the queue's schema; return the types by id, and the new content if it changes."""
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
        raise InvalidArgument(
            f"the schema has {len(content)} bytes, the maximum is {FILE_BYTES_MAX}: register fewer types",
            path=file,
        )
    try:
        check_depth(content, DEPTH_MAX)
    except ValueError as error:  # readers would refuse it
        raise InvalidArgument(f"the schema is {error}", path=file) from error
    return matched, content


def reader_types(
    registry: Registry, directory: str, identity: tuple[int, int, int] | None = None
) -> dict[int, RegisteredType]:
    """Compare with the queue's schema; return the types by id."""
    file = schema_path(directory)
    stored = read_schema(file, identity)
    if stored is None:  # only the program defines the ids
        return {entry.type_id: entry for entry in registry}
    return _match(registry, stored, file, writing=False)
