"""Amounts and times as people read and type them."""

import math
import re
from datetime import UTC, datetime, timedelta

__all__ = [
    "age",
    "amount",
    "many",
    "parse_amount",
    "parse_moment",
    "parse_seconds",
    "rate",
    "seq_text",
    "since",
    "when",
]

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?)b?", re.IGNORECASE)
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
}
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w)")


def amount(size_bytes: float | None) -> str:
    """Return a number of bytes with three digits and its unit.

    >>> [amount(value) for value in (None, 0, 1023, 1536, 134217728, 10 * 2**40)]
    ['–', '0 B', '1023 B', '1.5 KiB', '128 MiB', '10 TiB']
    """
    if size_bytes is None:
        return "–"
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1
    return f"{value:.{digits}f}".removesuffix(".0") + f" {_SIZES[unit]}"


def many(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> many(1, "row"), many(4200, "row")
    ('1 row', '4,200 rows')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def rate(per_second: float | None) -> str:
    """Return a rate per second, short.

    >>> [rate(value) for value in (None, 0, 0.25, 12.5, 999, 58270, 1234567)]
    ['–', '0/s', '0.25/s', '12.5/s', '999/s', '58.3k/s', '1.23M/s']
    """
    if per_second is None:
        return "–"
    value, unit = per_second, ""
    for bigger in ("k", "M", "G"):
        if value < 999.5:
            break
        value, unit = value / 1000, bigger
    return f"{value:.3g}{unit}/s"


def age(seconds: float | None) -> str:
    """Return a length of time with its unit.

    >>> [age(value) for value in (None, 0, 0.0004, 0.25, 59, 61, 7200, 200000)]
    ['–', '0 s', '400 µs', '250 ms', '59 s', '1m 1s', '2h', '2d 7h']
    """
    if seconds is None or math.isinf(seconds):
        return "–"
    if seconds < 1:
        for size, unit in ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
            if seconds >= size:
                return f"{seconds / size:.3g} {unit}"
        return "0 s"
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{whole} s"
    for size, unit, smaller, name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f" {rest}{name}" if rest else "")
    raise AssertionError(whole)


def when(moment_ns: int | None, *, parts: bool = True) -> str:
    """Return a time in UTC as ISO 8601, to the microsecond; without ``parts`` to the second.

    >>> when(1_700_000_000_123_456_789), when(1_700_000_000_000_000_000, parts=False), when(None)
    ('2023-11-14T22:13:20.123456Z', '2023-11-14T22:13:20Z', '–')
    """
    if not moment_ns:
        return "–"
    try:
        moment = datetime.fromtimestamp(moment_ns // 10**9, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{moment_ns} ns"
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment_ns % 10**9 // 1000:06d}Z" if parts else f"{text}Z"


def since(moment_ns: int | None, now_ns: int) -> str:
    """Return how long ago something was, never less than 0."""
    return "–" if not moment_ns else age(max(0, now_ns - moment_ns) / 1e9)


def seq_text(seq: int | None, form: str = "native") -> str:
    """Return a seq as people read it: Java's indexes are read in hex.

    >>> seq_text(1234567), seq_text(0x1234500000001, "cq4"), seq_text(None)
    ('1,234,567', '0x1234500000001', '–')
    """
    return "–" if seq is None else f"{seq:#x}" if form == "cq4" else f"{seq:,}"


def parse_amount(text: str) -> int:
    """Read a number of bytes; K, M, G … are powers of 1024.

    >>> [parse_amount(text) for text in ("512", "64k", "1.5 GiB", "10GB")]
    [512, 65536, 1610612736, 10737418240]
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no amount: give bytes, or a number with K, M, G or T")
    power = "kmgtpe".find(found[2].lower()) + 1 if found[2] else 0
    factor: int = 1024**power
    return round(float(found[1]) * factor)


def parse_seconds(text: str) -> float:
    """Read a length of time: seconds, or with a unit.

    >>> [parse_seconds(text) for text in ("90", "0.5", "250ms", "1h30m")]
    [90.0, 0.5, 0.25, 5400.0]
    """
    stripped = text.strip().replace(" ", "")
    try:
        value = float(stripped)
    except ValueError:
        parts = _DURATION.findall(stripped)
        if not parts or "".join(number + unit for number, unit in parts) != stripped:
            raise ValueError(f"{text!r} is no length of time: 90, 250ms, 15m, 1h30m …") from None
        value = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no length of time")
    return value


def parse_moment(text: str, now: datetime) -> int | datetime:
    """Read a place in a queue: a seq, an ISO 8601 time (UTC unless it says), or how long ago.

    >>> now = datetime(2026, 1, 2, 12, tzinfo=UTC)
    >>> parse_moment("1000", now), parse_moment("0x10", now)
    (1000, 16)
    >>> print(parse_moment("15m", now))
    2026-01-02 11:45:00+00:00
    >>> print(parse_moment("2026-01-02T03:04:05", now))
    2026-01-02 03:04:05+00:00
    """
    stripped = text.strip()
    if stripped.isdecimal():
        return int(stripped)
    if _HEX.fullmatch(stripped):
        return int(stripped, 16)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        pass
    else:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return now - timedelta(seconds=parse_seconds(stripped))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no place in a queue: give a seq, a time as 2026-01-31T12:00:00Z, or how"
            " long ago, as 15m"
        ) from None
