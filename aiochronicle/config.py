"""What can be configured, as small frozen records.

The limits in the annotations are those of a configuration file (settings.py); open_writer checks
what it is given itself.
"""

from typing import Annotated, Literal

import msgspec

__all__ = ["Batch", "Capacity", "Retention", "Roll", "SpinThenPark"]


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

    A segment that a live reader has not committed past always stays. Without ``max_age_s`` and
    ``max_bytes`` the others go as soon as every live reader is past them; with one of them, when
    they are older or more than that. With ``archive`` they are moved to ``archive/YYYY/MM/DD/``
    instead of deleted. ``wait_for`` names a reader that is waited for whether it lives or not, or
    has been there at all: what it has not committed past always stays.

    >>> Retention(max_bytes=10 << 30).reader_ttl_s
    30.0
    """

    max_age_s: _Seconds | None = None
    max_bytes: _Count | None = None
    archive: str | None = None
    wait_for: str | None = None
    reader_ttl_s: _Seconds = 30.0
    max_reader_lag: _Count = 10 << 30
    check_interval_s: _Seconds = 1.0


class Capacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far, in bytes, the writer may run ahead of its slowest live reader.

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
