"""An independent implementation of the queue format, used to check what the C engine writes and reads.

Nothing here shares code with the engine. Layouts, checksums and the reader's rules come from the format's
description only, so agreement between the two is meaningful. Decoders never raise on bad bytes. They report
the first broken rule in an ``error`` field; ``remarks`` lists what a reader has to tolerate although a
careful writer would not produce it.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final

# --- layouts ---------------------------------------------------------------------------------

ALIGNMENT: Final = 64

RECORD_HEADER: Final = struct.Struct("<I B 3s Q Q H H I 32s")
RECORD_HEADER_SIZE: Final = 64
RECORD_VERSION: Final = 1
PADDING_TYPE: Final = 0xFFFF
SPARE_OFFSET: Final = 32
SPARE_SIZE: Final = 32

FLAG_OWN: Final = 0x0001
FLAG_CAUSE: Final = 0x0002
FLAG_SYNCED: Final = 0x0004
FLAG_TRAILER: Final = 0x0010
TRAILER_END: Final = struct.Struct("<H B B")
TRAILER_HAS_KEY: Final = 0x01
TRAILER_MAX: Final = 65535
HEADERS_MAX: Final = 64
OWN_SPARE: Final = struct.Struct("<Q Q I I I I")
OWN_EPOCH_OFFSET: Final = 52
OWN_CHECK_OFFSET: Final = 60

SEGMENT_HEADER: Final = struct.Struct("<I I I I 48s")
SEGMENT_HEADER_SIZE: Final = 64
SEGMENT_MAGIC: Final = 0x53454730
SEGMENT_VERSION: Final = 2
SEGMENT_FLAGS_OFFSET: Final = 12
SEGMENT_SEALED: Final = 0x1
DATA_OFFSET: Final = 64
DEFAULT_SEGMENT_SIZE: Final = 128 << 20

CONTROL_SIZE: Final = 512
CONTROL_MAGIC: Final = 0x4348524E
CONTROL_VERSION: Final = 3
CONTROL_USABLE: Final = 2
CONTROL: Final = struct.Struct("<I I I 4x Q Q 96x I I 120x Q Q 112x I I 120x")
CONTROL_INIT_STATE_OFFSET: Final = 8
CONTROL_EPOCH_OFFSET: Final = 16
CONTROL_SEGMENT_GEN_OFFSET: Final = 128
CONTROL_CURRENT_SEGMENT_OFFSET: Final = 132
CONTROL_HOME_OFFSET: Final = 136
CONTROL_WRITE_OFFSET_OFFSET: Final = 256
CONTROL_HEARTBEAT_OFFSET: Final = 264
CONTROL_NOTIFY_SEQ_OFFSET: Final = 384
CONTROL_WAITERS_OFFSET: Final = 388

INDEX_META: Final = struct.Struct("<Q Q")

INDEX_HEADER: Final = struct.Struct("<8s H H I Q Q I I Q Q Q Q Q")
INDEX_HEADER_SIZE: Final = 80
INDEX_ENTRY: Final = struct.Struct("<Q Q Q")
INDEX_MAGIC: Final = b"CHRIDX1\0"
INDEX_VERSION: Final = 1
INDEX_PARTIAL: Final = 0x1
INDEX_UNIFORM: Final = 0x80000000  # ours: all records have one type and length
INDEX_STRIDE: Final = 4096

SLOT_BODY: Final = struct.Struct("<Q Q Q Q")
SLOT: Final = struct.Struct("<32s I 4x")
SLOT_SIZE: Final = 40
POSITION_SIZE: Final = 80

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_OWN_SEED: Final = struct.Struct("<Q Q")
_SEGMENT_NAME: Final = re.compile(r"(\d{9,10})\.q")
_INDEX_NAME: Final = re.compile(r"(\d{9,10})\.idx")

# --- checksums -------------------------------------------------------------------------------


def _castagnoli_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C_TABLE: Final = _castagnoli_table()


def crc32c(data: bytes) -> int:
    """CRC-32C, spelled out because zlib only offers the other polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC32C_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@lru_cache(maxsize=1 << 14)  # tests decode a growing queue repeatedly
def header_check(segment_id: int, header64: bytes) -> int:
    """Return the header checksum of our own records, which a leftover from elsewhere cannot match.

    The header must hold the committed length; the last four bytes (the stored check) are unused.
    """
    if len(header64) != RECORD_HEADER_SIZE:
        raise ValueError("a record header has 64 bytes")
    (epoch,) = _U32.unpack_from(header64, OWN_EPOCH_OFFSET)
    return crc32c(_OWN_SEED.pack(segment_id, epoch) + header64[:OWN_CHECK_OFFSET])


