"""Finds the source that a strict fan-in waits for, from outside.

Fan-ins are not published. A process that has readers of the same name open in several queues is taken for a
fan-in over these queues. With strict order it waits for a source that has no message while others have
some.
"""

from collections import defaultdict

import msgspec

from aiochronicle.monitor.records import QueueState, Snapshot

__all__ = ["Stall", "fan_ins", "stalls_of"]

STALL_S = 2.0


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


def stalls_of(snapshot: Snapshot, *, least_s: float = STALL_S) -> list[Stall]:
    """Return the silent source that each fan-in may be waiting for, if there is one."""
    found: list[Stall] = []
    for (pid, name), queues in fan_ins(snapshot).items():
        waiting_s = 0.0
        silent: list[tuple[int, QueueState]] = []
        for queue in queues:
            reader = next(one for one in queue.readers if one.name == name)
            info = queue.info
            if reader.lag.messages:
                waiting_s = max(waiting_s, reader.lag.seconds)
            elif info is not None and queue.writer is not None and queue.writer.state != "closed":
                silent.append((max(info.watermark_ns, info.last_timestamp_ns), queue))
        if waiting_s < least_s or not silent:
            continue
        heard_ns, queue = min(silent, key=lambda one: one[0])
        if heard_ns < snapshot.time_ns - waiting_s * 1e9:
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
