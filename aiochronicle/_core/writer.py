"""The Writer class. writer_opening.py opens a writer, writer_sending.py encodes objects.

``Writer.append`` is a C method (csrc/python/writer_append.c): it copies the payload into the mapped segment,
stores the commit word and wakes sleeping readers. This module does the work that is not per message.
"""

import asyncio
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

from msgspec import UNSET, UnsetType

from aiochronicle import _hot
from aiochronicle._base.arguments import (
    expect,
    integer,
)
from aiochronicle._base.background import GroupCommit, in_background
from aiochronicle._base.binding import check, encode_path, exception, ffi, lib, new_error
from aiochronicle._base.closing import Closing
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._core import engine_log
from aiochronicle._core.causes import Cause, Causes
from aiochronicle._core.health import Health, format_reason, health_of
from aiochronicle._core.live_settings import (
    LiveSettings,
    WriterSettings,
)
from aiochronicle._core.writer_sending import Format, SendingWriter
from aiochronicle._core.writer_statistics import (
    Recovery,
    WriterStatistics,
    recovery_of,
    statistics_of,
)
from aiochronicle.codec import T_contra
from aiochronicle.config import Batch, Capacity, Retention
from aiochronicle.errors import (
    ChronicleError,
    NotSupported,
    QueueFull,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Writer"]

_log = logging.getLogger("aiochronicle.writer")

READY_VERSION = 1


@_hot.own_methods
class Writer(SendingWriter[T_contra], Closing, Generic[T_contra]):
    """Appends to one queue. Created by open_writer; a context manager. ``Writer[T]`` sends a T.

    Several threads may append through one writer. After a fork the child's copy is closed.
    """

    _group_commit: GroupCommit[int] | None = None

    def __init__(
        self,
        address: int,
        clock: Callable[[], int] | None,
        wanted: LiveSettings,
        format: Format,  # noqa: A002
    ) -> None:
        super().__init__(address, clock, format)
        self._settings = WriterSettings(self._handle, self.path, wanted)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file that identifies the queue."""
        found = ffi.new("ac_identity_t *")
        lib.ac_writer_identity(self._handle, found)
        return int(found.device), int(found.inode)

    @property
    def position(self) -> Position:
        """Position of the next record; in a Java queue, after the last message of this writer."""
        statistics = self.statistics()
        return Position(statistics.segment, statistics.offset)

    def flush_now(self) -> int:
        """Make all messages appended so far durable; return the seq after the last of them.

        The first failure poisons the writer: close it and open it again.
        """
        error = new_error()
        return check(lib.ac_writer_flush(self._handle, error), error)

    @staticmethod
    def flush_together(writers: "Sequence[Writer[Any]]") -> list[int | ChronicleError]:
        """Flush several writers with concurrent syncs.

        Returns, in their order, what ``flush_now`` of each would have returned or raised.
        """
        handles = ffi.new("ac_writer_t *[]", [writer._handle for writer in writers])
        results = ffi.new("int64_t[]", len(writers))
        errors = ffi.new("ac_error_t[]", len(writers))
        lib.ac_writers_flush(handles, len(writers), results, errors)
        return [
            int(result) if result >= 0 else exception(error)
            for result, error in zip(results, errors, strict=True)
        ]

    async def flush(self) -> int:
        """Make all messages appended so far durable; return the seq after the last of them.

        Runs in a thread. Callers that arrive during a sync share the next one, so a thousand tasks cost a few
        syncs. If the caller is cancelled, the sync continues; nothing is lost.
        """
        if self._group_commit is None:
            self._group_commit = GroupCommit(self.flush_now)
        return await self._group_commit.wait()

    async def append_async(
        self,
        payload: "Buffer",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append a message and return its seq; where ``append`` would raise QueueFull, wait for space.

        This is back-pressure for tasks: with a ``capacity``, the producer is as fast as the slowest open
        reader. Messages of one task keep their order. Without a capacity it does the same as ``append``. With
        ``policy="block"`` it waits in a thread, for at most ``timeout_s``. In a Java queue it also waits in a
        thread for the lock, if another process holds it, and for a new file.

        If it is cancelled while the task waits for space, nothing was appended. If it is cancelled while a
        thread waits, the message may be appended.

        >>> import asyncio
        >>> async def produce():
        ...     with open_writer(tmp_path / "bounded", capacity=1 << 20) as writer:
        ...         return await writer.append_async(b"hello")
        >>> asyncio.run(produce())
        0
        """
        append = partial(
            self.append,
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )
        if self._settings.capacity_blocks or lib.ac_writer_may_wait(self._handle):
            return await in_background(append)
        while True:
            try:
                return append()
            except QueueFull:
                if not self._settings.capacity_bytes:
                    raise
            await self.drain()

    async def append_durable(
        self,
        payload: "Buffer",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append a message and return its seq once it is on disk, without blocking the loop.

        Readers see the message at once. If cancelled, the message stays appended and is on disk after the
        next flush. In a Java queue it waits for the lock like ``append_async``.
        """
        append = partial(
            self.append,
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )
        seq = await in_background(append) if lib.ac_writer_may_wait(self._handle) else append()
        await self.flush()
        return seq

    async def drain(self) -> None:
        """Return when the slowest live reader is within the capacity again; at once without a capacity.

        After QueueFull it returns when there is space for the refused message. Cancelling has no effect on
        the queue.
        """
        pause_s = 0.0005
        while capacity_bytes := self._settings.capacity_bytes:
            lag_bytes, _ = await in_background(self.reader_lag)
            wanted_bytes = min(self.statistics().refused_bytes, capacity_bytes)
            if lag_bytes + wanted_bytes <= capacity_bytes:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.01)

    def mark_ready(self, **extra: Any) -> None:
        """Publish the READY marker, which lets discovery find the queue."""
        payload = {
            "version": READY_VERSION,
            "pid": os.getpid(),
            "created_at": datetime.now(UTC).isoformat(),
            **extra,
        }
        error = new_error()
        import json  # here, because it takes a millisecond and few programs need it

        text = json.dumps(payload).encode()
        check(lib.ac_writer_mark_ready(self._handle, text, error), error)

    def last_cause(self, source: "int | _hot.Message") -> int | None:
        """Return the seq of the newest message of a source queue that is a ``cause`` in this queue, or None.

        ``source`` is a queue id, or any message of the source queue. After a restart, a consumer that
        appends with ``cause=`` already has results for messages up to this seq. After a power cut the
        source queue may have lost its end and assigned some seqs again. Pass a message as ``source`` then:
        a message with a reassigned seq counts as new. Raises CorruptionError at damaged messages, which may
        have had a newer cause.

        Each call scans the newest segment (about 30 ms for a million messages), and older ones if that has no
        such cause. To check many messages, call ``last_causes`` once and use its result.
        """
        self._refuse_causes()
        expect("source", "a queue id or a Message", (int, _hot.Message), source)
        queue_id = source if isinstance(source, int) else source.queue_id
        integer("source", queue_id, 0, 2**64 - 1)
        cause = ffi.new("ac_cause_t *")
        error = new_error()
        path = encode_path(self.path)
        if not check(lib.ac_queue_last_cause(path, queue_id, cause, error), error):
            return None
        newest = Cause(int(cause.seq), int(cause.epoch))
        if isinstance(source, int) or newest.covers(source) or source.seq > newest.seq:
            return newest.seq
        return source.seq - 1 if source.seq else None

    def last_causes(self, since_ns: int = 0) -> Causes:
        """Return the newest cause of every source queue: its messages up to there already have a result.

        Scans the whole queue: about 35 ms for a million messages in memory. With ``since_ns`` it scans only
        back to the segment that begins before that time.
        """
        self._refuse_causes()
        since = integer("since_ns", since_ns, 0)
        error = new_error()
        path = encode_path(self.path)
        capacity = 64
        while True:
            causes = ffi.new("ac_cause_t[]", capacity)
            count = check(lib.ac_queue_last_causes(path, since, causes, capacity, error), error)
            if count <= capacity:
                found = (causes[i] for i in range(count))
                return Causes({int(c.source): Cause(int(c.seq), int(c.epoch)) for c in found})
            capacity = count

    def _refuse_causes(self) -> None:
        if self._format == "cq4":
            what = "a message of a Java queue has no cause, only a payload"
            raise NotSupported(what, path=self.path)

    def reader_lag(self) -> tuple[int, int]:
        """Return the lag of the slowest open reader in bytes, and the number of open readers.

        Readers beyond ``Retention.reader_ttl_s`` or ``max_reader_lag`` do not count.
        """
        lag, live = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        error = new_error()
        check(lib.ac_writer_reader_lag(self._handle, lag, live, error), error)
        return int(lag[0]), int(live[0])

    def configure(
        self,
        *,
        retention: Retention | UnsetType | None = UNSET,
        capacity: int | Capacity | UnsetType | None = UNSET,
        flush: Literal["async", "sync"] | Batch | UnsetType = UNSET,
    ) -> None:
        """Change these settings while the writer is open; the others stay as they are.

        They apply to the next append, to an append that is waiting for capacity, and soon afterwards to the
        background work. The queue's settings.toml takes precedence: see the function ``configure``.
        Thread-safe.

        >>> with open_writer(tmp_path / "ticks") as writer:
        ...     writer.configure(retention=Retention(max_bytes=1 << 30), flush=Batch(1 << 20, 0.1))
        """
        self._settings.change(retention=retention, capacity=capacity, flush=flush)

    def retain_now(self) -> None:
        """Apply the retention rules once, without waiting for the housekeeping thread."""
        error = new_error()
        check(lib.ac_writer_retain(self._handle, error), error)

    def statistics(self) -> WriterStatistics:
        """Return the counters of this writer."""
        stats = ffi.new("ac_writer_stats_t *")
        lib.ac_writer_stats(self._handle, stats)
        return statistics_of(stats, self.recovery)

    @property
    def healthy(self) -> Health:
        """Whether it can append: it is open, its queue exists, and no sync has failed."""
        if self.closed:
            return health_of([format_reason("writer", self.path, "is closed")])
        statistics = self.statistics()
        if self.gone or statistics.sync_errors:  # either way it accepts no more messages
            return health_of(
                [format_reason("writer", self.path, f"has stopped: {statistics.last_error}")]
            )
        return health_of([])

    @property
    def recovery(self) -> Recovery:
        """Result of the recovery when the writer was opened."""
        report = ffi.new("ac_recovery_t *")
        lib.ac_writer_recovery(self._handle, report)
        return recovery_of(report)

    def close(self) -> None:
        """Sync everything, mark the queue as cleanly closed, and release the lock.

        A Java queue stays open for its other writers; only the messages of this writer are synced.
        """
        was_open = not self.closed
        try:
            super().close()
            if was_open:
                _log.debug("%s: closed, next seq %d", printable(self.path), self.next_seq)
        finally:
            engine_log.log_waiting()

    def __repr__(self) -> str:
        if self.closed:
            return f"<Writer {self.path!r} closed>"
        statistics = self.statistics()
        return (
            f"<Writer {self.path!r} next_seq={statistics.next_seq}"
            f" segment={statistics.segment} offset={statistics.offset}>"
        )

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