# --- what the decoders return ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnFields:
    """The fields that this project keeps in a record's spare bytes."""

    cause_source: int | None
    cause_seq: int | None
    batch_left: int
    epoch: int
    cause_epoch: int | None  # of the cause's record; 0 = not known
    header_check: int


@dataclass(frozen=True, slots=True)
class Parts:
    """A message without the layout, as passed to its writer."""

    payload: bytes
    key: bytes | None
    headers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Record:
    """One committed message with every header field, so that tests can compare byte by byte."""

    offset: int
    commit_len: int
    version: int
    seq: int
    timestamp_ns: int
    type_id: int
    flags: int
    checksum: int
    spare: bytes
    payload: bytes

    @property
    def end(self) -> int:
        """The offset at which the next record has to start."""
        return self.offset + record_size(self.commit_len - 1)

    @property
    def own(self) -> OwnFields | None:
        """The decoded spare bytes; None for a record of another program."""
        if not self.flags & FLAG_OWN:
            return None
        source, seq, left, epoch, cause_epoch, check = OWN_SPARE.unpack(self.spare)
        if not self.flags & FLAG_CAUSE:
            return OwnFields(None, None, left, epoch, None, check)
        return OwnFields(source, seq, left, epoch, cause_epoch, check)

    @property
    def parts(self) -> Parts | None:
        """The payload, key and headers; None if the trailer is malformed."""
        if not self.flags & FLAG_TRAILER:
            return Parts(self.payload, None, {})
        return decode_trailer(self.payload)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    magic: int
    version: int
    segment_id: int
    flags: int
    spare: bytes

    @property
    def sealed(self) -> bool:
        """True once no further record will be committed here."""
        return bool(self.flags & SEGMENT_SEALED)


@dataclass(slots=True)
class SegmentDump:
    """Everything that a reader can get from one segment before it has to stop."""

    header: SegmentHeader
    size: int
    records: list[Record] = field(default_factory=list)
    padding: int = 0
    end_offset: int = DATA_OFFSET
    error: str | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def sealed(self) -> bool:
        """Shorthand: code that looks at the end needs this too."""
        return self.header.sealed

    @property
    def leads_on(self) -> bool:
        """True if a reader that has finished this segment may open the next one."""
        full = self.size - self.end_offset < RECORD_HEADER_SIZE
        return self.error is None and (self.sealed or full)


@dataclass(frozen=True, slots=True)
class Control:
    """The coordination block."""

    magic: int
    version: int
    init_state: int
    writer_epoch: int
    segment_size: int
    segment_gen: int
    current_segment: int
    write_offset: int
    writer_heartbeat_ns: int
    notify_seq: int
    waiters_pending: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DurablePosition:
    """The content of index.meta: everything before this position was synced."""

    current_segment: int
    write_offset: int


@dataclass(frozen=True, slots=True)
class WriterLock:
    """The liveness text; the lock itself is the flock on the file."""

    pid: int
    start_time: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Position:
    """A reader's committed position and the slot it was found in."""

    segment_id: int
    offset: int
    last_heartbeat_ns: int
    generation: int
    slot: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One mark of the seek index."""

    seq: int
    timestamp_ns: int
    offset: int


@dataclass(frozen=True, slots=True)
class IndexDump:
    """A seek index; with ``error`` set it must be ignored and rebuilt."""

    version: int
    header_len: int
    flags: int
    segment_id: int
    segment_size: int
    data_offset: int
    entry_stride: int
    min_seq: int
    max_seq: int
    min_ts_ns: int
    max_ts_ns: int
    entry_count: int
    entries: tuple[IndexEntry, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class QueueDump:
    """A queue directory as seen by a reader that starts at the oldest segment.

    ``segments`` holds all segments, ``records`` only the reachable records as (segment id, record).
    ``end`` is the place where that reader stopped.
    """

    control: Control
    lock: WriterLock | None = None
    durable: DurablePosition | None = None
    segments: dict[int, SegmentDump] = field(default_factory=dict)
    records: list[tuple[int, Record]] = field(default_factory=list)
    end: tuple[int, int] | None = None
    positions: dict[str, Position | None] = field(default_factory=dict)
    indexes: dict[int, IndexDump] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seq_restarts: int = 0
    seq_gaps: int = 0
    timestamp_regressions: int = 0

    @property
    def short_of_durable(self) -> bool:
        """True if synced data is unreachable: corruption, not a torn tail."""
        if self.durable is None or self.end is None:
            return False
        return self.end < (self.durable.current_segment, self.durable.write_offset)


# --- decoding --------------------------------------------------------------------------------


def align(value: int) -> int:
    """Round up to where a record may start."""
    return -(-value // ALIGNMENT) * ALIGNMENT


def record_size(payload_len: int) -> int:
    """Return the bytes that a record with this payload occupies."""
    return align(RECORD_HEADER_SIZE + payload_len)


def segment_name(segment_id: int) -> str:
    """Return the file name of a segment."""
    return f"{segment_id:09d}.q"


def index_name(segment_id: int) -> str:
    """Return the file name of a segment's seek index."""
    return f"{segment_id:09d}.idx"


