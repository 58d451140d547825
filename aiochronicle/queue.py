"""Questions about a whole queue that need no reader or writer of one's own."""

import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiochronicle._arguments import pathname
from aiochronicle._binding import check, encode_path, ffi, lib, new_error
from aiochronicle._live_settings import FILE, LiveSettings, changed, to_engine, to_toml
from aiochronicle._names import check_name
from aiochronicle._printable import printable
from aiochronicle._report import HtmlStruct
from aiochronicle.config import Batch, Capacity, Retention
from aiochronicle.errors import CorruptionError, PositionLost
from aiochronicle.position import Position
from aiochronicle.reader import Lag, open_reader
from aiochronicle.writer_info import WriterInfo, writer_of

__all__ = [
    "QueueInfo",
    "ReaderInfo",
    "VerifyReport",
    "configure",
    "forget_reader",
    "inspect",
    "list_readers",
    "verify",
]


_log = logging.getLogger(__name__)

_BATCH = 4096


class QueueInfo(HtmlStruct, frozen=True, kw_only=True):
    """What the control block, the directory and the writer say about a queue.

    ``next_seq`` is 0 for queues of other programs, which do not keep it. ``oldest_ns`` is the
    timestamp of the first message, None without one; ``disk_bytes`` what the segments take.
    ``writer`` is who has the queue open for writing, or had it last; None if nobody is known, as in
    a copy or what was restored from a backup.
    """

    segment_size: int
    writer_epoch: int
    queue_id: int
    first_segment: int
    last_segment: int
    segments: int
    next_seq: int
    current_segment: int
    write_offset: int
    last_timestamp_ns: int
    watermark_ns: int
    oldest_ns: int | None = None
    disk_bytes: int = 0
    writer: WriterInfo | None = None


class ReaderInfo(HtmlStruct, frozen=True, kw_only=True):
    """One reader that has a position in a queue, open or not.

    ``lag`` counts from its committed position, and ``committed_seq`` is the seq of the first
    message that is not committed; None if unknown. ``live`` is whether a process has it
    open now: capacity waits for those only. ``heartbeat_age_s`` is the time since its last sign of
    life or commit, which ``Retention.reader_ttl_s`` goes by. ``lost`` means that its position is no
    longer in the queue; the lag is then that of all there is. ``pid`` and ``command`` are those of
    the process that has it open; None if it is closed, or in another container.
    ``keeps_segments`` is how many finished segments retention keeps for it. In a Java queue these
    are the named tailers, Java's and ours; nobody knows whether one is open, and its age is infinite.
    """

    name: str
    committed: Position
    committed_seq: int | None
    lag: Lag
    live: bool
    lost: bool
    heartbeat_age_s: float
    heartbeat_ns: int = 0
    pid: int | None = None
    command: str | None = None
    keeps_segments: int = 0


class VerifyReport(HtmlStruct, frozen=True, kw_only=True):
    """Result of checking every record. ``first_problem`` is a sentence, or None."""

    records: int
    corrupt: int
    first_problem: str | None


def inspect(path: str | os.PathLike[str]) -> QueueInfo:
    """Describe the queue without opening it for anything.

    >>> inspect(queue).segments
    1
    """
    info = ffi.new("ac_queue_info_t *")
    error = new_error()
    check(lib.ac_queue_info(encode_path(path), info, error), error)
    names = (name for name in QueueInfo.__struct_fields__ if name != "writer")
    values = {name: getattr(info, name) for name in names}
    values["oldest_ns"] = info.oldest_ns or None
    return QueueInfo(**values, writer=writer_of(path))


def list_readers(path: str | os.PathLike[str]) -> list[ReaderInfo]:
    """List the readers that have a position in the queue, by name, with their lag. Never writes.

    >>> with open_reader(queue, "audit"):
    ...     [(reader.name, reader.lag.messages, reader.live) for reader in list_readers(queue)]
    [('audit', 1, True)]
    """
    error = new_error()
    room = 16
    while True:
        entries = ffi.new("ac_reader_entry_t[]", room)
        count = check(lib.ac_queue_readers(encode_path(path), entries, room, error), error)
        if count <= room:
            break
        room = count
    readers: list[ReaderInfo] = []
    with open_reader(path) as scout:
        for entry in entries[0:count]:
            committed = Position(entry.segment, entry.offset)
            lost = False
            try:
                scout.seek_position(committed)
            except PositionLost:
                scout.seek_first()
                lost = True
            info = ReaderInfo(
                name=ffi.string(entry.name).decode(),
                committed=committed,
                committed_seq=None if lost else scout.seq_at(committed),
                lag=scout.lag,
                live=bool(entry.open),
                lost=lost,
                heartbeat_age_s=_age_s(entry.heartbeat_ns),
                heartbeat_ns=entry.heartbeat_ns,
                pid=entry.pid or None,
                command=_text(entry.command) or None,
                keeps_segments=entry.keeps,
            )
            readers.append(info)
    return sorted(readers, key=lambda reader: reader.name)


