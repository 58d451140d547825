"""Whether a queue is still the one that was archived, so that its archive can be continued.

A manifest has the next seq, but a seq does not identify a message permanently: after a power cut, unflushed
messages are gone and later ones get their seqs. The same happens after an older copy of a queue was
restored. Comparing seqs alone would treat new messages as archived, and retention that waits for the archive
would delete them. So the end of the queue and its last archived message are checked first.
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
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.source.queues import Source

__all__ = ["check_continuity", "fingerprint"]


def check_continuity(source: Source, manifest: Manifest, out: str, *, gaps: bool) -> None:
    """Raise NotAQueue or PositionLost if the archive cannot continue with this queue.

    ``gaps`` allows for messages that were removed before they were archived.
    """
    live = source.live_directory
    if live is not None and manifest.queue_id != live.inspect().queue_id:
        raise NotAQueue(
            f"the archive holds another queue of the name {source.name}; give this one an archive of"
            " its own",
            path=out,
        )
    end, first = source.latest(), source.earliest()
    if end < manifest.next_seq:
        raise _lost_its_end(source, manifest, f"it ends at {end}")
    last = fingerprint(source, manifest.next_seq - 1)
    if None not in (last, manifest.last) and last != manifest.last:
        raise _lost_its_end(source, manifest, f"message {manifest.next_seq - 1} is another one now")
    if first > manifest.next_seq and not gaps:
        raise PositionLost(
            f"messages {manifest.next_seq} to {first - 1} of {source.name} were removed before they"
            " were archived",
            path=source.place,
            advice="If retention moved them, say where to (--moved, option archive); else go on without"
            " them (--allow-loss, option failOnDataLoss=false).",
        )


def fingerprint(source: Source, seq: int) -> str | None:
    """Return a fingerprint of a message; None if it can no longer be read."""
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


def _lost_its_end(source: Source, manifest: Manifest, what: str) -> PositionLost:
    return PositionLost(
        f"{source.name} is archived up to seq {manifest.next_seq}, but {what}: a power cut took"
        " messages, or an older copy of the queue was put back",
        path=source.place,
        advice="Keep this archive, which has what was lost, and archive into a new directory.",
    )