def decode_trailer(area: bytes) -> Parts | None:
    """Split a record's content into payload, key and headers; None if the trailer breaks a rule."""
    if len(area) < TRAILER_END.size:
        return None
    size, count, bits = TRAILER_END.unpack(area[-TRAILER_END.size :])
    if not TRAILER_END.size <= size <= len(area) or bits & ~TRAILER_HAS_KEY or count > HEADERS_MAX:
        return None
    rest = io.BytesIO(area[len(area) - size : len(area) - TRAILER_END.size])
    try:
        key = _take(rest, _number(rest, 2)) if bits & TRAILER_HAS_KEY else None
        headers: dict[str, bytes] = {}
        for _ in range(count):
            name_len, value_len = _number(rest, 1), _number(rest, 2)
            name, value = _take(rest, name_len).decode("utf-8"), _take(rest, value_len)
            if not name or name in headers:
                return None
            headers[name] = value
    except (EOFError, UnicodeDecodeError):
        return None
    if rest.read(1) or (key is None and not headers):
        return None
    return Parts(area[: len(area) - size], key, headers)


def _take(rest: io.BytesIO, size: int) -> bytes:
    taken = rest.read(size)
    if len(taken) != size:
        raise EOFError
    return taken


def _number(rest: io.BytesIO, size: int) -> int:
    return int.from_bytes(_take(rest, size), "little")


def encode_trailer(key: bytes | None, headers: Mapping[str, bytes]) -> bytes:
    """Encode key and headers; return no bytes if there are neither."""
    if key is None and not headers:
        return b""
    raw = b"" if key is None else len(key).to_bytes(2, "little") + key
    for name, value in headers.items():
        encoded = name.encode()
        raw += bytes([len(encoded)]) + len(value).to_bytes(2, "little") + encoded + value
    size = len(raw) + TRAILER_END.size
    return raw + TRAILER_END.pack(size, len(headers), 0 if key is None else TRAILER_HAS_KEY)


def _segment_header_error(header: SegmentHeader, size: int) -> str | None:
    if size < SEGMENT_HEADER_SIZE:
        return "short segment header"
    if header.magic != SEGMENT_MAGIC:
        return "bad segment magic"
    if header.version != SEGMENT_VERSION:
        return "bad segment version"
    return None


def _record_error(data: bytes, record: Record, segment_id: int) -> str | None:
    """Return the first rule that a committed record breaks, or None.

    The payload is checked last: its length comes from the header, which is checked first.
    """
    if record.version != RECORD_VERSION:
        return "bad version"
    if record.end > len(data):
        return "out of bounds"
    own = record.own
    if own is not None:
        header = data[record.offset : record.offset + RECORD_HEADER_SIZE]
        if own.header_check != header_check(segment_id, header):
            return "header check"
    if record.type_id != PADDING_TYPE and zlib.crc32(record.payload) != record.checksum:
        return "crc mismatch"
    return None


def _record_remarks(record: Record, zero: bytes) -> list[str]:
    found = []
    if any(zero):
        found.append("bytes 5 to 7 are not zero")
    own = record.own
    if own is None:
        if record.flags:
            found.append("flags without the own-record bit")
        if any(record.spare):
            found.append("spare bytes used without the own-record bit")
    elif own.cause_source is None and any(record.spare[:16] + record.spare[24:28]):
        found.append("bytes of a cause without the bit that announces it")
    if record.type_id == PADDING_TYPE and (record.seq or record.timestamp_ns or record.checksum):
        found.append("padding with seq, timestamp or checksum")
    return [f"offset {record.offset}: {text}" for text in found]


