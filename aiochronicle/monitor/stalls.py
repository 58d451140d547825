"""Finds the source that a strict fan-in waits for, from outside.

Fan-ins are not published. A process that has readers of the same name open in several queues is taken for a
fan-in over these queues. With strict order it waits for a source that has no message while others have
some. What a reader has taken but not committed cannot be seen: it is allowed for by ``COMMIT_S``.
"""

from collections import defaultdict

import msgspec

from aiochronicle.monitor.records import QueueState, Snapshot

__all__ = ["Stall", "fan_ins", "stalls_of"]

STALL_S = 2.0
COMMIT_S = 1.0  # how old a message may be when it is committed with others


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A fan-in that may be waiting for a source that is silent.

    ``reader`` and ``pid`` name the fan-in, ``queue`` and ``name`` the silent source. ``waiting_s`` is the age
    of the oldest message that the fan-in has not committed. Only a fan-in with ``order="strict"``
    really waits; one that is merely slow, beside a silent queue, looks the same from outside.
    """

    reader: str
    pid: int
    queue: int
    name: str
    waiting_s: float


def fan_ins(snapshot: Snapshot) -> dict[tuple[int, str], list[QueueState]]:
    """Return the queues of each fan-in, by process and reader name."""
    found: defaultdict[tuple[int, str], list[QueueState]] = defaultdict(list)
    for queue in snapshot.queues:
        for reader in queue.readers:
            if reader.live and reader.pid is not None:
                found[reader.pid, reader.name].append(queue)
    return {key: queues for key, queues in found.items() if len(queues) > 1}


class _Source(msgspec.Struct, frozen=True):
    """A source of a fan-in: how long ago it was heard of, and how old its oldest uncommitted message is."""

    queue: QueueState
    silent_s: float
    waiting_s: float  # 0 if everything is committed


def stalls_of(snapshot: Snapshot, *, least_s: float = STALL_S) -> list[Stall]:
    """Return the silent source that each fan-in may be waiting for, if there is one."""
    found: list[Stall] = []
    for (pid, name), queues in fan_ins(snapshot).items():
        sources = [
            source for queue in queues if (source := _source(queue, name, snapshot)) is not None
        ]
        silent = max(
            (one for one in sources if _may_be_awaited(one, sources)),
            key=lambda one: one.silent_s,
            default=None,
        )
        if silent is None:
            continue
        waiting_s = max((one.waiting_s for one in sources if one is not silent), default=0.0)
        slack_s = COMMIT_S if silent.waiting_s else 0.0
        if waiting_s >= least_s and silent.silent_s > waiting_s - slack_s:
            queue = silent.queue
            found.append(
                Stall(
                    reader=name,
                    pid=pid,
                    queue=queue.number,
                    name=queue.name,
                    waiting_s=waiting_s,
                )
            )
    return found


def _source(queue: QueueState, reader_name: str, snapshot: Snapshot) -> _Source | None:
    info = queue.info
    if info is None:
        return None
    lag = next(one.lag for one in queue.readers if one.name == reader_name)
    heard_ns = max(info.watermark_ns, info.last_timestamp_ns)
    return _Source(queue, (snapshot.time_ns - heard_ns) / 1e9, lag.seconds if lag.messages else 0.0)


def _may_be_awaited(source: _Source, sources: list[_Source]) -> bool:
    """Tell whether a source may have nothing left for the fan-in, while its writer may append more.

    What is not committed may have been delivered if it is from shortly before the source fell silent.
    """
    writer = source.queue.writer
    if writer is None or writer.state == "closed":
        return False
    if not source.waiting_s:
        return True
    newest_s = min(one.silent_s for one in sources)
    return source.waiting_s <= source.silent_s + COMMIT_S and newest_s < source.silent_s - COMMIT_S
