"""Position files of readers, for who copies a queue: the layout is that of csrc/position.h."""

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from aiochronicle._base.names import is_name
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.system_errors import refusal
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
    """What a position file says."""

    position: Position
    heartbeat_ns: int
    generation: int
    epoch: int


def decode_position(content: bytes) -> Slot | None:
    """Return the newer of the two slots that are sound; None if neither is."""
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
    """Say what is wrong with a reader's position; StorageError if it cannot be read now."""
    try:
        content = read_small_file(str(file), _BYTES_MAX)
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise refusal(error.__cause__, str(error), file) from error
        return printable(error)
    damaged = content is not None and decode_position(content) is None
    return "both copies are damaged" if damaged else None


def damaged_positions(queue: Path) -> Iterator[tuple[str, PositionCorrupt]]:
    """Yield the readers of a queue that lists of readers lack, because their positions are damaged."""
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
                time.sleep(0.01)  # a commit may be under way
        except AccessDenied:
            continue  # it may be sound
        except StorageError as error:
            why = error.detail
        if why is not None:
            detail = f"the position of reader {name!r} cannot be used: {why}"
            advice = "aioc repair sets it aside; the reader is then a new one."
            yield name, PositionCorrupt(detail, path=str(file), advice=advice)