def decode_segment(data: bytes, *, first_offset: int = DATA_OFFSET) -> SegmentDump:
    """Decode the records of a segment file from ``first_offset`` to the first that ends the walk."""
    if first_offset < DATA_OFFSET or first_offset % ALIGNMENT:
        raise ValueError("records start on a multiple of 64, after the segment header")
    raw = data[:SEGMENT_HEADER_SIZE].ljust(SEGMENT_HEADER_SIZE, b"\0")
    header = SegmentHeader(*SEGMENT_HEADER.unpack(raw))
    dump = SegmentDump(header, len(data), end_offset=first_offset)
    dump.error = _segment_header_error(header, len(data))
    while dump.error is None and dump.end_offset + RECORD_HEADER_SIZE <= len(data):
        start = dump.end_offset
        commit_len, version, zero, seq, timestamp, type_id, flags, checksum, spare = (
            RECORD_HEADER.unpack_from(data, start)
        )
        if commit_len == 0:
            break
        body = start + RECORD_HEADER_SIZE
        payload = data[body : body + commit_len - 1]
        record = Record(
            start, commit_len, version, seq, timestamp, type_id, flags, checksum, spare, payload
        )
        dump.error = _record_error(data, record, header.segment_id)
        if dump.error is not None:
            break
        dump.remarks += _record_remarks(record, zero)
        if type_id == PADDING_TYPE:
            dump.padding += 1
        else:
            dump.records.append(record)
        dump.end_offset = record.end
    return dump


def decode_control(data: bytes) -> Control:
    """Decode control.meta; ``error`` says why a block is not (yet) usable."""
    fields = CONTROL.unpack(data[:CONTROL_SIZE].ljust(CONTROL_SIZE, b"\0"))
    magic, version, init_state = fields[:3]
    segment_size = fields[4]
    error = None
    if len(data) < CONTROL_SIZE:
        error = "short control block"
    elif init_state != CONTROL_USABLE:
        error = "control block not initialised"
    elif magic != CONTROL_MAGIC:
        error = "bad control magic"
    elif version != CONTROL_VERSION:
        error = "bad control version"
    elif segment_size % ALIGNMENT or segment_size < SEGMENT_HEADER_SIZE + RECORD_HEADER_SIZE:
        error = "bad segment size"
    return replace(Control(*fields), error=error)


def decode_index_meta(data: bytes) -> DurablePosition | None:
    """Decode index.meta; None if it was truncated."""
    if len(data) < INDEX_META.size:
        return None
    return DurablePosition(*INDEX_META.unpack_from(data))


def decode_writer_lock(text: str) -> WriterLock | None:
    """Decode the text of writer.lock; None if it has another form."""
    parts = text.split()
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    return WriterLock(*map(int, parts))


def decode_position(data: bytes) -> Position | None:
    """Pick the newest intact slot; None means that the position is lost, not that it is zero."""
    best: Position | None = None
    for slot in range(2):
        raw = data[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE]
        if len(raw) < SLOT_SIZE:
            continue
        body, checksum = SLOT.unpack(raw)
        if zlib.crc32(body) != checksum:
            continue
        segment_id, offset, heartbeat, generation = SLOT_BODY.unpack(body)
        found = Position(segment_id, offset, heartbeat, generation, slot)
        if best is None or found.generation > best.generation:
            best = found
    return best


def decode_index(data: bytes) -> IndexDump:
    """Decode a seek index with the entries that the file really contains."""
    raw = data[:INDEX_HEADER_SIZE].ljust(INDEX_HEADER_SIZE, b"\0")
    magic, *fields = INDEX_HEADER.unpack(raw)
    version, header_len, entry_count = fields[0], fields[1], fields[-1]
    present = max(0, len(data) - INDEX_HEADER_SIZE) // INDEX_ENTRY.size
    error = None
    if len(data) < INDEX_HEADER_SIZE:
        error = "short index header"
    elif magic != INDEX_MAGIC:
        error = "bad index magic"
    elif version != INDEX_VERSION:
        error = "bad index version"
    elif header_len != INDEX_HEADER_SIZE:
        error = "bad index header length"
    elif present < entry_count:
        error = "short index"
    entries = tuple(
        IndexEntry(*INDEX_ENTRY.unpack_from(data, INDEX_HEADER_SIZE + i * INDEX_ENTRY.size))
        for i in range(min(present, entry_count))
    )
    return replace(IndexDump(*fields), entries=entries, error=error)


def is_uniform(records: Sequence[Record]) -> bool:
    """Return whether all records have the same type and length and no trailer."""
    if any(record.flags & FLAG_TRAILER for record in records):
        return False
    return len({(record.type_id, len(record.payload)) for record in records}) <= 1


