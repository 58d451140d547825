"""Functions on a whole queue that need no open reader or writer."""

import errno
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiochronicle._base.arguments import pathname, wrong_value
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.names import check_name
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable, utf8_name
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.backup_mark import refuse_backup
from aiochronicle._core.live_settings import (
    LIVE,
    LiveSettings,
    parse_live_settings,
    replace_settings,
    to_engine,
    to_toml,
)
from aiochronicle._core.position_files import damaged_positions
from aiochronicle._core.reader import Reader, open_reader, unix_ns
from aiochronicle._core.stream import Lag
from aiochronicle._core.verifying import VerifyReport, check_records
from aiochronicle._core.writer_info import WriterInfo, writer_of
from aiochronicle._layout import SETTINGS
from aiochronicle.config import Batch, Capacity, Retention
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    PositionLost,
    ReaderBusy,
    ReaderNotFound,
)

__all__ = [
    "QueueInfo",
    "ReaderInfo",
    "VerifyReport",
    "configure",
    "forget_reader",
    "inspect",
    "list_readers",
    "refused_settings",
    "seek_reader",
    "verify",
]


_log = logging.getLogger("aiochronicle.queue")


class QueueInfo(HtmlStruct, frozen=True, kw_only=True):
    """A queue, as its control block, directory and writer describe it.

    If another program wrote last, ``next_seq`` and ``last_timestamp_ns`` come from the newest records, and
    are 0 if unknown. ``oldest_ns`` is the timestamp of the first message, None if there is none;
    ``disk_bytes`` is the size of the segments on disk. ``writer`` is the current or last writer, None if
    unknown, as in a copy or a restored backup.

    For a Java queue (``format`` "cq4") the segments are its cycles, ``next_seq`` is the index of the next
    message, and times are the starts of cycles. Any number of processes may write to it, so ``writer`` is
    None; ``holder_pid`` is the process that holds its lock now, None if no process does. ``roll_cycle`` is
    None if Java has no name for it.
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
    format: Literal["native", "cq4"] = "native"
    holder_pid: int | None = None
    roll_cycle: str | None = None


class ReaderInfo(HtmlStruct, frozen=True, kw_only=True):
    """One reader that has a position in a queue, open or closed.

    ``lag`` counts from its committed position. ``committed_seq`` is the seq of the first message that is
    not committed, None if unknown. ``damaged`` means that its position is in a damaged segment; the lag
    then counts from the next segment. ``live`` is whether a process has the reader open now: capacity waits
    for live readers only. ``heartbeat_age_s`` is the time since its last sign of life or commit;
    ``Retention.reader_ttl_s`` limits it. ``lost`` means that its position is no longer in the queue; the
    lag is then that of the whole queue. ``pid`` and ``command`` identify the process that has the reader
    open; they are None if it is closed or in another container. ``stopped`` is whether that process is
    stopped, by SIGSTOP or a debugger. ``keeps_segments`` is how many sealed segments retention keeps for
    it.

    In a Java queue the readers are the named tailers, those of Java included. Whether one is open is unknown,
    and its age is infinite.
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
    stopped: bool = False
    damaged: bool = False


def inspect(path: str | os.PathLike[str]) -> QueueInfo:
    """Describe the queue without opening it for reading or writing.

    >>> inspect(queue).segments
    1
    """
    info = ffi.new("ac_queue_info_t *")
    error = new_error()
    check(lib.ac_queue_info(encode_path(path), info, error), error)
    values = {name: getattr(info, name) for name in QueueInfo.__struct_fields__ if name != "writer"}
    values["oldest_ns"] = info.oldest_ns or None
    values["format"] = "cq4" if info.format == lib.AC_FORMAT_CQ4 else "native"
    values["holder_pid"] = info.holder_pid or None
    values["roll_cycle"] = _text(info.roll_cycle) or None
    return QueueInfo(**values, writer=writer_of(path))


