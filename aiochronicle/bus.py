"""Topics by name: many queues under one root, opened when they are needed.

A topic is a queue, ROOT/TOPIC or ROOT/NAMESPACE/TOPIC, and what a bus does can be done with
open_writer and open_reader as well. It adds the names, one writer per topic for the whole process,
settings from a file (settings.py), and flushing everything at once.
"""

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from aiochronicle import _hot
from aiochronicle._arguments import expect, one_of, pathname, positive, refuse_file
from aiochronicle._background import GroupCommit, in_background
from aiochronicle._closing import Closing
from aiochronicle._names import check_name, is_name
from aiochronicle._printable import printable
from aiochronicle._report import HtmlStruct
from aiochronicle._trusted import (
    directory_mode,
    has_queue,
    make_below,
    make_directories,
    open_trusted_writer,
    opened_below,
    owners_of,
)
from aiochronicle.codec import Codec, T
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import (
    AccessDenied,
    ChronicleError,
    ClosedError,
    FlushFailed,
    InvalidArgument,
    InvalidName,
    StorageError,
)
from aiochronicle.health import Health, because
from aiochronicle.opening import open_in_background, when_unlocked
from aiochronicle.queue import ReaderInfo, list_readers
from aiochronicle.reader import Reader, ReaderStatistics, StartPoint, WaitStrategy, open_reader
from aiochronicle.registry import Registry, TypeOrCodec
from aiochronicle.settings import TopicSettings, load_settings
from aiochronicle.writer import Format, Writer, WriterStatistics

__all__ = ["Bus", "BusStatistics"]

ROOT_VARIABLE = "AIOCHRONICLE_DATA_DIR"
NAMESPACE_VARIABLE = "AIOCHRONICLE_NAMESPACE"
CONFIGURATION = "config.toml"

_THREADS = 16

Delivery = Literal["before", "after", "manual"] | int

_Opened = TypeVar("_Opened", Writer, Reader[Any])


class WriterOptions(TypedDict, total=False):
    """Parameters of open_writer that Bus.writer takes; they go before the configuration file."""

    segment_size: int
    roll: Roll | None
    flush: Literal["async", "sync"] | Batch
    retention: Retention | None
    capacity: int | Capacity | None
    heartbeat: float | None
    max_ahead_s: float | None
    ready: bool
    mode: int
    memlock: bool
    verify: bool
    lock_timeout: float | None
    format: Format | None
    roll_cycle: str | None
    epoch: int | None


class ReaderOptions(TypedDict, total=False):
    """Parameters of open_reader that Bus.reader takes."""

    start: StartPoint
    commit: Literal["manual", "auto"] | int
    on_corrupt: Literal["raise", "skip"]
    wait: WaitStrategy
    burst: int
    verify: bool
    poll_max_us: int | None
    wait_for_queue: bool


class BusStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Sums over the open writers, and what each open writer and named reader counted."""

    messages: int
    payload_bytes: int
    syncs: int
    sync_errors: int
    writers: dict[str, WriterStatistics]
    readers: dict[tuple[str, str], ReaderStatistics]


class _Reading:
    """A named reader, and what ``read_batch`` has handed over since its last commit."""

    def __init__(self, reader: Reader[Any], options: tuple[object, ReaderOptions]) -> None:
        self.reader = reader
        self.options = options
        self.uncommitted = 0


class Bus(Closing):
    """Topics by name under one root. A context manager both ways, which closes all it opened.

    ``root`` is by default what $AIOCHRONICLE_DATA_DIR says, ``namespace`` what
    $AIOCHRONICLE_NAMESPACE says, if anything: a name, or several with slashes between, that keep
    topics of different programs apart. ``config`` is by default ROOT/config.toml, if there is one; a
    file that is named has to be there.

    Names of topics are those of readers: letters, digits, ``.``, ``_`` and ``-``, at most 64, not
    beginning with a sign. They are checked and never changed, so two names are two topics.

    Several threads may use a bus; one named reader belongs to one of them at a time. Writers and
    readers stay open until the bus is closed. Opening the first of a topic waits for the disk: in
    an event loop ``await prepare(...)`` beforehand, or use ``awriter``, ``areader`` and
    ``aappend``, which do nothing else once it is open.

    >>> with Bus(tmp_path / "desk") as bus:
    ...     _ = bus.append("orders", b"buy 100")
    ...     print(bus.read_batch("orders", "audit")[0].payload, bus.topics())
    b'buy 100' ['orders']
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        namespace: str | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> None:
        self._root = _root_directory(root)
        self._namespace = _checked_namespace(namespace)
        self._directory = self._root / self._namespace
        self._way = tuple(filter(None, self._namespace.split("/")))  # from the root to that
        self._settings = (
            load_settings(self._root / CONFIGURATION, owners=owners_of(self._root))
            if config is None
            else load_settings(Path(pathname("config", config)), required=True)
        )
        self._writers: dict[str, Writer] = {}
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._anonymous: weakref.WeakSet[Reader[Any]] = weakref.WeakSet()
        self._renew_locks()
        self._group_commit = GroupCommit(self.flush_now)
        self._closed = False
        _buses.add(self)

    def _renew_locks(self) -> None:
        # A signal handler may come while this very thread has them.
        self._lock = threading.RLock()
        # By topic, or by topic and name: who opens one does not hold up the others.
        self._opening: dict[str | tuple[str, str], threading.RLock] = {}

    @property
    def root(self) -> str:
        """Directory of the whole bus."""
        return str(self._root)

    @property
    def namespace(self) -> str:
        """Name of the part of the bus that this object sees; empty for none."""
        return self._namespace

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def path(self, topic: str) -> str:
        """Return the directory of a topic's queue, whether it is there or not."""
        return str(self._directory / _checked_topic(topic))

    def settings(self, topic: str) -> TopicSettings:
        """Return what the configuration file says about a topic."""
        settings = self._settings.for_topic(_checked_topic(topic), self._namespace)
        if settings.retention is None or settings.retention.archive is None:
            return settings
        # Segments of several queues have the same names: each gets an archive of its own.
        archive = self._root / settings.retention.archive / self._namespace / topic
        retention = msgspec.structs.replace(settings.retention, archive=str(archive))
        return msgspec.structs.replace(settings, retention=retention)

    def topics(self) -> list[str]:
        """Return the names of all topics that have a queue, sorted. Reads the directory.

        Directories that this user may not look into, and links, are left out.
        """
        with opened_below(str(self._root), self._way) as directory:
            if directory is None:
                return []
            names = _listed(directory, str(self._directory))
        return sorted(name for name in names if is_name(name) and self._can_see_queue(name))

    def _can_see_queue(self, topic: str) -> bool:
        try:
            return self._has_queue(topic)
        except StorageError:
            return False

    def readers(self, topic: str) -> list[ReaderInfo]:
        """Return the readers that have a position in the topic, open or not, with their lag.

        QueueNotFound if nobody has written to the topic yet.
        """
        path = self.path(topic)
        with opened_below(str(self._root), (*self._way, topic)):  # over no links
            return list_readers(path)

    def writer(
        self,
        topic: str,
        *,
        codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer:
        """Return the writer of a topic, opening it (and creating the queue) the first time.

        ``codec`` and ``options`` are those of open_writer and go before the configuration file;
        they are for the first call. A writer that was closed is opened anew.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            settings = msgspec.structs.replace(self.settings(topic), **options)
            return self._open_writer(topic, codec, settings)
        if options or codec is not None:
            raise InvalidArgument("is open already: options are for the first call", path=topic)
        return writer

    async def awriter(
        self,
        topic: str,
        *,
        codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer:
        """Do what ``writer`` does without blocking the loop, also if it has to open one.

        With ``lock_timeout`` the task waits for the lock, not a thread. Cancelled, what a thread is
        opening stays open, as a writer of the bus.
        """
        writer = self._writers.get(topic)
        if writer is not None and not writer.closed:
            return self.writer(topic, codec=codec, **options)
        asked = msgspec.structs.replace(self.settings(topic), **options)

        def attempt(try_once: bool) -> Awaitable[Writer]:
            return in_background(lambda: self._open_writer(topic, codec, asked, try_once=try_once))

        return await when_unlocked(attempt, asked.lock_timeout)

    async def prepare(self, *topics: str) -> None:
        """Open the writers of these topics, several at a time, without blocking the loop.

        Cancelled, they are opened all the same.
        """
        await in_background(lambda: _side_by_side(self.writer, topics))

    def append(
        self,
        topic: str,
        payload: "bytes | bytearray | memoryview",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
    ) -> int:
        """Append a message to a topic and return its seq: ``writer(topic).append``.

        The first one of a topic opens its writer, which takes milliseconds: see ``aappend``.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            writer = self.writer(topic)
        return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)

    async def aappend(
        self,
        topic: str,
        payload: "bytes | bytearray | memoryview",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
    ) -> int:
        """Do what ``append`` does without blocking the loop, also for the first message of a topic.

        When the writer is open it appends at once, without giving the loop a turn. Messages of one
        task are in its order. Cancelled while it opens the writer, nothing was appended.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            writer = await self.awriter(topic)
        return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)

    def append_many(
        self,
        topic: str,
        payloads: "Iterable[bytes | bytearray | memoryview]",
        *,
        type_id: int = 0,
        cause: "_hot.Message | tuple[int, int] | None" = None,
    ) -> range:
        """Append messages that become visible all at once or not at all; return their seqs."""
        return self.writer(topic).append_many(payloads, type_id=type_id, cause=cause)

    def reader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T]:
        """Return the reader of this name, opening it the first time; options as open_reader.

        A topic that nobody has written to yet is waited for (``wait_for_queue=False``: is an
        error). Without a name each call gives another, anonymous reader.
        """
        reader = self._open_already(topic, name, codec, options)
        return self._open_reader(topic, name, codec, options) if reader is None else reader

    async def areader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T]:
        """Do what ``reader`` does without blocking the loop, also if it has to open one.

        Cancelled, a reader that a thread is opening stays open under its name, as a reader of the
        bus; an anonymous one, which nobody would find again, is closed.
        """
        reader = self._open_already(topic, name, codec, options)
        if reader is not None:
            return reader
        opening = partial(self._open_reader, topic, name, codec, options)
        return await (open_in_background if name is None else in_background)(opening)

    def _open_already(
        self, topic: str, name: str | None, codec: object, options: ReaderOptions
    ) -> Reader[Any] | None:
        """Return the reader of this name if it is open, with the same options."""
        path = self.path(topic)
        reading = None if name is None else self._readings.get((topic, name))
        if reading is None or reading.reader.closed:
            return None
        if (codec, options) not in ((None, {}), reading.options):
            raise InvalidArgument(f"{name!r} is open already, otherwise", path=path)
        return reading.reader

    def _open_reader(
        self, topic: str, name: str | None, codec: Any, options: ReaderOptions
    ) -> Reader[Any]:
        wanted: ReaderOptions = {"wait_for_queue": True}
        wanted |= options
        if name is None:
            self._check_open()
            reader = self._open_found(topic, None, codec, wanted)
            return self._keep(reader, lambda: self._anonymous.add(reader))
        with self._turn_to_open((topic, name)):
            self._check_open()
            there = self._open_already(topic, name, codec, options)
            if there is not None:  # another thread was first
                return there
            reader = self._open_found(topic, name, codec, wanted)
            reading = _Reading(reader, (codec, options))
            return self._keep(reader, lambda: self._readings.update({(topic, name): reading}))

    def _open_found(
        self, topic: str, name: str | None, codec: Any, options: ReaderOptions
    ) -> Reader[Any]:
        """Open the reader of what is found without following links, whoever owns it."""
        with opened_below(str(self._root), (*self._way, topic)) as found:
            identity = None
            if found is not None:
                status = os.fstat(found)
                identity = status.st_dev, status.st_ino, status.st_uid
            path = self.path(topic)
            return open_reader(path, name, codec=codec, _expect=identity, **options)

    def read_batch(
        self,
        topic: str,
        name: str,
        max_messages: int = 1024,
        max_bytes: int | None = None,
        *,
        commit: Delivery = "after",
        peek: bool = False,
    ) -> list[_hot.Message]:
        """Return what there is to read for this reader, within the budgets. Never waits.

        The first message is given whatever its size, further ones while all payloads together are
        at most ``max_bytes``. ``commit`` says when the position is stored, from which a reader of
        this name resumes:

        "before"  the batch is handed over: no message twice, but a crash loses what was not dealt
                  with (at most once)
        "after"   it was dealt with, which is when the next is asked for: no message is lost, but
                  a crash repeats the batch (at least once)
        N         as "after", but only once N messages or more have been handed over since
        "manual"  when you call ``commit``

        A crash here is the death of the process; a power cut may bring back an older position.
        A topic that nobody has written to has nothing to read: [], for ever if it is misspelt.
        With ``peek`` neither position moves: the next call gives the same messages again.
        """
        every = _commit_every(commit)
        reader = self.reader(topic, _reader_name(name))
        reading = self._readings[topic, name]
        if peek:
            position = reader.position
            batch = reader.read_batch(max_messages, max_bytes)
            if batch:
                reader.seek_position(position)
            return batch
        if every is not None and reading.uncommitted >= every:
            self.commit(topic, name)
        batch = reader.read_batch(max_messages, max_bytes)
        reading.uncommitted += len(batch)
        if batch and commit == "before":
            self.commit(topic, name)
        return batch

    def commit(self, topic: str, name: str, message: "_hot.Message | None" = None) -> None:
        """Store the position behind this message, or behind the last one that was delivered."""
        self.reader(topic, _reader_name(name)).commit(message)
        self._readings[topic, name].uncommitted = 0

    def flush_now(self) -> dict[str, int]:
        """Make everything durable that was appended through this bus, all topics together.

        Returns by topic the seq before which all messages are. A failure poisons the writer it
        concerns and no other: FlushFailed then tells which, and the other topics are durable.
        """
        self._check_open()
        return _flushed(self._open_writers())

    async def flush(self) -> dict[str, int]:
        """Do as ``flush_now``, outside the loop; callers that come meanwhile share the next one.

        Cancelled, the sync goes on; nothing is lost either way.
        """
        self._check_open()
        return await self._group_commit.wait()

    @property
    def healthy(self) -> Health:
        """Whether all that it has open can go on: the reasons of its writers and named readers."""
        if self._closed:
            return because([f"bus of {printable(self.root)}: is closed"])
        opened: list[Writer | Reader[Any]] = [writer for _, writer in self._open_writers()]
        readers = [reading.reader for reading in list(self._readings.values())]
        opened += [reader for reader in readers if not reader.closed]
        return because(reason for one in opened for reason in one.healthy.reasons)

    def statistics(self) -> BusStatistics:
        """Return the counters of all that is open."""
        writers = {topic: writer.statistics() for topic, writer in self._open_writers()}
        readers = {
            key: reading.reader.statistics()
            for key, reading in list(self._readings.items())
            if not reading.reader.closed
        }
        return BusStatistics(
            messages=sum(one.messages for one in writers.values()),
            payload_bytes=sum(one.payload_bytes for one in writers.values()),
            syncs=sum(one.syncs for one in writers.values()),
            sync_errors=sum(one.sync_errors for one in writers.values()),
            writers=writers,
            readers=readers,
        )

    def close(self) -> None:
        """Close all readers and writers; what was appended is durable then. Commits nothing."""
        self._close_readers()
        self._close_writers()

    def _close_readers(self) -> None:
        with self._lock:
            self._closed = True
            readers = [one.reader for one in self._readings.values()] + [*self._anonymous]
        for reader in readers:
            reader.close()

    def _close_writers(self) -> None:
        failures: dict[str, ChronicleError] = {}

        def close(topic: str) -> None:
            try:
                writers[topic].close()
            except ChronicleError as error:
                failures[topic] = error

        with self._lock:
            writers, self._writers = dict(self._open_writers()), {}
        Writer.flush_together([*writers.values()])  # what fails, fails in close again
        _side_by_side(close, writers)
        if failures:
            raise FlushFailed({topic: failures[topic] for topic in writers if topic in failures})

    def _open_writers(self) -> list[tuple[str, Writer]]:
        return [(topic, one) for topic, one in list(self._writers.items()) if not one.closed]

    def _open_writer(
        self,
        topic: str,
        codec: TypeOrCodec | Registry | Sequence[TypeOrCodec] | None,
        settings: TopicSettings,
        *,
        try_once: bool = False,
    ) -> Writer:
        _checked_topic(topic)
        with self._turn_to_open(topic):
            self._check_open()
            there = self._writers.get(topic)
            if there is not None and not there.closed:  # another thread was first
                return there
            self._make_way(topic, settings)
            writer = open_trusted_writer(
                str(self._root),
                (*self._way, topic),
                way_mode=directory_mode(settings.mode),
                codec=codec,
                _try_once=try_once,
                **msgspec.structs.asdict(settings),
            )
            return self._keep(writer, lambda: self._writers.update({topic: writer}))

    def _turn_to_open(self, what: str | tuple[str, str]) -> threading.RLock:
        with self._lock:
            return self._opening.setdefault(what, threading.RLock())

    def _keep(self, opened: _Opened, remember: Callable[[], object]) -> _Opened:
        """Remember what was opened, so that it is closed with the bus."""
        with self._lock:
            if not self._closed:
                remember()
                return opened
        opened.close()  # so was the bus, meanwhile
        raise self._closed_error()

    def _make_way(self, topic: str, settings: TopicSettings) -> None:
        """Make the root of a new queue, and the way to its archive."""
        if self._has_queue(topic):
            return
        root = str(self._root)
        for count in range(1, len(self._way) + 1):
            if has_queue(root, self._way[:count]):
                path = self._root.joinpath(*self._way[:count])
                raise InvalidName("is a topic, not a namespace", path=str(path))
        with opened_below(root, (*self._way, topic)) as found:
            if found is not None and _listed(found, self.path(topic), files=True):
                raise InvalidName("is a namespace, not a topic", path=self.path(topic))
        mode = directory_mode(settings.mode)
        make_directories(root, mode)
        if settings.retention is not None and settings.retention.archive is not None:
            self._make_archive(Path(settings.retention.archive).parent, mode)

    def _make_archive(self, path: Path, mode: int) -> None:
        if path.is_relative_to(self._root) and ".." not in path.parts:
            parts = path.relative_to(self._root).parts
            make_below(str(self._root), parts, owners_of(self._root), mode)
        else:
            make_directories(path, mode)

    def _has_queue(self, topic: str) -> bool:
        return has_queue(str(self._root), (*self._way, topic))

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError("the bus is closed", path=str(self._directory))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._open_writers())} writers"
        return f"<Bus {str(self._directory)!r} {state}>"


_buses: weakref.WeakSet[Bus] = weakref.WeakSet()


def _renew_all_locks() -> None:
    """In a forked child nobody is left to release them."""
    for bus in _buses:
        bus._renew_locks()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_renew_all_locks)


def _root_directory(root: str | os.PathLike[str] | None) -> Path:
    chosen = os.environ.get(ROOT_VARIABLE) if root is None else root
    if not chosen:
        raise InvalidArgument(
            f"a bus needs a directory: give Bus(root), or set ${ROOT_VARIABLE} to one"
        )
    path = pathname("root", chosen)
    refuse_file("root", path)
    return Path(path)


def _checked_namespace(namespace: str | None) -> str:
    chosen = os.environ.get(NAMESPACE_VARIABLE, "") if namespace is None else namespace
    if expect("namespace", "a str or None", str, chosen):
        for name in chosen.split("/"):
            _check_name(name, f"namespace {chosen!r}")
    return chosen


def _checked_topic(topic: str) -> str:
    _check_name(topic, f"topic {topic!r}")
    return topic


def _reader_name(name: str) -> str:
    """Return a name to keep a position under; an anonymous reader has none."""
    return expect("name", "the name of a reader", str, name)


def _check_name(name: str, what: str) -> None:
    check_name(what, name)
    if name == CONFIGURATION:
        raise InvalidName(f"{what}: {name} is the configuration file")


def _commit_every(commit: object) -> int | None:
    """After how many messages the next call commits; None: it does not."""
    if isinstance(commit, int) and not isinstance(commit, bool):
        return positive("commit", commit)
    words = {"before": None, "after": 1, "manual": None}
    return one_of("commit", words, commit, "a positive int")


def _side_by_side(function: Callable[[str], object], topics: Iterable[str]) -> None:
    """Call it for each topic, several at a time: they wait for the disk, not for each other."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="aiochronicle") as pool:
        for _ in pool.map(function, topics):
            pass


def _flushed(writers: list[tuple[str, Writer]]) -> dict[str, int]:
    durable: dict[str, int] = {}
    failures: dict[str, ChronicleError] = {}
    results = Writer.flush_together([writer for _, writer in writers])
    for (topic, _), result in zip(writers, results, strict=True):
        if isinstance(result, int):
            durable[topic] = result
        else:
            failures[topic] = result
    if failures:
        raise FlushFailed(failures)
    return durable


def _listed(directory: int, path: str, *, files: bool = False) -> list[str]:
    """Return the names of the directories in one, of files as well if that is asked for."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                return [one.name for one in entries if files or one.is_dir(follow_symlinks=False)]
        finally:
            os.close(fd)
    except OSError as error:
        kind = AccessDenied if isinstance(error, PermissionError) else StorageError
        detail = f"cannot be listed: {error.strerror}"
        raise kind(detail, path=path, errno=error.errno) from error