def check_index(index: IndexDump, segment: SegmentDump) -> str | None:
    """Return why an index would mislead a seek in this segment, or None."""
    if index.error is not None:
        return index.error
    if index.segment_id != segment.header.segment_id:
        return "index of another segment"
    if index.segment_size != segment.size:
        return "index for another segment size"
    if index.data_offset != DATA_OFFSET:
        return "bad index data offset"
    known = {r.offset: (r.seq, r.timestamp_ns) for r in segment.records}
    for entry in index.entries:
        if known.get(entry.offset) != (entry.seq, entry.timestamp_ns):
            return f"index entry for offset {entry.offset} matches no record"
    partial = bool(index.flags & INDEX_PARTIAL)
    if index.entries and not partial and index.entries[0].offset != segment.records[0].offset:
        return "index skips the first record"
    if index.flags & INDEX_UNIFORM and not is_uniform(segment.records):
        return "index calls different records alike"
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _numbered(directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files named after a segment, oldest first; omit names that no writer would choose."""
    found = {}
    for path in directory.iterdir():
        match = pattern.fullmatch(path.name)
        if match and match[1] == f"{int(match[1]):09d}":
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def _follow(dump: QueueDump) -> None:
    """Collect the records in the order of a reader, up to the point where it stops."""
    ids = list(dump.segments)
    if not ids:
        dump.errors.append("no segment")
        return
    segment_id = ids[0]
    while True:
        segment = dump.segments[segment_id]
        dump.records += [(segment_id, record) for record in segment.records]
        dump.end = (segment_id, segment.end_offset)
        later = [i for i in ids if i > segment_id]
        if segment.error is not None:
            dump.errors.append(f"segment {segment_id} offset {segment.end_offset}: {segment.error}")
            return
        if segment.header.segment_id != segment_id:
            dump.errors.append(f"segment {segment_id}: header says {segment.header.segment_id}")
            return
        if dump.control.error is None and segment.size != dump.control.segment_size:
            dump.errors.append(f"segment {segment_id}: {segment.size} bytes long")
            return
        if not segment.leads_on:
            if any(dump.segments[i].records for i in later):
                dump.errors.append(f"segment {segment_id}: not sealed, but records follow it")
            return
        if not later:
            return
        if later[0] != segment_id + 1:
            dump.errors.append(f"segment {segment_id + 1}: missing")
            return
        segment_id = later[0]


def _count_order(dump: QueueDump) -> None:
    """Collect irregular seqs and times of lax writers, and our batches that were cut short."""
    previous: Record | None = None
    left = 0
    for segment_id, record in dump.records:
        if previous is not None:
            dump.seq_restarts += record.seq <= previous.seq
            dump.seq_gaps += record.seq > previous.seq + 1
            dump.timestamp_regressions += record.timestamp_ns < previous.timestamp_ns
        own = record.own
        now = 0 if own is None else own.batch_left
        if left and (own is None or now != left - 1):
            dump.remarks.append(f"segment {segment_id} offset {record.offset}: batch broken off")
        left, previous = now, record
    if left:
        dump.remarks.append(f"end of queue: {left} records of a batch missing")


def decode_queue(path: str | os.PathLike[str]) -> QueueDump:
    """Decode a queue directory. Meant for queues at rest; with a live writer it is a snapshot."""
    root = Path(path)
    dump = QueueDump(decode_control(_read(root / "control.meta") or b""))
    if dump.control.error is not None:
        dump.errors.append(f"control.meta: {dump.control.error}")
    if (lock := _read(root / "writer.lock")) is not None:
        dump.lock = decode_writer_lock(lock.decode("ascii", "replace"))
    if (meta := _read(root / "index.meta")) is not None:
        dump.durable = decode_index_meta(meta)
        if dump.durable is None:
            dump.errors.append("index.meta: short")
    for segment_id, file in _numbered(root, _SEGMENT_NAME).items():
        segment = dump.segments[segment_id] = decode_segment(file.read_bytes())
        dump.remarks += [f"segment {segment_id} {text}" for text in segment.remarks]
    _follow(dump)
    _count_order(dump)
    for segment_id, file in _numbered(root, _INDEX_NAME).items():
        index = dump.indexes[segment_id] = decode_index(file.read_bytes())
        owner = dump.segments.get(segment_id)
        problem = "no such segment" if owner is None else check_index(index, owner)
        if problem is not None:
            dump.remarks.append(f"index {segment_id}: {problem}")
    for file in sorted((root / "readers").glob("*.meta")):
        position = dump.positions[file.stem] = decode_position(file.read_bytes())
        if position is None:
            dump.errors.append(f"reader {file.stem}: no valid slot")
        elif dump.end is not None:
            if (position.segment_id, position.offset) > dump.end:
                dump.remarks.append(f"reader {file.stem}: beyond the end")
            elif position.segment_id not in dump.segments:
                dump.remarks.append(f"reader {file.stem}: segment removed")
    return dump


# --- encoding --------------------------------------------------------------------------------


def encode_record(
    payload: bytes,
    *,
    seq: int,
    timestamp_ns: int,
    type_id: int,
    flags: int = 0,
    spare: bytes = bytes(SPARE_SIZE),
    version: int = RECORD_VERSION,
    checksum: int | None = None,
) -> bytes:
    """Encode one committed record; the unusual parameters let tests break rules."""
    if len(spare) != SPARE_SIZE:
        raise ValueError("a record has 32 spare bytes")
    if checksum is None:
        checksum = 0 if type_id == PADDING_TYPE else zlib.crc32(payload)
    header = RECORD_HEADER.pack(
        len(payload) + 1, version, bytes(3), seq, timestamp_ns, type_id, flags, checksum, spare
    )
    return (header + payload).ljust(record_size(len(payload)), b"\0")


def encode_own_record(
    payload: bytes,
    *,
    segment_id: int,
    epoch: int,
    seq: int,
    timestamp_ns: int,
    type_id: int,
    batch_left: int = 0,
    cause: tuple[int, int, int] | None = None,
    trailer: bytes = b"",
) -> bytes:
    """Encode a record as this project writes it, with the header checksum."""
    flags = FLAG_OWN | (FLAG_CAUSE if cause is not None else 0)
    if trailer:
        flags |= FLAG_TRAILER
        payload += trailer
    source, cause_seq, cause_epoch = cause or (0, 0, 0)
    raw = encode_record(
        payload,
        seq=seq,
        timestamp_ns=timestamp_ns,
        type_id=type_id,
        flags=flags,
        spare=OWN_SPARE.pack(source, cause_seq, batch_left, epoch & 0xFFFFFFFF, cause_epoch, 0),
    )
    check = header_check(segment_id, raw[:RECORD_HEADER_SIZE])
    return raw[:OWN_CHECK_OFFSET] + _U32.pack(check) + raw[RECORD_HEADER_SIZE:]


def encode_segment_header(segment_id: int, *, sealed: bool = False) -> bytes:
    """Encode a segment's first 64 bytes."""
    flags = SEGMENT_SEALED if sealed else 0
    return SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, segment_id, flags, bytes(48))


