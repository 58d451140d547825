"""Persisted, memory-mapped, broker-less message queues for one host.

>>> import aiochronicle
>>> with aiochronicle.open_writer(tmp_path / "ticks") as writer:
...     _ = writer.append(b"hello")
>>> with aiochronicle.open_reader(tmp_path / "ticks") as reader:
...     [message.payload for message in reader]
[b'hello']
"""

from typing import TYPE_CHECKING, Any

from aiochronicle import _command as _command  # first, so that Ctrl-C ends `aioc` quietly
from aiochronicle import errors
from aiochronicle._base.position import Position
from aiochronicle._columns.export import ExportProgress
from aiochronicle._core.causes import Causes
from aiochronicle._core.conflate import Conflation, ConflationStatistics
from aiochronicle._core.fanin import FanIn, FanInStatistics, SourceStatistics
from aiochronicle._core.health import Health, health
from aiochronicle._core.kept import KeptSegment, why_kept
from aiochronicle._core.opening import Opening, aopen_reader, aopen_writer
from aiochronicle._core.queue import (
    QueueInfo,
    ReaderInfo,
    VerifyReport,
    configure,
    inspect,
    seek_reader,
    verify,
)
from aiochronicle._core.reader import Reader, ReaderStatistics, open_reader
from aiochronicle._core.slices import Queue, Slice
from aiochronicle._core.stream import Lag
from aiochronicle._core.topic_settings import TopicSettings
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_info import RecentError, Sample, SlowAppend, SlowTotal, WriterInfo
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._core.writer_statistics import Recovery, WriterStatistics
from aiochronicle._hot import Block, Delivery, Message, Reservation
from aiochronicle._services.running import run
from aiochronicle._services.shared import forget_reader, list_readers
from aiochronicle._typed.registry import RegisteredType, Registry
from aiochronicle.codec import Codec, Width
from aiochronicle.config import Batch, Capacity, Retention, Roll, SpinThenPark
from aiochronicle.errors import ChronicleError

if TYPE_CHECKING:
    from aiochronicle._core.dead_letter_mover import DeadLetter
    from aiochronicle._core.dead_letters import (
        drop_dead_letters,
        list_dead_letters,
        retry_dead_letters,
    )
    from aiochronicle._core.group import (
        Group,
        GroupInfo,
        GroupMember,
    )
    from aiochronicle._maintenance.backup_report import BackupProgress, BackupReport
    from aiochronicle._maintenance.backups import Backup, backup, list_backups
    from aiochronicle._maintenance.converting import ConvertProgress, ConvertReport, convert
    from aiochronicle._maintenance.recovered import (
        RecoveredMessage,
        RecoveredPart,
        list_recovered,
        read_recovered,
    )
    from aiochronicle._maintenance.repairing import Finding, RepairReport, repair
    from aiochronicle._maintenance.restoring import RestoreReport, restore
    from aiochronicle._services.bus import Bus, BusStatistics
    from aiochronicle._services.discovery import Attached, Detached, Discovery, Ready, discover
    from aiochronicle._services.groups import aopen_group, inspect_group, list_groups, open_group
    from aiochronicle._services.replay import Replay, ReplayStatistics, replay
    from aiochronicle._services.request import Request
    from aiochronicle._services.requester import Requester, RequesterStatistics
    from aiochronicle._services.responder import Responder, ResponderStatistics
    from aiochronicle._services.router import Router, RouterStatistics
    from aiochronicle._services.topic_group import TopicGroup
    from aiochronicle._services.topic_reader import TopicReader
    from aiochronicle._services.virtual_time import VirtualTimeLoop, run_virtual

__all__ = [
    "Attached",
    "Backup",
    "BackupProgress",
    "BackupReport",
    "Batch",
    "Block",
    "Bus",
    "BusStatistics",
    "Capacity",
    "Causes",
    "ChronicleError",
    "Codec",
    "Conflation",
    "ConflationStatistics",
    "ConvertProgress",
    "ConvertReport",
    "DeadLetter",
    "Delivery",
    "Detached",
    "Discovery",
    "ExportProgress",
    "FanIn",
    "FanInStatistics",
    "Finding",
    "Group",
    "GroupInfo",
    "GroupMember",
    "Health",
    "KeptSegment",
    "Lag",
    "Message",
    "Opening",
    "Position",
    "Queue",
    "QueueInfo",
    "Reader",
    "ReaderInfo",
    "ReaderStatistics",
    "Ready",
    "RecentError",
    "RecoveredMessage",
    "RecoveredPart",
    "Recovery",
    "RegisteredType",
    "Registry",
    "RepairReport",
    "Replay",
    "ReplayStatistics",
    "Request",
    "Requester",
    "RequesterStatistics",
    "Reservation",
    "Responder",
    "ResponderStatistics",
    "RestoreReport",
    "Retention",
    "Roll",
    "Router",
    "RouterStatistics",
    "Sample",
    "Slice",
    "SlowAppend",
    "SlowTotal",
    "SourceStatistics",
    "SpinThenPark",
    "TopicGroup",
    "TopicReader",
    "TopicSettings",
    "VerifyReport",
    "VirtualTimeLoop",
    "Width",
    "Writer",
    "WriterInfo",
    "WriterStatistics",
    "aopen_group",
    "aopen_reader",
    "aopen_writer",
    "backup",
    "configure",
    "convert",
    "discover",
    "drop_dead_letters",
    "errors",
    "forget_reader",
    "health",
    "inspect",
    "inspect_group",
    "list_backups",
    "list_dead_letters",
    "list_groups",
    "list_readers",
    "list_recovered",
    "open_group",
    "open_reader",
    "open_writer",
    "read_recovered",
    "repair",
    "replay",
    "restore",
    "retry_dead_letters",
    "run",
    "run_virtual",
    "seek_reader",
    "verify",
    "why_kept",
]

__version__ = "0.1.0"

# Imported on first use, because most programs only read and write.
_LAZY_NAMES = {
    "_maintenance.backup_report": ("BackupProgress", "BackupReport"),
    "_maintenance.backups": ("Backup", "backup", "list_backups"),
    "_maintenance.converting": ("ConvertProgress", "ConvertReport", "convert"),
    "_core.dead_letters": ("drop_dead_letters", "list_dead_letters", "retry_dead_letters"),
    "_core.group": ("Group", "GroupInfo", "GroupMember"),
    "_core.dead_letter_mover": ("DeadLetter",),
    "_maintenance.recovered": (
        "RecoveredMessage",
        "RecoveredPart",
        "list_recovered",
        "read_recovered",
    ),
    "_maintenance.repairing": ("Finding", "RepairReport", "repair"),
    "_services.bus": ("Bus", "BusStatistics"),
    "_services.discovery": ("Attached", "Detached", "Discovery", "Ready", "discover"),
    "_services.groups": ("aopen_group", "inspect_group", "list_groups", "open_group"),
    "_services.replay": ("Replay", "ReplayStatistics", "replay"),
    "_services.request": ("Request",),
    "_services.requester": ("Requester", "RequesterStatistics"),
    "_services.responder": ("Responder", "ResponderStatistics"),
    "_maintenance.restoring": ("RestoreReport", "restore"),
    "_services.router": ("Router", "RouterStatistics"),
    "_services.topic_group": ("TopicGroup",),
    "_services.topic_reader": ("TopicReader",),
    "_services.virtual_time": ("VirtualTimeLoop", "run_virtual"),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _LAZY_NAMES.items():
        if name in names:
            found = getattr(importlib.import_module(f"aiochronicle.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'aiochronicle' has no attribute {name!r}")
