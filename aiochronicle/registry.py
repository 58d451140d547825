"""Which type_id is which type, kept in the queue's schema.json.

A Registry is what a program says; schema.json is what the queue says. A writer that is opened with
a codec compares the two and brings the file up to date, a reader compares them. A type is known by
its name. It may gain fields that have defaults; nothing else about it may change, because what is
in the queue already would be read wrongly. ::

    {"version": 1,
     "types": [{"type_id": 1, "name": "Trade", "format": "msgpack", "fingerprint": "…",
                "fields": [{"name": "price", "type": "float"},
                           {"name": "venue", "type": "str", "required": false, "default": ""}]}]}

The file is data: no name found in it is ever imported or evaluated, and it is checked in full
before anything is made of it.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec

from aiochronicle import _hot
from aiochronicle._description import Field, Record, build, describe, differences
from aiochronicle._smallfile import read_small_file
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import (
    ChronicleError,
    DecodeError,
    InvalidArgument,
    SchemaError,
    SchemaMismatch,
    SchemaNotFound,
    UnknownType,
    UnsupportedVersion,
)

__all__ = ["RegisteredType", "Registry"]

FILE_NAME = "schema.json"
VERSION = 1
FILE_BYTES_MAX = 1 << 20
TYPE_ID_MAX = 65535

TypeOrCodec: TypeAlias = type[Any] | Codec[Any]


class RegisteredType(msgspec.Struct, frozen=True):
    """A type of a Registry: its id, its codec, and its description."""

    type_id: int
    codec: Codec[Any]
    record: Record

    @property
    def name(self) -> str:
        """What schema.json calls it."""
        return self.codec.name

    @property
    def format(self) -> Format:
        """How it is encoded."""
        return self.codec.format

    @property
    def fields(self) -> tuple[Field, ...]:
        """Name, type and default of each field."""
        return self.record.fields

    @property
    def fingerprint(self) -> str:
        """Digest of format and description: equal if and only if these are."""
        return _fingerprint(self.format, self.record)


class Registry:
    """The types a program writes or reads: a mapping of type_ids, or types for which to find them.

    Without ids a type gets the one it has in the queue's schema.json, or the next that is free;
    0 is for messages without a type. ``format`` is for the types that are not Codecs.

    >>> class Trade(msgspec.Struct):
    ...     price: float
    >>> class Quote(msgspec.Struct):
    ...     bid: float
    ...     ask: float
    >>> [(entry.type_id, entry.name) for entry in Registry([Trade, Codec(Quote, "json")])]
    [(1, 'Trade'), (2, 'Quote')]
    >>> Registry({7: Trade})[7].format
    'msgpack'
    """

    def __init__(
        self,
        types: Mapping[int, TypeOrCodec] | Sequence[TypeOrCodec] = (),
        *,
        format: Format = "msgpack",
    ) -> None:
        self.fixed_ids = isinstance(types, Mapping)
        given_types = _numbered(types)
        self._by_id: dict[int, RegisteredType] = {}
        self._by_name: dict[str, RegisteredType] = {}
        self._by_type: dict[type[Any], RegisteredType] = {}
        for type_id, given in given_types:
            codec = given if isinstance(given, Codec) else Codec(given, format)
            self._put(RegisteredType(type_id, codec, describe(codec)))

    def _put(self, entry: RegisteredType) -> None:
        if not 0 <= entry.type_id <= TYPE_ID_MAX:
            raise InvalidArgument(f"type_id must be 0 to {TYPE_ID_MAX}, not {entry.type_id!r}")
        if entry.name in self._by_name or entry.codec.type in self._by_type:
            raise InvalidArgument(f"{entry.name} is there twice; give one Codec another name")
        self._by_id[entry.type_id] = entry
        self._by_name[entry.name] = entry
        self._by_type[entry.codec.type] = entry

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Registry":
        """Read the schema.json of a queue, without having its classes.

        ``path`` is the queue's directory or the file itself. The codecs are for classes made of the
        description: same fields, same defaults, keyword-only.

        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> open_writer(tmp_path / "trades", codec=Trade).close()
        >>> Registry.load(tmp_path / "trades").named("Trade").codec.type(price=101.5)
        Trade(price=101.5)
        """
        file = os.fspath(path)
        if os.path.isdir(file):  # noqa: PTH112
            file = schema_file(file)
        stored = _read(file)
        if stored is None:
            raise SchemaNotFound("there is no such file", path=file)
        registry = cls({})
        for entry in stored.values():
            try:
                registry._put(RegisteredType(entry.type_id, entry.build(), entry.record))
            except (ValueError, TypeError, NameError, RecursionError) as error:
                raise SchemaError(f"{entry.name} cannot be made: {error}", path=file) from error
        return registry

    def named(self, name: str) -> RegisteredType:
        """Return the type of this name, or KeyError."""
        return self._by_name[name]

    def of(self, type: type[Any]) -> RegisteredType:
        """Return the entry of a class, or KeyError."""
        return self._by_type[type]

    def __getitem__(self, type_id: int) -> RegisteredType:
        return self._by_id[type_id]

    def __contains__(self, type_id: object) -> bool:
        return type_id in self._by_id

    def __iter__(self) -> Iterator[RegisteredType]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        types = ", ".join(f"{entry.type_id}: {entry.codec!r}" for entry in self)
        return f"Registry({{{types}}})"


def _numbered(
    types: Mapping[int, TypeOrCodec] | Sequence[TypeOrCodec],
) -> Iterable[tuple[int, TypeOrCodec]]:
    if isinstance(types, Mapping):
        return types.items()
    return enumerate(types, start=1)


def registry_of(codec: "TypeOrCodec | Registry | Sequence[TypeOrCodec]") -> Registry:
    """Return what ``codec=`` of open_writer and open_reader stands for."""
    if isinstance(codec, Registry):
        return codec
    if isinstance(codec, type | Codec):
        return Registry([codec])
    return Registry(codec)


def schema_file(directory: str) -> str:
    """Return where the schema of a queue is."""
    return f"{directory}/{FILE_NAME}"


class _Stored(
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
    def of(cls, entry: RegisteredType, type_id: int) -> "_Stored":
        parts = {name: getattr(entry.record, name) for name in Record.__struct_fields__}
        return cls(type_id=type_id, format=entry.format, fingerprint=entry.fingerprint, **parts)

    @property
    def record(self) -> Record:
        return Record(**{name: getattr(self, name) for name in Record.__struct_fields__})

    def build(self) -> Codec[Any]:
        return build(self.record, self.format)


class _Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    types: tuple[_Stored, ...]


class _AnyVersion(msgspec.Struct, frozen=True):
    version: int


def _fingerprint(format: str, record: Record) -> str:
    from hashlib import blake2b

    return blake2b(msgspec.json.encode((format, record)), digest_size=16).hexdigest()


def _read(file: str) -> dict[str, _Stored] | None:
    """Return the types of a schema.json by name; None if there is none."""
    try:
        content = read_small_file(file, FILE_BYTES_MAX)
        if content is None:
            return None
        version = msgspec.json.decode(content, type=_AnyVersion).version
        if version > VERSION:
            raise UnsupportedVersion(f"schema version {version}, not {VERSION}", path=file)
        types = msgspec.json.decode(content, type=_Schema).types
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise SchemaError(str(error), path=file) from error
    stored = {entry.name: entry for entry in types}
    if len(stored) < len(types) or len({entry.type_id for entry in types}) < len(types):
        raise SchemaError("a name or type_id is there twice", path=file)
    for entry in types:
        if entry.fingerprint != _fingerprint(entry.format, entry.record):
            raise SchemaError(f"the fingerprint of {entry.name} is not its own", path=file)
    return stored


def _problems(stored: _Stored, entry: RegisteredType, *, writing: bool) -> list[str]:
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


def _matched(
    registry: Registry, stored: Mapping[str, _Stored], file: str, *, writing: bool
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


def schema_for_writer(
    registry: Registry, directory: str
) -> tuple[dict[int, RegisteredType], bytes | None]:
    """Compare with the queue's schema; return the types by id, and the new file if it changes."""
    file = schema_file(directory)
    stored = _read(file) or {}
    matched = _matched(registry, stored, file, writing=True)
    updated = stored | {
        entry.name: _Stored.of(entry, type_id) for type_id, entry in matched.items()
    }
    if updated == stored:
        return matched, None
    types = tuple(sorted(updated.values(), key=lambda entry: entry.type_id))
    content = msgspec.json.encode(_Schema(version=VERSION, types=types))
    content = msgspec.json.format(content, indent=1) + b"\n"
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"a schema of {len(content)} bytes is too large", path=file)
    return matched, content