def encode_control(
    *,
    segment_size: int,
    writer_epoch: int = 0,
    init_state: int = CONTROL_USABLE,
    segment_gen: int = 0,
    current_segment: int = 0,
    write_offset: int = DATA_OFFSET,
    writer_heartbeat_ns: int = 0,
    notify_seq: int = 0,
    waiters_pending: int = 0,
) -> bytes:
    """Encode control.meta with all spare bytes zero."""
    return CONTROL.pack(
        CONTROL_MAGIC,
        CONTROL_VERSION,
        init_state,
        writer_epoch,
        segment_size,
        segment_gen,
        current_segment,
        write_offset,
        writer_heartbeat_ns,
        notify_seq,
        waiters_pending,
    )


def encode_position(
    segment_id: int,
    offset: int,
    *,
    generation: int = 1,
    last_heartbeat_ns: int = 0,
    previous: bytes = bytes(POSITION_SIZE),
    slot: int | None = None,
) -> bytes:
    """Encode a commit onto the file's ``previous`` bytes, leaving the other slot unchanged.

    ``generation`` is the number to store. The parity of its predecessor selects the slot, so 1 goes to slot
    0; ``slot`` overrides that choice.
    """
    if slot is None:
        slot = (generation - 1) % 2
    body = SLOT_BODY.pack(segment_id, offset, last_heartbeat_ns, generation)
    slots = [previous[:SLOT_SIZE], previous[SLOT_SIZE:POSITION_SIZE]]
    slots[slot] = SLOT.pack(body, zlib.crc32(body))
    return b"".join(part.ljust(SLOT_SIZE, b"\0") for part in slots)


def encode_index(
    records: Sequence[Record | IndexEntry],
    *,
    segment_id: int,
    segment_size: int,
    stride: int = INDEX_STRIDE,
    flags: int = 0,
) -> bytes:
    """Build a segment's seek index from all of its records, padding left out."""
    marks = records[::stride]
    seqs = [r.seq for r in records] or [0]
    times = [r.timestamp_ns for r in records] or [0]
    header = INDEX_HEADER.pack(
        INDEX_MAGIC,
        INDEX_VERSION,
        INDEX_HEADER_SIZE,
        flags,
        segment_id,
        segment_size,
        DATA_OFFSET,
        stride,
        min(seqs),
        max(seqs),
        min(times),
        max(times),
        len(marks),
    )
    return header + b"".join(INDEX_ENTRY.pack(r.seq, r.timestamp_ns, r.offset) for r in marks)


