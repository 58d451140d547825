"""Reads the configuration file of a bus, config.toml.

    [defaults]
    segment_size = 67_108_864
    flush = { bytes = 1_048_576, seconds = 0.1 }

    [topics.orders]
    flush = "sync"

    [topics."ticks.*"]
    retention = { max_age_s = 86_400, archive = "archive" }

A topic has the defaults, overridden by each pattern that matches its name, in the order of the file, and
finally by the table with its exact name. Names with a slash are NAMESPACE/TOPIC. A setting that is a table
(``flush``, ``roll``, …) replaces the earlier one as a whole; ``false`` removes a default. The whole file is
checked when it is read, even tables that no topic uses.
"""

import errno
import os
import stat
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aiochronicle._base.names import is_name
from aiochronicle._core.topic_settings import (
    Table,
    TopicSettings,
    check_table,
    dotted,
    expect_table,
    invalid,
    unknown,
)
from aiochronicle._files import parse_toml, read_small_file
from aiochronicle._services.trusted import is_trusted_link, refuse_foreign
from aiochronicle.errors import AccessDenied, InvalidConfiguration

__all__ = ["BusSettings", "load_settings"]


_TABLES = ("defaults", "topics")
_WILDCARDS = frozenset("*?[")

FILE_BYTES_MAX = 1 << 20
_UNTRUSTED = (
    "The file was not used. Remove it, or chown it to yourself and chmod it to 644, or pass another file"
    " with Bus(root, config=...)."
)


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a configuration file. Without a file, every topic has the defaults of open_writer."""

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
    """Read and check a configuration file; a missing file counts as empty unless it is required.

    AccessDenied if everyone may write to the file. With ``owners`` also if the file, or a link to it, belongs
    to another user, or if a group may write to it and it belongs neither to this user nor to root.
    """
    content = _read_toml(path, required=required, owners=owners)
    for key, value in content.items():
        if key not in _TABLES:
            raise unknown(path, (), key, value, _TABLES)
        expect_table(path, (key,), value)
    for pattern, table in content.get("topics", {}).items():
        expect_table(path, ("topics", pattern), table)
        if not _WILDCARDS.intersection(pattern) and not all(map(is_name, pattern.split("/"))):
            what = f"{dotted(('topics', pattern))} is neither a valid topic name nor a pattern"
            raise invalid(path, ("topics", pattern), what)
    return BusSettings(
        defaults=check_table(path, ("defaults",), content.get("defaults", {})),
        topics={
            pattern: check_table(path, ("topics", pattern), table)
            for pattern, table in content.get("topics", {}).items()
        },
    )


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
    """Read the file, also through a link: operators may store it elsewhere."""
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