def list_readers(path: str | os.PathLike[str]) -> list[ReaderInfo]:
    """List the readers that have a position in one queue; ``shared.py`` also knows topics."""
    error = new_error()
    capacity = 16
    while True:
        entries = ffi.new("ac_reader_entry_t[]", capacity)
        count = check(lib.ac_queue_readers(encode_path(path), entries, capacity, error), error)
        if count <= capacity:
            break
        capacity = count
    readers: list[ReaderInfo] = []
    with open_reader(path) as probe:
        for entry in entries[0:count]:
            committed = Position(entry.segment, entry.offset)
            lost = damaged = False
            try:
                probe.seek_position(committed)
            except PositionLost:
                probe.seek_first()
                lost = True
            except (CorruptionError, InvalidArgument):  # what is at its position is damaged
                _seek_after(probe, committed)
                damaged = True
            info = ReaderInfo(
                name=ffi.string(entry.name).decode(),
                committed=committed,
                committed_seq=None if lost or damaged else probe.seq_at(committed),
                lag=probe.lag,
                live=bool(entry.open),
                lost=lost,
                heartbeat_age_s=_age_s(entry.heartbeat_ns),
                heartbeat_ns=entry.heartbeat_ns,
                pid=entry.pid or None,
                command=_text(entry.command) or None,
                keeps_segments=entry.keeps,
                stopped=bool(entry.stopped),
                damaged=damaged,
            )
            readers.append(info)
    return sorted(readers, key=lambda reader: reader.name)


def _seek_after(probe: Reader, committed: Position) -> None:
    """Move to the first segment after this position that can be read."""
    probe.seek_last()
    for number in range(committed.segment + 1, probe.position.segment + 1):
        with suppress(ChronicleError):
            probe.seek_position(Position(number, 64))
            return


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
    clear: bool | Literal["retention", "capacity", "flush"] = False,
) -> None:
    """Change settings of the queue's writer, in any process, through the queue's settings.toml.

    The writer applies the file within about a second, and logs it. Later writers use it too; it overrides
    the settings of their programs. Settings that are not passed stay as in the file. ``clear`` names one to
    remove from the file; True removes all. None means "no retention" and "no capacity". The file must
    belong to the writer's user, to root, or to the owner of the directory.

    >>> configure(queue, retention=Retention(max_bytes=10 << 30))
    >>> configure(queue, clear="retention")
    """
    if not isinstance(clear, bool) and clear not in LIVE:
        raise wrong_value("clear", f"a bool, or one of {', '.join(LIVE)}", clear)
    named = {"retention": retention, "capacity": capacity, "flush": flush}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not UNSET}
    to_engine(replace_settings(LiveSettings(), **given))  # checks them
    if isinstance(retention, Retention) and retention.archive is not None:
        archive = pathname("Retention.archive", retention.archive)
        if utf8_name(archive) != archive:
            wanted = "a path in UTF-8, like settings.toml; Writer.configure takes others"
            raise wrong_value("Retention.archive", wanted, archive)
        given["retention"] = msgspec.structs.replace(retention, archive=archive)
    encoded, error = encode_path(path), new_error()
    place = Path(os.fsdecode(encoded), SETTINGS)
    refuse_backup(place.parent)
    current = {} if clear is True else parse_live_settings(place, _settings_text(encoded))
    if isinstance(clear, str):
        current.pop(clear, None)
    text = to_toml({**current, **given}).encode()
    parse_live_settings(place, text)  # checks that writers will accept it
    check(lib.ac_queue_write_settings(encoded, text or ffi.NULL, error), error)


def refused_settings(path: str | os.PathLike[str]) -> ChronicleError | None:
    """Return why writers refuse the settings.toml of a native queue, or None.

    None also if this user may not read the file.
    """
    encoded = encode_path(path)
    try:
        parse_live_settings(Path(os.fsdecode(encoded), SETTINGS), _settings_text(encoded))
    except ChronicleError as error:
        return None if getattr(error, "errno", None) == errno.EACCES else error
    return None


def _settings_text(path: bytes) -> bytes:
    text = ffi.new("char[]", lib.AC_SETTINGS_FILE_MAX + 1)
    error = new_error()
    length = check(lib.ac_queue_read_settings(path, text, error), error)
    return bytes(ffi.buffer(text, length))


