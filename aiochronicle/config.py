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
    """When to start a new segment before the present one is full: whichever comes first.

    >>> Roll(seconds=3600.0, messages=1_000_000)
    Roll(bytes=None, seconds=3600.0, messages=1000000)
    """

    bytes: _Count | None = None
    seconds: _Seconds | None = None
    messages: _Count | None = None


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Flush mode in which at most so many bytes, or seconds, are not yet on disk.

    >>> Batch(1 << 20, 0.1)
    Batch(bytes=1048576, seconds=0.1)
    """

    bytes: _Count
    seconds: _Seconds


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sealed segments may go.

    By default a segment goes as soon as every named reader has committed past it, whether the
    reader is open or away; ``forget_reader`` removes one that will not come back. With
    ``max_age_s`` or ``max_bytes`` segments go when they are older or more than that, but not what
    a reader that is open now has not committed past.

    ``reader_ttl_s`` and ``max_reader_lag`` (bytes) end the wait for a reader that gave no sign of
    life for so long, or is so far behind. None: no such limit. Until ``reader_ttl_s`` is over, a
    reader that is away counts as open. When a limit removes what a named reader has not read, the
    log says so.

    With ``archive`` segments are moved to ``archive/YYYY/MM/DD/`` instead of deleted. ``wait_for``
    names a reader that no limit concerns, even before it was there for the first time.

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
    """How far, in bytes, the writer may run ahead of its slowest reader that is open.

    ``policy`` "fail" raises QueueFull; "block" waits, ``timeout_s`` at most (None: for ever).

    >>> Capacity(64 << 20, policy="block", timeout_s=1.0).bytes
    67108864
    """

    bytes: _Count
    policy: Literal["fail", "block"] = "fail"
    timeout_s: _Seconds | None = None


class SpinThenPark(msgspec.Struct, frozen=True):
    """Wait strategy: look again and again for so many microseconds, then sleep."""

    us: float = 10.0


class Timestamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which field of a Java queue's messages is their time, and the unit of its numbers.

    A field of the document, or of an argument of a method call. One that holds a date and time is
    taken as what it is, in UTC if it has no zone.

    >>> Timestamp("transactTime", "us")
    Timestamp(field='transactTime', unit='us')
    """

    field: str
    unit: Literal["ns", "us", "ms", "s"] = "ns"
