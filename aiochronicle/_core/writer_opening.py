"""Opens queues for appending: open_writer."""

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from aiochronicle._base.arguments import (
    expect,
    flag,
    integer,
    one_of,
    permissions,
    seconds,
    segment_bytes,
    wrong_type,
)
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._base.printable import printable
from aiochronicle._core import engine_log
from aiochronicle._core.backup_mark import refuse_backup
from aiochronicle._core.heartbeat import start_heartbeats
from aiochronicle._core.live_settings import LiveSettings, count_or_zero, nanoseconds, to_engine
from aiochronicle._core.root_of_queues import refuse_root_of_queues
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_java import no_heartbeat, refuse_codecs, set_java
from aiochronicle._core.writer_sending import Format
from aiochronicle._core.writer_statistics import Recovery
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import Codec, T
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import ChronicleError, InvalidArgument, LockedError

__all__ = ["open_writer", "pauses_s"]

_log = logging.getLogger("aiochronicle.writer")

_QUICK_S = 1.0  # the kernel has removed a killed holder by then; check for a live one less often

_OF_SHARED = ("path", "shared")
_FORMATS = {"native": lib.AC_FORMAT_NATIVE, "cq4": lib.AC_FORMAT_CQ4}
_FORMAT_NAMES: dict[int, Format] = {lib.AC_FORMAT_NATIVE: "native", lib.AC_FORMAT_CQ4: "cq4"}


def _chosen_format(path: bytes, wanted: object) -> Format:
    """Return the requested format, by default that of the queue at this path.

    If the queue has another format, the engine refuses to open it.
    """
    chosen = lib.AC_FORMAT_NONE if wanted is None else one_of("format", _FORMATS, wanted, "None")
    return _FORMAT_NAMES.get(chosen or lib.ac_queue_format(path), "native")


def _log_recovery(path: str, recovery: Recovery) -> None:
    """Log repairs and damage, separately, if the queue was not closed cleanly."""
    if recovery.clean:
        return
    checked, corrupt = recovery.records_scanned, recovery.corrupt_records
    cut = recovery.torn_records, recovery.bytes_set_aside, recovery.segments_set_aside
    if any(cut):
        _log.warning(
            "%s: repaired: checked %d records (durable up to segment %d, offset %d); %d were torn and cut,"
            " %d bytes and %d segments were set aside in recovered/; the records end in segment %d,"
            " offset %d",
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
            "%s: checked %d records and left %d damaged places as they are, because their records had been"
            " durable; readers raise CorruptionError there",
            path,
            checked,
            corrupt,
        )
    if not corrupt and not any(cut):
        _log.info("%s: not closed cleanly; checked %d records, nothing was lost", path, checked)


def _open(path: bytes, config: Any) -> Any:
    handle = ffi.new("ac_writer_t **")
    error = new_error()
    check(lib.ac_writer_open(path, config, handle, error), error)
    return handle[0]


def pauses_s(lock_timeout: float) -> Iterator[float]:
    """Yield the pause before each further attempt to get the lock, until the timeout."""
    timeout_s = seconds("lock_timeout", lock_timeout, zero=True)
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < timeout_s:
        yield min(0.001 if waited_s < _QUICK_S else 0.02, timeout_s - waited_s)


def _open_within(path: bytes, config: Any, lock_timeout: float) -> Any:
    """Open with a timeout. The wait is here and not in the engine, so that signals are handled."""
    config.takeover_ns = 0
    for pause_s in pauses_s(lock_timeout):
        try:
            return _open(path, config)
        except LockedError:
            time.sleep(pause_s)
    return _open(path, config)


