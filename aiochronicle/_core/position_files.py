"""Reads and writes position files of readers, for copies of a queue. The layout is in csrc/position.h."""

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from aiochronicle._base.names import is_name
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.system_errors import storage_error
from aiochronicle._files import read_small_file
from aiochronicle._layout import (
    POSITION_CHECKED_BYTES,
    POSITION_SLOT,
    POSITION_SUFFIX,
    READERS,
    position_name,
)
from aiochronicle.errors import AccessDenied, PositionCorrupt, StorageError

__all__ = [
    "FILE_BYTES",
    "Slot",
    "damage_of_position",
    "damaged_positions",
    "decode_position",
    "encode_position",
]

FILE_BYTES = 2 * POSITION_SLOT.size
_BYTES_MAX = 4096
_TRIES = 3


class Slot(msgspec.Struct, frozen=True):
    """One slot of a position file."""

    position: Position
    heartbeat_ns: int
    generation: int
    epoch: int


def decode_position(content: bytes) -> Slot | None:
    """Return the newest valid slot; None if both are damaged."""
    found: list[Slot] = []
    for offset in range(
        0, min(len(content), FILE_BYTES) - POSITION_SLOT.size + 1, POSITION_SLOT.size
    ):
        segment, place, heartbeat_ns, generation, checksum, epoch = POSITION_SLOT.unpack_from(
            content, offset
        )
        if zlib.crc32(content[offset : offset + POSITION_CHECKED_BYTES]) == checksum:
            found.append(Slot(Position(segment, place), heartbeat_ns, generation, epoch))
    return max(found, key=lambda slot: slot.generation, default=None)


def encode_position(slot: Slot) -> bytes:
    """Return a position file with this one slot.

    >>> slot = Slot(Position(3, 64), 1, 7, 0)
    >>> decode_position(encode_position(slot)) == slot
    True
    """
    content = POSITION_SLOT.pack(*slot.position, slot.heartbeat_ns, slot.generation, 0, 0)[
        :POSITION_CHECKED_BYTES
    ]
    content += struct.pack("<II", zlib.crc32(content), slot.epoch)
    return content.ljust(FILE_BYTES, b"\0")


def damage_of_position(file: Path) -> str | None:
    """Return what is wrong with a position file, or None; StorageError if it cannot be read now."""
    try:
        content = read_small_file(str(file), _BYTES_MAX)
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, str(error), file) from error
        return printable(error)
    damaged = content is not None and decode_position(content) is None
    return "both copies are damaged" if damaged else None


def damaged_positions(queue: Path) -> Iterator[tuple[str, PositionCorrupt]]:
    """Yield the readers whose positions are damaged; lists of readers leave them out."""
    for file in sorted((queue / READERS).glob(position_name("*"))):
        name = file.name.removesuffix(POSITION_SUFFIX)
        if not is_name(name):
            continue
        why = None
        try:
            for _ in range(_TRIES):
                why = damage_of_position(file)
                if why is None:
                    break
                time.sleep(0.01)  # a commit may be in progress
        except AccessDenied:
            continue  # it may be intact
        except StorageError as error:
            why = error.detail
        if why is not None:
            detail = f"the position of reader {name!r} cannot be used: {why}"
            advice = "aioc repair sets the file aside; the reader then starts like a new one."
            yield name, PositionCorrupt(detail, path=str(file), advice=advice)
