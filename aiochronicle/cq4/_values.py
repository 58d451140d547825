"""What a payload is decoded to, where Python has no type of its own for it."""

from typing import Annotated, Any, TypeGuard

import msgspec

__all__ = ["Call", "Fields", "Float32", "History", "JavaFloat", "Typed"]


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


class Fields(dict[str, Any]):
    """Named fields: a document, or an object inside one. ``type`` is the Java class if it was written.

    >>> quote = Fields({"symbol": "EURUSD", "price": 1.25}, type="market.Quote")
    >>> quote["price"], quote.type
    (1.25, 'market.Quote')
    """

    __slots__ = ("type",)

    def __init__(self, fields: Any = (), /, *, type: str | None = None) -> None:  # noqa: A002
        super().__init__(fields)
        self.type = type

    def __repr__(self) -> str:
        named = "" if self.type is None else f", type={self.type!r}"
        return f"Fields({super().__repr__()}{named})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _fields, (dict(self), self.type)


def _fields(fields: dict[str, Any], java_type: str | None) -> Fields:
    return Fields(fields, type=java_type)


class Float32(float):
    """A number that is written as Java writes a ``float``; a plain float is written as a ``double``.

    Java reads either as either. Only the bytes differ, for some numbers.
    """

    __slots__ = ()


JavaFloat = Annotated[float, msgspec.Meta(extra={"java": "float"})]
"""Annotates a field of a Struct that is a ``float`` in Java, so that it has the same bytes; see `Float32`."""


class Typed(msgspec.Struct, frozen=True):
    """A value that is no object with fields, with its Java type.

    An enum in a field of type Object is ``Typed("market.Side", "BUY")``. A class is
    ``Typed("type", "market.Quote")``. A date or time that Python cannot hold, such as one with nanoseconds,
    is ``Typed("LocalTime", "12:30:01.123456789")``, or LocalDate, LocalDateTime, ZonedDateTime.
    """

    type: str
    value: Any


class History(msgspec.Struct, frozen=True):
    """Where a message came from: (source id, index) of each queue on its way, and times in nanoseconds."""

    sources: tuple[tuple[int, int], ...]
    timings: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A call that a Java MethodWriter wrote. ``name`` is a number for a method with an id.

    The bytes do not say how many arguments a call has: one list looks like several arguments, and one
    empty text like none. ``value`` is what was decoded, ``args`` the likelier meaning, and `args_for` is
    exact if you know the number of parameters.

    >>> Call("price", ["EURUSD", 1.25]).args
    ('EURUSD', 1.25)
    >>> Call("names", ["a", "b"]).args_for(1)
    (['a', 'b'],)
    """

    name: str | int
    value: Any
    history: History | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        """The elements of a list, nothing for an empty text, or the one value."""
        if is_list(self.value):
            return tuple(self.value)
        return () if self.value == "" else (self.value,)

    def args_for(self, count: int) -> tuple[Any, ...]:
        """The arguments of a method with count parameters; ValueError if these cannot be."""
        if count == 0:
            return ()
        if count == 1:
            return (self.value,)
        values = self.value if is_list(self.value) else [self.value]
        if len(values) != count:
            raise ValueError(f"{len(values)} arguments were written, but {count} are wanted")
        return tuple(values)
