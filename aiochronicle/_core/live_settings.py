"""Settings that can change while a writer is open: retention, capacity, flush.

The settings in force are those of the program, overridden key by key by the queue's settings.toml. An
operator's file therefore stays in force after a restart, and removing it restores the program's settings. The
engine detects changes of the file and checks its owner (csrc/writer_settings_file.c); the log thread
(engine_log.py) then reads it with this module.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiochronicle._base.arguments import expect, one_of, positive, seconds
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.names import check_name
from aiochronicle._core.topic_settings import (
    TopicSettings,
    check_table,
    invalid,
    not_allowed,
    unknown,
)
from aiochronicle._files import parse_toml
from aiochronicle._layout import SETTINGS
from aiochronicle.config import Batch, Capacity, Retention
from aiochronicle.errors import ChronicleError, ClosedError, InvalidArgument, InvalidConfiguration

__all__ = [
    "LIVE",
    "LiveSettings",
    "WriterSettings",
    "count_or_zero",
    "from_engine",
    "nanoseconds",
    "parse_live_settings",
    "replace_settings",
    "to_engine",
    "to_toml",
]


_log = logging.getLogger("aiochronicle.settings")

_FLUSH_MODES = {"async": lib.AC_FLUSH_ASYNC, "sync": lib.AC_FLUSH_SYNC}
_POLICIES = {"fail": lib.AC_CAPACITY_FAIL, "block": lib.AC_CAPACITY_BLOCK}
_DEFAULT_CHECK_NS = 10**9


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a writer, with the names and meanings of open_writer."""

    flush: Literal["async", "sync"] | Batch = "async"
    retention: Retention | None = None
    capacity: int | Capacity | None = None


def nanoseconds(name: str, value: float | None) -> int:
    """Return a number of seconds for the engine; None is 0."""
    return 0 if value is None else max(1, round(seconds(name, value) * 1e9))


def count_or_zero(name: str, value: int | None) -> int:
    """Return a positive number for the engine; None is 0."""
    return 0 if value is None else positive(name, value)


def to_engine(wanted: LiveSettings) -> Any:
    """Return an ``ac_settings_t``; InvalidArgument if a setting is invalid."""
    settings = ffi.new("ac_settings_t *")
    settings.retain_for_readers = 1
    settings.retention_check_ns = _DEFAULT_CHECK_NS
    _set_flush(settings, wanted.flush)
    if wanted.retention is not None:
        _set_retention(settings, wanted.retention)
    if wanted.capacity is not None:
        _set_capacity(settings, wanted.capacity)
    return settings


def _set_flush(settings: Any, flush: str | Batch) -> None:
    if isinstance(flush, Batch):
        settings.flush_mode = lib.AC_FLUSH_BATCH
        settings.batch_bytes = count_or_zero("Batch.bytes", flush.bytes)
        settings.batch_ns = nanoseconds("Batch.seconds", flush.seconds)
    else:
        settings.flush_mode = one_of("flush", _FLUSH_MODES, flush, "Batch(bytes, seconds)")


def _set_retention(settings: Any, retention: Retention) -> None:
    expect("retention", "a Retention or None", Retention, retention)
    settings.retention = 1
    settings.retain_ns = nanoseconds("Retention.max_age_s", retention.max_age_s)
    settings.retain_bytes = count_or_zero("Retention.max_bytes", retention.max_bytes)
    settings.retain_for_readers = int(retention.max_age_s is None and retention.max_bytes is None)
    settings.reader_ttl_ns = nanoseconds("Retention.reader_ttl_s", retention.reader_ttl_s)
    settings.max_reader_lag = count_or_zero("Retention.max_reader_lag", retention.max_reader_lag)
    settings.retention_check_ns = nanoseconds("check_interval_s", retention.check_interval_s)
    if retention.archive is not None:
        archive = encode_path(retention.archive)
        if len(archive) >= lib.AC_ARCHIVE_MAX:
            raise InvalidArgument(
                f"Retention.archive must be shorter than {lib.AC_ARCHIVE_MAX} bytes",
                path=os.fsdecode(archive),
            )
        settings.archive = archive
    if retention.wait_for is not None:
        check_name("Retention.wait_for", retention.wait_for)
        settings.wait_for = retention.wait_for.encode()


def _set_capacity(settings: Any, capacity: int | Capacity) -> None:
    if isinstance(capacity, int):
        capacity = Capacity(capacity)
    expect("capacity", "an int, a Capacity or None", Capacity, capacity)
    settings.capacity_bytes = count_or_zero("Capacity.bytes", capacity.bytes)
    settings.capacity_policy = one_of("Capacity.policy", _POLICIES, capacity.policy)
    settings.capacity_timeout_ns = nanoseconds("Capacity.timeout_s", capacity.timeout_s)


def from_engine(settings: Any) -> LiveSettings:
    """Return the settings in an ``ac_settings_t``, which any process may have written."""
    flush: Literal["async", "sync"] | Batch = "async"
    if settings.flush_mode == lib.AC_FLUSH_SYNC:
        flush = "sync"
    elif settings.flush_mode == lib.AC_FLUSH_BATCH:
        flush = Batch(settings.batch_bytes, settings.batch_ns / 1e9)
    capacity = None
    if settings.capacity_bytes:
        blocks = settings.capacity_policy == lib.AC_CAPACITY_BLOCK
        timeout_s = _seconds_or_none(settings.capacity_timeout_ns)
        capacity = Capacity(settings.capacity_bytes, "block" if blocks else "fail", timeout_s)
    retention = None
    if settings.retention:
        retention = Retention(
            max_age_s=_seconds_or_none(settings.retain_ns),
            max_bytes=settings.retain_bytes or None,
            archive=os.fsdecode(ffi.string(settings.archive)) or None,
            wait_for=ffi.string(settings.wait_for).decode("utf-8", "replace") or None,
            reader_ttl_s=_seconds_or_none(settings.reader_ttl_ns),
            max_reader_lag=settings.max_reader_lag or None,
            check_interval_s=settings.retention_check_ns / 1e9,
        )
    return LiveSettings(flush=flush, retention=retention, capacity=capacity)


