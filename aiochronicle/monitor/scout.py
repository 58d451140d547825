"""Observes one queue: a glance every second, and a full look when it is due.

The glance uses an anonymous reader that stays open. It maps the same files as the writer, takes no lock,
does not appear among the readers, and never sleeps on the queue, so the writer never has to wake it.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from aiochronicle._base.binding import lib
from aiochronicle._base.printable import printable
from aiochronicle._core import queue
from aiochronicle._core.group import GroupInfo
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.writer_info import WriterInfo
from aiochronicle._layout import CONTROL, JAVA_TABLE
from aiochronicle._services.groups import list_groups
from aiochronicle.errors import ChronicleError, NotSupported
from aiochronicle.monitor.records import QueueState

__all__ = ["Scout", "name_of"]

_RATE_NS = 3 * 10**9  # a rate is that of so long: what comes in bursts would flicker
_GLANCES = 8
_SAME_GLANCES = 3  # one in three checks whether the queue is still the same one
_FORMATS: dict[int, Literal["native", "java"]] = {
    lib.AC_FORMAT_NATIVE: "native",
    lib.AC_FORMAT_CQ4: "java",
}


def name_of(path: str, root: str) -> str:
    """Return the path below the root (of the root itself: its last part), safe to print."""
    short = os.path.relpath(path, root) if path != root else Path(path).name or path
    raw = os.fsencode(short)
    return printable(raw.decode("utf-8", "backslashreplace"))


class _Glance(msgspec.Struct, frozen=True):
    monotonic_ns: int
    seq: int
    segment: int
    offset: int


class Scout:
    """One queue that is observed. ``state`` is what is known of it."""

    def __init__(self, number: int, path: str, root: str) -> None:
        self.due_ns = 0  # when a whole look should be made again, by the monotonic clock
        self.state = QueueState(number=number, path=path, name=name_of(path, root))
        self._reader: Reader[Any] | None = None
        self._identity: tuple[int, int] | None = None
        self._count = number  # so that not all of them do the same at the same time
        self._glances: list[_Glance] = []

    def close(self) -> None:
        """Close the files of the queue."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(ChronicleError):
                reader.close()

    def glance(self) -> bool:
        """Read the next seq and compute the rates; return whether a full look is needed at once."""
        now_ns = time.monotonic_ns()
        before = self.state
        try:
            self._count += 1
            is_due = self._reader is None or self._count % _SAME_GLANCES == 0
            if is_due and self._is_another():
                self.close()
                self._glances.clear()
            reader = self._open()
            reader.seek_last()
            place = reader.position
            seq = reader.seq_at(place) or 0
        except (ChronicleError, OSError) as error:
            return self._fail(error)
        size = 0 if before.info is None else before.info.segment_size
        if size == 0 and self._glances and self._glances[-1].segment != place.segment:
            self._glances.clear()  # Java numbers the messages of each file again
        self._glances.append(_Glance(now_ns, seq, place.segment, place.offset))
        del self._glances[:-_GLANCES]
        rate, rate_bytes = self._rates(now_ns, size)
        self.state = msgspec.structs.replace(
            before, problem=None, next_seq=seq, rate=rate, rate_bytes=rate_bytes
        )
        if before.info is not None and place.segment != before.info.current_segment:
            self.due_ns = 1  # it has rolled: soon, but it can wait
        return before.problem is not None or before.info is None

    def look(self) -> None:
        """Read everything: writer, readers, groups, segments, disk."""
        path = self.state.path
        try:
            info = queue.inspect(path)
            readers = tuple(_readers(path))
            groups = tuple(_groups(path)) if readers else ()
        except (ChronicleError, OSError) as error:
            self._fail(error)
            return
        self.state = msgspec.structs.replace(
            self.state,
            format=_FORMATS.get(lib.ac_queue_format(os.fsencode(path))),
            info=info,
            readers=readers,
            groups=groups,
            looked_ns=time.time_ns(),
        )

    def _is_another(self) -> bool:
        """Tell whether the queue was removed and recreated since the last look."""
        for name in (CONTROL, JAVA_TABLE):
            with suppress(FileNotFoundError):
                found = os.stat(f"{self.state.path}/{name}")  # noqa: PTH116 - once a second and queue
                identity = found.st_dev, found.st_ino
                changed = self._identity is not None and identity != self._identity
                self._identity = identity
                return changed
        return True

    def _open(self) -> Reader[Any]:
        if self._reader is None:
            self._reader = open_reader(self.state.path, start="last", verify=False)
        return self._reader

    def _rates(self, now_ns: int, segment_size: int) -> tuple[float, float]:
        newest = self._glances[-1]
        oldest = next(one for one in self._glances if now_ns - one.monotonic_ns <= _RATE_NS)
        passed_s = (newest.monotonic_ns - oldest.monotonic_ns) / 1e9
        if passed_s <= 0:
            return 0.0, 0.0
        messages = max(0, newest.seq - oldest.seq) / passed_s
        passed_bytes = newest.offset - oldest.offset
        if rolled := newest.segment - oldest.segment:
            writer = None if self.state.info is None else self.state.info.writer
            if writer is not None and writer.statistics is not None:
                return messages, self._bytes_across_segments(messages, writer)
            passed_bytes += rolled * segment_size
        return messages, max(0, passed_bytes) / passed_s

    def _bytes_across_segments(self, rate: float, writer: WriterInfo) -> float:
        """Return bytes per second as the writer publishes them: a segment may be sealed before it is full."""
        counted = writer.statistics
        if writer.rate > 0:
            return rate * writer.rate_bytes / writer.rate
        if counted is not None and counted.messages:
            return rate * counted.record_bytes / counted.messages
        return self.state.rate_bytes  # it has said nothing yet

    def _fail(self, error: Exception) -> bool:
        """Store why the queue cannot be read; return whether that is new."""
        self.close()
        self._glances.clear()
        text = printable(error.detail if isinstance(error, ChronicleError) else error)
        is_new = self.state.problem != text
        self.state = msgspec.structs.replace(
            self.state, problem=text, rate=0.0, rate_bytes=0.0, looked_ns=time.time_ns()
        )
        return is_new


def _readers(path: str) -> list[queue.ReaderInfo]:
    try:
        return queue.list_readers(path)
    except NotSupported:
        return []


def _groups(path: str) -> list[GroupInfo]:
    """Return the groups of a queue. Most have none, which a listing of one directory shows."""
    try:
        with os.scandir(f"{path}/readers") as entries:
            has_groups = any(entry.name.endswith(".group") for entry in entries)
        return list_groups(path) if has_groups else []
    except (FileNotFoundError, NotSupported):
        return []
