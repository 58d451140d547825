"""Whether a queue is still the one that was archived, so that an archive can go on where it ended.

A ledger knows the next seq, but a seq does not name a message for ever: after a power cut, those that
were not flushed are gone and the next ones get their seqs, and so it is when an older copy of a queue
is put back. Who goes on by seq alone would leave out new messages as archived already, and retention
that waits for the archive would delete them. So the end of the queue and its last archived message
are looked at first.
"""

import contextlib

from aiochronicle.digest import StreamDigest
from aiochronicle.errors import (
    CorruptionError,
    NotAQueue,
    PositionLost,
    QueueGone,
    QueueNotFound,
)
from aiochronicle.spark.jobs.ledger import Ledger
from aiochronicle.spark.queues import Source

__all__ = ["check_continuity", "fingerprint"]


def check_continuity(source: Source, ledger: Ledger, out: str, *, gaps: bool) -> None:
    """Raise NotAQueue or PositionLost if the archive cannot go on with this queue.

    ``gaps`` allows for messages that were removed before they were archived.
    """
    live = source.live_directory
    if live is not None and ledger.queue_id != live.inspect().queue_id:
        raise NotAQueue(
            f"the archive holds another queue of the name {source.name}; give this one an archive of"
            " its own",
            path=out,
        )
    end, first = source.latest(), source.earliest()
    if end < ledger.next_seq:
        raise _lost_its_end(source, ledger, f"it ends at {end}")
    last = fingerprint(source, ledger.next_seq - 1)
    if None not in (last, ledger.last) and last != ledger.last:
        raise _lost_its_end(source, ledger, f"message {ledger.next_seq - 1} is another one now")
    if first > ledger.next_seq and not gaps:
        raise PositionLost(
            f"messages {ledger.next_seq} to {first - 1} of {source.name} were removed before they"
            " were archived",
            path=source.place,
            advice="If retention moved them, say where to (--moved, option archive); else go on without"
            " them (--allow-loss, option failOnDataLoss=false).",
        )


def fingerprint(source: Source, seq: int) -> str | None:
    """Return what tells a message from others; None if it cannot be read any more."""
    for part in reversed(source.parts()):
        with (
            contextlib.suppress(CorruptionError, PositionLost, QueueGone, QueueNotFound),
            part.queue() as queue,
        ):
            message = next(iter(queue.slice(max(seq, 0), seq + 1)), None)
            if message is not None:
                digest = StreamDigest([source.name])
                digest.add([message], lambda _: source.name)
                return digest.hexdigest()
    return None


def _lost_its_end(source: Source, ledger: Ledger, what: str) -> PositionLost:
    return PositionLost(
        f"{source.name} is archived up to seq {ledger.next_seq}, but {what}: a power cut took"
        " messages, or an older copy of the queue was put back",
        path=source.place,
        advice="Keep this archive, which has what was lost, and archive into a new directory.",
    )
