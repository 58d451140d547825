"""Topics by name: many queues under one root, opened on first use.

A topic is a queue, ROOT/TOPIC or ROOT/NAMESPACE/TOPIC, which open_writer and open_reader can open, too. A bus
adds names, one writer per topic for the whole process, settings from a file (settings.py), and flushing all
queues at once.
"""

import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Unpack, cast, overload

from aiochronicle import _hot
from aiochronicle._base.arguments import expect, one_of, positive
from aiochronicle._base.background import in_background
from aiochronicle._base.closing import Closing
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle._core.health import Health, health_of
from aiochronicle._core.opening import open_in_background
from aiochronicle._core.reader import Reader, ReaderStatistics, open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_statistics import WriterStatistics
from aiochronicle._services.bus_options import Delivery, ReaderOptions
from aiochronicle._services.bus_writers import AnyReader, TopicWriters
from aiochronicle._services.router import RouterStatistics
from aiochronicle._services.shared import is_shared
from aiochronicle._services.topic_reader import TopicReader
from aiochronicle._services.trusted import opened_below
from aiochronicle._typed.registry import Registry, TypeOrCodec
from aiochronicle.codec import Codec, T
from aiochronicle.errors import InvalidArgument

__all__ = ["Bus", "BusStatistics"]


class BusStatistics(HtmlStruct, frozen=True, kw_only=True):
    """Sums over the open writers, and the statistics of each open writer and named reader."""

    messages: int
    payload_bytes: int
    syncs: int
    sync_errors: int
    writers: dict[str, WriterStatistics]
    readers: dict[tuple[str, str], ReaderStatistics | RouterStatistics]


class _NamedReader:
    """A named reader, and how many messages ``read_batch`` has delivered since its last commit."""

    def __init__(self, reader: AnyReader, options: tuple[object, ReaderOptions]) -> None:
        self.reader = reader
        self.options = options
        self.uncommitted = 0