def _seconds_or_none(value_ns: int) -> float | None:
    return value_ns / 1e9 if value_ns else None


def replace_settings(
    settings: LiveSettings,
    *,
    retention: Retention | UnsetType | None = UNSET,
    capacity: int | Capacity | UnsetType | None = UNSET,
    flush: Literal["async", "sync"] | Batch | UnsetType = UNSET,
) -> LiveSettings:
    """Return the settings with the given ones replaced."""
    given = {"retention": retention, "capacity": capacity, "flush": flush}
    return msgspec.structs.replace(
        settings, **{name: value for name, value in given.items() if value is not UNSET}
    )


def to_toml(settings: dict[str, Any]) -> str:
    """Return the content of a settings.toml with these settings.

    >>> print(to_toml({"retention": Retention(max_bytes=5, archive="/a"), "capacity": None}))
    retention = { max_bytes = 5, archive = "/a", check_interval_s = 1.0 }
    capacity = false
    <BLANKLINE>
    """
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in settings.items())


def _toml_value(value: object) -> str:
    if value is None:
        return "false"
    if isinstance(value, str):
        import json

        return json.dumps(value)  # a JSON string is a valid TOML string
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        inside = [f"{name} = {_toml_value(field)}" for name, field in fields if field is not None]
        return f"{{ {', '.join(inside)} }}" if inside else "{}"
    return repr(value)


class WriterSettings:
    """The settings of one open writer, from the program and the file. Thread-safe."""

    def __init__(self, handle: Any, path: str, wanted: LiveSettings) -> None:
        self._handle = handle
        self._path = path
        self._program = wanted
        self._file: dict[str, Any] = {}
        self._refusal: str | None = None  # the last one that was logged
        self._lock = threading.Lock()
        self._note_capacity(to_engine(wanted))

    def _note_capacity(self, settings: Any) -> None:
        self.capacity_bytes = int(settings.capacity_bytes)
        self.capacity_blocks = settings.capacity_policy == lib.AC_CAPACITY_BLOCK

    def change(self, **given: Any) -> None:
        """Change the program's settings."""
        with self._lock:
            wanted = replace_settings(self._program, **given)
            to_engine(wanted)  # checks all of them, also those that the file overrides
            self._apply(wanted, self._file)
            self._program = wanted

    def read_file(self) -> None:
        """Apply the file. An invalid file is logged once and changes nothing."""
        level, text = self._apply_file()
        if text:  # without the lock, because a handler may change settings
            _log.log(level, "%s", text)

    def _apply_file(self) -> tuple[int, str]:
        with self._lock:
            try:
                from_file = self._load()
                if from_file == self._file:
                    self._refusal = None
                    return logging.INFO, ""
                self._apply(self._program, from_file)
            except ClosedError:
                return logging.INFO, ""
            except ChronicleError as error:
                is_known, self._refusal = self._refusal == str(error), str(error)
                why = str(error)
                why = why if why.endswith(".") else f"{why}."
                text = f"{why} The settings of the writer stay as they are."
                return logging.ERROR, "" if is_known else text
            self._file, self._refusal = from_file, None
            return logging.INFO, f"{self._path}: {_describe(from_file)}"

    def _load(self) -> dict[str, Any]:
        text = ffi.new("char[]", lib.AC_SETTINGS_FILE_MAX + 1)
        error = new_error()
        length = check(lib.ac_writer_read_settings(self._handle, text, error), error)
        if not length:
            return {}
        return parse_live_settings(Path(self._path, SETTINGS), bytes(ffi.buffer(text, length)))

    def _apply(self, program: LiveSettings, from_file: dict[str, Any]) -> None:
        settings = to_engine(replace_settings(program, **from_file))
        error = new_error()
        check(lib.ac_writer_configure(self._handle, settings, error), error)
        self._note_capacity(settings)


def _describe(from_file: dict[str, Any]) -> str:
    if not from_file:
        return f"{SETTINGS} is missing or empty; the program's own settings are in force"
    values = ", ".join(f"{name} = {value!r}" for name, value in from_file.items())
    return f"by {SETTINGS}, {values}"


LIVE = ("retention", "capacity", "flush")


def parse_live_settings(path: Path, text: bytes) -> dict[str, Any]:
    """Return the settings in the content of a queue's settings.toml, by key."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise InvalidConfiguration(f"not a TOML file: {error}", path=str(path)) from error
    for key, value in content.items():
        if key not in LIVE:
            raise unknown(path, (), key, value, LIVE)
    settings = msgspec.convert(check_table(path, (), content), TopicSettings)
    archive = settings.retention and settings.retention.archive
    if archive and not os.path.isabs(archive):  # noqa: PTH117
        raise not_allowed(path, ("retention", "archive"), archive, "an absolute path")
    from_file = {key: getattr(settings, key) for key in content}
    try:
        to_engine(replace_settings(LiveSettings(), **from_file))
    except ChronicleError as error:
        raise invalid(path, (), str(error)) from error
    return from_file
