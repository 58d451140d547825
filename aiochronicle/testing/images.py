"""Copies of a queue as a crash would leave it now, which count as the original."""

import contextlib
import os
import shutil
import struct
from pathlib import Path

from aiochronicle._core.queue import inspect
from aiochronicle.errors import InvalidArgument

__all__ = ["copy_killed", "copy_powered_off"]

_HOME_OFFSET = 136  # in control.meta: which directory this is
_DURABLE = struct.Struct("<Q Q")  # in index.meta: segment and offset


def copy_killed(queue: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a queue to ``target`` as it would be if its processes were killed now.

    All appended messages are there, if no writer appends at the same time. The copy counts as the original:
    it keeps its identity, by which other queues name its messages as causes.

    >>> with open_writer(tmp_path / "q") as writer:
    ...     _ = writer.append(b"hello")
    ...     copy_killed(tmp_path / "q", tmp_path / "image")
    >>> with open_writer(tmp_path / "image") as writer:
    ...     writer.next_seq
    1
    """
    ignored = shutil.ignore_patterns("wake", "*.tmp")
    shutil.copytree(queue, target, ignore=ignored, copy_function=_copy_if_there)
    fd = os.open(Path(target, "control.meta"), os.O_WRONLY)
    try:
        os.pwrite(fd, bytes(8), _HOME_OFFSET)
    finally:
        os.close(fd)


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless the engine has removed or renamed it since it was listed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def copy_powered_off(queue: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a queue to ``target`` as a power cut would leave it if the disk had only the minimum.

    Messages that no flush covered are gone; a disk may have kept more. A writer with
    ``flush="sync"`` loses nothing. Only for queues of our own format.

    >>> with open_writer(tmp_path / "q") as writer:
    ...     _ = writer.append(b"on disk")
    ...     _ = writer.flush_now()
    ...     _ = writer.append(b"not yet")
    ...     copy_powered_off(tmp_path / "q", tmp_path / "image")
    >>> with open_reader(tmp_path / "image") as reader:
    ...     [message.payload for message in reader]
    [b'on disk']
    """
    found = inspect(queue)
    if found.format != "native":
        raise InvalidArgument("is a Java queue, whose writers say nothing about the disk")
    copy_killed(queue, target)
    if found.writer is not None and found.writer.flush == "sync":
        return
    segment, offset = _DURABLE.unpack(Path(target, "index.meta").read_bytes()[: _DURABLE.size])
    for path in Path(target).glob("*.q"):
        if int(path.stem) > segment:
            path.unlink()
            path.with_suffix(".idx").unlink(missing_ok=True)
        elif int(path.stem) == segment:
            size = path.stat().st_size
            os.truncate(path, min(offset, size))
            os.truncate(path, size)
