"""Questions about a whole queue that need no reader or writer of one's own."""

import os

import msgspec

from aiochronicle._binding import check, encode_path, ffi, lib, new_error

__all__ = ["QueueInfo", "VerifyReport", "inspect", "verify"]


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the control block and the directory say about a queue.

    ``next_seq`` is 0 for queues of other programs, which do not keep it.
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


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
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
    return QueueInfo(**{name: getattr(info, name) for name in QueueInfo.__struct_fields__})


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Read every record of the queue and check it. Never writes.

    >>> verify(queue).corrupt
    0
    """
    records = ffi.new("uint64_t *")
    error = new_error()
    corrupt = check(lib.ac_queue_verify(encode_path(path), records, error), error)
    problem = None
    if corrupt:
        where = os.fsdecode(ffi.string(error.path))
        what = ffi.string(error.detail).decode("utf-8", "replace")
        problem = f"{where} at offset {error.offset}: {what}"
    return VerifyReport(records=int(records[0]), corrupt=corrupt, first_problem=problem)