def open_in_topic(path: str | os.PathLike[str], shared: object, **options: Any) -> Writer:
    """Open a queue for one more writer of a topic. ``shared.py`` replaces this function at import."""
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
    _use_settings_file: bool = True,
) -> Writer[T]:
    """Open a queue for appending. Creates the queue if there is none, and repairs it if necessary.

    Raises NotAQueue if subdirectories of the path are queues, but not the path itself. A queue has one
    writer at a time; a second one gets LockedError, which names the holder. With ``lock_timeout`` it waits
    up to that many seconds for the holder to end. 0 does not wait at all; None waits at most three seconds,
    and only for a holder that was killed. Opening waits for the disk: in an event loop use
    ``aopen_writer``.

    ``segment_size`` applies to a new queue; an existing one keeps its own. ``flush`` sets when messages
    become durable: "async" (the kernel writes back; a killed process loses nothing), "sync" (each append is
    on disk before it returns), or Batch(bytes, seconds). ``verify`` checks every record while opening, not
    only the tail. If segments are missing, opening raises SalvageRequired; ``recover="salvage"`` permits it
    to set aside messages that may have been durable.

    ``clock`` returns Unix nanoseconds for messages without a timestamp. ``codec`` sets what ``send``
    accepts: a msgspec.Struct type, a Codec, or a Registry or list of them. The queue's schema.json stores
    the type_id of each type; SchemaMismatch if its types differ.

    With ``heartbeat`` the writer promises at this interval, in seconds, that no older message will follow, so
    strict fan-ins do not wait for it while it is idle. Messages then get the time of the engine's clock. With
    ``max_ahead_s`` a timestamp that is more than this many seconds ahead of the system clock raises
    TimestampOrder, because no later message could have an older timestamp.

    ``format`` is "native", or "cq4" for a Chronicle Queue that Java programs read and append to. The
    default is that of the existing queue, or "native" for a new one. A new Java queue gets this
    ``roll_cycle`` ("FAST_DAILY" by default) and ``epoch`` (milliseconds); if an existing queue has others,
    InvalidArgument is raised. Any number of writers, Java programs included, can append to it. Each append
    takes Java's lock, and ``lock_timeout`` is how long it waits for that lock, 15 seconds by default.
    ``clock`` decides the cycle. Parameters that a Java queue cannot store raise NotSupported: see
    docs/guide/java.md.

    With ``shared=True`` the path is a topic with many writers, which is created if necessary. This writer
    gets a queue under it: one that another writer has left, or a new one. A name instead of True names that
    queue, for a writer that continues in it after a restart. ``TopicReader`` reads all of them.

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
    settings = to_engine(wanted)  # must live as long as the configuration, which points into it
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
            raise InvalidArgument(
                "heartbeat= uses the engine's clock: with another clock=, call Writer.heartbeat yourself"
            )
    registry = None if codec is None else registry_of(codec)
    encoded_path = encode_path(path)
    refuse_root_of_queues(Path(os.fsdecode(encoded_path)))
    refuse_backup(Path(os.fsdecode(encoded_path)))
    chosen = _chosen_format(encoded_path, format)
    config.format = _FORMATS[chosen]
    if chosen == "cq4":
        _texts = set_java(config, roll_cycle, epoch, lock_timeout)  # must live as long, too
        if heartbeat is not None:
            raise no_heartbeat(os.fsdecode(encoded_path))
        refuse_codecs(codec, os.fsdecode(encoded_path))
        if clock is not time.time_ns:
            config.now_ns = integer("what the clock returns", clock(), 0, 2**63 - 2)
    elif roll_cycle is not None or epoch is not None:
        raise InvalidArgument('roll_cycle and epoch are for a Java queue: add format="cq4"')
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
        engine_log.log_waiting()
    # The engine reads the same clock itself, without a call into Python.
    own_clock = None if clock is time.time_ns else clock
    address = int(ffi.cast("uintptr_t", handle))
    writer: Writer[T] = Writer(address, own_clock, wanted, chosen)
    _log_recovery(printable(writer.path), writer.recovery)
    _log.debug("%s: opened for writing, next seq %d", printable(writer.path), writer.next_seq)
    try:
        if chosen == "native" and _use_settings_file:
            _open_writers[writer.path] = writer
            writer._settings.read_file()  # pyright: ignore[reportPrivateUsage]
        if codec is not None and registry is not None:
            writer.register(codec if chosen == "cq4" else registry)
        if heartbeat is not None:
            start_heartbeats(writer, heartbeat)
        if ready:
            writer.mark_ready()
    except BaseException:
        with contextlib.suppress(ChronicleError):  # the first exception matters
            writer.close()
        raise
    return writer


# By the path of the queue, for changes of its settings.toml.
_open_writers: weakref.WeakValueDictionary[str, Writer] = weakref.WeakValueDictionary()


def _settings_changed(path: str) -> None:
    writer = _open_writers.get(path)  # the reference keeps it alive
    if writer is not None:
        writer._settings.read_file()  # pyright: ignore[reportPrivateUsage]


engine_log.on_settings(_settings_changed)
