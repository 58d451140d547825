"""Checks arguments.

A wrong value raises InvalidArgument, a wrong type WrongType, which is also a TypeError. Both texts name the
argument, say what it must be, and show the value. All arguments are checked before anything is changed. The
C types check likewise (csrc/python/arguments.c) and raise the exceptions that are created here.
"""

import math
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from aiochronicle._base.locations import local_path
from aiochronicle.errors import InvalidArgument, WrongType

__all__ = [
    "expect",
    "expect_several",
    "integer",
    "number",
    "one_of",
    "pathname",
    "permissions",
    "positive",
    "refuse_file",
    "seconds",
    "segment_bytes",
    "timeout",
    "wrong_type",
    "wrong_value",
]

T = TypeVar("T")

INT64_MAX = 2**63 - 1
SECONDS_MIN = 5e-324  # anything above zero
SECONDS_MAX = 1e10  # three centuries: as nanoseconds it fits into 64 bits

_SHOWN = 100


def wrong_value(name: str, wanted: str, given: object) -> InvalidArgument:
    """Return the exception for an argument of the right type that cannot be used."""
    return InvalidArgument(_text(name, wanted, given))


def wrong_type(name: str, wanted: str, given: object) -> WrongType:
    """Return the exception for an argument of the wrong type.

    >>> print(wrong_type("burst", "a positive int", "many"))
    burst must be a positive int, not 'many'
    """
    return WrongType(_text(name, wanted, given))


def _text(name: str, wanted: str, given: object) -> str:
    try:
        shown = repr(given)
    except Exception:  # noqa: BLE001 - an int of 5,000 digits, or a faulty __repr__
        shown = f"this {type(given).__name__}"
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}…"
    return f"{name} must be {wanted}, not {shown}"


def expect(name: str, wanted: str, kind: type[Any] | tuple[type[Any], ...], given: T) -> T:
    """Return the argument if it has the type."""
    if not isinstance(given, kind):
        raise wrong_type(name, wanted, given)
    return given


def expect_several(name: str, wanted: str, given: object) -> None:
    """Refuse values that are not iterable, and single strings, which are iterable by accident."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise wrong_type(name, wanted, given)


def flag(name: str, given: bool) -> int:
    """Return a bool as an int for the engine."""
    return int(expect(name, "a bool", bool, given))


def function(name: str, given: object) -> None:
    """Refuse values that cannot be called."""
    if not callable(given):
        raise wrong_type(name, "a function", given)


def integer(name: str, given: object, lowest: int, highest: int = INT64_MAX) -> int:
    """Return an int within limits."""
    return _integer(name, f"an int from {lowest} to {highest}", given, lowest, highest)


def positive(name: str, given: object) -> int:
    """Return an int of at least one."""
    return _integer(name, "a positive int", given, 1, INT64_MAX)


def _integer(name: str, wanted: str, given: Any, lowest: int, highest: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise wrong_type(name, wanted, given) from None
    if not lowest <= number <= highest:
        raise wrong_value(name, wanted, given)
    return number


def segment_bytes(name: str, given: object) -> int:
    """Return an int; the engine checks whether it may be the size of a segment."""
    return _integer(name, "a multiple of 64 from 4096 to 4294967296", given, 0, INT64_MAX)


def permissions(mode: object) -> int:
    """Return a file mode as for ``chmod``, without the special bits."""
    return _integer("mode", "file permissions, 0 to 0o777", mode, 0, 0o777)


def seconds(name: str, given: object, *, zero: bool = False) -> float:
    """Return a positive number of seconds, or one that may be zero."""
    if zero:
        return number(name, "a number of seconds, 0 or more", given, 0, SECONDS_MAX)
    return number(name, "a positive number of seconds", given, SECONDS_MIN, SECONDS_MAX)


def timeout(given: object) -> float | None:
    """Return how many seconds to wait; None, also for infinity, means forever."""
    if given is None:
        return None
    limit_s = number("timeout", "a number of seconds, 0 or more, or None", given, 0, math.inf)
    return limit_s if limit_s < SECONDS_MAX else None


def number(name: str, wanted: str, given: Any, lowest: float, highest: float) -> float:
    """Return a number within limits; ``wanted`` describes them."""
    if isinstance(given, str | bytes | bytearray):  # float() would accept them
        raise wrong_type(name, wanted, given)
    try:
        found = float(given)
    except TypeError:
        raise wrong_type(name, wanted, given) from None
    except OverflowError:
        raise wrong_value(name, wanted, given) from None
    if not lowest <= found <= highest:
        raise wrong_value(name, wanted, given)
    return found


def pathname(name: str, given: Any) -> str:
    """Return a path, or a ``file:`` URL, as an absolute path; other URLs are refused."""
    wanted = "a path, a str or os.PathLike"
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise wrong_type(name, wanted, given) from None
    if not text:
        raise wrong_value(name, f"{wanted}; use '.' for the current directory", given)
    if "\0" in text:
        raise wrong_value(name, f"{wanted}, without a NUL character", given)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise wrong_value(name, f"{wanted}, of encodable characters", given) from None
    return os.path.abspath(local_path(text))


def refuse_file(name: str, path: str) -> None:
    """Raise InvalidArgument if the path exists but is not a directory."""
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112
        raise InvalidArgument(f"{name} must be a directory, but this is a file", path=path)


def one_of(name: str, words: Mapping[str, T], given: object, *also: str) -> T:
    """Return the value for a word; ``also`` names other values that the caller accepts."""
    *some, last = [*(f'"{word}"' for word in words), *also]
    wanted = f"{', '.join(some)} or {last}"
    if not isinstance(given, str):
        raise wrong_type(name, wanted, given)
    if given not in words:
        raise wrong_value(name, wanted, given)
    return words[given]
