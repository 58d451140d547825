"""Reads data that repairs have set aside in ``recovered/`` of a queue."""

import mmap
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from aiochronicle._base.arguments import expect, pathname
from aiochronicle._base.report import HtmlStruct
from aiochronicle._files import open_regular
from aiochronicle._hot import split_trailer
from aiochronicle._layout import RECORD, RECOVERED, RECOVERED_SEGMENT
from aiochronicle.errors import InvalidArgument, QueueNotFound, StorageError

__all__ = ["RecoveredMessage", "RecoveredPart", "list_recovered", "read_recovered"]

_BYTES = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)\.bin")
_HEADER_BYTES = _ALIGNMENT = 64
_PADDING = 0xFFFF
_HAS_TRAILER = 16  # AC_FLAG_TRAILER
_NOT_ZERO = re.compile(rb"[^\0]")


class RecoveredPart(HtmlStruct, frozen=True, kw_only=True):
    """A file in recovered/: a whole segment, bytes after the end of one, or some other file."""

    name: str
    kind: Literal["segment", "bytes", "file"]
    segment: int | None
    offset: int | None
    epoch: int | None
    bytes: int
    modified_ns: int


class RecoveredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A record with a valid checksum. ``offset`` is its offset in the file."""

    seq: int
    timestamp_ns: int
    type_id: int
    payload: bytes
    offset: int
    key: bytes | None
    headers: dict[str, bytes]


def list_recovered(path: str | os.PathLike[str]) -> list[RecoveredPart]:
    """List the files that repairs of a queue have set aside, by name. Never writes.

    >>> list_recovered(queue)
    []
    """
    queue = Path(pathname("path", path))
    if not queue.is_dir():
        raise QueueNotFound("no such directory", path=str(queue))
    directory = queue / RECOVERED
    try:
        files = sorted(path for path in directory.iterdir() if path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"cannot be listed: {error.strerror}", path=str(directory), errno=error.errno
        ) from error
    return [_part(file) for file in files]


def _part(file: Path) -> RecoveredPart:
    status = os.lstat(file)
    segment = offset = epoch = None
    kind: Literal["segment", "bytes", "file"] = "file"
    if found := RECOVERED_SEGMENT.fullmatch(file.name):
        kind, segment, epoch = "segment", int(found[1]), int(found[2])
    elif found := _BYTES.fullmatch(file.name):
        kind, segment, offset, epoch = "bytes", int(found[1]), int(found[2]), int(found[3])
    return RecoveredPart(
        name=file.name,
        kind=kind,
        segment=segment,
        offset=offset,
        epoch=epoch,
        bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
    )


def read_recovered(path: str | os.PathLike[str], name: str) -> Iterator[RecoveredMessage]:
    """Yield the intact records of a file that was set aside, in the order of the file.

    They are not in the queue, and may never have been complete or in order, so the caller decides which of
    them to use. Bytes that are not a record are skipped.

    >>> list(read_recovered(queue, "000000000-1.q"))
    Traceback (most recent call last):
    aiochronicle.errors.InvalidArgument: there is no 000000000-1.q in recovered/
    """
    directory = Path(pathname("path", path)) / RECOVERED
    if expect("name", "the name of a file", str, name) != Path(name).name or name in (
        "",
        ".",
        "..",
    ):
        raise InvalidArgument(f"{name!r} is not the name of a file in {RECOVERED}/")
    try:
        fd = open_regular(str(directory / name))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidArgument(f"there is no {name} in {RECOVERED}/") from None
    except ValueError as error:
        raise StorageError(str(error), path=str(directory / name)) from error
    return _records(fd, _HEADER_BYTES if RECOVERED_SEGMENT.fullmatch(name) else 0)


def _records(fd: int, offset: int) -> Iterator[RecoveredMessage]:
    try:
        if os.fstat(fd).st_size <= offset:
            return
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as content:
            while (found := _NOT_ZERO.search(content, offset)) is not None:
                offset = found.start() // _ALIGNMENT * _ALIGNMENT
                record = _record_at(content, offset)
                if record is None:
                    offset += _ALIGNMENT
                    continue
                message, size = record
                if message.type_id != _PADDING:
                    yield message
                offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    finally:
        os.close(fd)


def _record_at(content: mmap.mmap, offset: int) -> tuple[RecoveredMessage, int] | None:
    """Return the record at an offset and its size, or None if there is no valid one."""
    if offset + _HEADER_BYTES > len(content):
        return None
    length, version, zeros, seq, timestamp_ns, type_id, flags, checksum = RECORD.unpack_from(
        content, offset
    )
    end = offset + _HEADER_BYTES + length - 1
    if length == 0 or version != 1 or zeros != b"\0\0\0" or end > len(content):
        return None
    area = content[offset + _HEADER_BYTES : end]
    if zlib.crc32(area) != checksum:
        return None
    payload: bytes = area
    key: bytes | None = None
    headers: dict[str, bytes] = {}
    if flags & _HAS_TRAILER:
        parts = split_trailer(area)
        if parts is None:
            return None
        payload, key, headers = parts
    message = RecoveredMessage(
        seq=seq,
        timestamp_ns=timestamp_ns,
        type_id=type_id,
        payload=payload,
        offset=offset,
        key=key,
        headers=headers,
    )
    return message, end - offset