def _age_s(heartbeat_ns: int) -> float:
    return max(0.0, (time.time_ns() - heartbeat_ns) / 1e9) if heartbeat_ns else math.inf


def _text(chars: Any) -> str:
    return printable(ffi.string(chars).decode("utf-8", "surrogateescape"))


def configure(
    path: str | os.PathLike[str],
    *,
    retention: Retention | UnsetType | None = UNSET,
    capacity: int | Capacity | UnsetType | None = UNSET,
    flush: Literal["async", "sync"] | Batch | UnsetType = UNSET,
    clear: bool = False,
) -> None:
    """Change settings of the queue's writer, whichever process has it open, by its settings.toml.

    The writer goes by it within about a second, as does every later one, whatever its program asks
    for; the log of its process says so. What is not given stays as the file has it; ``clear``
    forgets all that it had. None stands for "no retention" and "no capacity".
    The file must be of the writer's user, of root, or of the owner of the directory.

    >>> configure(queue, retention=Retention(max_bytes=10 << 30))
    >>> configure(queue, clear=True)
    """
    from aiochronicle.settings import parse_live_settings

    named = {"retention": retention, "capacity": capacity, "flush": flush}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not UNSET}
    to_engine(changed(LiveSettings(), **given))  # raises what is wrong with them
    if isinstance(retention, Retention) and retention.archive is not None:
        archive = pathname("Retention.archive", retention.archive)
        given["retention"] = msgspec.structs.replace(retention, archive=archive)
    encoded, error = encode_path(path), new_error()
    place = Path(os.fsdecode(encoded), FILE)
    said = {} if clear else parse_live_settings(place, _settings_text(encoded))
    text = to_toml({**said, **given}).encode()
    parse_live_settings(place, text)  # the writer will understand it
    check(lib.ac_queue_write_settings(encoded, text or ffi.NULL, error), error)


def _settings_text(path: bytes) -> bytes:
    text = ffi.new("char[]", lib.AC_SETTINGS_FILE_MAX + 1)
    error = new_error()
    length = check(lib.ac_queue_read_settings(path, text, error), error)
    return bytes(ffi.buffer(text, length))


def forget_reader(path: str | os.PathLike[str], name: str) -> None:
    """Remove a reader that will not come back, durably: its unread messages are kept no longer.

    If it comes back all the same, it starts like a new name. ReaderBusy while it is open,
    ReaderNotFound if there is none.

    >>> open_reader(queue, "last-year").close()
    >>> forget_reader(queue, "last-year")
    >>> list_readers(queue)
    []
    """
    check_name("name", name)
    error = new_error()
    check(lib.ac_queue_forget_reader(encode_path(path), name.encode(), error), error)
    _log.info("%s: reader %r was forgotten", printable(os.fspath(path)), name)


def verify(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> VerifyReport:
    """Read every record of the queue and check it. Never writes.

    ``progress`` is called with bytes that were read, and of how many.

    >>> verify(queue).corrupt
    0
    """
    records = corrupt = 0
    problem = None
    with open_reader(path, start="first") as reader:
        total = reader.lag.bytes
        while True:
            try:
                if not (batch := reader.read_batch(_BATCH)):
                    break
                records += len(batch)
            except CorruptionError as error:
                if problem is None:
                    problem = (
                        f"{printable(error.path)} at offset {error.offset or 0}: {error.detail}"
                    )
                skipped = reader.statistics().skipped_records
                reader.step_over()
                corrupt += max(1, reader.statistics().skipped_records - skipped)
            if progress is not None:
                progress(max(0, total - reader.lag.bytes), total)
    return VerifyReport(records=records, corrupt=corrupt, first_problem=problem)
