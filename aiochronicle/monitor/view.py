"""The JSON that the page gets: one frame per look, and the details of the queues that are open in the page.

Seqs are strings, because numbers in JavaScript are exact only up to 2**53. Times are in milliseconds, as
usual there.
"""

from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._base.printable import utf8_name
from aiochronicle._core.group import GroupInfo
from aiochronicle._core.kept import why_kept
from aiochronicle._core.newest import start_of_newest
from aiochronicle._core.queue import ReaderInfo
from aiochronicle._core.reader import open_reader
from aiochronicle.cli.decoding import Decoder
from aiochronicle.cli.settings import capacity_of, flush_of, retention_of
from aiochronicle.cli.states import state_of
from aiochronicle.cli.units import seq_text
from aiochronicle.errors import ChronicleError
from aiochronicle.monitor.history import MEASURES, History, Measure
from aiochronicle.monitor.latencies import Latencies
from aiochronicle.monitor.records import Event, QueueState, Snapshot
from aiochronicle.monitor.stalls import stalls_of

__all__ = ["Views", "detail_of", "kept_because", "last_messages", "totals_of"]

EVENTS = 60
MESSAGES = 20
_PAYLOAD_MAX = 1 << 16
_LINE_MAX = 600
_KEPT = 12


class Views:
    """Encodes frames. The readers of a queue are encoded again only after a new full look at it."""

    def __init__(self) -> None:
        self._readers: dict[int, tuple[object, msgspec.Raw]] = {}

    def frame(
        self, snapshot: Snapshot, events: list[Event], history: History, latencies: Latencies
    ) -> bytes:
        """Return a frame as JSON: all queues, alarms, stalls, totals, and the last events."""
        worst = {alarm.queue: alarm.level for alarm in reversed(snapshot.alarms)}
        points = latencies.points()
        last = points[-1] if points and points[-1].time_ns == snapshot.time_ns else None
        found: dict[str, Any] = {
            "time": _ms(snapshot.time_ns),
            "root": snapshot.root,
            "alarms": snapshot.alarms,
            "disk": {"free": snapshot.disk_bytes_free, "total": snapshot.disk_bytes_total},
            "look_s": snapshot.took_s,
            "queues": [self._queue(queue, worst.get(queue.number)) for queue in snapshot.queues],
            "stalls": stalls_of(snapshot),
            "events": [_event(event) for event in events[-EVENTS:]],
            "totals": {
                **{measure: history.last(measure) for measure in MEASURES},
                "wake_s": None if last is None else last.median_s,
                "wake_longest_s": None if last is None else last.longest_s,
                "histogram": latencies.cumulative()[0],
            },
        }
        there = {queue.number for queue in snapshot.queues}
        for number in self._readers.keys() - there:
            del self._readers[number]
        return msgspec.json.encode(found)

    def _queue(self, queue: QueueState, level: str | None) -> dict[str, Any]:
        info, writer = queue.info, queue.writer
        kept = self._readers.get(queue.number)
        if kept is None or kept[0] is not queue.readers:
            raw = msgspec.Raw(msgspec.json.encode([_reader(one) for one in queue.readers]))
            kept = self._readers[queue.number] = (queue.readers, raw)
        worst = queue.worst
        return {
            "id": queue.number,
            "name": queue.name,
            "format": queue.format,
            "problem": queue.problem,
            "level": level,
            "writer": None
            if writer is None
            else {
                "state": state_of(writer),
                "pid": writer.pid,
                "command": writer.command,
                "since": _ms(writer.since_ns),
            },
            "seq": seq_text(queue.next_seq, "cq4" if queue.format == "java" else "native"),
            "rate": queue.rate,
            "bytes": queue.rate_bytes,
            "readers": kept[1],
            "groups": [_group(one) for one in queue.groups],
            "lag": 0 if worst is None else worst.lag.messages,
            "segments": 0 if info is None else info.segments,
            "disk": 0 if info is None else info.disk_bytes,
            "last": 0 if info is None or queue.format == "java" else _ms(info.last_timestamp_ns),
            "looked": _ms(queue.looked_ns),
            "oldest": 0 if info is None else _ms(info.oldest_ns or 0),
        }