def forget_reader(path: str | os.PathLike[str], name: str, *, force: bool = False) -> None:
    """Durably remove a reader that will not come back, so that no segments are kept for it.

    If it does come back, it starts like a new reader. ReaderBusy if it is open; with ``force`` the open
    reader raises PositionRevoked, and its commits have no effect. ReaderNotFound if there is no such
    reader.

    >>> open_reader(queue, "last-year").close()
    >>> forget_reader(queue, "last-year")
    >>> list_readers(queue)
    []
    """
    check_name("name", name)
    refuse_backup(Path(os.fsdecode(encode_path(path))))
    error = new_error()
    try:
        check(lib.ac_queue_forget_reader(encode_path(path), name.encode(), error), error)
    except ReaderBusy:
        if not force:
            raise
        _revoke(path, name, None)
    _log.info("%s: reader %r was forgotten", printable(os.fspath(path)), name)


def _revoke(path: str | os.PathLike[str], name: str, instead: Position | None) -> None:
    from aiochronicle._core.revoking import revoke  # here, because few programs need it

    revoke(os.fsdecode(encode_path(path)), name, instead)


def seek_reader(
    path: str | os.PathLike[str],
    name: str,
    to: Literal["first", "last"] | int | datetime,
    *,
    force: bool = False,
    create: bool = False,
) -> int:
    """Durably move a reader's position; return the seq of the next message it gets.

    ``to`` is a seq, a time, "first" or "last". If the message with that seq was removed, the reader moves to
    the oldest one. InvalidArgument if the seq is beyond the end, or the time in the future. ReaderNotFound if
    there is no such reader, unless ``create``; PositionCorrupt if its position is damaged.

    ReaderBusy if the reader is open. With ``force`` the open reader raises PositionRevoked, its commits
    have no effect, and it resumes at the new place when it is opened again. Whether a tailer of a Java
    queue is open is unknown; if it is, its next commit wins, as in Java.

    >>> open_reader(queue, "audit").close()
    >>> seek_reader(queue, "audit", "last")
    1
    """
    check_name("name", name)
    known = [reader.name for reader in list_readers(path)]
    if name not in known and not create:
        for damaged, damage in damaged_positions(Path(os.fsdecode(encode_path(path)))):
            if damaged == name:
                raise damage
        detail = f"the queue has no reader {name!r}; it has {', '.join(known) or 'none'}"
        raise ReaderNotFound(detail, path=os.fsdecode(encode_path(path)))
    with open_reader(path, start=to, on_corrupt="skip") as probe:
        place = probe.position
        seq = probe.seq_at(place) or 0
        if not isinstance(to, str):
            _refuse_beyond_end(probe, to)
    try:
        with open_reader(path, name, start=to, on_corrupt="skip") as reader:
            place = reader.position
            seq = reader.seq_at(place) or 0
            reader.commit_position(place)
    except ReaderBusy:
        if not force:
            raise
        _revoke(path, name, place)
    _log.info("%s: reader %r was moved to seq %d", printable(os.fspath(path)), name, seq)
    return seq


def _refuse_beyond_end(probe: Reader[Any], to: int | datetime) -> None:
    """Raise InvalidArgument for a place that does not exist yet; seeking would go to the end."""
    probe.seek_last()
    end = probe.seq_at(probe.position)
    newest_ns = max(time.time_ns(), inspect(probe.path).last_timestamp_ns)
    where = None
    if isinstance(to, datetime):
        where = f"{to} is in the future" if unix_ns(to) > newest_ns else None
    elif end is not None and to > end:
        where = f"seq {to} is beyond the end: the next message gets seq {end}"
    if where is not None:
        advice = 'The reader was not moved. Give "last" to move it to the end.'
        raise InvalidArgument(where, path=probe.path, advice=advice)


def verify(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> VerifyReport:
    """Read every record of the queue and check it. Never writes.

    It continues after damage and after a missing segment. ``progress`` is called with the bytes read and the
    total.

    >>> verify(queue).corrupt
    0
    """
    with open_reader(path, start="first") as reader:
        total = reader.lag.bytes

        def report_progress() -> None:
            if progress is not None:
                progress(max(0, total - reader.lag.bytes), total)

        return check_records(
            reader,
            lambda: inspect(path).first_segment,
            report_progress,
            lambda: inspect(path).next_seq,
        )