class Bus(TopicWriters, Closing):
    """Topics by name under one root. A context manager (``with``, ``async with``) that closes what it opened.

    ``root`` defaults to $AIOCHRONICLE_DATA_DIR. ``namespace`` keeps topics of different programs apart: a
    name, or several separated by slashes. It defaults to $AIOCHRONICLE_NAMESPACE, if set. ``config``
    defaults to ROOT/config.toml, if that exists; a file that you pass must exist.

    Names of topics follow the rules of reader names: at most 64 letters, digits, ``.``, ``_`` and ``-``,
    beginning with a letter or digit. They are checked and never changed, so different names are different
    topics.

    After a fork the child can use only topics that the parent does not have open; others raise ForkedError.
    Several threads may use a bus; only one of them at a time may use a named reader. Writers and readers stay
    open until the bus is closed. The first use of a topic opens it and waits for the disk: in an event loop
    call ``await prepare(...)`` first, or use ``awriter``, ``areader`` and ``aappend``.

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
        self._named_readers: dict[tuple[str, str], _NamedReader] = {}
        super().__init__(root, namespace, config)
        self._anonymous: weakref.WeakSet[AnyReader] = weakref.WeakSet()

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
        """Return the reader of this name; the first call opens it. Options are those of open_reader.

        If the topic has no queue yet, the reader waits for it; with ``wait_for_queue=False`` it raises
        QueueNotFound. Without a name each call returns a new anonymous reader.

        For a topic with many writers, ``writer(topic, shared=True)``, it returns a TopicReader, which
        follows all of them. Before the topic has its first writer, pass ``shared=True`` here or set it in
        config.toml.
        """
        reader = self._find_open_reader(topic, name, codec, options)
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
        """Do the same as ``reader`` without blocking the loop, also if it opens the reader.

        If it is cancelled, a named reader that is being opened stays open as a reader of the bus; an
        anonymous one is closed.
        """
        reader = self._find_open_reader(topic, name, codec, options)
        if reader is not None:
            return reader
        opening = partial(self._open_reader, topic, name, codec, shared, options)
        return await (open_in_background if name is None else in_background)(opening)

    def _find_open_reader(
        self, topic: str, name: str | None, codec: object, options: ReaderOptions
    ) -> AnyReader | None:
        """Return the reader of this name if it is open, with the same options."""
        path = self.path(topic)
        reading = None if name is None else self._named_readers.get((topic, name))
        if reading is None or reading.reader.closed:
            return None
        if (codec, options) not in ((None, {}), reading.options):
            raise InvalidArgument(
                f"reader {name!r} is already open with other options: pass them in the first call only",
                path=path,
            )
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
        with self._lock_opening((topic, name)):
            self._check_open()
            other = self._find_open_reader(topic, name, codec, options)
            if other is not None:  # another thread has opened it
                return other
            reader = self._open_found(topic, name, codec, shared, wanted)
            reading = _NamedReader(reader, (codec, options))
            return self._keep(reader, lambda: self._named_readers.update({(topic, name): reading}))

    def _open_found(
        self, topic: str, name: str | None, codec: Any, shared: bool, options: ReaderOptions
    ) -> AnyReader:
        """Open a reader of the topic, whoever owns it, without following symbolic links."""
        with opened_below(str(self._root), (*self._namespace_parts, topic)) as found:
            identity = None
            if found is not None:
                status = os.fstat(found)
                identity = status.st_dev, status.st_ino, status.st_uid
            path = self.path(topic)
            if shared or (found is None and self.settings(topic).shared) or is_shared(path):
                return self._open_topic(topic, name, codec, options)
            source = "/".join((*self._namespace_parts, topic))
            return open_reader(path, name, codec=codec, source=source, _expect=identity, **options)

    def _open_topic(
        self, topic: str, name: str | None, codec: Any, options: ReaderOptions
    ) -> TopicReader[Any]:
        for unknown in ("wait", "poll_max_us"):
            if unknown in options:
                detail = f"{unknown} does not apply to a topic with many writers: omit it"
                raise InvalidArgument(detail, path=self.path(topic))
        settings = self.settings(topic)
        if options.get("wait_for_queue"):
            self._create_directories(topic, settings)
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

        The first message is always returned; further ones only while all payloads together have at most
        ``max_bytes``. ``commit`` sets when the reader's position is committed:

        "before"  before the batch is returned: no message is delivered twice, but a crash loses those
                  that were not processed (at most once)
        "after"   when the next batch is requested: no message is lost, but a crash repeats the batch
                  (at least once)
        N         as "after", but only after N messages or more
        "manual"  when you call ``commit``

        A crash here is the death of the process; after a power cut the position may be older. A topic without
        a queue returns [], so a misspelt name returns [] forever. With ``peek`` neither position moves: the
        next call returns the same messages again.
        """
        every = _commit_every(commit)
        reader = self.reader(topic, _reader_name(name))
        reading = self._named_readers[topic, name]
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
        """Commit the position after this message, or after the last one that was delivered."""
        self.reader(topic, _reader_name(name)).commit(message)
        self._named_readers[topic, name].uncommitted = 0

    @property
    def healthy(self) -> Health:
        """Whether all open writers and named readers are healthy; the reasons are theirs."""
        if self._closed:
            return health_of([f"bus of {printable(self.root)}: is closed"])
        opened: list[Writer | AnyReader] = [writer for _, writer in self._open_writers()]
        readers = [reading.reader for reading in list(self._named_readers.values())]
        opened += [reader for reader in readers if not reader.closed]
        return health_of(reason for one in opened for reason in one.healthy.reasons)

    def statistics(self) -> BusStatistics:
        """Return the counters of all open writers and named readers."""
        writers = {topic: writer.statistics() for topic, writer in self._open_writers()}
        readers = {
            key: reading.reader.statistics()
            for key, reading in list(self._named_readers.items())
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

    def _names_open(self) -> set[str | tuple[str, str]]:
        known = list(self._named_readers.items())
        readings = {key for key, one in known if not one.reader.closed}
        return super()._names_open() | readings

    def close(self) -> None:
        """Close all readers and writers; everything appended is then durable. Commits nothing."""
        self._close_readers()
        self._close_writers()

    def _close_readers(self) -> None:
        with self._lock:
            self._closed = True
            readers = [one.reader for one in self._named_readers.values()] + [*self._anonymous]
        for reader in readers:
            reader.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._open_writers())} writers"
        return f"<Bus {str(self._directory)!r} {state}>"


def _reader_name(name: str) -> str:
    """Return the name if it is a str; an anonymous reader cannot be used here."""
    return expect("name", "the name of a reader", str, name)


def _commit_every(commit: object) -> int | None:
    """Return after how many messages the next call commits; None if it does not."""
    if isinstance(commit, int) and not isinstance(commit, bool):
        return positive("commit", commit)
    words = {"before": None, "after": 1, "manual": None}
    return one_of("commit", words, commit, "a positive int")