def detail_of(
    queue: QueueState,
    history: History,
    latencies: Latencies,
    messages: list[str],
    kept: list[dict[str, Any]],
) -> bytes:
    """Return the details of one queue as JSON: its series, its writer, and its last messages."""
    writer = queue.writer
    counts, _ = latencies.cumulative(queue.number)
    found: dict[str, Any] = {
        "id": queue.number,
        "name": queue.name,
        "path": utf8_name(queue.path),
        "problem": queue.problem,
        "series": {name: _series(history, name, queue.number) for name in MEASURES},
        "wake": _points(latencies, queue.number),
        "histogram": counts,
        "messages": messages,
        "kept": kept,
    }
    if writer is not None and writer.statistics is not None:
        counted = writer.statistics
        found["settings"] = {
            "flush": flush_of(writer.flush),
            "retention": retention_of(writer.retention),
            "capacity": capacity_of(writer.capacity),
        }
        found["counters"] = {
            name: getattr(counted, name)
            for name in ("messages", "record_bytes", "rolls", "syncs", "sync_errors", "wakeups")
        }
        found["slow"] = [
            {
                "time": _ms(one.time_ns),
                "took_s": one.duration_ns / 1e9,
                "seq": str(one.seq),
                "cause": one.cause,
            }
            for one in writer.slow_appends[-10:]
        ]
        found["slow_totals"] = {
            cause: {"count": slow.count, "total_s": slow.total_ns / 1e9}
            for cause, slow in writer.slow_totals.items()
        }
        found["errors"] = [
            {"time": _ms(one.last_ns), "count": one.count, "text": one.text}
            for one in writer.errors
        ]
    return msgspec.json.encode(found)


def totals_of(history: History, latencies: Latencies) -> bytes:
    """Return the series over all queues as JSON."""
    counts, _ = latencies.cumulative()
    return msgspec.json.encode(
        {
            "series": {name: _series(history, name, None) for name in MEASURES},
            "wake": _points(latencies, None),
            "histogram": counts,
        }
    )


def last_messages(path: str) -> list[str]:
    """Return the last messages of a queue as lines, decoded by its schema.json.

    Never raises, whatever the queue contains: if it cannot be read, the only line says why. Large payloads
    are not decoded.
    """
    try:
        decoder = Decoder(Path(path))
        start = start_of_newest(path, MESSAGES, on_corrupt="skip")
        with open_reader(path, start=start, on_corrupt="skip", verify=False) as reader:
            return [_line(decoder, message) for message in reader.read_batch(MESSAGES)]
    except (ChronicleError, OSError, ValueError, TypeError) as error:
        return [f"cannot be read: {error}"]


def kept_because(path: str) -> list[dict[str, Any]]:
    """Return for the oldest segments why they are kept; nothing if that cannot be found out."""
    try:
        return [
            {"segment": one.segment, "bytes": one.bytes, "text": one.text}
            for one in why_kept(path)[:_KEPT]
        ]
    except (ChronicleError, OSError):
        return []


def _line(decoder: Decoder, message: Any) -> str:
    if len(message.view) > _PAYLOAD_MAX:
        return f"{message.seq:>8}  #{message.type_id}  {len(message.view):,} bytes"
    line = decoder.line(message)
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]} …"


def _reader(one: ReaderInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "pid": one.pid,
        "command": one.command,
        "live": one.live,
        "lost": one.lost,
        "stopped": one.stopped,
        "lag": one.lag.messages,
        "bytes": one.lag.bytes,
        "age": one.lag.seconds if one.lag.messages else 0,
        "keeps": one.keeps_segments,
    }


def _group(one: GroupInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "pending": one.pending,
        "in_flight": one.in_flight,
        "delayed": one.delayed,
        "retried": one.retried,
        "oldest": _ms(one.oldest_ns or 0),
        "members": [
            {
                "pid": member.pid,
                "alive": member.alive,
                "in_flight": member.in_flight,
                "acked": member.acked,
                "redelivered": member.redelivered,
            }
            for member in one.members
        ],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "number": event.number,
        "time": _ms(event.time_ns),
        "kind": event.kind,
        "queue": event.queue,
        "name": event.name,
        "text": event.text,
        "count": event.count,
    }


def _series(history: History, measure: Measure, queue: int | None) -> dict[str, Any]:
    found = history.series(measure, queue)
    return {"x": [_ms(moment) for moment in found.times_ns], "y": found.values}


def _points(latencies: Latencies, queue: int | None) -> dict[str, Any]:
    found = latencies.points(queue)
    return {
        "x": [_ms(point.time_ns) for point in found],
        "median": [point.median_s for point in found],
        "longest": [point.longest_s for point in found],
    }


def _ms(moment_ns: int) -> float:
    return moment_ns / 1e6
