"""Progress and report of a backup, native or Java."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._base.position import Position
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.reader import Reader
from aiochronicle._maintenance.generations import Stamp
from aiochronicle.errors import CorruptionError

__all__ = ["BackupProgress", "BackupReport", "Progress", "read_all", "stamp_of"]

_BATCH = 4096

Progress = Callable[["BackupProgress"], object]


class BackupProgress(HtmlStruct, frozen=True, kw_only=True):
    """Progress of a backup or a restore: ``step`` is "copy" or "verify"."""

    step: str
    bytes: int
    bytes_total: int


class BackupReport(HtmlStruct, frozen=True, kw_only=True):
    """A completed backup. ``path`` is a readable queue; ``corrupt`` counts damaged places.

    ``left_out`` has the readers whose positions could not be read, and why. The backup has all messages,
    but in a queue that is restored from it these readers start like new ones. ``replaced`` lists segments
    that are damaged in the previous backup, and were copied from the queue again.
    """

    path: str
    number: int
    messages: int
    next_seq: int
    segments: int
    segments_copied: int
    bytes_copied: int
    reflinked: bool
    readers: int
    positions_moved: int
    corrupt: int
    removed: list[int]
    left_out: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    replaced: list[int] = msgspec.field(default_factory=list[int])


def read_all(
    reader: Reader[Any], end: Position, on_corrupt: str, advance: Callable[[int, int], object]
) -> int:
    """Read up to the end and check each record; return the number of damaged places."""
    total = max(reader.lag.bytes, 1)
    corrupt = 0
    while True:
        try:
            if not reader.read_batch(_BATCH):
                break
        except CorruptionError:
            if on_corrupt == "raise":
                raise
            corrupt += 1
            reader.step_over()
        advance(max(0, total - reader.lag.bytes), total)
    if reader.position < end and not corrupt:
        detail = (
            f"the copy ends too early, in segment {reader.position.segment},"
            f" offset {reader.position.offset}"
        )
        raise CorruptionError(detail, path=reader.path, advice="The copy was not used. Try again.")
    advance(total, total)
    return corrupt


def stamp_of(file: Path) -> Stamp:
    """Return the identity of a file and its content, as far as stat shows."""
    status = os.lstat(file)
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
