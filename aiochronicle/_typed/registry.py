"""Maps type_ids to types.

A Registry has the types of a program; the queue's schema.json has those of the queue. A writer that is
opened with a codec compares the two and updates the file; a reader compares them. A type is identified by its
name. It may gain fields with defaults. Nothing else may change, because existing messages would be misread.

The modules that describe types and read the file are imported on first use, because most programs need
neither.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from aiochronicle._base.arguments import expect_several, integer
from aiochronicle._base.printable import printable
from aiochronicle._layout import TYPE_ID_MAX, schema_path
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import InvalidArgument, SchemaError, SchemaNotFound

if TYPE_CHECKING:
    from aiochronicle._typed.description import Field, Record
    from aiochronicle._typed.schema_file import StoredType

__all__ = ["RegisteredType", "Registry"]

TypeOrCodec: TypeAlias = type[Any] | Codec[Any]


class RegisteredType(msgspec.Struct, frozen=True):
    """A type of a Registry: its id, its codec, and its description."""

    type_id: int
    codec: Codec[Any]
    record: "Record"

    @property
    def name(self) -> str:
        """Its name in schema.json."""
        return self.codec.name

    @property
    def format(self) -> Format:
        """How it is encoded."""
        return self.codec.format

    @property
    def fields(self) -> "tuple[Field, ...]":
        """Name, type and default of each field."""
        return self.record.fields

    @property
    def fingerprint(self) -> str:
        """Digest of format and description; equal digests mean equal types."""
        from aiochronicle._typed.schema_file import fingerprint

        return fingerprint(self.format, self.record)


class Registry:
    """The types that a program writes or reads: types by type_id, or types that get one.

    Without ids, a type gets the type_id that it has in the queue's schema.json, or the next free one.
    type_id 0 is for messages without a type. ``format`` applies to types that are not Codecs.

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
        from aiochronicle._typed.description import describe

        self.fixed_ids = isinstance(types, Mapping)
        given_types = _assign_ids(types)
        self._by_id: dict[int, RegisteredType] = {}
        self._by_name: dict[str, RegisteredType] = {}
        self._by_type: dict[type[Any], RegisteredType] = {}
        for type_id, given in given_types:
            codec = given if isinstance(given, Codec) else Codec(given, format)
            self._add(RegisteredType(type_id, codec, describe(codec)))

    def _add(self, entry: RegisteredType) -> None:
        integer("type_id", entry.type_id, 0, TYPE_ID_MAX)
        if entry.name in self._by_name or entry.codec.type in self._by_type:
            raise InvalidArgument(f"{entry.name} occurs twice: give one Codec another name")
        self._by_id[entry.type_id] = entry
        self._by_name[entry.name] = entry
        self._by_type[entry.codec.type] = entry

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Registry":
        """Read the schema.json of a queue; the program does not need the queue's classes.

        ``path`` is the queue's directory or the file itself. The classes are created from the description,
        with the same fields and defaults, keyword-only.

        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> open_writer(tmp_path / "trades", codec=Trade).close()
        >>> Registry.load(tmp_path / "trades").named("Trade").codec.type(price=101.5)
        Trade(price=101.5)
        """
        from aiochronicle._typed.schema_file import read_schema

        file = os.fspath(path)
        if os.path.isdir(file):  # noqa: PTH112
            file = schema_path(file)
        stored = read_schema(file)
        if stored is None:
            raise SchemaNotFound("there is no such file", path=file)
        return cls._of_stored(stored, file)

    @classmethod
    def _parse(cls, content: bytes, file: str) -> "Registry":
        """Create it from the content of a schema.json; errors name the file."""
        from aiochronicle._typed.schema_file import parse_schema

        return cls._of_stored(parse_schema(content, file), file)

    @classmethod
    def _of_stored(cls, stored: "dict[str, StoredType]", file: str) -> "Registry":
        registry = cls({})
        for entry in stored.values():
            try:
                registry._add(RegisteredType(entry.type_id, entry.build(), entry.record))
            except (ValueError, TypeError, NameError, RecursionError) as error:
                what = printable(f"the type {entry.name} cannot be created: {error}")
                raise SchemaError(what, path=file) from error
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


def _assign_ids(
    types: Mapping[int, TypeOrCodec] | Sequence[TypeOrCodec],
) -> Iterable[tuple[int, TypeOrCodec]]:
    if isinstance(types, Mapping):
        return types.items()
    return enumerate(types, start=1)


def registry_of_content(content: bytes, file: str) -> Registry:
    """Return the types in the content of a schema.json; errors name the file."""
    return Registry._parse(content, file)  # pyright: ignore[reportPrivateUsage]


def registry_of(
    codec: "TypeOrCodec | Registry | Sequence[TypeOrCodec]", argument: str = "codec"
) -> Registry:
    """Return the Registry for the argument ``codec`` of open_writer and open_reader."""
    if isinstance(codec, Registry):
        return codec
    if isinstance(codec, type | Codec):
        return Registry([codec])
    expect_several(argument, "a msgspec.Struct type, a Codec, or a Registry or list of them", codec)
    return Registry(codec)
