"""A digest of an ordered stream of messages that does not depend on how the stream was read.

Two streams have the same digest if they have the same sources and the same messages (time, type,
payload) in the same order. The seq is left out, so a replayed queue has the digest of the original. A strict
FanIn computes the digest message by message, the ``audit`` job from columns and in parts. Both get the same
result, because the digest is built from blocks that do not depend on how the stream was divided:

1. A block is a run of messages within one whole second of timestamps.
2. Its digest is the SHA-256 of five SHA-256 digests, one per column of the block: number of the
   source (u32), timestamp_ns (i64), type_id (i32), length of the payload (u32), all little-endian,
   and the payloads themselves.
3. The digest of the stream is the SHA-256 of the names of the sources (as a JSON list, in their
   order) followed by second (i64), number of messages (u64) and digest of each block.

Comparing the blocks of two streams therefore shows the second in which they begin to differ.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import msgspec

from aiochronicle._base.printable import utf8_name
from aiochronicle._hot import Message
from aiochronicle.errors import InvalidArgument

__all__ = ["Block", "StreamDigest", "digest_of_blocks", "parts_of_binary"]

SECOND_NS = 1_000_000_000
_BLOCK = struct.Struct("<qQ32s")


class Block(msgspec.Struct, frozen=True):
    """The messages of one whole second."""

    second: int
    messages: int
    digest: bytes


def digest_of_blocks(sources: Sequence[str], blocks: Iterable[Block]) -> str:
    """Return the digest of the stream that consists of these blocks, in this order."""
    whole = hashlib.sha256(msgspec.json.encode([utf8_name(source) for source in sources]))
    for block in blocks:
        whole.update(_BLOCK.pack(block.second, block.messages, block.digest))
    return whole.hexdigest()


class StreamDigest:
    """Digest of a stream of messages from these sources; equal times in the order of ``sources``.

    >>> with open_reader(queue) as reader:
    ...     digest = StreamDigest([reader.source])
    ...     digest.add(reader)
    >>> digest.messages
    1
    """

    def __init__(self, sources: Sequence[str]) -> None:
        if len(set(sources)) != len(sources):
            raise InvalidArgument(f"a source occurs twice: {', '.join(sources)}")
        self.sources = tuple(sources)
        self.messages = 0
        self._numbers = {name: number for number, name in enumerate(sources)}
        self._blocks: list[Block] = []
        self._open: _OpenBlock | None = None

    def add(
        self,
        messages: Iterable[Message],
        name_of: Callable[[Message], str] = attrgetter("source"),
    ) -> None:
        """Add messages, in order; ``name_of`` returns the source of each, by default its directory's name."""
        for second, group in groupby(messages, lambda message: message.timestamp_ns // SECOND_NS):
            block = self._block_of(second)
            # In chunks, so that a busy second needs little memory.
            for chunk in _chunks(group, 1024):
                count = len(chunk)
                payloads = [message.payload for message in chunk]
                numbers = [self._number_of(name_of(message)) for message in chunk]
                times_ns = [message.timestamp_ns for message in chunk]
                types = [message.type_id for message in chunk]
                block.update(
                    count,
                    struct.pack(f"<{count}I", *numbers),
                    struct.pack(f"<{count}q", *times_ns),
                    struct.pack(f"<{count}i", *types),
                    struct.pack(f"<{count}I", *map(len, payloads)),
                    b"".join(payloads),
                )
                self.messages += count

    def add_batch(self, batch: Any, numbers: Any = 0) -> None:
        """Add messages as a record batch with columns timestamp_ns, type_id and payload, in order.

        ``numbers`` are the indexes of their sources: an array, or one for all.
        """
        import numpy as np

        rows: int = batch.num_rows
        if rows == 0:
            return
        times_ns = batch.column("timestamp_ns").to_numpy()
        types = batch.column("type_id").to_numpy()
        offsets, content = parts_of_binary(batch.column("payload"))
        lengths = np.diff(offsets).astype("<u4", copy=False)
        numbers = np.broadcast_to(np.asarray(numbers, "<u4"), (rows,))
        seconds = times_ns // SECOND_NS
        cuts = [0, *(np.flatnonzero(np.diff(seconds)) + 1).tolist(), rows]
        for first, end in pairwise(cuts):
            self._block_of(int(seconds[first])).update(
                end - first,
                np.ascontiguousarray(numbers[first:end]).data,
                np.ascontiguousarray(times_ns[first:end], "<i8").data,
                np.ascontiguousarray(types[first:end], "<i4").data,
                lengths[first:end].data,
                content[int(offsets[first]) : int(offsets[end])],
            )
        self.messages += rows

    def blocks(self) -> list[Block]:
        """Return the blocks of the messages added so far."""
        return [*self._blocks, *([] if self._open is None else [self._open.close()])]

    def hexdigest(self) -> str:
        """Return the digest of the messages added so far."""
        return digest_of_blocks(self.sources, self.blocks())

    def _number_of(self, source: str) -> int:
        try:
            return self._numbers[source]
        except KeyError:
            raise InvalidArgument(
                f"a message is from {source!r}, which is not a source of this digest:"
                f" {', '.join(self.sources)}"
            ) from None

    def _block_of(self, second: int) -> "_OpenBlock":
        if self._open is None or self._open.second != second:
            if self._open is not None:
                self._blocks.append(self._open.close())
            self._open = _OpenBlock(second)
        return self._open


class _OpenBlock:
    """A block to which messages may still be added."""

    def __init__(self, second: int) -> None:
        self.second = second
        self._messages = 0
        self._columns = tuple(hashlib.sha256() for _ in range(5))

    def update(self, messages: int, *columns: bytes | memoryview) -> None:
        self._messages += messages
        for column, content in zip(self._columns, columns, strict=True):
            column.update(content)

    def close(self) -> Block:
        parts = b"".join(column.digest() for column in self._columns)
        return Block(self.second, self._messages, hashlib.sha256(parts).digest())


def _chunks(messages: Iterator[Message], size: int) -> Iterator[list[Message]]:
    chunk: list[Message] = []
    for message in messages:
        chunk.append(message)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def parts_of_binary(column: Any) -> tuple[Any, memoryview]:
    """Return the offsets of a binary column, and the bytes that they index."""
    import numpy as np

    _, offsets, content = column.buffers()
    first = column.offset
    return (
        np.frombuffer(offsets, np.int32)[first : first + len(column) + 1],
        memoryview(b"" if content is None else content),
    )
