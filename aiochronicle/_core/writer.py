"""The writer: open_writer and the Writer class.

The way of a message: ``Writer.append`` is a C method (csrc/python/writer.c) that copies the payload
into the mapped segment, stores the commit word and wakes sleeping readers. What happens once per
queue rather than once per message is here.
"""

import asyncio
import contextlib
import logging
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from msgspec import UNSET, UnsetType

from aiochronicle import _hot
from aiochronicle._base.arguments import (
    expect,
    expect_several,
    flag,
    integer,
    one_of,
    permissions,
    seconds,
    segment_bytes,
    wrong_type,
)
from aiochronicle._base.background import GroupCommit, in_background
from aiochronicle._base.binding import check, encode_path, exception, ffi, lib, new_error
from aiochronicle._base.closing import Closing
from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core import engine_log
from aiochronicle._core.causes import Cause, Causes
from aiochronicle._core.health import Health, because, reason
from aiochronicle._core.heartbeat import keep_beating
from aiochronicle._core.live_settings import (
    LiveSettings,
    SettingsOfWriter,
    count_or_zero,
    nanoseconds,
    to_engine,
)
from aiochronicle._layout import CONTROL, JAVA_TABLE, SHARED
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T, T_contra
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import (
    ChronicleError,
    EncodeError,
    InvalidArgument,
    LockedError,
    NotAQueue,
    NotSupported,
    QueueFull,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Recovery", "Writer", "WriterStatistics", "open_writer"]

_log = logging.getLogger("aiochronicle.writer")

READY_VERSION = 1

EPOCH_MS_MAX = 2**53  # beyond any year that a cycle's file could be named after

_QUICK_S = 1.0  # a killed holder is gone by then; a live one is checked less often

Format = Literal["native", "cq4"]

_OF_SHARED = ("path", "shared")
_FORMATS = {"native": lib.AC_FORMAT_NATIVE, "cq4": lib.AC_FORMAT_CQ4}
_FORMAT_NAMES: dict[int, Format] = {lib.AC_FORMAT_NATIVE: "native", lib.AC_FORMAT_CQ4: "cq4"}


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
    """Return what an ``ac_writer_stats_t`` holds."""
    names = WriterStatistics.__struct_fields__
    values = {name: getattr(stats, name) for name in names if name not in _DERIVED}
    last_error = ffi.string(stats.last_error).decode("utf-8", "replace")
    return WriterStatistics(**values, last_error=last_error, recovery=recovery)


def recovery_of(report: Any) -> Recovery:
    """Return what an ``ac_recovery_t`` holds."""
    values = {name: getattr(report, name) for name in Recovery.__struct_fields__}
    flags = {"clean": bool(report.clean), "is_copy": bool(report.is_copy)}
    return Recovery(**{**values, **flags})


def chosen_format(path: bytes, wanted: object) -> Format:
    """Return the requested format, or by default that of the queue at this path.

    The engine refuses to open a queue in another format than its own.
    """
    chosen = lib.AC_FORMAT_NONE if wanted is None else one_of("format", _FORMATS, wanted, "None")
    return _FORMAT_NAMES.get(chosen or lib.ac_queue_format(path), "native")


def _check_roll_cycle(name: str) -> None:
    """Refuse an unknown name, also for an existing queue."""
    expect("roll_cycle", "the name of a roll cycle of Java, or None", str, name)
    if name == "WEEKLY":
        raise InvalidArgument(
            "roll_cycle WEEKLY is not supported: Java itself cannot read such queues again"
        )
    known: list[str] = []
    while (found := lib.ac_roll_cycle_name(len(known))) != ffi.NULL:
        known.append(ffi.string(found).decode())
    if name not in known:
        shown = ", ".join(one for one in known if not one.startswith("TEST"))
        raise InvalidArgument(f"roll_cycle {name[:40]!r} is unknown; there are {shown}")


def _set_java(
    config: Any, roll_cycle: str | None, epoch: int | None, lock_timeout: float | None
) -> list[Any]:
    """Set what only a Java queue has; the returned objects must live as long as the configuration."""
    keep: list[Any] = []
    if roll_cycle is not None:
        _check_roll_cycle(roll_cycle)
        keep.append(ffi.new("char[]", roll_cycle.encode()))
        config.roll_cycle = keep[-1]
    if epoch is not None:
        config.epoch_ms = integer("epoch", epoch, -EPOCH_MS_MAX, EPOCH_MS_MAX)
        config.epoch_given = 1
    if lock_timeout is not None:
        config.lock_timeout_ns = max(
            1, round(seconds("lock_timeout", lock_timeout, zero=True) * 1e9)
        )
    return keep


def refuse_root_of_queues(directory: Path) -> None:
    """Refuse a path that is one level too short, instead of creating a queue around others."""
    try:
        if any((directory / name).exists() for name in (CONTROL, JAVA_TABLE)):
            return
        if (directory / SHARED).exists():
            raise NotAQueue(
                "is a topic with many writers",
                path=str(directory),
                advice="Read it with TopicReader or TopicGroup, and append with"
                " open_writer(path, shared=True).",
            )
        below = sorted([*directory.glob(f"*/{CONTROL}"), *directory.glob(f"*/{JAVA_TABLE}")])
    except OSError:
        return  # the engine will say what is wrong with it
    if below:
        detail = f"is a directory of queues, of {below[0].parent.name!r} for one"
        raise NotAQueue(detail, path=str(directory))


def _log_recovery(path: str, recovery: Recovery) -> None:
    """Log what an unclean opening found, repairs and damage separately."""
    if recovery.clean:
        return
    checked, corrupt = recovery.records_scanned, recovery.corrupt_records
    cut = recovery.torn_records, recovery.bytes_set_aside, recovery.segments_set_aside
    if any(cut):
        _log.warning(
            "%s: was repaired: of %d records that were checked (segment %d, offset %d was durable) %d"
            " were torn and cut, %d bytes and %d segments set aside in recovered/;"
            " its records end in segment %d, offset %d",
            path,
            checked,
            recovery.durable_segment,
            recovery.durable_offset,
            *cut,
            recovery.end_segment,
            recovery.end_offset,
        )
    if corrupt:
        _log.warning(
            "%s: checked %d records; damaged places that were found and left as they are, since what"
            " was there had been durable: %d; readers raise there",
            path,
            checked,
            corrupt,
        )
    if not corrupt and not any(cut):
        _log.info("%s: was not closed; checked %d records, nothing was lost", path, checked)


def _open(path: bytes, config: Any) -> Any:
    handle = ffi.new("ac_writer_t **")
    error = new_error()
    check(lib.ac_writer_open(path, config, handle, error), error)
    return handle[0]


def pauses_s(lock_timeout: float) -> Iterator[float]:
    """Yield the pause before each further try for the lock, until the timeout."""
    timeout_s = seconds("lock_timeout", lock_timeout, zero=True)
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < timeout_s:
        yield min(0.001 if waited_s < _QUICK_S else 0.02, timeout_s - waited_s)


def _open_within(path: bytes, config: Any, lock_timeout: float) -> Any:
    """Wait for the lock here and not in the engine, so that signals are handled."""
    config.takeover_ns = 0
    for pause_s in pauses_s(lock_timeout):
        try:
            return _open(path, config)
        except LockedError:
            time.sleep(pause_s)
    return _open(path, config)


def _refuse_codecs(codec: object, path: str) -> None:
    """Refuse codecs of our own: messages of a Java queue are encoded by Java's rules."""
    several = isinstance(codec, list | tuple)
    given: Iterable[object] = cast("Iterable[object]", codec) if several else (codec,)
    if not all(one is None or isinstance(one, type) for one in given):
        what = (
            "codec: a Java queue has neither formats nor type_ids; give the Struct types themselves"
        )
        raise NotSupported(what, path=path, advice="")


def _no_heartbeat(path: str) -> NotSupported:
    what = "heartbeat: nobody can promise what other writers of the queue will append"
    return NotSupported(what, path=path)


def open_in_topic(path: str | os.PathLike[str], shared: object, **options: Any) -> "Writer":
    """Open a queue for one more writer of a topic; ``shared.py``, which imports this module, replaces it."""
    raise NotImplementedError


def open_writer(
    path: str | os.PathLike[str],
    *,
    segment_size: int = 128 << 20,
    roll: Roll | None = None,
    flush: Literal["async", "sync"] | Batch = "async",
    retention: Retention | None = None,
    capacity: int | Capacity | None = None,
    clock: Callable[[], int] = time.time_ns,
    heartbeat: float | None = None,
    max_ahead_s: float | None = None,
    codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
    ready: bool = False,
    mode: int = 0o600,
    memlock: bool = False,
    verify: bool = False,
    recover: Literal["auto", "salvage"] = "auto",
    lock_timeout: float | None = None,
    format: Format | None = None,  # noqa: A002
    roll_cycle: str | None = None,
    epoch: int | None = None,
    shared: bool | str = False,
    _try_once: bool = False,
    _inline_housekeeping: int = 0,
    _write_back_s: float = 15.0,
) -> "Writer[T]":
    """Open a queue for appending. Creates the queue if there is none, and repairs it if necessary.

    Raises NotAQueue if subdirectories of the path are queues, but not the path itself.
    A queue has one writer at a time; a second one gets LockedError, which names the holder. With
    ``lock_timeout`` it waits up to that many seconds for the holder to end. 0 does not wait at all;
    None waits at most half a second, and only for a holder that was killed.
    Opening waits for the disk: in an event loop use ``aopen_writer``.

    ``segment_size`` applies to a new queue; an existing one keeps its own. ``flush`` sets when
    messages become durable: "async" (the kernel writes back; a killed process loses nothing), "sync"
    (each append is on disk before it returns), or Batch(bytes, seconds). ``verify`` checks every
    record while opening instead of only the tail. If segments are missing, opening raises
    SalvageRequired; ``recover="salvage"`` permits it to set aside messages that may have been durable.
    ``clock`` returns Unix nanoseconds for messages without a timestamp.
    ``codec`` says what ``send`` takes: a msgspec.Struct type, a Codec, or a Registry or list of them.
    The queue's schema.json stores which type has which type_id; SchemaMismatch if it differs.
    With ``heartbeat`` the writer promises at this interval, in seconds, that no older message will
    come, so that strict fan-ins need not wait for it while it is idle. Messages then get the time of
    the engine's clock.
    With ``max_ahead_s`` a timestamp that is more than this many seconds ahead of the system clock is
    refused with TimestampOrder: no later message could have an older timestamp.

    ``format`` is "native", or "cq4" for a Chronicle Queue that Java programs read and append to. The
    default is that of the existing queue, else "native". A new Java queue has this ``roll_cycle``
    ("FAST_DAILY" by default) and ``epoch`` (milliseconds); for an existing queue other values are
    InvalidArgument. Any number of writers, in Java and here, append to it, each message under Java's
    lock: ``lock_timeout`` is then how long an append waits for that lock, 15 seconds by default, and
    ``clock`` decides the cycle. Parameters that a Java queue cannot store raise NotSupported: see
    docs/guide/java.md.

    With ``shared=True`` the path is a topic with many writers, which is created if necessary. This
    writer gets a queue under it: one that another writer has left, or a new one. A name instead of
    True is the name of that queue, for a writer that continues in it after a restart. ``TopicReader``
    reads all of them.

    >>> with open_writer(tmp_path / "ticks") as writer:
    ...     writer.append(b"hello")
    0
    """
    if shared is not False:
        options = {name: value for name, value in locals().items() if name not in _OF_SHARED}
        return open_in_topic(path, shared, **options)
    config = ffi.new("ac_writer_config_t *")
    lib.ac_writer_defaults(config)
    config.segment_size = segment_bytes("segment_size", segment_size)
    if roll is not None:
        expect("roll", "a Roll or None", Roll, roll)
        config.roll_bytes = count_or_zero("Roll.bytes", roll.bytes)
        config.roll_ns = nanoseconds("Roll.seconds", roll.seconds)
        config.roll_messages = count_or_zero("Roll.messages", roll.messages)
    wanted = LiveSettings(flush=flush, retention=retention, capacity=capacity)
    settings = to_engine(wanted)  # lives as long as the configuration, which points into it
    lib.ac_settings_apply(settings, config)
    config.max_ahead_ns = nanoseconds("max_ahead_s", max_ahead_s)
    config.mode = permissions(mode)
    flag("ready", ready)
    config.memlock = flag("memlock", memlock)
    config.verify = flag("verify", verify)
    config.salvage = one_of("recover", {"auto": 0, "salvage": 1}, recover)
    config.inline_housekeeping = _inline_housekeeping
    config.write_back_ns = round(_write_back_s * 1e9)
    given: object = clock
    if not callable(given):
        raise wrong_type("clock", "a function that returns Unix nanoseconds", given)
    if heartbeat is not None:
        nanoseconds("heartbeat", heartbeat)
        if clock is not time.time_ns:
            raise InvalidArgument("heartbeat goes by the engine's clock; call Writer.heartbeat")
    registry = None if codec is None else registry_of(codec)
    encoded_path = encode_path(path)
    refuse_root_of_queues(Path(os.fsdecode(encoded_path)))
    chosen = chosen_format(encoded_path, format)
    config.format = _FORMATS[chosen]
    if chosen == "cq4":
        _texts = _set_java(config, roll_cycle, epoch, lock_timeout)  # likewise
        if heartbeat is not None:
            raise _no_heartbeat(os.fsdecode(encoded_path))
        _refuse_codecs(codec, os.fsdecode(encoded_path))
        if clock is not time.time_ns:
            config.now_ns = integer("what the clock returns", clock(), 0, 2**63 - 2)
    elif roll_cycle is not None or epoch is not None:
        raise InvalidArgument('roll_cycle and epoch are for a Java queue; say format="cq4"')
    engine_log.start()
    try:
        if chosen == "cq4" or lock_timeout is None:
            handle = _open(encoded_path, config)
        elif _try_once:
            config.takeover_ns = 0
            handle = _open(encoded_path, config)
        else:
            handle = _open_within(encoded_path, config, lock_timeout)
    finally:
        engine_log.hand_over()
    # The engine reads the same clock itself, without a call into Python.
    own_clock = None if clock is time.time_ns else clock
    address = int(ffi.cast("uintptr_t", handle))
    writer: Writer[T] = Writer(address, own_clock, wanted, chosen)
    _log_recovery(printable(writer.path), writer.recovery)
    _log.debug("%s: opened for writing, next seq %d", printable(writer.path), writer.next_seq)
    try:
        if chosen == "native":
            _open_writers[writer.path] = writer
            writer._settings.read_file()  # pyright: ignore[reportPrivateUsage]
        if codec is not None and registry is not None:
            writer.register(codec if chosen == "cq4" else registry)
        if heartbeat is not None:
            keep_beating(writer, heartbeat)
        if ready:
            writer.mark_ready()
    except BaseException:
        with contextlib.suppress(ChronicleError):  # what is raised says why
            writer.close()
        raise
    return writer


@_hot.own_methods
class Writer(_hot.Writer, Closing, Generic[T_contra]):
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
        super().__init__(address, clock)
        self._settings = SettingsOfWriter(self._handle, self.path, wanted)
        self._format: Format = format
        self._types: dict[type[Any], tuple[int, Callable[[Any], bytes]]] = {}

    @property
    def _handle(self) -> Any:
        return ffi.cast("ac_writer_t *", self._address)

    @property
    def path(self) -> str:
        """Directory of the queue."""
        return os.fsdecode(ffi.string(lib.ac_writer_path(self._handle)))

    @property
    def format(self) -> Format:
        """What the queue is: "native", or "cq4" for a Chronicle Queue of Java."""
        return self._format

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file by which the directory is this queue."""
        found = ffi.new("ac_identity_t *")
        lib.ac_writer_identity(self._handle, found)
        return int(found.device), int(found.inode)

    @property
    def position(self) -> Position:
        """Where the next record goes; in a Java queue, after the last message of this writer."""
        statistics = self.statistics()
        return Position(statistics.segment, statistics.offset)

    def send(
        self,
        obj: T_contra,
        *,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        expires_ns: int | None = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append an object of one of the codec's types; return its seq.

        EncodeError if it has another type or a value that does not fit. ``expires_ns`` is that of
        ``append_expiring`` and excludes a cause; ``key`` and ``headers`` are those of ``append``.
        Never blocks on I/O.

        A Java queue that was opened without a codec takes everything that ``cq4.encode_message``
        does: strings, numbers, lists, dicts, Structs as objects with the same fields, and ``cq4.Call``.

        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     writer.send(Trade(101.5))
        0
        """
        type_id, encode = self._types.get(obj.__class__) or self._type_of(obj)
        payload = encode(obj)
        if expires_ns is not None:
            if cause is not None:
                raise InvalidArgument("a message that expires cannot name a cause as well")
            return self.append_expiring(
                payload,
                expires_ns,
                type_id=type_id,
                timestamp_ns=timestamp_ns,
                key=key,
                headers=headers,
            )
        if key is None and headers is None:
            return self.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)
        return self.append(
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )

    def send_many(
        self,
        objects: Iterable[Any],
        *,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        keys: "Iterable[Buffer | None] | None" = None,
        headers: "Iterable[Mapping[str, Buffer] | None] | None" = None,
    ) -> range:
        """Append objects of one type that become visible all at once or not at all; return their seqs.

        ``keys`` and ``headers`` are those of ``append_many``. If they have several types, or one
        cannot be encoded, nothing is appended and EncodeError is raised.

        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     writer.send_many(Trade(price) for price in (101.5, 102.0))
        range(0, 2)
        """
        expect_several("objects", "several objects", objects)
        found: tuple[int, Callable[[Any], bytes]] | None = None
        payloads: list[bytes] = []
        for obj in objects:
            one = self._types.get(obj.__class__) or self._type_of(obj)
            found = found or one
            if one[0] != found[0]:
                raise EncodeError(
                    f"{type(obj).__name__} is of another type than those before it; a batch has one"
                    " type: send them type by type"
                )
            payloads.append(one[1](obj))
        return self.append_many(
            payloads, type_id=found[0] if found else 0, cause=cause, keys=keys, headers=headers
        )

    def _type_of(self, obj: object) -> tuple[int, Callable[[Any], bytes]]:
        """Return type_id and encoder for an object of none of the codec's types."""
        known = ", ".join(known.__name__ for known in self._types)
        if known:
            raise EncodeError(f"{type(obj).__name__} is none of the writer's types: {known}")
        if self._format == "native":
            raise EncodeError("the writer has no codec; give it one, or append bytes")
        from aiochronicle import cq4

        return 0, cq4.encode_message

    def method(self, name: str | int, *args: Any) -> int:
        """Append a call, as a Java MethodWriter does, to a Java queue; return its index.

        A number is that of @MethodId. NotSupported in a native queue.

        >>> with open_writer(tmp_path / "java", format="cq4") as writer:
        ...     _ = writer.method("price", "EURUSD", 1.25)
        """
        if self._format == "native":
            raise NotSupported(
                "calls of methods are messages of Java queues; send an object of a codec's type",
                path=self.path,
                advice='Open the queue with format="cq4" to write calls that Java reads.',
            )
        from aiochronicle import cq4

        return self.append(cq4.encode_call(name, *args))

    def register(self, codec: TypeOrCodec | Registry | Sequence[TypeOrCodec]) -> None:
        """Let ``send`` take these types too; ``codec`` is that of ``open_writer``.

        When it returns, the queue's schema.json is on disk, before any message of these types. A
        Java queue has no schema.json: its messages contain the names of fields, and no ``type_id``.
        """
        if self._format == "cq4":
            self._register_java(codec)
            return
        from aiochronicle._typed.schema_check import writer_types

        types, schema = writer_types(registry_of(codec), self.path)
        if schema is not None:
            error = new_error()
            check(lib.ac_writer_publish_schema(self._handle, schema, error), error)
        for type_id, entry in types.items():
            self._types[entry.codec.type] = (type_id, entry.codec.encode)

    def _register_java(self, codec: TypeOrCodec | Registry | Sequence[TypeOrCodec]) -> None:
        from aiochronicle import cq4

        _refuse_codecs(codec, self.path)
        for entry in registry_of(codec):
            self._types[entry.codec.type] = (0, cq4.encode_message)

    def flush_now(self) -> int:
        """Make everything appended so far durable; return the seq before which all messages are.

        The first failure poisons the writer: it must be closed and opened again.
        """
        error = new_error()
        return check(lib.ac_writer_flush(self._handle, error), error)

    @staticmethod
    def flush_together(writers: "Sequence[Writer[Any]]") -> list[int | ChronicleError]:
        """Flush many different writers with concurrent syncs.

        Returns for each, in order, what its ``flush_now`` would have returned or raised.
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
        """Make everything appended so far durable; return the seq before which all messages are.

        Runs in a thread. Callers that come while a sync is running share the next one, so a thousand
        tasks cost a few syncs. Cancelled, the sync continues; nothing is lost either way.
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
        """Append a message and return its seq; where ``append`` raises QueueFull, wait for room.

        Back-pressure for tasks: with a ``capacity`` the producer is as fast as the slowest open
        reader. Messages of one task keep their order. Without a capacity it is ``append``. With
        ``policy="block"`` the writer waits in a thread, for ``timeout_s`` at most; of a Java queue in
        a thread for the lock, if another process holds it, and for a new file.

        Cancelled while it waits for room, nothing was appended; in a thread it may have been.

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

        Readers see the message at once. Cancelled, the message stays appended and is on disk after
        the next flush. In a Java queue it waits for the lock as ``append_async`` does.
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
        """Return when the slowest live reader is within the capacity again; at once without one.

        After QueueFull: when there is room for the message that was refused. Cancelling it has no
        effect on the queue.
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
        """Publish the READY marker, by which discovery finds the queue."""
        payload = {
            "version": READY_VERSION,
            "pid": os.getpid(),
            "created_at": datetime.now(UTC).isoformat(),
            **extra,
        }
        error = new_error()
        import json  # a millisecond, which few programs need

        text = json.dumps(payload).encode()
        check(lib.ac_writer_mark_ready(self._handle, text, error), error)

    def last_cause(self, source: "int | _hot.Message") -> int | None:
        """Return the newest ``cause`` seq from that queue among the messages here, or None.

        ``source`` is a queue id, or any message of the source queue. After a restart, a consumer that
        appends with ``cause=`` already has results for messages up to this seq. After a power cut the
        source queue may have lost its end and assigned some seqs again: pass the message itself, and
        a message with a reassigned seq counts as new.
        Raises CorruptionError if it meets damaged messages: one of them may have had a newer cause.

        Each call scans the newest segment, about 30 ms for a million messages, and older ones if it
        has no such cause. To check many messages, call ``last_causes`` once and use its result.
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
        """Return the last cause of every source: they tell which messages already have a result.

        Scans the whole queue, a million messages in about 35 ms if it is in memory; with ``since_ns``
        only back to the segment that begins before that time.
        """
        self._refuse_causes()
        since = integer("since_ns", since_ns, 0)
        error = new_error()
        path = encode_path(self.path)
        room = 64
        while True:
            causes = ffi.new("ac_cause_t[]", room)
            count = check(lib.ac_queue_last_causes(path, since, causes, room, error), error)
            if count <= room:
                found = (causes[i] for i in range(count))
                return Causes({int(c.source): Cause(int(c.seq), int(c.epoch)) for c in found})
            room = count

    def _refuse_causes(self) -> None:
        if self._format == "cq4":
            what = "cause: a message of a Java queue has only its payload"
            raise NotSupported(what, path=self.path)

    def reader_lag(self) -> tuple[int, int]:
        """Return (lag of the slowest open reader in bytes, number of open readers).

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

        They apply to the next append, to one that waits for capacity, and shortly after to the
        background work. The queue's settings.toml takes precedence: see the function ``configure``.
        May be called from any thread.

        >>> with open_writer(tmp_path / "ticks") as writer:
        ...     writer.configure(retention=Retention(max_bytes=1 << 30), flush=Batch(1 << 20, 0.1))
        """
        self._settings.change(retention=retention, capacity=capacity, flush=flush)

    def retain_now(self) -> None:
        """Apply the retention rules once, without waiting for the housekeeper."""
        error = new_error()
        check(lib.ac_writer_retain(self._handle, error), error)

    def statistics(self) -> WriterStatistics:
        """Return the counters of this writer."""
        stats = ffi.new("ac_writer_stats_t *")
        lib.ac_writer_stats(self._handle, stats)
        return statistics_of(stats, self.recovery)

    @property
    def healthy(self) -> Health:
        """Whether it can append: it is open, its queue is there, and no sync has failed."""
        if self.closed:
            return because([reason("writer", self.path, "is closed")])
        statistics = self.statistics()
        if self.gone or statistics.sync_errors:  # either way it accepts no more messages
            return because([reason("writer", self.path, f"has stopped: {statistics.last_error}")])
        return because([])

    @property
    def recovery(self) -> Recovery:
        """What opening found and repaired."""
        report = ffi.new("ac_recovery_t *")
        lib.ac_writer_recovery(self._handle, report)
        return recovery_of(report)

    def close(self) -> None:
        """Sync everything, mark the queue as cleanly closed, release the lock.

        A Java queue stays open for its other writers; only the messages of this one are synced.
        """
        was_open = not self.closed
        try:
            super().close()
            if was_open:
                _log.debug("%s: closed, next seq %d", printable(self.path), self.next_seq)
        finally:
            engine_log.hand_over()

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


# By the path of their queue, for changes of its settings.toml.
_open_writers: "weakref.WeakValueDictionary[str, Writer]" = weakref.WeakValueDictionary()


def _settings_changed(path: str) -> None:
    writer = _open_writers.get(path)  # the reference keeps it alive
    if writer is not None:
        writer._settings.read_file()  # pyright: ignore[reportPrivateUsage]


engine_log.on_settings(_settings_changed)
