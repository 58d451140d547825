"""Position files of readers, for who copies a queue: the layout is that of csrc/position.h."""

import struct
import zlib

import msgspec

from aiochronicle._base.position import Position
from aiochronicle._layout import POSITION_CHECKED_BYTES, POSITION_SLOT

__all__ = ["FILE_BYTES", "Slot", "decode_position", "encode_position"]

FILE_BYTES = 2 * POSITION_SLOT.size


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
