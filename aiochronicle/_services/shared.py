"""Topics with many writers: each writer appends to its own queue, and readers merge the queues.

    TOPIC/shared.json     marks a directory as a shared topic
    TOPIC/queue/WRITER/   the queue of one writer, with READY
    TOPIC/readers/NAME    the name of a reader, or of a group if the content is "group"; every queue
                          of the topic keeps a position for it
    TOPIC/readers/.NAME.turns
                          of a group with order="key": csrc/group_turns.c

A queue has one writer. Here every process opens its own queue and none waits for a lock, so ``append`` costs
the same as on a plain queue. ``TopicReader`` follows the queues as one stream.

No message is removed before every named reader has read it, even if a reader is closed while a writer
opens, appends and closes. A reader writes its name into ``readers`` before it looks for queues, and a
writer creates a position for each of these names before its first message. In either order, one sees the
other.
"""

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec

from aiochronicle._base.arguments import pathname, permissions, wrong_type
from aiochronicle._base.binding import check, encode_path, lib, new_error
from aiochronicle._base.names import check_name, is_name
from aiochronicle._base.prepared import prepared
from aiochronicle._base.printable import printable
from aiochronicle._base.system_errors import storage_error
from aiochronicle._core import queue as one_queue
from aiochronicle._core import writer_opening as one_writer
from aiochronicle._core.queue import ReaderInfo, inspect
from aiochronicle._core.reader import open_reader
from aiochronicle._core.stream import Lag
from aiochronicle._core.writer import Writer
from aiochronicle._files import parse_json, read_small_file, sync_directory
from aiochronicle._layout import CONTROL, JAVA_TABLE, SHARED, WRITER_LOCK
from aiochronicle._services.trusted import (
    directory_mode,
    make_directories,
    make_trusted_root,
    open_trusted_writer,
    owners_of,
)
from aiochronicle.config import Retention
from aiochronicle.errors import (
    AccessDenied,
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    InvalidName,
    LockedError,
    NotAQueue,
    QueueGone,
    QueueNotFound,
    ReaderBusy,
    ReaderNotFound,
    StorageError,
    UnsupportedVersion,
)

__all__ = ["SharedTopic", "forget_reader", "is_shared", "list_readers", "open_shared_writer"]

_VERSION = 1
_MARK_BYTES_MAX = 4096
_QUEUES, _READERS = "queue", "readers"
_GROUP_MARK = b"group"  # in the file of a name that is a group's
_QUEUES_MAX = 4096
_TRIES = 100
_REMOVALS_MAX = 64  # at one opening, because each takes a lock and a few reads
# Names of queues that any writer may take over. A name that a program chose belongs to that program.
_AUTOMATIC_NAME = re.compile(r"auto-\d{8}T\d{6}-[0-9a-f]{8}")

_NOT_AVAILABLE = (LockedError, QueueGone, QueueNotFound, AccessDenied)  # now, or at all

_log = logging.getLogger("aiochronicle.shared")


@prepared
class _Mark(msgspec.Struct, frozen=True):
    version: int


