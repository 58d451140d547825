"""Settings of a topic, and the checks of the tables in config.toml and settings.toml."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._base.printable import printable
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import InvalidConfiguration

__all__ = [
    "ALLOWED",
    "Table",
    "TopicSettings",
    "check_table",
    "dotted",
    "expect_table",
    "invalid",
    "not_allowed",
    "unknown",
]

Table = dict[str, Any]


@prepared
class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the writer of a topic is opened: parameters of open_writer, with the same names.

    >>> TopicSettings(flush="sync").segment_size
    134217728
    """

    segment_size: Annotated[int, msgspec.Meta(ge=4096, le=1 << 32, multiple_of=64)] = 128 << 20
    roll: Roll | None = None
    flush: Literal["async", "sync"] | Batch = "async"
    retention: Retention | None = None
    capacity: Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)] | Capacity | None = None
    heartbeat: Annotated[float, msgspec.Meta(gt=0, lt=1e10)] | None = None
    max_ahead_s: Annotated[float, msgspec.Meta(gt=0, lt=1e10)] | None = None
    ready: bool = False
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o600
    memlock: bool = False
    verify: bool = False
    lock_timeout: Annotated[float, msgspec.Meta(ge=0, lt=1e10)] | None = None
    format: Literal["native", "cq4"] | None = None
    roll_cycle: str | None = None
    epoch: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] | None = None
    shared: bool | str = False


_BYTES = "a positive number of bytes"
_SECONDS = "a positive number of seconds"
_FLAG = "true or false"

# For error texts: the keys of a table, and which values they allow.
ALLOWED = {
    "segment_size": "a multiple of 64 from 4096 to 4294967296",
    "roll": "a table with bytes, seconds or messages, or false",
    "roll.bytes": _BYTES,
    "roll.seconds": _SECONDS,
    "roll.messages": "a positive number",
    "flush": '"async", "sync", or a table with bytes and seconds',
    "flush.bytes": _BYTES,
    "flush.seconds": _SECONDS,
    "retention": "a table, which may be empty, or false",
    "retention.max_age_s": _SECONDS,
    "retention.max_bytes": _BYTES,
    "retention.archive": "the path of a directory",
    "retention.wait_for": "the name of a reader",
    "retention.reader_ttl_s": _SECONDS,
    "retention.max_reader_lag": _BYTES,
    "retention.check_interval_s": _SECONDS,
    "capacity": "a positive number of bytes, a table with bytes, policy and timeout_s, or false",
    "capacity.bytes": _BYTES,
    "capacity.policy": '"fail" or "block"',
    "capacity.timeout_s": _SECONDS,
    "heartbeat": "a positive number of seconds, or false",
    "max_ahead_s": "a positive number of seconds, or false",
    "ready": _FLAG,
    "mode": "permissions from 0 to 0o777",
    "memlock": _FLAG,
    "verify": _FLAG,
    "lock_timeout": "a number of seconds, 0 or more, or false",
    "format": '"native" or "cq4"',
    "roll_cycle": "the name of a Java roll cycle",
    "epoch": "a number of milliseconds",
    "shared": "true, false, or the name of the writer",
}
_MAY_BE_FALSE = ("roll", "retention", "capacity", "heartbeat", "lock_timeout", "max_ahead_s")
_SHOWN = 100


def expect_table(path: Path, keys: tuple[str, ...], value: object) -> None:
    if not isinstance(value, dict):
        raise not_allowed(path, keys, value, "a table")


def check_table(path: Path, keys: tuple[str, ...], table: Table) -> Table:
    """Return the table converted by msgspec, or raise an error that names the key."""
    table = {key: _none_if_false(key, value) for key, value in table.items()}
    try:
        msgspec.convert(table, TopicSettings)
    except msgspec.ValidationError as error:
        raise _explain(path, keys, table, str(error)) from None
    return table


def _none_if_false(key: str, value: object) -> object:
    return None if value is False and key in _MAY_BE_FALSE else value


def _explain(path: Path, keys: tuple[str, ...], table: Table, problem: str) -> InvalidConfiguration:
    """Turn msgspec's text, ``what - at `$.key.key` ``, into one for the author of the file."""
    found = re.search(r" - at `\$\.([\w.]+)`$", problem)
    inside = tuple(found[1].split(".")) if found else ()
    value: Any = table
    for key in inside:
        value = value[key]
    field = re.search(r"(unknown|missing required) field `(.*?)`", problem)
    if field is None:
        return not_allowed(path, keys + inside, value, ALLOWED[".".join(inside)])
    if field[1] == "unknown":
        prefix = "".join(f"{key}." for key in inside)
        known = [key[len(prefix) :] for key in ALLOWED if key.startswith(prefix)]
        return unknown(
            path,
            keys + inside,
            field[2],
            cast("Mapping[str, object]", value)[field[2]],
            [key for key in known if "." not in key],
        )
    allowed = f"{ALLOWED['.'.join(inside)]}; {field[2]} is missing"
    return not_allowed(path, keys + inside, value, allowed)


def dotted(keys: Iterable[str]) -> str:
    """Return a key as TOML spells it."""
    return ".".join(key if re.fullmatch(r"[\w-]+", key) else f'"{printable(key)}"' for key in keys)


def _show(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python converts
        text = f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def not_allowed(
    path: Path, keys: tuple[str, ...], value: object, allowed: str
) -> InvalidConfiguration:
    return invalid(path, keys, f"{dotted(keys)} = {_show(value)}, but it must be {allowed}")


def unknown(
    path: Path, keys: tuple[str, ...], key: str, value: object, known: Iterable[str]
) -> InvalidConfiguration:
    import difflib

    known = list(known)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    named = dotted((*keys, key))
    return invalid(
        path,
        (*keys, key),
        f"unknown key {named} = {_show(value)}; did you mean {nearest[0]}? Known keys: {', '.join(known)}",
    )


def invalid(path: Path, keys: tuple[str, ...], detail: str) -> InvalidConfiguration:
    error = InvalidConfiguration(detail, path=str(path))
    error.key = dotted(keys)
    return error