def _own_start_time() -> int:
    """Return the start time of this process in clock ticks, which distinguishes a reused pid."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


class ForeignWriter:
    """A writer like that of another program: zero spare bytes and its own seqs.

    Opening an existing queue raises the epoch and restarts seq at ``start_seq``, as lax writers in the field
    do. It uses plain pwrite and none of the engine's techniques.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        segment_size: int | None = None,
        start_seq: int = 0,
        *,
        write_index: bool = False,
        index_stride: int = INDEX_STRIDE,
        first_segment: int = 0,
    ) -> None:
        """Create the queue (1 MiB segments unless told otherwise) or open it again."""
        self.path = Path(path)
        self.next_seq = start_seq
        self.write_index = write_index
        self.index_stride = index_stride
        self.sealed = False
        self.closed = True
        self._marks: list[IndexEntry] = []
        self._segment_fd = -1
        self._control_fd = -1
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.path / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
        self.closed = False
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (self.path / "control.meta").exists():
                self._reopen(segment_size)
            else:
                self._create(1 << 20 if segment_size is None else segment_size, first_segment)
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> ForeignWriter:
        """Return self, so that tests can close the writer by leaving a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, even after an error."""
        self.close()

    # set-up

    def _create(self, segment_size: int, first_segment: int) -> None:
        if segment_size % ALIGNMENT or segment_size < SEGMENT_HEADER_SIZE + RECORD_HEADER_SIZE:
            raise ValueError("a segment is a multiple of 64 and holds at least one record")
        self.segment_size = segment_size
        self.epoch = 1
        self.segment_gen = 0
        self.notify_seq = 0
        self._open_control(os.O_CREAT | os.O_EXCL)
        block = encode_control(
            segment_size=segment_size,
            writer_epoch=self.epoch,
            init_state=0,
            current_segment=first_segment,
            writer_heartbeat_ns=time.time_ns(),
        )
        os.pwrite(self._control_fd, block, 0)
        self._write_lock_text()
        self._publish_segment(first_segment)
        self._enter(first_segment, DATA_OFFSET)
        self.sync()
        self._store32(CONTROL_INIT_STATE_OFFSET, CONTROL_USABLE)

    def _reopen(self, segment_size: int | None) -> None:
        dump = decode_queue(self.path)
        if dump.errors or dump.end is None:
            raise ValueError(f"not a sound queue: {dump.errors}")
        self.segment_size = dump.control.segment_size
        if segment_size not in (None, self.segment_size):
            raise ValueError("the queue has another segment size")
        self.epoch = dump.control.writer_epoch + 1
        self.segment_gen = dump.control.segment_gen
        self.notify_seq = dump.control.notify_seq
        self._open_control(0)
        self._store64(CONTROL_EPOCH_OFFSET, self.epoch)
        self._write_lock_text()
        segment_id, offset = dump.end
        self._enter(segment_id, offset)
        segment = dump.segments[segment_id]
        self.sealed = segment.sealed
        self._marks = [IndexEntry(r.seq, r.timestamp_ns, r.offset) for r in segment.records]
        tail = os.pread(self._segment_fd, self.segment_size - offset, offset)
        if any(tail):
            os.pwrite(self._segment_fd, bytes(len(tail)), offset)
        self._store32(CONTROL_CURRENT_SEGMENT_OFFSET, segment_id)
        self._store64(CONTROL_WRITE_OFFSET_OFFSET, offset)

    def _open_control(self, extra: int) -> None:
        self._control_fd = os.open(self.path / "control.meta", os.O_RDWR | extra, 0o644)

    def _write_lock_text(self) -> None:
        os.ftruncate(self._lock_fd, 0)
        text = f"{os.getpid()} {_own_start_time()} {self.epoch}\n"
        os.pwrite(self._lock_fd, text.encode("ascii"), 0)

    def _publish_segment(self, segment_id: int) -> None:
        """Prepare a zeroed segment under a temporary name, then link it without replacing a file."""
        final = self.path / segment_name(segment_id)
        temporary = final.with_name(final.name + ".tmp")
        with temporary.open("wb") as file:
            file.truncate(self.segment_size)
            file.write(encode_segment_header(segment_id))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, final)
        temporary.unlink()

    def _enter(self, segment_id: int, offset: int) -> None:
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
        self._segment_fd = os.open(self.path / segment_name(segment_id), os.O_RDWR)
        self.segment_id = segment_id
        self.offset = offset
        self.sealed = False
        self._marks = []

    # writing

    def _store32(self, offset: int, value: int) -> None:
        os.pwrite(self._control_fd, _U32.pack(value & 0xFFFFFFFF), offset)

    def _store64(self, offset: int, value: int) -> None:
        os.pwrite(self._control_fd, _U64.pack(value), offset)

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("the writer is closed")

    def _commit(self, raw: bytes) -> None:
        """Write a record so that its commit word appears after everything else of it."""
        os.pwrite(self._segment_fd, raw[4:], self.offset + 4)
        os.pwrite(self._segment_fd, raw[:4], self.offset)

    def append(
        self, payload: bytes, type_id: int, timestamp_ns: int, seq: int | None = None
    ) -> tuple[int, Record]:
        """Append one message, rolling if the segment is full; return the expected record."""
        self._require_open()
        if type_id == PADDING_TYPE:
            raise ValueError("that type marks padding")
        size = record_size(len(payload))
        if DATA_OFFSET + size > self.segment_size:
            raise ValueError("the payload does not fit into a segment")
        if self.sealed or self.offset + size > self.segment_size:
            self.roll()
        seq = self.next_seq if seq is None else seq
        raw = encode_record(payload, seq=seq, timestamp_ns=timestamp_ns, type_id=type_id)
        self._commit(raw)
        record = Record(
            self.offset,
            len(payload) + 1,
            RECORD_VERSION,
            seq,
            timestamp_ns,
            type_id,
            0,
            zlib.crc32(payload),
            bytes(SPARE_SIZE),
            bytes(payload),
        )
        self._marks.append(IndexEntry(seq, timestamp_ns, self.offset))
        self.next_seq = seq + 1
        self.offset += size
        self.notify_seq += 1
        self._store64(CONTROL_WRITE_OFFSET_OFFSET, self.offset)
        self._store64(CONTROL_HEARTBEAT_OFFSET, time.time_ns())
        self._store32(CONTROL_NOTIFY_SEQ_OFFSET, self.notify_seq)
        return self.segment_id, record

    def seal(self) -> None:
        """Mark the current segment as finished; the rest of it stays zero."""
        self._require_open()
        if not self.sealed:
            os.pwrite(self._segment_fd, _U32.pack(SEGMENT_SEALED), SEGMENT_FLAGS_OFFSET)
            self.sealed = True
            self._save_index()

    def pad_and_seal(self) -> None:
        """Finish the current segment as a repair does, with padding to its end."""
        self._require_open()
        room = self.segment_size - self.offset
        if not self.sealed and room >= RECORD_HEADER_SIZE:
            filler = bytes(room - RECORD_HEADER_SIZE)
            self._commit(encode_record(filler, seq=0, timestamp_ns=0, type_id=PADDING_TYPE))
            self.offset = self.segment_size
            self._store64(CONTROL_WRITE_OFFSET_OFFSET, self.offset)
        self.seal()

    def roll(self) -> None:
        """Continue in a new segment, which must exist before the old one sends readers to it."""
        self._require_open()
        following = self.segment_id + 1
        self._publish_segment(following)
        self.seal()
        os.fsync(self._segment_fd)
        self._store32(CONTROL_SEGMENT_GEN_OFFSET, self.segment_gen + 1)
        self._store32(CONTROL_CURRENT_SEGMENT_OFFSET, following)
        self._store64(CONTROL_WRITE_OFFSET_OFFSET, DATA_OFFSET)
        self.segment_gen += 2
        self._store32(CONTROL_SEGMENT_GEN_OFFSET, self.segment_gen)
        self._enter(following, DATA_OFFSET)

    def sync(self) -> None:
        """Make everything durable, then record that in index.meta."""
        self._require_open()
        os.fsync(self._segment_fd)
        meta = INDEX_META.pack(self.segment_id, self.offset)
        fd = os.open(self.path / "index.meta", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, meta, 0)  # in place: it must never appear empty
            os.fsync(fd)
        finally:
            os.close(fd)

    def _save_index(self) -> None:
        if self.write_index:
            data = encode_index(
                self._marks,
                segment_id=self.segment_id,
                segment_size=self.segment_size,
                stride=self.index_stride,
            )
            (self.path / index_name(self.segment_id)).write_bytes(data)

    def close(self, *, durable: bool = True) -> None:
        """Release the queue; without ``durable``, index.meta stays outdated as after a crash."""
        if self.closed:
            return
        try:
            if durable:
                self.sync()
                self._save_index()
        finally:
            self._release()

    def _release(self) -> None:
        self.closed = True
        for fd in (self._segment_fd, self._control_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
