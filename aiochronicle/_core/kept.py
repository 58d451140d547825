"""Why the segments of a queue are kept, in the terms in which retention decides."""

import os
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.printable import printable
from aiochronicle._core.live_settings import LiveSettings, changed, to_engine
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
    lib.AC_KEPT_GOES: ("goes", "goes at the next look of retention"),
    lib.AC_KEPT_ACTIVE: ("active", "is being written, or prepared"),
    lib.AC_KEPT_NO_RETENTION: ("no retention", "the writer has no retention: everything stays"),
    lib.AC_KEPT_AWAITED: ("wait_for", "reader {reader!r} of wait_for has not committed past it"),
    lib.AC_KEPT_READER: (
        "reader",
        "reader {reader!r}, which is open or within reader_ttl_s, has not committed past it",
    ),
    lib.AC_KEPT_AWAY: ("away", "reader {reader!r}, which is away, has not committed past it"),
    lib.AC_KEPT_NO_READER: ("no reader", "the queue has no named reader yet"),
    lib.AC_KEPT_LIMITS: ("limits", "neither max_age_s nor max_bytes is reached"),
    lib.AC_KEPT_DAMAGED: ("damaged", "cannot be read ({detail}), so its age is not known"),
    lib.AC_KEPT_POSITION: (
        "position",
        "the position {reader!r} cannot be read, so nobody knows what its reader needs",
    ),
    lib.AC_KEPT_BEHIND: ("behind", "could go, but a segment before it stays"),
    lib.AC_KEPT_NO_WRITER: ("no writer", "goes when a writer opens the queue"),
    lib.AC_KEPT_UNKNOWN: ("unknown", "its writer does not say by which rules it removes segments"),
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

    ``why`` is the first reason, ``text`` the same as a sentence. ``readers`` need the segment; ``reader`` is
    the one with the largest lag. ``newest_ns`` is the timestamp of its newest message, None if it was not
    needed. ``limit`` is "max_age" or "max_bytes" if that limit allows its removal. ``file`` is its name in
    the queue's directory.
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
    """Return for each segment of a queue, the oldest first, which reader or rule keeps it.

    It uses the rules of the current or last writer, or those of ``retention`` as if they were in force, and
    the code of retention itself. The writer measures by its own clock for how long a reader is silent; here
    the time of day is used. If its retention fails, ``text`` says so. The segments of a Java queue are its
    cycles; it takes no ``retention``. Never writes.

    >>> [(kept.segment, kept.why) for kept in why_kept(queue)]
    [(0, 'active')]
    >>> [kept.segment for kept in why_kept(queue, retention=Retention(max_bytes=1)) if kept.why == "goes"]
    []
    """
    rules = ffi.NULL
    if retention is not UNSET:
        rules = to_engine(changed(LiveSettings(), retention=retention))
    error = new_error()
    room = 64
    while True:
        found = ffi.new("ac_kept_segment_t[]", room)
        count = check(lib.ac_queue_why_kept(encode_path(path), rules, found, room, error), error)
        if count <= room:
            break
        room = count
    kept = [_kept(found[i]) for i in range(count)]
    if retention is UNSET and any(one.why == "goes" for one in kept):
        return _with_failure(path, kept)
    return kept


def _with_failure(path: str | os.PathLike[str], kept: list[KeptSegment]) -> list[KeptSegment]:
    """Say of segments that could go that the writer fails to remove them, if it does."""
    writer = writer_of(path)
    error = None if writer is None else failing_retention(writer)
    if error is None:
        return kept
    text = f"could go, but retention fails: {error.text}"
    return [msgspec.structs.replace(one, text=text) if one.why == "goes" else one for one in kept]


def _kept(entry: Any) -> KeptSegment:
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
