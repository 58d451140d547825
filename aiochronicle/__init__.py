"""Persisted, memory-mapped, broker-less message queues for one host.

>>> import aiochronicle
>>> with aiochronicle.open_writer(tmp_path / "ticks") as writer:
...     _ = writer.append(b"hello")
>>> with aiochronicle.open_reader(tmp_path / "ticks") as reader:
...     [message.payload for message in reader]
[b'hello']
"""

from typing import TYPE_CHECKING, Any

from aiochronicle import errors
from aiochronicle._hot import Message, Reservation
from aiochronicle.bus import Bus, BusStatistics
from aiochronicle.causes import Causes
from aiochronicle.codec import Codec, Width
from aiochronicle.config import Batch, Capacity, Retention, Roll, SpinThenPark
from aiochronicle.conflate import Conflation, ConflationStatistics
from aiochronicle.discovery import Attached, Detached, Discovery, Ready, discover
from aiochronicle.errors import ChronicleError
from aiochronicle.export import ExportProgress
from aiochronicle.fanin import FanIn, FanInStatistics, SourceStatistics
from aiochronicle.health import Health, health
from aiochronicle.kept import KeptSegment, why_kept
from aiochronicle.opening import Opening, aopen_reader, aopen_writer
from aiochronicle.position import Position
from aiochronicle.queue import (
    QueueInfo,
    ReaderInfo,
    VerifyReport,
    configure,
    forget_reader,
    inspect,
    list_readers,
    verify,
)
from aiochronicle.reader import Lag, Reader, ReaderStatistics, open_reader
from aiochronicle.registry import RegisteredType, Registry
from aiochronicle.replay import Replay, ReplayStatistics, replay
from aiochronicle.requests import (
    Request,
    Requester,
    RequesterStatistics,
    Responder,
    ResponderStatistics,
)
from aiochronicle.router import Router, RouterStatistics
from aiochronicle.settings import TopicSettings
from aiochronicle.slices import Queue, Slice
from aiochronicle.virtual_time import VirtualTimeLoop, run_virtual
from aiochronicle.writer import Recovery, Writer, WriterStatistics, open_writer
from aiochronicle.writer_info import RecentError, Sample, SlowAppend, SlowTotal, WriterInfo

if TYPE_CHECKING:
    from aiochronicle.backups import Backup, BackupProgress, BackupReport, backup, list_backups
    from aiochronicle.recovered import (
        RecoveredMessage,
        RecoveredPart,
        list_recovered,
        read_recovered,
    )
    from aiochronicle.repairing import Finding, RepairReport, repair
    from aiochronicle.restoring import RestoreReport, restore

__all__ = [
    "Attached",
    "Backup",
    "BackupProgress",
    "BackupReport",
    "Batch",
    "Bus",
    "BusStatistics",
    "Capacity",
    "Causes",
    "ChronicleError",
    "Codec",
    "Conflation",
    "ConflationStatistics",
    "Detached",
    "Discovery",
    "ExportProgress",
    "FanIn",
    "FanInStatistics",
    "Finding",
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
    "TopicSettings",
    "VerifyReport",
    "VirtualTimeLoop",
    "Width",
    "Writer",
    "WriterInfo",
    "WriterStatistics",
    "aopen_reader",
    "aopen_writer",
    "backup",
    "configure",
    "discover",
    "errors",
    "forget_reader",
    "health",
    "inspect",
    "list_backups",
    "list_readers",
    "list_recovered",
    "open_reader",
    "open_writer",
    "read_recovered",
    "repair",
    "replay",
    "restore",
    "run_virtual",
    "verify",
    "why_kept",
]

__version__ = "0.1.0"

# What looks after queues is imported when it is used: most programs only write and read.
_LATER = {
    "backups": ("Backup", "BackupProgress", "BackupReport", "backup", "list_backups"),
    "recovered": ("RecoveredMessage", "RecoveredPart", "list_recovered", "read_recovered"),
    "repairing": ("Finding", "RepairReport", "repair"),
    "restoring": ("RestoreReport", "restore"),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _LATER.items():
        if name in names:
            found = getattr(importlib.import_module(f"aiochronicle.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'aiochronicle' has no attribute {name!r}")
