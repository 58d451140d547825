"""Explains why retention keeps the segments of a queue."""

import os
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.printable import printable
from aiochronicle._core.live_settings import LiveSettings, replace_settings, to_engine
from aiochronicle._core.writer_info import failing_retention, writer_of
from aiochronicle.config import Retention

__all__ = ["KeptSegment", "why_kept"]

KeptFor = Literal[
    "goes",
    "active",
    "no retention",
    "wait_for",
    "reader",
    "away",
    "no reader",
    "limits",
    "damaged",
    "position",
    "behind",
    "no writer",
    "unknown",
    "tailer",
    "operator",
]

_REASONS: dict[int, tuple[KeptFor, str]] = {
    lib.AC_KEPT_GOES: ("goes", "retention removes it at its next check"),
    lib.AC_KEPT_ACTIVE: ("active", "is being written or prepared"),
    lib.AC_KEPT_NO_RETENTION: (
        "no retention",
        "the writer has no retention, so every segment stays",
    ),
    lib.AC_KEPT_AWAITED: (
        "wait_for",
        "reader {reader!r}, named by wait_for, has not committed past it",
    ),
    lib.AC_KEPT_READER: (
        "reader",
        "reader {reader!r}, which is open or within reader_ttl_s, has not committed past it",
    ),
    lib.AC_KEPT_AWAY: ("away", "reader {reader!r}, which is closed, has not committed past it"),
    lib.AC_KEPT_NO_READER: ("no reader", "the queue has no named reader yet"),
    lib.AC_KEPT_LIMITS: ("limits", "no limit of age or size is reached"),
    lib.AC_KEPT_DAMAGED: ("damaged", "cannot be read ({detail}), so its age is unknown"),
    lib.AC_KEPT_POSITION: (
        "position",
        "the position of reader {reader!r} cannot be read, so what it still needs is unknown",
    ),
    lib.AC_KEPT_BEHIND: ("behind", "could be removed, but an older segment stays"),
    lib.AC_KEPT_NO_WRITER: ("no writer", "is removed when a writer opens the queue"),
    lib.AC_KEPT_UNKNOWN: ("unknown", "its writer does not publish its retention rules"),
    lib.AC_KEPT_TAILER: (
        "tailer",
        "only its operator removes a Java queue's files; tailer {reader!r} has not committed past it",
    ),
    lib.AC_KEPT_OPERATOR: (
        "operator",
        "only its operator removes a Java queue's files; no named tailer needs it",
    ),
}


class KeptSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, and the reader or rule that keeps it.

    ``why`` is the first reason, ``text`` the same as a sentence. ``readers`` is how many readers need the
    segment; ``reader`` is the one with the largest lag. ``newest_ns`` is the timestamp of its newest message,
    None if the decision did not need it. ``limit`` is "max_age" or "max_bytes" if that limit allows its
    removal. ``file`` is its name in the queue's directory.
    """

    segment: int
    why: KeptFor
    text: str
    reader: str | None
    readers: int
    bytes: int
    newest_ns: int | None
    limit: str | None
    file: str


def why_kept(
    path: str | os.PathLike[str], *, retention: Retention | UnsetType | None = UNSET
) -> list[KeptSegment]:
    """Return which reader or rule keeps each segment of a queue, oldest segment first.

    The answer comes from retention's own code, with the rules of the current or last writer, or with those
    of ``retention`` instead. The writer measures the silence of readers by its own clock; this function
    uses the time of day. If the writer fails to remove segments, ``text`` says so. The segments of a Java
    queue are its cycles, and it has no ``retention``. Never writes.

    >>> [(kept.segment, kept.why) for kept in why_kept(queue)]
    [(0, 'active')]
    >>> [kept.segment for kept in why_kept(queue, retention=Retention(max_bytes=1)) if kept.why == "goes"]
    []
    """
    rules = ffi.NULL
    if retention is not UNSET:
        rules = to_engine(replace_settings(LiveSettings(), retention=retention))
    error = new_error()
    capacity = 64
    while True:
        found = ffi.new("ac_kept_segment_t[]", capacity)
        count = check(
            lib.ac_queue_why_kept(encode_path(path), rules, found, capacity, error), error
        )
        if count <= capacity:
            break
        capacity = count
    kept = [_convert(found[i]) for i in range(count)]
    if retention is UNSET and any(one.why == "goes" for one in kept):
        return _with_failure(path, kept)
    return kept


def _with_failure(path: str | os.PathLike[str], kept: list[KeptSegment]) -> list[KeptSegment]:
    """If retention fails, say so in the texts of the segments that it could remove."""
    writer = writer_of(path)
    error = None if writer is None else failing_retention(writer)
    if error is None:
        return kept
    text = f"could be removed, but retention fails: {error.text}"
    return [msgspec.structs.replace(one, text=text) if one.why == "goes" else one for one in kept]


def _convert(entry: Any) -> KeptSegment:
    why, text = _REASONS[entry.why]
    reader = _text(entry.reader)
    detail = _text(entry.detail)
    return KeptSegment(
        segment=entry.segment,
        why=why,
        text=text.format(reader=reader, detail=detail),
        reader=reader or None,
        readers=entry.readers,
        bytes=entry.bytes,
        newest_ns=entry.newest_ns or None,
        limit=detail if detail and why != "damaged" else None,
        file=_text(entry.file),
    )


def _text(chars: Any) -> str:
    return printable(ffi.string(chars).decode("utf-8", "surrogateescape"))
