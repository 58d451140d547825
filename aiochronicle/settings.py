"""The configuration file of a bus: config.toml.

    [defaults]
    segment_size = 67_108_864
    flush = { bytes = 1_048_576, seconds = 0.1 }

    [topics.orders]
    flush = "sync"

    [topics."ticks.*"]
    retention = { max_age_s = 86_400, archive = "archive" }

A topic has the defaults, changed by each pattern that matches its name, in the order of the file,
and last by the table with its very name. Names with a slash are NAMESPACE/TOPIC. A table inside
(``flush``, ``roll``, …) replaces the one before as a whole; ``false`` takes away what the defaults
give. Everything is checked when the file is read, whether a topic uses it or not.
"""

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from aiochronicle._live_settings import LiveSettings, changed, to_engine
from aiochronicle._names import is_name
from aiochronicle._prepared import prepared
from aiochronicle._printable import printable
from aiochronicle._smallfile import parse_toml, read_small_file
from aiochronicle._trusted import is_trusted_link, refuse_foreign
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import AccessDenied, ChronicleError, InvalidConfiguration

__all__ = ["BusSettings", "TopicSettings", "load_settings", "parse_live_settings"]


@prepared
class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the writer of a topic is opened: parameters of open_writer, by the same names.

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


_BYTES = "a positive number of bytes"
_SECONDS = "a positive number of seconds"
_FLAG = "true or false"

# For the text of errors: the key of a table, and what may stand there.
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
    "roll_cycle": "the name of a roll cycle of Java",
    "epoch": "a number of milliseconds",
}
_TABLES = ("defaults", "topics")
_WILDCARDS = frozenset("*?[")
_MAY_BE_FALSE = ("roll", "retention", "capacity", "heartbeat", "lock_timeout", "max_ahead_s")

FILE_BYTES_MAX = 1 << 20
_SHOWN = 100
_UNTRUSTED = (
    "It was not obeyed. Remove it, or chown it to yourself and chmod 644, or name another file"
    " with Bus(root, config=...)."
)

Table = dict[str, Any]


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration file says. Without one: the defaults of open_writer for every topic."""

    defaults: Table = {}
    topics: dict[str, Table] = {}

    def for_topic(self, topic: str, namespace: str = "") -> TopicSettings:
        """Return the settings of a topic."""
        names = (topic, f"{namespace}/{topic}")
        merged = dict(self.defaults)
        for pattern, table in self.topics.items():
            if pattern not in names and fnmatchcase(names["/" in pattern], pattern):
                merged.update(table)
        for name in names:
            merged.update(self.topics.get(name, {}))
        return msgspec.convert(merged, TopicSettings)


def load_settings(
    path: Path, *, required: bool = False, owners: Collection[int] | None = None
) -> BusSettings:
    """Read and check a configuration file; a missing one says nothing unless it is required.

    AccessDenied if everybody may write to it; with ``owners`` also if it, or the link that it is,
    belongs to nobody of these, or if a group may write to it and it is neither ours nor root's.
    """
    content = _read_toml(path, required=required, owners=owners)
    for key, value in content.items():
        if key not in _TABLES:
            raise _unknown(path, (), key, value, _TABLES)
        _expect_table(path, (key,), value)
    for pattern, table in content.get("topics", {}).items():
        _expect_table(path, ("topics", pattern), table)
        if not _WILDCARDS.intersection(pattern) and not all(map(is_name, pattern.split("/"))):
            what = f"{_dotted(('topics', pattern))} is neither a name that a topic can have nor a pattern"
            raise _invalid(path, ("topics", pattern), what)
    return BusSettings(
        defaults=_checked(path, ("defaults",), content.get("defaults", {})),
        topics={
            pattern: _checked(path, ("topics", pattern), table)
            for pattern, table in content.get("topics", {}).items()
        },
    )


_LIVE = ("retention", "capacity", "flush")


def parse_live_settings(path: Path, text: bytes) -> dict[str, Any]:
    """Return what the settings.toml of a queue says, by key: see _live_settings."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise InvalidConfiguration(f"not a TOML file: {error}", path=str(path)) from error
    for key, value in content.items():
        if key not in _LIVE:
            raise _unknown(path, (), key, value, _LIVE)
    settings = msgspec.convert(_checked(path, (), content), TopicSettings)
    archive = settings.retention and settings.retention.archive
    if archive and not os.path.isabs(archive):  # noqa: PTH117
        raise _not_allowed(path, ("retention", "archive"), archive, "an absolute path")
    said = {key: getattr(settings, key) for key in content}
    try:
        to_engine(changed(LiveSettings(), **said))
    except ChronicleError as error:
        raise _invalid(path, (), str(error)) from error
    return said


