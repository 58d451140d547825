"""The writers of a bus: one per topic, opened on first use, flushed together."""

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

import msgspec

from aiochronicle import _hot
from aiochronicle._base.background import GroupCommit, in_background
from aiochronicle._core.opening import when_unlocked
from aiochronicle._core.reader import Reader
from aiochronicle._core.topic_settings import TopicSettings
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._services.bus_options import WriterOptions
from aiochronicle._services.bus_topics import Topics, checked_topic
from aiochronicle._services.topic_reader import TopicReader
from aiochronicle._services.trusted import (
    directory_mode,
    make_below,
    open_trusted_writer,
    owners_of,
)
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    FlushFailed,
    ForkedError,
    InvalidArgument,
    LockedError,
    ReaderBusy,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AnyReader", "TopicWriters"]

_THREADS = 16

AnyReader: TypeAlias = Reader[Any] | TopicReader[Any]
_Opened = TypeVar("_Opened", Writer, "Reader[Any] | TopicReader[Any]")


class TopicWriters(Topics):
    """Base of Bus that appends."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        namespace: str | None,
        config: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__(root, namespace, config)
        self._writers: dict[str, Writer] = {}
        self._registering: set[str] = set()  # topics in which `send` registers types
        self._renew_locks()
        self._open_at_fork: set[str | tuple[str, str]] = set()
        self._inherited: set[str | tuple[str, str]] = set()  # opened by the parent before the fork
        self._group_commit = GroupCommit(self.flush_now)
        self._closed = False
        _buses.add(self)

    def _renew_locks(self) -> None:
        # Reentrant: a signal handler may run in the thread that holds a lock.
        self._lock = threading.RLock()
        # By topic, or by topic and name, so that opening one does not delay the others.
        self._opening: dict[str | tuple[str, str], threading.RLock] = {}

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def writer(
        self,
        topic: str,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer[T]:
        """Return the writer of a topic; the first call opens it, and creates the queue if necessary.

        ``codec`` and ``options`` are those of open_writer, for the first call; they override the
        configuration file. A writer that was closed is reopened.
        """
        writer = self._writers.get(topic)
        if writer is None or writer.closed:
            settings = msgspec.structs.replace(self.settings(topic), **options)
            return self._open_writer(topic, codec, settings)
        if options or codec is not None:
            raise InvalidArgument(
                "the writer is already open: pass options in the first call only", path=topic
            )
        return writer

    async def awriter(
        self,
        topic: str,
        *,
        codec: type[T] | Codec[T] | Registry | Sequence[TypeOrCodec] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Writer[T]:
        """Do the same as ``writer`` without blocking the loop, also if it opens the writer.

        With ``lock_timeout`` the task waits for the lock without using a thread. If it is cancelled, a writer
        that is being opened stays open as a writer of the bus.
        """
        writer = self._writers.get(topic)
        if writer is not None and not writer.closed:
            return self.writer(topic, codec=codec, **options)
        settings = msgspec.structs.replace(self.settings(topic), **options)

        def attempt(try_once: bool) -> Awaitable[Writer]:
            return in_background(
                lambda: self._open_writer(topic, codec, settings, try_once=try_once)
            )

        return await when_unlocked(attempt, settings.lock_timeout)

    async def prepare(self, *topics: str) -> None:
        """Open the writers of these topics, several at a time, without blocking the loop.

        If it is cancelled, they are still opened.
        """
        await in_background(lambda: _run_concurrently(self.writer, topics))

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

        The first message of a topic opens its writer, which takes milliseconds: see ``aappend``.
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
        """Do the same as ``append`` without blocking the loop, also for the first message of a topic.

        If the writer is open, it appends at once, without yielding to the loop. Messages of one task keep
        their order. If it is cancelled while it opens the writer, nothing was appended.
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

        If the writer was opened without a codec, the first object of each type registers the type, like
        ``Writer.register``, which waits for the disk. If the types are known from the start, open the writer
        with ``writer(topic, codec=...)``.

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
                self._registering.add(topic)
            if topic in self._registering:
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

    def flush_now(self) -> dict[str, int]:
        """Make everything durable that was appended through this bus, all topics together.

        Returns, by topic, the seq after the last durable message. A failure poisons only the writer of its
        topic: FlushFailed names it, and the other topics are durable.
        """
        self._check_open()
        return _flush_each(self._open_writers())

    async def flush(self) -> dict[str, int]:
        """Do the same as ``flush_now`` in a thread; callers that arrive while it runs share the next one.

        If the caller is cancelled, the sync continues; nothing is lost.
        """
        self._check_open()
        return await self._group_commit.wait()

    def _close_writers(self) -> None:
        failures: dict[str, ChronicleError] = {}

        def close(topic: str) -> None:
            try:
                writers[topic].close()
            except ChronicleError as error:
                failures[topic] = error

        with self._lock:
            writers, self._writers = dict(self._open_writers()), {}
        Writer.flush_together([*writers.values()])  # a failure is raised again by close
        _run_concurrently(close, writers)
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
        checked_topic(topic)
        with self._lock_opening(topic):
            self._check_open()
            other = self._writers.get(topic)
            if other is not None and not other.closed:  # another thread has opened it
                return other
            self._create_directories(topic, settings)
            options = msgspec.structs.asdict(settings)
            shared = options.pop("shared")
            if shared is not False:
                make_below(
                    str(self._root),
                    (*self._namespace_parts, topic),
                    owners_of(self._root),
                    directory_mode(settings.mode),
                )
                path = self.path(topic)
                writer = open_writer(path, codec=codec, shared=shared, **options)
            else:
                writer = open_trusted_writer(
                    str(self._root),
                    (*self._namespace_parts, topic),
                    way_mode=directory_mode(settings.mode),
                    codec=codec,
                    _try_once=try_once,
                    **options,
                )
            return self._keep(writer, lambda: self._writers.update({topic: writer}))

    @contextmanager
    def _lock_opening(self, what: str | tuple[str, str]) -> Generator[None]:
        """Let one thread at a time open a topic, or a named reader of it."""
        with self._lock:
            opening = self._opening.setdefault(what, threading.RLock())
        try:
            with opening:
                yield
        except (LockedError, ReaderBusy) as error:
            if what not in self._inherited:
                raise
            raise ForkedError(
                "this was opened before the fork, and the parent process still has it open",
                path=error.path,
                advice="Use it in the parent. In the child, use other topics and other reader names.",
            ) from error

    def _names_open(self) -> set[str | tuple[str, str]]:
        """Return the topics whose writers are open."""
        return {topic for topic, _ in self._open_writers()}

    def _keep(self, opened: _Opened, remember: Callable[[], object]) -> _Opened:
        """Remember a new writer or reader, so that the bus closes it."""
        with self._lock:
            if not self._closed:
                remember()
                return opened
        opened.close()  # the bus was closed in the meantime
        raise self._closed_error()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError("the bus is closed", path=str(self._directory))


_buses: weakref.WeakSet[TopicWriters] = weakref.WeakSet()


def _before_fork() -> None:
    for bus in list(_buses):
        bus._open_at_fork = bus._names_open()  # pyright: ignore[reportPrivateUsage]


def _after_fork_in_child() -> None:
    for bus in list(_buses):  # the threads that hold the locks do not exist here
        bus._renew_locks()  # pyright: ignore[reportPrivateUsage]
        bus._inherited |= bus._open_at_fork  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _run_concurrently(function: Callable[[str], object], topics: Iterable[str]) -> None:
    """Call the function for each topic, several at a time, because each call waits for the disk."""
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
