"""The newest snapshot as metrics for Prometheus.

Base units, ``_total`` for counters, labels ``queue``, ``reader``, ``group``. Counters of a writer begin at 0
when it is opened, which Prometheus takes for the restart that it is.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector as Source

import aiochronicle
from aiochronicle._core.group import GroupInfo
from aiochronicle._core.queue import QueueInfo, ReaderInfo
from aiochronicle._core.writer_info import WriterInfo
from aiochronicle.monitor.latencies import Latencies
from aiochronicle.monitor.records import QueueState, Snapshot

__all__ = ["expose"]

Gauge = tuple[str, str, Callable[[QueueState, QueueInfo], float | None]]

_QUEUE_GAUGES: tuple[Gauge, ...] = (
    ("queue_segments", "Files that the queue has now.", lambda _, info: info.segments),
    (
        "queue_size_bytes",
        "What the files of the queue take on disk.",
        lambda _, info: info.disk_bytes,
    ),
    (
        "queue_oldest_message_timestamp_seconds",
        "Time of the oldest message that is kept.",
        lambda _, info: info.oldest_ns and info.oldest_ns / 1e9,
    ),
    (
        "queue_last_message_timestamp_seconds",
        "Time of the newest message.",
        lambda _, info: (info.format != "cq4" and info.last_timestamp_ns / 1e9) or None,
    ),
    ("queue_readers", "Readers with a position in the queue.", lambda queue, _: len(queue.readers)),
)

_WRITER_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("messages", "writer_messages", "Messages appended since the writer was opened."),
    (
        "payload_bytes",
        "writer_payload_bytes",
        "Bytes of payload appended since the writer was opened.",
    ),
    (
        "record_bytes",
        "writer_record_bytes",
        "Bytes of records, headers included, since the writer was opened.",
    ),
    ("rolls", "writer_rolls", "Segments begun."),
    ("rolls_unprepared", "writer_rolls_unprepared", "Segments that append had to make itself."),
    ("syncs", "writer_syncs", "Syncs to disk."),
    ("sync_errors", "writer_sync_errors", "Syncs that failed."),
    ("wakeups", "writer_wakeups", "Sleeping readers that were woken."),
    ("capacity_waits", "writer_capacity_waits", "Appends that met the capacity."),
    ("clock_steps", "writer_clock_steps", "Times at which the clock went back."),
    ("segments_deleted", "writer_segments_deleted", "Segments that retention deleted."),
    (
        "segments_archived",
        "writer_segments_archived",
        "Segments that retention moved to the archive.",
    ),
)
_WRITER_ERRORS = ("seal", "prealloc", "populate", "retention")

_READER_GAUGES: tuple[tuple[str, str, Callable[[ReaderInfo], float | None]], ...] = (
    ("reader_lag_messages", "Messages that are not committed.", lambda one: one.lag.messages),
    ("reader_lag_bytes", "Bytes of records that are not committed.", lambda one: one.lag.bytes),
    (
        "reader_lag_seconds",
        "Age of the oldest message that is not committed.",
        lambda one: one.lag.seconds,
    ),
    ("reader_open", "1 if a process has the reader open.", lambda one: float(one.live)),
    ("reader_lost", "1 if the position is no longer in the queue.", lambda one: float(one.lost)),
    (
        "reader_kept_segments",
        "Finished segments that are kept for the reader.",
        lambda one: one.keeps_segments,
    ),
    (
        "reader_last_seen_timestamp_seconds",
        "Last sign of life or commit.",
        lambda one: one.heartbeat_ns / 1e9 if one.heartbeat_ns else None,
    ),
)

_GROUP_GAUGES: tuple[tuple[str, str, Callable[[GroupInfo], float | None]], ...] = (
    ("group_pending_messages", "Messages that are not acknowledged.", lambda one: one.pending),
    ("group_in_flight_messages", "Messages that a member has now.", lambda one: one.in_flight),
    (
        "group_delayed_messages",
        "Messages that wait for their next attempt.",
        lambda one: one.delayed,
    ),
    (
        "group_retried_messages",
        "Pending messages that were delivered more than once.",
        lambda one: one.retried,
    ),
    (
        "group_members",
        "Members that live.",
        lambda one: sum(member.alive for member in one.members),
    ),
    (
        "group_oldest_unacknowledged_timestamp_seconds",
        "Time of the oldest message that is not acknowledged.",
        lambda one: one.oldest_ns and one.oldest_ns / 1e9,
    ),
)


class _State(Source):
    def __init__(self, snapshot: Snapshot, latencies: Latencies) -> None:
        self._snapshot = snapshot
        self._latencies = latencies
        self._names = {queue.number: queue.name for queue in snapshot.queues}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "aiochronicle_build", "Version of the monitor.", {"version": aiochronicle.__version__}
        )
        yield from self._of_root()
        yield from self._of_queues()
        yield from self._of_writers()
        yield from self._of_readers()
        yield from self._of_groups()
        yield self._of_latencies()

    def _of_root(self) -> Iterator[Metric]:
        found = self._snapshot
        alarms = GaugeMetricFamily(
            "aiochronicle_alarms", "What is wrong now, by how bad it is.", labels=("level",)
        )
        for level in ("critical", "warning"):
            alarms.add_metric((level,), sum(alarm.level == level for alarm in found.alarms))
        yield alarms
        yield _gauge("queues", "Queues in or below the directory.", len(found.queues))
        yield _gauge("filesystem_size_bytes", "Size of the file system.", found.disk_bytes_total)
        yield _gauge("filesystem_avail_bytes", "What is free on it.", found.disk_bytes_free)
        yield _gauge(
            "monitor_last_look_timestamp_seconds", "When this was seen.", found.time_ns / 1e9
        )
        yield _gauge("monitor_look_cpu_seconds", "Processor time of the last look.", found.took_s)

    def _of_queues(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "aiochronicle_queue_up", "1 if the queue can be read.", labels=("queue",)
        )
        messages = CounterMetricFamily(
            "aiochronicle_queue_messages",
            "Messages ever appended: the seq of the next one. Not for Java queues, whose indexes have gaps.",
            labels=("queue",),
        )
        gauges = [
            (GaugeMetricFamily(f"aiochronicle_{name}", text, labels=("queue",)), value)
            for name, text, value in _QUEUE_GAUGES
        ]
        for queue in self._snapshot.queues:
            up.add_metric((queue.name,), float(queue.problem is None))
            if queue.problem is None and queue.format == "native":
                messages.add_metric((queue.name,), queue.next_seq)
            for family, value in gauges:
                if queue.info is not None:
                    _add(family, (queue.name,), value(queue, queue.info))
        yield up
        yield messages
        yield from (family for family, _ in gauges)

    def _writers(self) -> Iterator[tuple[str, WriterInfo]]:
        for queue in self._snapshot.queues:
            if queue.writer is not None:
                yield queue.name, queue.writer

    def _of_writers(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "aiochronicle_writer_state",
            "1 for the state that the last writer is in.",
            labels=("queue", "state"),
        )
        started = GaugeMetricFamily(
            "aiochronicle_writer_start_time_seconds", "When it was opened.", labels=("queue",)
        )
        heard = GaugeMetricFamily(
            "aiochronicle_writer_heartbeat_timestamp_seconds",
            "Its last sign of life.",
            labels=("queue",),
        )
        for name, writer in self._writers():
            for one in ("open", "stopped", "closed", "died"):
                is_so = one == ("stopped" if writer.stopped else writer.state)
                state.add_metric((name, one), float(is_so))
            started.add_metric((name,), writer.since_ns / 1e9)
            _add(heard, (name,), writer.heartbeat_ns / 1e9 if writer.heartbeat_ns else None)
        yield from (state, started, heard)
        yield from self._of_statistics()
        yield from self._of_slow_appends()

    def _of_statistics(self) -> Iterator[Metric]:
        for field, metric, text in _WRITER_COUNTERS:
            family = CounterMetricFamily(f"aiochronicle_{metric}", text, labels=("queue",))
            for name, writer in self._writers():
                if writer.statistics is not None:
                    family.add_metric((name,), getattr(writer.statistics, field))
            yield family
        errors = CounterMetricFamily(
            "aiochronicle_writer_background_errors",
            "What failed in the background, and is tried again.",
            labels=("queue", "work"),
        )
        for name, writer in self._writers():
            if writer.statistics is not None:
                for work in _WRITER_ERRORS:
                    errors.add_metric((name, work), getattr(writer.statistics, f"{work}_errors"))
        yield errors

    def _of_slow_appends(self) -> Iterator[Metric]:
        labels = ("queue", "cause")
        count = CounterMetricFamily(
            "aiochronicle_writer_slow_appends", "Appends that took long, by cause.", labels=labels
        )
        total = CounterMetricFamily(
            "aiochronicle_writer_slow_append_seconds", "Time that these took.", labels=labels
        )
        for name, writer in self._writers():
            for cause, slow in writer.slow_totals.items():
                count.add_metric((name, cause), slow.count)
                total.add_metric((name, cause), slow.total_ns / 1e9)
        yield from (count, total)

    def _of_readers(self) -> Iterator[Metric]:
        for metric, text, value in _READER_GAUGES:
            family = GaugeMetricFamily(f"aiochronicle_{metric}", text, labels=("queue", "reader"))
            for queue in self._snapshot.queues:
                for reader in queue.readers:
                    _add(family, (queue.name, reader.name), value(reader))
            yield family

    def _of_groups(self) -> Iterator[Metric]:
        for metric, text, value in _GROUP_GAUGES:
            family = GaugeMetricFamily(f"aiochronicle_{metric}", text, labels=("queue", "group"))
            for queue in self._snapshot.queues:
                for group in queue.groups:
                    _add(family, (queue.name, group.name), value(group))
            yield family

    def _of_latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "aiochronicle_wake_latency_seconds",
            "From the timestamp of a message until a sleeping reader has it; sampled.",
            labels=("queue",),
        )
        for number in self._latencies.measured():
            if number in self._names:
                counts, sum_s = self._latencies.cumulative(number)
                buckets = [
                    ("+Inf" if bound_s == float("inf") else f"{bound_s:g}", float(count))
                    for bound_s, count in counts
                ]
                family.add_metric((self._names[number],), buckets, sum_s)
        return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"aiochronicle_{name}", text, value)


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def expose(snapshot: Snapshot, latencies: Latencies) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_State(snapshot, latencies))
    return generate_latest(registry)
