"""Which messages of other queues have their result in a queue: the memory of an exactly-once chain.

A chain appends its results with ``cause=``, and after a restart asks ``Writer.last_causes`` what
has its result already. A seq alone would not do for that. If a power cut takes messages that were
not flushed, their seqs are given to the next ones, and a chain whose results were on disk would
take new orders for done. But those seqs are given by a writer that was opened later, and the epoch
that counts writers is on disk before the first message that carries it. So epoch and seq together
name one message for ever, and within a queue both only grow.
"""

import logging
from collections.abc import Iterator, Mapping

import msgspec

from aiochronicle import _hot

__all__ = ["Cause", "Causes"]

_log = logging.getLogger(__name__)


class Cause(msgspec.Struct, frozen=True):
    """A message that has its result, and with it everything before it in its queue."""

    seq: int
    epoch: int  # 0 = not known: the result named its cause by (queue_id, seq)

    def covers(self, message: _hot.Message) -> bool:
        """Tell whether the message is this one or before it."""
        return message.seq <= self.seq and not self.precedes(message.epoch)

    def precedes(self, epoch: int) -> bool:
        """Tell whether a writer of this epoch was opened later than the one of the cause."""
        return 0 < self.epoch < epoch


class Causes(Mapping[int, int]):
    """Of each source queue, the newest message that has its result: queue id to its seq.

    Ask ``covers`` about a message rather than comparing seqs: after a power cut they may have been
    given twice. From ``Writer.last_causes``.

    >>> with open_writer(tmp_path / "orders") as orders, open_reader(orders.path) as reader:
    ...     seq = orders.append(b"buy")
    ...     order = reader.poll()
    >>> with open_writer(tmp_path / "fills") as fills:
    ...     before = fills.last_causes().covers(order)
    ...     seq = fills.append(b"bought", cause=order)
    ...     before, fills.last_causes().covers(order)
    (False, True)
    """

    def __init__(self, newest: dict[int, Cause]) -> None:
        self._newest = newest

    def covers(self, message: _hot.Message) -> bool:
        """Tell whether the message has its result already."""
        newest = self._newest.get(message.queue_id)
        return newest is not None and newest.covers(message)

    def add(self, message: _hot.Message) -> None:
        """Note that the message has its result now; those of a queue are added in their order."""
        newest = self._newest.get(message.queue_id)
        cause = Cause(message.seq, message.epoch)
        if newest is not None and message.seq <= newest.seq and newest.precedes(message.epoch):
            _log.warning(
                "%s lost its messages from seq %d on, up to %d or more, in a power cut;"
                " their results are there",
                message.source,
                message.seq,
                newest.seq,
            )
        self._newest[message.queue_id] = cause

    def __getitem__(self, queue_id: int) -> int:
        return self._newest[queue_id].seq

    def __iter__(self) -> Iterator[int]:
        return iter(self._newest)

    def __len__(self) -> int:
        return len(self._newest)

    def __repr__(self) -> str:
        return f"Causes({dict(self)})"