def is_shared(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory is a shared topic; CorruptionError if its mark cannot be read."""
    mark = os.path.join(pathname("path", path), SHARED)  # noqa: PTH118
    try:
        content = read_small_file(mark, _MARK_BYTES_MAX)
        version = None if content is None else parse_json(content, _Mark).version
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, str(error), mark) from error
        raise CorruptionError(str(error), path=mark) from error
    if version is not None and version != _VERSION:
        raise UnsupportedVersion(
            f"the topic has version {version}, this program knows {_VERSION}", path=mark
        )
    return version is not None


def list_readers(path: str | os.PathLike[str]) -> list[ReaderInfo]:
    """List the readers that have a position in the queue, by name, with their lag. Never writes.

    For a topic with many writers, ``lag`` is the sum over all of them, and ``committed_seq`` is None, because
    every writer has its own seqs.

    >>> with open_reader(queue, "audit"):
    ...     [(reader.name, reader.lag.messages, reader.live) for reader in list_readers(queue)]
    [('audit', 1, True)]
    """
    return SharedTopic(path).readers() if is_shared(path) else one_queue.list_readers(path)


def forget_reader(path: str | os.PathLike[str], name: str, *, force: bool = False) -> None:
    """Durably remove a reader that will not come back, so that no segments are kept for it.

    If it does come back, it starts like a new reader. ReaderBusy if it is open; with ``force`` the open
    reader raises PositionRevoked, and its commits have no effect. ReaderNotFound if there is no such
    reader. In a topic with many writers it removes the reader from all queues.

    >>> open_reader(queue, "last-year").close()
    >>> forget_reader(queue, "last-year")
    >>> list_readers(queue)
    []
    """
    check_name("name", name)
    if is_shared(path):
        SharedTopic(path).forget_reader(name)
    else:
        one_queue.forget_reader(path, name, force=force)


def open_shared_writer(
    path: str | os.PathLike[str],
    shared: object,
    *,
    mode: int = 0o600,
    retention: Retention | None = None,
    **options: Any,
) -> Writer:
    """Open a queue of its own for one more writer of a topic: ``open_writer(shared=...)``."""
    if shared is not True and not isinstance(shared, str):
        raise wrong_type("shared", "a bool or the name of a writer", shared)
    if options.get("format") not in (None, "native"):
        raise InvalidArgument("a Java queue supports many writers itself: omit shared")
    topic = SharedTopic(path)
    options |= {"mode": permissions(mode), "retention": retention}
    if isinstance(shared, str):
        check_name(f"name {shared!r} of a shared writer", shared)
        if _AUTOMATIC_NAME.fullmatch(shared):
            raise InvalidName(
                "any writer may take over a queue of this name: choose another", path=shared
            )
        topic.make(mode)
        return topic.open(shared, options)
    topic.make(mode)
    for _ in range(_TRIES):
        topic.remove_drained(options)
        taken = topic.take_over(options)
        if taken is not None:
            return taken
        try:
            return topic.open(_new_name(), options)
        except (LockedError, QueueGone):  # another writer took it before it was locked
            continue
    raise LockedError(
        f"other writers took {_TRIES} new queues", path=topic.path, advice="Try again."
    )


def _new_name() -> str:
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"auto-{now}-{os.urandom(4).hex()}"


class SharedTopic:
    """The directory of a topic with many writers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathname("path", path).rstrip("/") or "/"
        self.queues = os.path.join(self.path, _QUEUES)  # noqa: PTH118
        self._names = os.path.join(self.path, _READERS)  # noqa: PTH118

    def make(self, mode: int) -> None:
        """Create the topic durably if it does not exist. NotAQueue if something else is there.

        All files have the mode that the first writer or reader requested.
        """
        way_mode = directory_mode(mode)
        if not is_shared(self.path):
            self._refuse_queue()
            make_directories(self.path, way_mode)
            self._write(self.path, SHARED, msgspec.json.encode(_Mark(_VERSION)), mode)
        owners = owners_of(self.path)
        for directory in (self.queues, self._names):
            make_trusted_root(directory, owners, way_mode)

    def _refuse_queue(self) -> None:
        for name in (CONTROL, JAVA_TABLE):
            if os.path.lexists(os.path.join(self.path, name)):  # noqa: PTH118
                raise NotAQueue(
                    "this is a queue, not a topic with many writers",
                    path=self.path,
                    advice="Open it without shared, or choose another path for the topic.",
                )

    def _write(self, directory: str, name: str, content: bytes, mode: int) -> None:
        """Create a file durably and atomically, if it does not exist."""
        place = os.path.join(directory, name)  # noqa: PTH118
        hidden = os.path.join(directory, f".{name}.{os.urandom(4).hex()}")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(hidden, flags, 0o600)
            try:
                os.fchmod(fd, mode)
                os.write(fd, content)
                os.fsync(fd)
                with contextlib.suppress(FileExistsError):
                    os.link(hidden, place, follow_symlinks=False)
            finally:
                os.close(fd)
                os.unlink(hidden)  # noqa: PTH108
            sync_directory(Path(directory))
        except OSError as error:
            raise storage_error(error, f"cannot be written: {error.strerror}", place) from error

    def writers(self) -> list[str]:
        """Return the names of the queues, sorted."""
        return self._list_names(self.queues)

    def names(self) -> list[str]:
        """Return the sorted names of the readers that have positions."""
        return self._list_names(self._names)

    def _list_names(self, directory: str) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return sorted(entry.name for entry in entries if is_name(entry.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(error, f"cannot be listed: {error.strerror}", directory) from error

    def queue(self, writer: str) -> str:
        """Return the directory of a writer's queue."""
        return os.path.join(self.queues, writer)  # noqa: PTH118

    def add_reader(self, name: str, mode: int) -> None:
        """Durably add a reader, for which every queue keeps a position from now on."""
        check_name(f"reader name {name!r}", name)
        if not os.path.lexists(os.path.join(self._names, name)):  # noqa: PTH118
            self._write(self._names, name, b"", mode)

    def add_group(self, name: str, mode: int, *, adopt: bool) -> None:
        """Add a group, for which every queue keeps a position; ReaderBusy if a reader has its name.

        With ``adopt`` the group takes over the reader's positions.
        """
        check_name(f"group name {name!r}", name)
        place = os.path.join(self._names, name)  # noqa: PTH118
        content = read_small_file(place, _MARK_BYTES_MAX)
        if content == b"" and not adopt:
            raise ReaderBusy(
                f"{name!r} is the name of a reader: choose another name, forget the reader, or pass adopt",
                path=self.path,
            )
        if content == b"":
            os.unlink(place)  # noqa: PTH108
        if content != _GROUP_MARK:
            self._write(self._names, name, _GROUP_MARK, mode)

    def forget_reader(self, name: str) -> None:
        """Durably remove a reader from all current and future queues.

        ReaderBusy while it is open, ReaderNotFound if there is no such reader. If it is interrupted, call it
        again.
        """
        known = name in self.names()
        writers = [one for one in self.writers() if name in self._readers_of(one)]
        if not known and not writers:
            raise ReaderNotFound(f"the topic has no reader {name!r}", path=self.path)
        for writer in writers:
            with contextlib.suppress(ReaderNotFound, QueueGone):
                one_queue.forget_reader(self.queue(writer), name)
        if known:
            error = new_error()
            check(lib.ac_turns_remove(encode_path(self.path), os.fsencode(name), error), error)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._names, name))  # noqa: PTH108,PTH118
        sync_directory(Path(self._names))

    def readers(self) -> list[ReaderInfo]:
        """Return the readers by name, each summed over all writers.

        ``lag`` is the sum; ``lost`` and ``live`` are True if they are in any queue; ``committed`` is the
        position in the queue with the largest lag. ``committed_seq`` is None, because every queue has its own
        seqs.
        """
        found: dict[str, list[ReaderInfo]] = {}
        for writer in self.writers():
            for reader in self._readers_of(writer).values():
                found.setdefault(reader.name, []).append(reader)
        return [_sum_of(found[name]) for name in sorted(found)]

    def _readers_of(self, writer: str) -> dict[str, ReaderInfo]:
        try:
            return {reader.name: reader for reader in one_queue.list_readers(self.queue(writer))}
        except (QueueNotFound, QueueGone):  # it is being created or removed
            return {}

    def open(self, writer: str, options: dict[str, Any]) -> Writer:
        """Open the queue of a writer. It has a position for every reader before it is announced."""
        if len(self.writers()) >= _QUEUES_MAX and writer not in self.writers():
            detail = f"the topic already has {_QUEUES_MAX} writers' queues, which is the maximum"
            advice = "Open writers with a retention, so that drained queues are removed, or name the writers."
            raise StorageError(detail, path=self.path, advice=advice)
        opened = self._open_queue(writer, options)
        try:
            self._refuse_removed(opened)
            self._add_positions(opened.path)
            opened.mark_ready()
        except BaseException:
            with contextlib.suppress(ChronicleError):  # the first exception matters
                opened.close()
            raise
        return opened

    def _open_queue(self, writer: str, options: dict[str, Any]) -> Writer:
        retention: Retention | None = options["retention"]
        if retention is not None and retention.archive is not None:
            # Each queue needs an archive of its own, because segments of all queues have the same names.
            make_directories(retention.archive, directory_mode(options["mode"]))
            archive = os.path.join(retention.archive, writer)  # noqa: PTH118
            retention = msgspec.structs.replace(retention, archive=archive)
        changed: dict[str, Any] = {**options, "retention": retention, "ready": False}
        way_mode = directory_mode(options["mode"])
        return open_trusted_writer(self.path, (_QUEUES, writer), way_mode=way_mode, **changed)

    def _refuse_removed(self, opened: Writer) -> None:
        """Raise QueueGone if another writer removed the queue before it was locked."""
        control = os.path.join(opened.path, CONTROL)  # noqa: PTH118
        try:
            status = os.stat(control, follow_symlinks=False)  # noqa: PTH116
        except OSError as error:
            detail = "the drained queue was removed"
            raise QueueGone(detail, path=opened.path, errno=error.errno) from error
        if (status.st_dev, status.st_ino) != opened.identity:
            raise QueueGone("the drained queue was removed and replaced", path=opened.path)

    def _add_positions(self, queue: str) -> None:
        """Give each reader of the topic a position at the beginning, if it has none yet."""
        known = {reader.name for reader in one_queue.list_readers(queue)}
        for name in self.names():
            if name not in known:
                with contextlib.suppress(ReaderBusy):  # the reader has attached itself
                    open_reader(queue, name, start="first").close()

    def take_over(self, options: dict[str, Any]) -> Writer | None:
        """Open a queue that another writer has left; None if there is none."""
        for name in self.writers():
            if _AUTOMATIC_NAME.fullmatch(name):
                try:
                    return self.open(name, _without_waiting(options))
                except _NOT_AVAILABLE:
                    continue  # it is in use, was just removed, or belongs to another user
                except ChronicleError as error:
                    _log.warning("cannot take over a queue of the topic: %s", printable(error))
        return None

    def remove_drained(self, options: dict[str, Any]) -> list[str]:
        """Remove queues that writers have left and that are drained; return their names.

        A queue is drained if it has no messages, or if retention would remove all of them once they are
        sealed, because every reader of the topic has committed past its end. In other queues retention runs
        once. The queue of a named writer stays, because it records what that writer has done
        (``last_cause``).
        """
        retention: Retention | None = options["retention"]
        removed: list[str] = []
        for hidden in self._remains():
            _remove(hidden)
        automatic = [name for name in self.writers() if _AUTOMATIC_NAME.fullmatch(name)]
        for name in automatic[:_REMOVALS_MAX]:
            try:
                if self._has_no_writer(name) and self._remove_one(name, retention, options):
                    removed.append(name)
            except _NOT_AVAILABLE:
                continue
            except (ChronicleError, OSError) as error:
                _log.warning("cannot check a queue of the topic: %s", printable(error))
        return removed

    def _has_no_writer(self, name: str) -> bool:
        """Return whether no process has the queue open for writing. Does not wait."""
        writer = inspect(self.queue(name)).writer
        return writer is None or writer.state != "open"

    def _remove_one(self, name: str, retention: Retention | None, options: dict[str, Any]) -> bool:
        opening = {**_without_waiting(options), "codec": None, "heartbeat": None}
        with self._open_queue(name, opening) as writer:
            if retention is not None:
                writer.retain_now()
            next_seq, last_ns = writer.next_seq, writer.statistics().last_timestamp_ns
        queue = self.queue(name)
        with _lock_closed(queue):  # no process can write to it, and none finds it after the rename
            if inspect(queue).next_seq != next_seq:
                return False
            if next_seq and not self._is_drained(queue, last_ns, retention):
                return False
            hidden = os.path.join(self.path, f".folded-{name}-{os.urandom(4).hex()}")  # noqa: PTH118
            os.rename(queue, hidden)  # noqa: PTH104
            sync_directory(Path(self.queues))
        _remove(hidden)
        _log.info("%s: removed, because all of its messages were read", printable(queue))
        return True

    def _is_drained(self, queue: str, last_ns: int, retention: Retention | None) -> bool:
        """Return whether retention would remove all messages."""
        if retention is None or retention.archive is not None or retention.max_bytes is not None:
            return False
        if retention.max_age_s is not None and time.time_ns() - last_ns < retention.max_age_s * 1e9:
            return False
        wanted = {*self.names(), *([retention.wait_for] if retention.wait_for else [])}
        readers = {reader.name: reader for reader in one_queue.list_readers(queue)}
        done = {name for name, one in readers.items() if not one.lost and not one.lag.messages}
        return bool(wanted) and wanted | set(readers) <= done

    def _remains(self) -> list[str]:
        """Return queues that a killed process had begun to remove."""
        with os.scandir(self.path) as entries:
            return [entry.path for entry in entries if entry.name.startswith(".folded-")]


def _sum_of(readers: list[ReaderInfo]) -> ReaderInfo:
    """Return one reader of a topic, summed over all queues."""
    furthest = max(readers, key=lambda reader: (reader.lost, reader.lag.messages))
    live = next((reader for reader in readers if reader.live), furthest)
    lag = Lag(
        sum(reader.lag.messages for reader in readers),
        sum(reader.lag.bytes for reader in readers),
        max(reader.lag.seconds for reader in readers),
    )
    return msgspec.structs.replace(
        furthest,
        committed_seq=None,
        lag=lag,
        live=live.live,
        lost=any(reader.lost for reader in readers),
        heartbeat_age_s=min(reader.heartbeat_age_s for reader in readers),
        heartbeat_ns=max(reader.heartbeat_ns for reader in readers),
        pid=live.pid,
        command=live.command,
        keeps_segments=sum(reader.keeps_segments for reader in readers),
    )


def _remove(directory: str) -> None:
    """Remove a renamed queue; what cannot be removed now is tried again later."""
    import shutil  # here, because it takes a tenth of the import time of this package

    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _lock_closed(queue: str) -> Generator[None, None, None]:
    """Hold the lock of a closed queue; LockedError if a writer has it."""
    lock = os.path.join(queue, WRITER_LOCK)  # noqa: PTH118
    fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise LockedError("the queue was opened again", path=queue) from error
    finally:
        os.close(fd)


def _without_waiting(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "lock_timeout": 0.0, "_try_once": True}


one_writer.open_in_topic = open_shared_writer
