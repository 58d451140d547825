"""Types of decoded values for which Python has no type."""

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
    """A number that is encoded like a Java ``float``; a plain Python float is encoded like a ``double``.

    Java reads both as either type. The bytes differ for some numbers only.
    """

    __slots__ = ()


JavaFloat = Annotated[float, msgspec.Meta(extra={"java": "float"})]
"""Annotates a field of a Struct that is a ``float`` in Java, so that it has the same bytes; see `Float32`."""


class Typed(msgspec.Struct, frozen=True):
    """A value with its Java type, for values that are not objects with fields.

    An enum in a field of type Object is ``Typed("market.Side", "BUY")``. A class is
    ``Typed("type", "market.Quote")``. A date or time that Python cannot store, such as one with nanoseconds,
    is ``Typed("LocalTime", "12:30:01.123456789")``; likewise LocalDate, LocalDateTime and ZonedDateTime.
    """

    type: str
    value: Any


class History(msgspec.Struct, frozen=True):
    """The path of a message: (source id, index) in each queue on its way, and times in nanoseconds."""

    sources: tuple[tuple[int, int], ...]
    timings: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A call that a Java MethodWriter wrote. ``name`` is a number for a method with an id.

    The bytes do not contain the number of arguments: one list looks like several arguments, and one empty
    text like none. ``value`` is the decoded value, ``args`` the likelier interpretation, and `args_for` is
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
        """The elements of a list, an empty tuple for an empty text, or the single value."""
        if is_list(self.value):
            return tuple(self.value)
        return () if self.value == "" else (self.value,)

    def args_for(self, count: int) -> tuple[Any, ...]:
        """Return the arguments of a method with ``count`` parameters; ValueError if the number differs."""
        if count == 0:
            return ()
        if count == 1:
            return (self.value,)
        values = self.value if is_list(self.value) else [self.value]
        if len(values) != count:
            raise ValueError(f"the call has {len(values)} arguments, but the method takes {count}")
        return tuple(values)
