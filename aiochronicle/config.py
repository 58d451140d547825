"""Settings, as small frozen records.

The limits in the annotations apply to configuration files (settings.py). open_writer checks its
arguments itself.
"""

from typing import Annotated, Literal

import msgspec

__all__ = ["Batch", "Capacity", "Retention", "Roll", "SpinThenPark", "Timestamp"]


# Aliases, because some fields have the names of built-in types.
_Count = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, lt=1e10)]


class Roll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to start a new segment before the current one is full: at whichever limit comes first.

    >>> Roll(seconds=3600.0, messages=1_000_000)
    Roll(bytes=None, seconds=3600.0, messages=1000000)
    """

    bytes: _Count | None = None
    seconds: _Seconds | None = None
    messages: _Count | None = None


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Flush mode: at most this many bytes, and this many seconds of messages, are not yet on disk.

    >>> Batch(1 << 20, 0.1)
    Batch(bytes=1048576, seconds=0.1)
    """

    bytes: _Count
    seconds: _Seconds


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sealed segments may be removed.

    By default a segment is removed as soon as every named reader, open or closed, has committed past it.
    ``forget_reader`` removes a reader that will not come back. With ``max_age_s``, older segments are
    removed; with ``max_bytes``, the oldest ones, until the rest fits. Both keep segments that an open reader
    has not committed past.

    ``reader_ttl_s`` and ``max_reader_lag`` (bytes) stop a reader from keeping segments: one that has shown no
    sign of life for that long, or lags by more than that. None: no such limit. Until ``reader_ttl_s`` has
    passed, a closed reader counts as open. When a limit removes messages that a named reader has not read,
    the log has a warning.

    With ``archive`` segments are moved to ``archive/YYYY/MM/DD/`` instead of deleted. ``wait_for`` names a
    reader to which no limit applies, even before it exists.

    >>> Retention(max_bytes=10 << 30).reader_ttl_s is None
    True
    """

    max_age_s: _Seconds | None = None
    max_bytes: _Count | None = None
    archive: str | None = None
    wait_for: str | None = None
    reader_ttl_s: _Seconds | None = None
    max_reader_lag: _Count | None = None
    check_interval_s: _Seconds = 1.0


class Capacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far, in bytes, the writer may be ahead of its slowest open reader.

    ``policy`` "fail" raises QueueFull; "block" waits, ``timeout_s`` at most (None: forever).

    >>> Capacity(64 << 20, policy="block", timeout_s=1.0).bytes
    67108864
    """

    bytes: _Count
    policy: Literal["fail", "block"] = "fail"
    timeout_s: _Seconds | None = None


class SpinThenPark(msgspec.Struct, frozen=True):
    """Wait strategy: poll for this many microseconds, then sleep."""

    us: float = 10.0


class Timestamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which field of a Java queue's messages has their time, and in which unit if it is a number.

    It is a field of the document, or of an argument of a method call. A time without a zone is in UTC.

    >>> Timestamp("transactTime", "us")
    Timestamp(field='transactTime', unit='us')
    """

    field: str
    unit: Literal["ns", "us", "ms", "s"] = "ns"
