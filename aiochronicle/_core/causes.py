"""Records which messages of other queues have a result in a queue: the basis of exactly-once chains.

A chain appends its results with ``cause=``. After a restart it asks ``Writer.last_causes`` which messages
already have a result. A seq alone is not enough: if a power cut destroys messages that were not flushed,
new messages get their seqs, and a chain whose results were on disk would take the new messages for
processed. But a later writer assigns those seqs, and its epoch is on disk before the first message that
carries it. Epoch and seq together therefore identify one message permanently, and within a queue neither
decreases.
"""

import logging
from collections.abc import Iterator, Mapping

import msgspec

from aiochronicle import _hot

__all__ = ["Cause", "Causes"]

_log = logging.getLogger("aiochronicle.causes")


class Cause(msgspec.Struct, frozen=True):
    """A message that has a result; all earlier messages of its queue have one, too."""

    seq: int
    epoch: int  # 0 = unknown: the result named its cause by (queue_id, seq)

    def covers(self, message: _hot.Message) -> bool:
        """Return whether the message is this one or an earlier one."""
        return message.seq <= self.seq and not self.precedes(message.epoch)

    def precedes(self, epoch: int) -> bool:
        """Return whether a writer of this epoch was opened later than the one of the cause."""
        return 0 < self.epoch < epoch


class Causes(Mapping[int, int]):
    """The newest message with a result in each source queue: queue id to seq.

    Use ``covers`` instead of comparing seqs: after a power cut seqs may have been assigned twice. Returned by
    ``Writer.last_causes``.

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
        """Return whether the message already has a result."""
        newest = self._newest.get(message.queue_id)
        return newest is not None and newest.covers(message)

    def add(self, message: _hot.Message) -> None:
        """Record that the message now has a result; add the messages of a queue in their order."""
        newest = self._newest.get(message.queue_id)
        cause = Cause(message.seq, message.epoch)
        if newest is not None and message.seq <= newest.seq and newest.precedes(message.epoch):
            _log.warning(
                "%s lost its messages from seq %d up to at least %d in a power cut;"
                " their results still exist",
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
