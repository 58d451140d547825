"""Topics by name: many queues under one root, opened when they are needed.

A topic is a queue, ROOT/TOPIC or ROOT/NAMESPACE/TOPIC, that open_writer and open_reader can open as
well. A bus adds names, one writer per topic for the whole process, settings from a file
(settings.py), and flushing all queues at once.
"""

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from aiochronicle import _hot
from aiochronicle._base.arguments import expect, one_of, pathname, positive, refuse_file
from aiochronicle._base.background import GroupCommit, in_background
from aiochronicle._base.closing import Closing
from aiochronicle._base.names import check_name, is_name
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import refusal
from aiochronicle._core.health import Health, because
from aiochronicle._core.opening import open_in_background, when_unlocked
from aiochronicle._core.queue import ReaderInfo
from aiochronicle._core.reader import (
    Reader,
    ReaderStatistics,
    StartPoint,
    WaitStrategy,
    open_reader,
)
from aiochronicle._core.topic_settings import TopicSettings
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._core.writer_sending import Format
from aiochronicle._core.writer_statistics import WriterStatistics
from aiochronicle._layout import BUS_CONFIGURATION
from aiochronicle._services.router import RouterStatistics
from aiochronicle._services.settings import load_settings
from aiochronicle._services.shared import is_shared, list_readers
from aiochronicle._services.topic_reader import TopicReader
from aiochronicle._services.trusted import (
    directory_mode,
    has_queue,
    make_below,
    make_directories,
    open_trusted_writer,
    opened_below,
    owners_of,
)
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.config import Batch, Capacity, Retention, Roll
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    FlushFailed,
    InvalidArgument,
    InvalidName,
    StorageError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Bus", "BusStatistics"]

ROOT_VARIABLE = "AIOCHRONICLE_DATA_DIR"
NAMESPACE_VARIABLE = "AIOCHRONICLE_NAMESPACE"

_THREADS = 16

Delivery = Literal["before", "after", "manual"] | int

_Opened = TypeVar("_Opened", Writer, "Reader[Any] | TopicReader[Any]")


class WriterOptions(TypedDict, total=False):
    """Parameters of open_writer that Bus.writer takes; they override the configuration file."""

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
    shared: bool | str


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


AnyReader: TypeAlias = Reader[Any] | TopicReader[Any]


class BusStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Sums over the open writers, and the statistics of each open writer and named reader."""

    messages: int
    payload_bytes: int
    syncs: int
    sync_errors: int
    writers: dict[str, WriterStatistics]
    readers: dict[tuple[str, str], ReaderStatistics | RouterStatistics]


class _Reading:
    """A named reader, and how many messages ``read_batch`` has delivered since its last commit."""

    def __init__(self, reader: AnyReader, options: tuple[object, ReaderOptions]) -> None:
        self.reader = reader
        self.options = options
        self.uncommitted = 0


class Bus(Closing):
    """Topics by name under one root. A context manager (``with``, ``async with``) that closes all it opened.

    ``root`` is by default $AIOCHRONICLE_DATA_DIR. ``namespace`` is by default $AIOCHRONICLE_NAMESPACE,
    if set: a name, or several separated by slashes, that keeps topics of different programs apart.
    ``config`` is by default ROOT/config.toml, if it exists; a file that is given must exist.

    Names of topics have the rules of reader names: at most 64 letters, digits, ``.``, ``_`` and
    ``-``, beginning with a letter or digit. They are checked and never changed, so two names are two
    topics.

    Several threads may use a bus; a named reader may be used by one of them at a time. Writers and
    readers stay open until the bus is closed. The first use of a topic opens it and waits for the
    disk: in an event loop call ``await prepare(...)`` before, or use ``awriter``, ``areader`` and
    ``aappend``.

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
            load_settings(self._root / BUS_CONFIGURATION, owners=owners_of(self._root))
            if config is None
            else load_settings(Path(pathname("config", config)), required=True)
        )
        self._writers: dict[str, Writer] = {}
        self._learning: set[str] = set()  # topics whose writers learn types by `send`
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._anonymous: weakref.WeakSet[AnyReader] = weakref.WeakSet()
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
        """Return the directory of a topic's queue, whether it exists or not."""
        return str(self._directory / _checked_topic(topic))

    def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic in the configuration file."""
        settings = self._settings.for_topic(_checked_topic(topic), self._namespace)
        if settings.retention is None or settings.retention.archive is None:
            return settings
        # Segments of several queues have the same names: each gets an archive of its own.
        archive = self._root / settings.retention.archive / self._namespace / topic
        retention = msgspec.structs.replace(settings.retention, archive=str(archive))
        return msgspec.structs.replace(settings, retention=retention)

    def topics(self) -> list[str]:
        """Return the names of all topics that have a queue, sorted. Reads the directory.

        Links, and directories that this user may not read, are left out.
        """
        with opened_below(str(self._root), self._way) as directory:
            if directory is None:
                return []
            names = _list_names(directory, str(self._directory))
        return sorted(name for name in names if is_name(name) and self._can_see_queue(name))

    def _can_see_queue(self, topic: str) -> bool:
        try:
            return self._has_queue(topic)
        except StorageError:
            return False

    def readers(self, topic: str) -> list[ReaderInfo]:
        """Return the readers that have a position in the topic, open or not, with their lag.

        QueueNotFound if the topic has no queue yet.
        """
        path = self.path(topic)
        with opened_below(str(self._root), (*self._way, topic)):  # over no links
            return list_readers(path)

    def writer(
        self,
        topic: str,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer[T]:
        """Return the writer of a topic, opening it (and creating the queue) the first time.

        ``codec`` and ``options`` are those of open_writer, for the first call; they override the
        configuration file. A writer that was closed is reopened.
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
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer[T]:
        """Do what ``writer`` does without blocking the loop, also if the writer must be opened.

        With ``lock_timeout`` the task waits for the lock, not a thread. Cancelled, a writer that is
        being opened stays open, as a writer of the bus.
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

        Cancelled, they are still opened.
        """
        await in_background(lambda: _side_by_side(self.writer, topics))

    def append(
        self,
        topic: str,
        payload: "Buffer",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append a message to a topic and return its seq: ``writer(topic).append``.

        The first one of a topic opens its writer, which takes milliseconds: see ``aappend``.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            writer = self.writer(topic)
        if key is None and headers is None:
            return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)
        return writer.append(
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )

    async def aappend(
        self,
        topic: str,
        payload: "Buffer",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Do what ``append`` does without blocking the loop, also for the first message of a topic.

        When the writer is open it appends at once, without yielding to the loop. Messages of one
        task keep their order. Cancelled while it opens the writer, nothing was appended.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            writer = await self.awriter(topic)
        if key is None and headers is None:
            return writer.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)
        return writer.append(
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )

    def send(
        self,
        topic: str,
        obj: Any,
        *,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append an object to a topic and return its seq: ``writer(topic).send``.

        A writer that was opened without a codec registers each type with its first object, as
        ``Writer.register`` does, which waits for the disk. If the types are known from the start, open
        it with ``writer(topic, codec=...)``.

        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with Bus(tmp_path) as bus:
        ...     bus.send("trades", Trade(101.5))
        0
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            writer = self.writer(topic)
        kind: type[Any] = obj.__class__
        known = writer._types  # pyright: ignore[reportPrivateUsage]
        if writer.format == "native" and kind not in known:
            if not known:
                self._learning.add(topic)
            if topic in self._learning:
                writer.register(kind)
        return writer.send(obj, timestamp_ns=timestamp_ns, cause=cause, key=key, headers=headers)

    def append_many(
        self,
        topic: str,
        payloads: "Iterable[Buffer]",
        *,
        type_id: int = 0,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        keys: "Iterable[Buffer | None] | None" = None,
        headers: "Iterable[Mapping[str, Buffer] | None] | None" = None,
    ) -> range:
        """Append messages that become visible all at once or not at all; return their seqs."""
        return self.writer(topic).append_many(
            payloads, type_id=type_id, cause=cause, keys=keys, headers=headers
        )

    @overload
    def reader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: Literal[True],
        **options: Unpack[ReaderOptions],
    ) -> TopicReader[T]: ...
    @overload
    def reader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: Literal[False] = False,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T]: ...
    def reader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: bool = False,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T] | TopicReader[T]:
        """Return the reader of this name, opening it the first time; options as open_reader.

        If the topic has no queue yet, the reader waits for it; with ``wait_for_queue=False`` that
        is an error. Without a name each call returns a new anonymous reader.

        For a topic with many writers, ``writer(topic, shared=True)``, it returns a TopicReader, which
        follows all of them. Before its first writer, pass ``shared=True`` here or set it in config.toml.
        """
        reader = self._open_already(topic, name, codec, options)
        return self._open_reader(topic, name, codec, shared, options) if reader is None else reader

    @overload
    async def areader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: Literal[True],
        **options: Unpack[ReaderOptions],
    ) -> TopicReader[T]: ...
    @overload
    async def areader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: Literal[False] = False,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T]: ...
    async def areader(
        self,
        topic: str,
        name: str | None = None,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        shared: bool = False,
        **options: Unpack[ReaderOptions],
    ) -> Reader[T] | TopicReader[T]:
        """Do what ``reader`` does without blocking the loop, also if the reader must be opened.

        Cancelled, a named reader that is being opened stays open, as a reader of the bus; an
        anonymous one is closed.
        """
        reader = self._open_already(topic, name, codec, options)
        if reader is not None:
            return reader
        opening = partial(self._open_reader, topic, name, codec, shared, options)
        return await (open_in_background if name is None else in_background)(opening)

    def _open_already(
        self, topic: str, name: str | None, codec: object, options: ReaderOptions
    ) -> AnyReader | None:
        """Return the reader of this name if it is open, with the same options."""
        path = self.path(topic)
        reading = None if name is None else self._readings.get((topic, name))
        if reading is None or reading.reader.closed:
            return None
        if (codec, options) not in ((None, {}), reading.options):
            raise InvalidArgument(f"{name!r} is open already, otherwise", path=path)
        return reading.reader

    def _open_reader(
        self, topic: str, name: str | None, codec: Any, shared: bool, options: ReaderOptions
    ) -> AnyReader:
        wanted: ReaderOptions = {"wait_for_queue": True}
        wanted |= options
        if name is None:
            self._check_open()
            reader = self._open_found(topic, None, codec, shared, wanted)
            return self._keep(reader, lambda: self._anonymous.add(reader))
        with self._turn_to_open((topic, name)):
            self._check_open()
            there = self._open_already(topic, name, codec, options)
            if there is not None:  # another thread was first
                return there
            reader = self._open_found(topic, name, codec, shared, wanted)
            reading = _Reading(reader, (codec, options))
            return self._keep(reader, lambda: self._readings.update({(topic, name): reading}))

    def _open_found(
        self, topic: str, name: str | None, codec: Any, shared: bool, options: ReaderOptions
    ) -> AnyReader:
        """Open the reader of what is found without following links, of any owner."""
        with opened_below(str(self._root), (*self._way, topic)) as found:
            identity = None
            if found is not None:
                status = os.fstat(found)
                identity = status.st_dev, status.st_ino, status.st_uid
            path = self.path(topic)
            if shared or (found is None and self.settings(topic).shared) or is_shared(path):
                return self._open_topic(topic, name, codec, options)
            source = "/".join((*self._way, topic))
            return open_reader(path, name, codec=codec, source=source, _expect=identity, **options)

    def _open_topic(
        self, topic: str, name: str | None, codec: Any, options: ReaderOptions
    ) -> TopicReader[Any]:
        for unknown in ("wait", "poll_max_us"):
            if unknown in options:
                detail = f"{unknown} is not for a topic with many writers"
                raise InvalidArgument(detail, path=self.path(topic))
        settings = self.settings(topic)
        if options.get("wait_for_queue"):
            self._make_way(topic, settings)
        given = cast("dict[str, Any]", options)
        return TopicReader(self.path(topic), name, codec=codec, mode=settings.mode, **given)

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
        """Return the next messages of this reader, within the limits. Never waits.

        The first message is returned whatever its size, further ones while all payloads together have
        at most ``max_bytes``. ``commit`` sets when the position is stored from which a reader of this
        name resumes:

        "before"  before the batch is returned: no message is delivered twice, but a crash loses those
                  that were not processed (at most once)
        "after"   when the next batch is requested: no message is lost, but a crash repeats the batch
                  (at least once)
        N         as "after", but only after N messages or more
        "manual"  when you call ``commit``

        A crash here is the death of the process; after a power cut the position may be an older one.
        A topic without a queue returns [], so a misspelt name returns [] forever. With ``peek``
        neither position moves: the next call returns the same messages again.
        """
        every = _commit_every(commit)
        reader = self.reader(topic, _reader_name(name))
        reading = self._readings[topic, name]
        if peek:
            go_back = reader._feed().mark()  # pyright: ignore[reportPrivateUsage]
            batch = reader.read_batch(max_messages, max_bytes)
            if batch:
                go_back()
            return batch
        if every is not None and reading.uncommitted >= every:
            self.commit(topic, name)
        batch = reader.read_batch(max_messages, max_bytes)
        reading.uncommitted += len(batch)
        if batch and commit == "before":
            self.commit(topic, name)
        return batch

    def commit(self, topic: str, name: str, message: "_hot.Message | None" = None) -> None:
        """Store the position after this message, or after the last one that was delivered."""
        self.reader(topic, _reader_name(name)).commit(message)
        self._readings[topic, name].uncommitted = 0

    def flush_now(self) -> dict[str, int]:
        """Make everything durable that was appended through this bus, all topics together.

        Returns by topic the seq before which all messages are durable. A failure poisons only its own
        writer: FlushFailed names it, and the other topics are durable.
        """
        self._check_open()
        return _flush_each(self._open_writers())

    async def flush(self) -> dict[str, int]:
        """Do what ``flush_now`` does in a thread; callers that come while it runs share the next one.

        Cancelled, the sync continues; nothing is lost either way.
        """
        self._check_open()
        return await self._group_commit.wait()

    @property
    def healthy(self) -> Health:
        """Whether all open writers and named readers are healthy; the reasons are theirs."""
        if self._closed:
            return because([f"bus of {printable(self.root)}: is closed"])
        opened: list[Writer | AnyReader] = [writer for _, writer in self._open_writers()]
        readers = [reading.reader for reading in list(self._readings.values())]
        opened += [reader for reader in readers if not reader.closed]
        return because(reason for one in opened for reason in one.healthy.reasons)

    def statistics(self) -> BusStatistics:
        """Return the counters of all open writers and named readers."""
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
        """Close all readers and writers; everything appended is then durable. Commits nothing."""
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
            options = msgspec.structs.asdict(settings)
            shared = options.pop("shared")
            if shared is not False:
                make_below(
                    str(self._root),
                    (*self._way, topic),
                    owners_of(self._root),
                    directory_mode(settings.mode),
                )
                path = self.path(topic)
                writer = open_writer(path, codec=codec, shared=shared, **options)
            else:
                writer = open_trusted_writer(
                    str(self._root),
                    (*self._way, topic),
                    way_mode=directory_mode(settings.mode),
                    codec=codec,
                    _try_once=try_once,
                    **options,
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
        opened.close()  # the bus was closed while this was opened
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
            if found is not None and _list_names(found, self.path(topic), files=True):
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
        way = (*self._way, topic)
        return has_queue(str(self._root), way) or is_shared(self.path(topic))

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
    if name == BUS_CONFIGURATION:
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


def _flush_each(writers: list[tuple[str, Writer]]) -> dict[str, int]:
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


def _list_names(directory: int, path: str, *, files: bool = False) -> list[str]:
    """Return the names of the directories in one, of files as well if that is asked for."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                return [one.name for one in entries if files or one.is_dir(follow_symlinks=False)]
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(error, f"cannot be listed: {error.strerror}", path) from error