def _refuse_others_file(path: Path, status: os.stat_result, owners: Collection[int] | None) -> None:
    if owners is not None:
        refuse_foreign(path, status, owners, _UNTRUSTED)
    writers = "everybody" if status.st_mode & stat.S_IWOTH else ""
    if not writers and owners is not None and status.st_uid not in (0, os.geteuid()):
        writers = f"group {status.st_gid}" if status.st_mode & stat.S_IWGRP else ""
    if writers:
        what = f"{writers} may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
        raise AccessDenied(what, path=str(path), advice=_UNTRUSTED)


def _read_toml(path: Path, *, required: bool, owners: Collection[int] | None) -> Table:
    """Read the file, also through a link: it is the operator's, who may keep it somewhere else."""
    follow = owners is None or is_trusted_link(path, owners, _UNTRUSTED)
    try:
        text = read_small_file(
            str(path),
            FILE_BYTES_MAX,
            follow=follow,
            check=lambda status: _refuse_others_file(path, status, owners),
        )
    except ValueError as error:
        number = getattr(error.__cause__, "errno", None)
        raise InvalidConfiguration(
            f"cannot be read: {error}", path=str(path), errno=number
        ) from error
    if text is None:
        if not required:
            return {}
        missing = f"cannot be read: {os.strerror(errno.ENOENT)}"
        raise InvalidConfiguration(missing, path=str(path), errno=errno.ENOENT)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InvalidConfiguration(f"not a TOML file: {error}", path=str(path)) from error


def _expect_table(path: Path, keys: tuple[str, ...], value: object) -> None:
    if not isinstance(value, dict):
        raise _not_allowed(path, keys, value, "a table")


def _checked(path: Path, keys: tuple[str, ...], table: Table) -> Table:
    """Return the table as msgspec takes it, or raise an error that names the key."""
    table = {key: _none_if_false(key, value) for key, value in table.items()}
    try:
        msgspec.convert(table, TopicSettings)
    except msgspec.ValidationError as error:
        raise _explain(path, keys, table, str(error)) from None
    return table


def _none_if_false(key: str, value: object) -> object:
    return None if value is False and key in _MAY_BE_FALSE else value


def _explain(path: Path, keys: tuple[str, ...], table: Table, problem: str) -> InvalidConfiguration:
    """Turn msgspec's text, ``what - at `$.key.key` ``, into one for the reader of the file."""
    found = re.search(r" - at `\$\.([\w.]+)`$", problem)
    inside = tuple(found[1].split(".")) if found else ()
    value: Any = table
    for key in inside:
        value = value[key]
    field = re.search(r"(unknown|missing required) field `(.*?)`", problem)
    if field is None:
        return _not_allowed(path, keys + inside, value, ALLOWED[".".join(inside)])
    if field[1] == "unknown":
        prefix = "".join(f"{key}." for key in inside)
        known = [key[len(prefix) :] for key in ALLOWED if key.startswith(prefix)]
        return _unknown(
            path,
            keys + inside,
            field[2],
            cast("Mapping[str, object]", value)[field[2]],
            [key for key in known if "." not in key],
        )
    allowed = f"{ALLOWED['.'.join(inside)]}; {field[2]} is missing"
    return _not_allowed(path, keys + inside, value, allowed)


def _dotted(keys: Iterable[str]) -> str:
    """Return a key as TOML spells it."""
    return ".".join(key if re.fullmatch(r"[\w-]+", key) else f'"{printable(key)}"' for key in keys)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _not_allowed(
    path: Path, keys: tuple[str, ...], value: object, allowed: str
) -> InvalidConfiguration:
    return _invalid(path, keys, f"{_dotted(keys)} = {_shown(value)}, but it must be {allowed}")


def _unknown(
    path: Path, keys: tuple[str, ...], key: str, value: object, known: Iterable[str]
) -> InvalidConfiguration:
    import difflib

    known = list(known)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    named = _dotted((*keys, key))
    return _invalid(
        path,
        (*keys, key),
        f"unknown key {named} = {_shown(value)}; did you mean {nearest[0]}? Known are {', '.join(known)}",
    )


def _invalid(path: Path, keys: tuple[str, ...], detail: str) -> InvalidConfiguration:
    error = InvalidConfiguration(detail, path=str(path))
    error.key = _dotted(keys)
    return error
