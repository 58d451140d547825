"""The options of ``format("chronicle")``, checked once and kept as records.

Names are case-insensitive, as everywhere in Spark. An unknown name is an error, so that a misspelt
``failOnDataLoss`` is not ignored.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

from aiochronicle._base.locations import local_path
from aiochronicle._base.names import check_name
from aiochronicle._core.reader import unix_ns
from aiochronicle.config import Timestamp
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.filters import Narrowing, parse_filter

__all__ = [
    "MANIFESTS",
    "Given",
    "Offsets",
    "ReadOptions",
    "Roots",
    "WriteOptions",
    "as_text",
    "read_options",
    "roots_option",
    "write_options",
]

# Nanoseconds since 1970 have 19 digits, milliseconds 13: a number this small is in the wrong unit.
SMALLEST_LIKELY_NS = 10**15
LARGEST_NS = 2**63 - 1

READING = {
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "startingtimestamp": "startingTimestamp",
    "endingtimestamp": "endingTimestamp",
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
    "minpartitions": "minPartitions",
    "failondataloss": "failOnDataLoss",
    "subscribe": "subscribe",
    "subscribepattern": "subscribePattern",
    "type": "type",
    "mode": "mode",
    "verify": "verify",
    "follow": "follow",
    "on_corrupt": "on_corrupt",
    "badrecordspath": "badRecordsPath",
    "archive": "archive",
    "includecause": "includeCause",
    "includeheaders": "includeHeaders",
    "includelate": "includeLate",
    "filter": "filter",
    "timestamp": "timestamp",
    "timestampunit": "timestampUnit",
}
WRITING = {
    "queue": "queue",
    "late": "late",
    "segmentsize": "segmentSize",
    "writerid": "writerId",
    "batchid": "batchId",
    "checkpointlocation": "checkpointLocation",
}

# Options that Spark itself adds: the name of a stream; for a table (CREATE TABLE … USING chronicle)
# properties of its catalog entry, and its options again with the prefix OF_TABLE.
ADDED_BY_SPARK = frozenset(
    (
        "queryname",
        "provider",
        "location",
        "owner",
        "comment",
        "external",
        "is_managed_location",
        "table_type",
        "collation",
        "transient_lastddltime",
        "serialization.format",
    )
)
OF_TABLE = "option."

MANIFESTS = "_chronicle"  # a directory in archives of Parquet files, as the job makes them

# Types of option values; Spark converts them to text.
Given: TypeAlias = str | int | bool | datetime | Mapping[str, int]

# The directories in which queues are looked for.
Roots: TypeAlias = str | Path | Sequence[str | Path]

# Options that `scan` and the commands name differently.
ELSEWHERE = {
    "start": "startingTimestamp or startingOffsets",
    "end": "endingTimestamp or endingOffsets (a stream has no end)",
    "pushdown": "filter, whose condition holds for every query over the frame",
}

Offsets = Literal["earliest", "latest"] | dict[str, int]
TimeUnit = Literal["ns", "us", "ms", "s"]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, its bounds, and the handling of errors."""

    paths: tuple[str, ...]
    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    starting_timestamp_ns: int | None = None
    ending_timestamp_ns: int | None = None
    offsets_per_trigger_max: int | None = None
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    type: str | None = None
    permissive: bool = True
    verify: bool = True
    follow: bool = True
    awaits_queues: bool = False  # follow was given: queues may not exist yet
    skip_corrupt: bool = False
    bad_records_path: str | None = None
    archive: str | None = None
    include_cause: bool = False
    include_headers: bool = False
    include_late: bool = False
    filter: Narrowing | None = None
    timestamp: Timestamp | None = None

    @property
    def where(self) -> str:
        """The paths, for messages to people."""
        return ", ".join(self.paths)

    def wants(self, queue: str) -> bool:
        """Return whether a queue of this name is requested."""
        if self.filter is not None and not self.filter.wants(queue):
            return False
        if self.subscribe is not None:
            return queue in self.subscribe
        return self.subscribe_pattern is None or bool(re.fullmatch(self.subscribe_pattern, queue))


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The target, and the identity of a batch."""

    path: str
    queue: str | None = None
    hold_late: bool = False
    segment_size: int | None = None
    writer_id: str | None = None
    batch_id: int | None = None
    checkpoint: str | None = None


def as_text(value: Given) -> str:
    """Return the value of an option as Spark would pass it."""
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case Mapping():
            return json.dumps(dict(value))
        case _:
            return str(value)


def roots_option(roots: Roots) -> dict[str, str]:
    """Return the option that names these directories, as Spark does for ``load``.

    >>> roots_option(["bus/md", "bus/orders"])
    {'paths': '["bus/md", "bus/orders"]'}
    """
    if isinstance(roots, str | Path):
        return {"path": str(roots)}
    return {"paths": json.dumps([str(root) for root in roots])}


def read_options(given: Mapping[str, Given]) -> ReadOptions:
    """Check the options of a reader or of a stream."""
    options = _Options(given, "reading")
    chosen = ReadOptions(
        paths=options.paths(),
        starting_offsets=options.offsets("startingOffsets"),
        ending_offsets=options.offsets("endingOffsets"),
        starting_timestamp_ns=options.moment_ns("startingTimestamp"),
        ending_timestamp_ns=options.moment_ns("endingTimestamp"),
        offsets_per_trigger_max=options.count("maxOffsetsPerTrigger"),
        partitions_min=options.count("minPartitions"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        subscribe=options.names("subscribe"),
        subscribe_pattern=options.pattern("subscribePattern"),
        type=options.text("type"),
        permissive=options.choice("mode", ("PERMISSIVE", "FAILFAST")) != "FAILFAST",
        verify=options.flag("verify", True),
        follow=options.flag("follow", True),
        awaits_queues=options.flag("follow", False),
        skip_corrupt=options.choice("on_corrupt", ("raise", "skip")) == "skip",
        bad_records_path=options.directory("badRecordsPath"),
        archive=options.directory("archive"),
        include_cause=options.flag("includeCause", False),
        include_headers=options.flag("includeHeaders", False),
        include_late=options.flag("includeLate", False),
        filter=options.filter(),
        timestamp=options.timestamp(),
    )
    options.at_most_one("startingOffsets", "startingTimestamp")
    options.at_most_one("endingOffsets", "endingTimestamp")
    options.at_most_one("subscribe", "subscribePattern")
    options.at_most_one("path", "paths")
    start_ns, end_ns = chosen.starting_timestamp_ns, chosen.ending_timestamp_ns
    if start_ns is not None and end_ns is not None and start_ns > end_ns:
        raise InvalidArgument(
            f"endingTimestamp is before startingTimestamp, by {(start_ns - end_ns) / 1e9:,.3f} s"
        )
    if chosen.archive is not None and (Path(chosen.archive) / MANIFESTS).is_dir():
        raise InvalidArgument(
            "holds Parquet files that the job archive made, which jobs.archived reads; option archive is"
            " for where retention moves segments to",
            path=chosen.archive,
        )
    if chosen.bad_records_path is not None and not chosen.skip_corrupt:
        raise InvalidArgument("badRecordsPath notes what on_corrupt=skip steps over: give both")
    return chosen


def write_options(given: Mapping[str, Given]) -> WriteOptions:
    """Check the options of a sink."""
    options = _Options(given, "writing")
    chosen = WriteOptions(
        path=options.path(),
        queue=options.text("queue"),
        hold_late=options.choice("late", ("fail", "hold")) == "hold",
        segment_size=options.segment_bytes("segmentSize"),
        writer_id=options.text("writerId"),
        batch_id=options.count("batchId", smallest=0),
        checkpoint=options.text("checkpointLocation"),
    )
    if chosen.writer_id is not None:
        check_name("option writerId", chosen.writer_id)
    _check_root(chosen.path)
    return chosen


def _check_root(path: str) -> None:
    """Raise InvalidArgument if there can be no directory at this path."""
    root = Path(os.path.abspath(path))
    there = next(place for place in (root, *root.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise InvalidArgument(
            "is not a directory, so no queues can be written in it", path=str(there)
        )
    if (root / MANIFESTS).is_dir():
        raise InvalidArgument(
            "is an archive of Parquet files; write queues into another directory", path=str(root)
        )


class _Options:
    """Options by lower-case name, and how each kind of value is read."""

    def __init__(self, given: Mapping[str, Given], use: Literal["reading", "writing"]) -> None:
        everything = {name: as_text(value) for name, value in given.items()}
        texts = {name: text for name, text in everything.items() if not _is_of_spark(name)}
        self._values = {name.lower(): text for name, text in texts.items()}
        # A table has a location instead of a path.
        of_table = {name.lower(): text for name, text in everything.items()}
        if (location := of_table.get("location")) is not None:
            self._values.setdefault("path", location)
        known = {**(READING if use == "reading" else WRITING), "path": "path"}
        if use == "reading":
            known["paths"] = "paths"
        of_the_other = WRITING if use == "reading" else READING
        for given_name, value in texts.items():
            name = given_name.lower()
            if name in of_the_other:
                raise InvalidArgument(
                    f"option {of_the_other[name]} is not for {use}: {_list_of(known)}"
                )
            if name not in known:
                raise InvalidArgument(f"there is no option {given_name!r}: {_hint(name, known)}")
            if not value.strip():
                raise InvalidArgument(f"option {known[name]} is empty: leave it out or fill it in")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def path(self) -> str:
        path = self.directory("path")
        if path is None:
            raise InvalidArgument(
                "which directory? Give it to load(...), save(...) or start(...). Spark does not pass on the"
                " location of a table: give option path to read it, or use a view"
                " (CREATE TEMPORARY VIEW v USING chronicle OPTIONS (path '...'))"
            )
        return path

    def paths(self) -> tuple[str, ...]:
        text = self.text("paths")
        if text is None:
            return (self.path(),)
        try:
            found = msgspec.json.decode(text.encode(), type=tuple[str, ...])
        except ValueError as error:
            raise InvalidArgument(
                f'paths must be JSON like ["bus/md", "bus/orders"], not {text!r}'
            ) from error
        if not found or not all(path.strip() for path in found):
            raise InvalidArgument("paths names no directory: leave it out or fill it in")
        return tuple(map(local_path, found))

    def directory(self, name: str) -> str | None:
        text = self.text(name)
        return None if text is None else local_path(text)

    def at_most_one(self, first: str, second: str) -> None:
        if first in self and second in self:
            raise InvalidArgument(f"{first} and {second} exclude each other")

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgument(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def count(self, name: str, *, smallest: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < smallest:
            raise InvalidArgument(f"{name} must be a number from {smallest} on, not {text!r}")
        return int(text)

    def timestamp(self) -> Timestamp | None:
        field = self.text("timestamp")
        unit = self.choice("timestampUnit", ("ns", "us", "ms", "s"))
        if field is None and unit is not None:
            raise InvalidArgument(
                "timestampUnit is that of the field in option timestamp: give both"
            )
        return None if field is None else Timestamp(field, cast("TimeUnit", unit or "ns"))

    def filter(self) -> Narrowing | None:
        text = self.text("filter")
        return None if text is None else parse_filter(text)

    def segment_bytes(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        size = int(text) if text.isdecimal() else 0
        if not (4096 <= size <= 1 << 32 and size % 64 == 0):
            raise InvalidArgument(
                f"{name} must be a multiple of 64 from 4096 to {1 << 32}, in bytes, not {text}"
            )
        return size

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        for value in allowed:
            if value.lower() == text.lower():
                return value
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}, not {text!r}")

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def pattern(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None:
            try:
                re.compile(text)
            except re.error as error:
                raise InvalidArgument(
                    f"{name} {text!r} is no regular expression: {error}"
                ) from error
        return text

    def offsets(self, name: str) -> Offsets | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lower() == "earliest":
            return "earliest"
        if text.lower() == "latest":
            return "latest"
        try:
            return msgspec.convert(json.loads(text), dict[str, int])
        except (ValueError, msgspec.ValidationError) as error:
            raise InvalidArgument(
                f'{name} must be earliest, latest or JSON like {{"queue": 42}}, not {text!r}'
            ) from error

    def moment_ns(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if text.isdecimal():
            if int(text) < SMALLEST_LIKELY_NS:
                raise InvalidArgument(f"{name} {text} is 1970: numbers are nanoseconds since then")
            if int(text) > LARGEST_NS:
                raise InvalidArgument(f"{name} {text} is too far ahead: the last is {LARGEST_NS}")
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidArgument(
                f"{name} must be nanoseconds since 1970 or ISO 8601, not {text!r}"
            ) from error
        if moment.tzinfo is None:
            raise InvalidArgument(
                f"{name} {text!r} has no time zone: {moment.isoformat()}Z is in UTC"
            )
        return unix_ns(moment)


def _is_of_spark(name: str) -> bool:
    """Return whether Spark has added an option, which is then ignored."""
    return name.lower() in ADDED_BY_SPARK or name.lower().startswith(OF_TABLE)


def _hint(name: str, known: Mapping[str, str]) -> str:
    """Suggest known options for an unknown one."""
    if name in ELSEWHERE and READING.keys() <= known.keys():
        return f"did you mean {ELSEWHERE[name]}?"
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {known[nearest[0]]}?" if nearest else _list_of(known)


def _list_of(known: Mapping[str, str]) -> str:
    return "known are " + ", ".join(sorted(known.values()))
