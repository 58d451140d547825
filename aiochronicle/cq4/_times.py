"""Formats and parses Java's texts of dates and times exactly; times that Python cannot store stay text."""

import datetime as dt
import re
import zoneinfo

_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_OFFSET = re.compile(r"Z|([+-])(\d\d):(\d\d)(?::(\d\d))?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*", re.ASCII)
_LONGEST_ZONE = 64


def format_time(time: dt.time) -> str:
    """Format a time like LocalTime.toString: without zero seconds, with fractions of 3, 6 or 9 digits.

    >>> [format_time(dt.time(12, 30, *rest)) for rest in ((), (1,), (0, 500000), (0, 1))]
    ['12:30', '12:30:01', '12:30:00.500', '12:30:00.000001']
    """
    if time.microsecond:
        return time.replace(tzinfo=None).isoformat(
            "microseconds" if time.microsecond % 1000 else "milliseconds"
        )
    return time.strftime("%H:%M:%S" if time.second else "%H:%M")


def format_datetime(moment: dt.datetime) -> str:
    """Format a datetime like LocalDateTime or ZonedDateTime."""
    text = f"{moment.date().isoformat()}T{format_time(moment.time())}"
    offset = moment.utcoffset()
    if offset is None:
        return text
    if offset.microseconds:
        raise ValueError("Java does not support time zone offsets with fractions of a second")
    text += _format_offset(offset)
    return f"{text}[{moment.tzinfo.key}]" if isinstance(moment.tzinfo, zoneinfo.ZoneInfo) else text


def _format_offset(offset: dt.timedelta) -> str:
    seconds = abs(offset) // dt.timedelta(seconds=1)
    if seconds == 0:
        return "Z"
    sign = "-" if offset < dt.timedelta() else "+"
    text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def parse_date(text: str) -> dt.date | None:
    """Parse a date; None, as in the functions below, if Python cannot store it."""
    if len(text) != 10:
        return None
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def parse_time(text: str) -> dt.time | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    nanoseconds = int((found[4] or "").ljust(9, "0"))
    if nanoseconds % 1000:
        return None
    try:
        return dt.time(int(found[1]), int(found[2]), int(found[3] or 0), nanoseconds // 1000)
    except ValueError:
        return None


def parse_datetime(text: str) -> dt.datetime | None:
    day, _, clock = text.partition("T")
    date, time = parse_date(day), parse_time(clock)
    return None if date is None or time is None else dt.datetime.combine(date, time)


def parse_zoned(text: str) -> dt.datetime | None:
    """Parse a datetime with a zone; None unless the zone is known here and agrees with the offset."""
    plain, bracket, zone = text.partition("[")
    where = max(plain.find("Z"), plain.find("+"), plain.find("-", 10))
    offset = _parse_offset(plain[where:]) if where > 0 else None
    local = parse_datetime(plain[:where])
    if offset is None or local is None:
        return None
    if not bracket:
        return local.replace(tzinfo=dt.timezone(offset))
    return _in_zone(local, offset, zone[:-1]) if zone.endswith("]") else None


def _parse_offset(text: str) -> dt.timedelta | None:
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    if text == "Z":
        return dt.timedelta()
    hours, minutes, seconds = int(found[2]), int(found[3]), int(found[4] or 0)
    if hours > 18 or minutes > 59 or seconds > 59:
        return None
    offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return -offset if found[1] == "-" else offset


def _in_zone(local: dt.datetime, offset: dt.timedelta, zone: str) -> dt.datetime | None:
    if len(zone) > _LONGEST_ZONE or _ZONE.fullmatch(zone) is None:
        return None
    try:
        info = zoneinfo.ZoneInfo(zone)
        for fold in (0, 1):
            moment = local.replace(tzinfo=info, fold=fold)
            if moment.utcoffset() == offset:
                return moment
    except (ValueError, LookupError, OSError, OverflowError):
        return None
    return None
