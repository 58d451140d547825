"""The records that a look returns: queues, events, alarms, and the snapshot that has them all."""

from typing import Literal

import msgspec

from aiochronicle._core.group import GroupInfo
from aiochronicle._core.queue import QueueInfo, ReaderInfo
from aiochronicle._core.writer_info import WriterInfo

__all__ = ["Alarm", "Event", "EventKind", "Level", "QueueState", "Snapshot"]

EventKind = Literal[
    "appeared",
    "vanished",
    "unreadable",
    "readable",
    "opened",
    "closed",
    "killed",
    "stopped",
    "continued",
    "recovered",
    "rolled",
    "retained",
    "slow append",
    "error",
    "reader opened",
    "reader closed",
    "reader killed",
    "reader forgotten",
    "reader lost",
]

Level = Literal["warning", "critical"]


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one queue.

    ``number`` identifies it as long as the collector lives. ``name`` is its path below the root, safe to
    print. ``problem`` says why the other fields are missing or old. ``next_seq``, ``rate`` and
    ``rate_bytes`` are of this look. All other fields are of the last full look, at ``looked_ns``; a
    collector with many queues does these less often. ``rate`` is messages per second, ``rate_bytes`` bytes
    of records per second.
    """

    number: int
    path: str
    name: str
    format: Literal["native", "java"] | None = None
    problem: str | None = None
    next_seq: int = 0
    rate: float = 0.0
    rate_bytes: float = 0.0
    info: QueueInfo | None = None
    readers: tuple[ReaderInfo, ...] = ()
    groups: tuple[GroupInfo, ...] = ()
    looked_ns: int = 0

    @property
    def writer(self) -> WriterInfo | None:
        """The writer that has the queue open, or had it open last."""
        return None if self.info is None else self.info.writer

    @property
    def worst(self) -> ReaderInfo | None:
        """The reader with the largest lag; None without readers."""
        return max(self.readers, key=lambda one: (one.lost, one.lag.messages), default=None)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change between two looks. Several of one kind within seconds are one event with a ``count``."""

    number: int
    time_ns: int
    kind: EventKind
    queue: int
    name: str
    text: str
    count: int = 1


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that exists now. ``queue`` is the number of a QueueState, None for the root itself."""

    level: Level
    queue: int | None
    name: str
    text: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look: all queues, in the order of their paths.

    ``events`` are new since the last look, ``alarms`` exist now, the worst first. ``problem`` says why the
    root cannot be read. ``took_s`` is the processor time of this look.
    """

    time_ns: int
    monotonic_ns: int
    root: str
    queues: tuple[QueueState, ...] = ()
    events: tuple[Event, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    problem: str | None = None
    disk_bytes_free: int = 0
    disk_bytes_total: int = 0
    took_s: float = 0.0