class Decoders:
    """What the messages of one reader find their decoders with.

    The schema is read when the reader is opened, or, if there is none yet, when the first message
    is decoded; and again if a type_id is unknown, since the writer may have added a type.
    """

    def __init__(self, directory: str, registry: Registry | None) -> None:
        self.directory = directory
        self._registry = registry
        self._codecs: dict[int, Codec[Any]] = {}
        self._bound: tuple[int, int, int] | None = None  # stamp of the file they come from
        if registry is not None and self._stamp() is not None:
            self._bind(registry)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.lstat(schema_file(self.directory))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _bind(self, registry: Registry) -> None:
        file = schema_file(self.directory)
        stamp = self._stamp()  # before reading: a change in between is noticed the next time
        stored = _read(file)
        if stored is None:  # nobody else says what the ids mean
            self._codecs = {entry.type_id: entry.codec for entry in registry}
        else:
            matched = _matched(registry, stored, file, writing=False)
            self._codecs = {type_id: entry.codec for type_id, entry in matched.items()}
        if len(registry) == 1:  # messages without a type can only be of this one
            self._codecs.setdefault(0, next(iter(registry)).codec)
        self._bound = stamp

    def may_give(self, type: type[Any]) -> bool:
        """Tell whether the type is one of the reader's codec."""
        return self._registry is not None and type in {e.codec.type for e in self._registry}

    def codec(self, message: _hot.Message) -> Codec[Any]:
        """Return the codec for this type_id, or UnknownType."""
        registry, type_id = self._registry, message.type_id
        if registry is None:
            raise UnknownType(
                "the reader has no codec; give it one, or say message.decode(type)",
                **self.place(message),
            )
        if type_id not in self._codecs and (self._bound is None or self._bound != self._stamp()):
            self._bind(registry)
        if type_id not in self._codecs:
            raise UnknownType(f"type_id {type_id} is none of {registry!r}", **self.place(message))
        return self._codecs[type_id]

    def decoder_as(self, message: _hot.Message, wanted: Any) -> Callable[[Any], Any]:
        """Return what decodes this message as a type of the caller's choice."""
        if isinstance(wanted, Codec):
            return wanted.decoder
        if self._registry is not None:
            with contextlib.suppress(KeyError):
                return self._registry.of(wanted).codec.decoder
            if message.type_id in self._codecs:
                return _codec_of(wanted, self._codecs[message.type_id].format).decoder
        return _codec_of(wanted, "msgpack").decoder

    def place(self, message: _hot.Message) -> dict[str, Any]:
        """Return where the message is, for errors."""
        segment, offset = message.position
        return {
            "path": f"{self.directory}/{segment:09d}.q",
            "offset": offset,
            "seq": message.seq,
        }


@lru_cache(maxsize=256)
def _codec_of(type: type[Any], format: Format) -> Codec[Any]:
    return Codec(type, format)


def find_decoder(decoders: Decoders, message: _hot.Message, wanted: Any) -> Callable[[Any], Any]:
    """Answer the message's question what to decode it with; called from C, once per segment."""
    if wanted is None:
        return decoders.codec(message).decoder
    return decoders.decoder_as(message, wanted)


def decode_failed(decoders: Decoders, message: _hot.Message, error: Exception) -> DecodeError:
    """Make the exception for a payload that its decoder refused; called from C."""
    detail = error.detail if isinstance(error, ChronicleError) else str(error)
    return DecodeError(
        f"type_id {message.type_id} cannot be decoded: {detail}", **decoders.place(message)
    )


_hot.set_decoding(find_decoder, decode_failed)
