"""Convert native queues to Java queues, and back."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from aiochronicle._base.arguments import one_of, pathname
from aiochronicle._base.position import Position
from aiochronicle._base.report import HtmlStruct
from aiochronicle._base.system_errors import storage_errors
from aiochronicle._core.queue import inspect, list_readers
from aiochronicle._core.reader import Reader, open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._files import sync_directory
from aiochronicle._hot import Message
from aiochronicle._maintenance.restoring import hidden, refuse_occupied
from aiochronicle.errors import CorruptionError, InvalidArgument, PositionLost

__all__ = ["ConvertProgress", "ConvertReport", "convert"]

_BATCH = 1024


def _lost(into: str, *, with_headers: bool) -> tuple[str, ...]:
    if into == "native":
        return ("indexes: seqs begin with 0",)
    kinds = "types, causes, expiry" if with_headers else "types, causes, expiry, keys and headers"
    empty = () if with_headers else ("empty payloads: each becomes one byte of padding, 8f",)
    return (
        "times within a cycle: put them into the payload, or keep the native queue",
        f"{kinds}: a message of a Java queue is its payload",
        *empty,
        "seqs: Java numbers by cycle",
    )


class ConvertProgress(HtmlStruct, frozen=True, kw_only=True):
    """The progress of a conversion."""

    messages: int
    messages_total: int


class ConvertReport(HtmlStruct, frozen=True, kw_only=True):
    """The result of a conversion.

    ``not_carried`` lists the properties that the new format cannot store. ``times_raised`` counts messages
    that were older than the previous one and got its time. ``skipped`` counts the damaged places and missing
    segments that were skipped.
    """

    path: str
    format: Literal["native", "cq4"]
    messages: int
    readers: int
    times_raised: int
    not_carried: tuple[str, ...]
    skipped: int = 0


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    roll_cycle: str = "FAST_DAILY",
    epoch: int = 0,
    timestamp: Any = None,
    headers: Literal["drop", "field"] = "drop",
    on_corrupt: Literal["raise", "skip"] = "raise",
    progress: Callable[[ConvertProgress], object] | None = None,
) -> ConvertReport:
    """Copy a native queue to a new Java queue, or a Java queue to a new native one.

    Messages keep their order and payloads, and named readers keep their positions. A native message goes
    into the cycle (``roll_cycle``, ``epoch``) of its time. A message of a Java queue gets the time that
    ``timestamp`` returns, as in ``open_reader``; without it, that of its cycle.

    A Java queue has no place for keys and headers, so they are left out. With ``headers="field"``, a message
    that has any becomes a Java document with the fields ``key``, ``headers`` and ``payload``; the same
    parameter converts it back (docs/guide/java.md).

    Messages appended after the start are not converted. The conversion needs memory for a few thousand
    messages. The new queue appears when it is complete and on disk. A killed conversion leaves a hidden
    directory, which the next conversion to that path removes. Blocks: in an event loop use
    ``asyncio.to_thread``.

    >>> report = convert(queue, tmp_path / "for-java", roll_cycle="FAST_HOURLY")
    >>> report.format, report.messages
    ('cq4', 1)
    >>> convert(tmp_path / "for-java", tmp_path / "back").format
    'native'
    """
    path = Path(pathname("source", source))
    place = Path(os.path.abspath(pathname("target", target)))
    with_headers = bool(one_of("headers", {"drop": 0, "field": 1}, headers))
    one_of("on_corrupt", dict.fromkeys(("raise", "skip")), on_corrupt)
    info = inspect(path)
    into: Literal["native", "cq4"] = "cq4" if info.format == "native" else "native"
    if into == "cq4" and timestamp is not None:
        raise InvalidArgument("timestamp is for Java queues; messages of this one have theirs")
    with storage_errors(place):
        refuse_occupied(place)
        with hidden(place, "converting") as part:
            work = _Work(path, part / "queue", into, with_headers, progress or (lambda _: None))
            work.run(
                {"on_corrupt": on_corrupt, "timestamp": timestamp},
                {"format": "cq4", "roll_cycle": roll_cycle, "epoch": epoch}
                if into == "cq4"
                else {"segment_size": max(info.segment_size, 128 << 20)},
            )
            refuse_occupied(place)
            (part / "queue").rename(place)
            sync_directory(place.parent)
    return ConvertReport(
        path=str(place),
        format=into,
        messages=work.messages,
        readers=len(work.placed),
        times_raised=work.times_raised,
        not_carried=_lost(into, with_headers=with_headers),
        skipped=work.skipped,
    )


class _Work:
    """One conversion."""

    def __init__(
        self,
        source: Path,
        part: Path,
        into: str,
        with_headers: bool,
        tell: Callable[[ConvertProgress], object],
    ) -> None:
        self._source = source
        self._part = part
        self._into = into
        self._over_gaps = False
        self._end = Position(0, 0)
        self._with_headers = with_headers
        self._tell = tell
        self._now_ns = 0
        self.messages = self.times_raised = self.skipped = 0
        self.placed: dict[str, int] = {}  # reader name to the seq where it continues
        next_seq = inspect(source).next_seq
        readers = [
            (next_seq - one.lag.messages if one.damaged else one.committed_seq or 0, one.name)
            for one in list_readers(source)
            if not one.lost
        ]
        self._waiting = sorted(readers, reverse=True)  # the reader with the largest lag is last

    def run(self, reading: dict[str, Any], writing: dict[str, Any]) -> None:
        self._over_gaps = reading["on_corrupt"] == "skip"
        if self._into == "cq4":
            writing["clock"] = lambda: self._now_ns
        with open_reader(self._source, start="first", **reading) as reader:
            reader.seek_last()
            self._end = reader.position
            reader.end_at(self._end)
            reader.seek_first()
            first = reader.poll()
            if first is not None:
                self._now_ns = first.timestamp_ns
                reader.seek_first()
            with open_writer(self._part, **writing) as writer:
                self._copy(reader, writer)
                self.skipped += reader.statistics().skipped_records
                writer.flush_now()
        for name, seq in self.placed.items():
            with open_reader(self._part, name, start=seq) as placed:
                placed.commit_position(placed.position)

    def _copy(self, reader: Reader, writer: Writer) -> None:
        total = reader.lag.messages
        next_seq = 0
        for message in self._messages(reader):
            seq = self._append(writer, message)
            while self._waiting and self._waiting[-1][0] <= message.seq:
                self.placed[self._waiting.pop()[1]] = seq
            next_seq = seq + 1
            self.messages += 1
            if self.messages % _BATCH == 0:
                self._tell(ConvertProgress(messages=self.messages, messages_total=total))
        for _, name in self._waiting:  # these had read everything
            self.placed[name] = next_seq
        self._tell(ConvertProgress(messages=self.messages, messages_total=total))

    def _messages(self, reader: Reader) -> Iterator[Message]:
        """Yield the messages from before the start, skipping missing segments if ``on_corrupt`` allows."""
        while True:
            try:
                while batch := reader.read_batch(_BATCH):
                    yield from batch
                return
            except PositionLost as lost:
                if not self._over_gaps or lost.nearest <= lost.wanted:
                    raise
                reader.seek_position(lost.nearest)
                self.skipped += 1
            except CorruptionError:
                if not self._over_gaps or reader.position < self._end:
                    raise
                self.skipped += 1  # what follows the end: the newest segment was cut
                return

    def _append(self, writer: Writer, message: Message) -> int:
        if message.timestamp_ns < self._now_ns:
            self.times_raised += 1
        self._now_ns = max(self._now_ns, message.timestamp_ns)
        if not self._with_headers:
            if self._into == "cq4":
                return writer.append(message.payload)
            return writer.append(message.payload, timestamp_ns=self._now_ns)
        from aiochronicle._maintenance.java_headers import unwrap, wrap  # imports aiochronicle.cq4

        if self._into == "cq4":
            return writer.append(wrap(message))
        payload, key, headers = unwrap(message.payload)
        try:
            return writer.append(payload, timestamp_ns=self._now_ns, key=key, headers=headers)
        except InvalidArgument:  # more headers than a message may have: written by another program
            return writer.append(message.payload, timestamp_ns=self._now_ns)
