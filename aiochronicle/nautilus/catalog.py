"""Objects of nautilus_trader in queues, and between queues and its Parquet catalog."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, Protocol

import msgspec

from aiochronicle._base.arguments import positive
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle.errors import InvalidArgument
from aiochronicle.nautilus.bus import Serializer

__all__ = ["append_objects", "read_objects", "write_catalog"]

_BATCH = 1024


class Catalog(Protocol):
    """The part of nautilus_trader's ``ParquetDataCatalog`` that is used here."""

    def write_data(self, data: list[Any]) -> None: ...


def _default_serializer() -> Serializer:
    """Return the serializer of a node with the default MessageBusConfig."""
    module = import_module("nautilus_trader.serialization.serializer")  # it has no type hints
    made: Serializer = module.MsgSpecSerializer(encoding=msgspec.msgpack, timestamps_as_str=True)
    return made


def read_objects(
    messages: Iterable[Message[Any]], *, serializer: Serializer | None = None
) -> Iterator[Any]:
    """Yield the objects of recorded messages, for example for ``BacktestEngine.add_data``.

    ``serializer`` is that of the bus that was recorded, ``node.kernel.msgbus.serializer``; by default
    MessagePack with timestamps as text, the default of nodes. Other messages are yielded as decoded values.
    """
    deserialize = (serializer or _default_serializer()).deserialize
    for message in messages:
        yield deserialize(message.payload)


def append_objects(
    writer: Writer[Any],
    objects: Iterable[Any],
    *,
    topic: Callable[[Any], str],
    serializer: Serializer | None = None,
) -> int:
    """Append objects, for example from a catalog, as a bus would have published them; return how many.

    ``topic`` says on which topic. The timestamp of a message is the object's ``ts_init``, so they must be
    sorted by it.
    """
    serialize = (serializer or _default_serializer()).serialize
    remaining, count = iter(objects), 0
    while batch := list(islice(remaining, _BATCH)):
        writer.append_many(
            [serialize(one) for one in batch],
            timestamps_ns=[one.ts_init for one in batch],
            keys=[topic(one).encode() for one in batch],
        )
        count += len(batch)
    return count


def write_catalog(
    messages: Iterable[Message[Any]],
    catalog: Catalog,
    *,
    types: type | tuple[type, ...],
    serializer: Serializer | None = None,
    max_messages: int = 100_000,
) -> int:
    """Write the objects of these types to a catalog; return how many.

    A catalog takes files whose times do not overlap. So at most ``max_messages`` objects are sorted by
    ``ts_init`` and written at a time, and those of the last instant wait for the next file. An object that
    arrives too late for this raises InvalidArgument; what came before it is written.
    """
    most = positive("max_messages", max_messages)
    wanted = (
        one for one in read_objects(messages, serializer=serializer) if isinstance(one, types)
    )
    waiting: list[Any] = []
    written, written_to_ns = 0, -1
    while chunk := list(islice(wanted, most)):
        waiting = sorted([*waiting, *chunk], key=_time_of)
        if waiting[0].ts_init <= written_to_ns:
            raise InvalidArgument(
                f"an object of ts_init {waiting[0].ts_init} comes after a file up to {written_to_ns}"
                f" was written; give more than max_messages={most}"
            )
        ready = [one for one in waiting if one.ts_init < waiting[-1].ts_init]
        if ready:
            catalog.write_data(ready)
            written_to_ns = ready[-1].ts_init
        waiting = waiting[len(ready) :]
        written += len(ready)
    if waiting:
        catalog.write_data(waiting)
    return written + len(waiting)


def _time_of(one: Any) -> int:
    return int(one.ts_init)
