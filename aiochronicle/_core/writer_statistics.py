"""Counters of a writer, and the result of its recovery."""

from typing import Any

from aiochronicle._base.binding import ffi
from aiochronicle._base.report import HtmlStruct

__all__ = ["Recovery", "WriterStatistics", "recovery_of", "statistics_of"]


class Recovery(HtmlStruct, frozen=True, kw_only=True):
    """What opening for writing found and repaired. ``clean`` means that there was nothing to repair."""

    clean: bool
    torn_records: int
    records_scanned: int
    corrupt_records: int
    bytes_set_aside: int
    segments_set_aside: int
    end_segment: int
    end_offset: int
    durable_segment: int
    durable_offset: int
    is_copy: bool


class WriterStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Counters of one writer since it was opened, and its position."""

    messages: int
    payload_bytes: int
    record_bytes: int
    batches: int
    rolls: int
    rolls_unprepared: int
    syncs: int
    sync_errors: int
    seals: int
    seal_errors: int
    prealloc_errors: int
    populate_errors: int
    retention_errors: int
    segments_deleted: int
    segments_archived: int
    wakeups: int
    readers_connected: int
    clock_steps: int
    capacity_waits: int
    slow_appends: int
    refused_bytes: int
    next_seq: int
    last_timestamp_ns: int
    segment: int
    offset: int
    durable_seq: int
    epoch: int
    queue_id: int
    segment_size: int
    last_error: str
    recovery: Recovery


_DERIVED = {"last_error", "recovery"}


def statistics_of(stats: Any, recovery: Recovery) -> WriterStatistics:
    """Return the statistics in an ``ac_writer_stats_t``."""
    names = WriterStatistics.__struct_fields__
    values = {name: getattr(stats, name) for name in names if name not in _DERIVED}
    last_error = ffi.string(stats.last_error).decode("utf-8", "replace")
    return WriterStatistics(**values, last_error=last_error, recovery=recovery)


def recovery_of(report: Any) -> Recovery:
    """Return the recovery in an ``ac_recovery_t``."""
    values = {name: getattr(report, name) for name in Recovery.__struct_fields__}
    flags = {"clean": bool(report.clean), "is_copy": bool(report.is_copy)}
    return Recovery(**{**values, **flags})
