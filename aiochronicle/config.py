"""What can be configured, as small frozen records.

The limits in the annotations are those of a configuration file (settings.py); open_writer checks
what it is given itself.
"""

from typing import Annotated, Literal

import msgspec

__all__ = ["Batch", "Capacity", "Retention", "Roll", "SpinThenPark", "Timestamp"]


# The built-in names, since some fields are called like them.
_Count = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, lt=1e10)]


class Roll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to start a new segment before the current one is full: at the first limit that is reached.

    >>> Roll(seconds=3600.0, messages=1_000_000)
    Roll(bytes=None, seconds=3600.0, messages=1000000)
    """

    bytes: _Count | None = None
    seconds: _Seconds | None = None
    messages: _Count | None = None


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Flush mode that leaves at most this many bytes, or seconds of messages, not yet on disk.

    >>> Batch(1 << 20, 0.1)
    Batch(bytes=1048576, seconds=0.1)
    """

    bytes: _Count
    seconds: _Seconds


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sealed segments may be removed.

    By default a segment is removed as soon as every named reader, open or away, has committed past it;
    ``forget_reader`` removes a reader that will not come back. With ``max_age_s`` or ``max_bytes`` segments
    are removed when they are older or larger together, except those that an open reader has not committed
    past.

    ``reader_ttl_s`` and ``max_reader_lag`` (bytes) end the wait for a reader that gave no sign of life for
    that long, or lags by more than that. None: no such limit. Until ``reader_ttl_s`` is over, a reader that
    is away counts as open. When a limit removes what a named reader has not read, the log has a warning.

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
    """How many bytes the writer may be ahead of its slowest open reader.

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
    """Which field of a Java queue's messages is their time, and the unit of its numbers.

    A field of the document, or of an argument of a method call. A date and time without a zone is in UTC.

    >>> Timestamp("transactTime", "us")
    Timestamp(field='transactTime', unit='us')
    """

    field: str
    unit: Literal["ns", "us", "ms", "s"] = "ns"
