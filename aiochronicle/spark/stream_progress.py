"""The progress of a stream, queue by queue.

PySpark (4.2, 4.3) lets a Python source report offsets only: ``metrics`` of a source are empty in a
StreamingQueryProgress. But its offsets say where the batch began and ended in each queue, and where the queue
ends. The rest is computed here.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from aiochronicle._base.report import HtmlStruct

__all__ = ["ProgressListener", "QueueProgress", "StreamProgress", "stream_progress"]

# In a Java index the cycle is above these bits, or a few more: the difference of indexes of two cycles is
# meaningless.
CYCLE_SHIFT = 32

_OFFSETS = msgspec.json.Decoder(dict[str, int])


class QueueProgress(HtmlStruct, frozen=True, kw_only=True):
    """One queue in a batch: from seq ``start`` to before ``end``, and where the queue ended then.

    ``messages`` is the number of messages in the batch, ``behind`` the number left. They are None if
    unknown: Spark does not say where the first batch of a stream began, and indexes of two cycles of a Java
    queue cannot be subtracted. ``start`` is None in that first batch, and of a queue that has just been
    found.
    """

    name: str
    start: int | None
    end: int
    latest: int | None
    messages: int | None
    behind: int | None


class StreamProgress(HtmlStruct, frozen=True, kw_only=True):
    """One batch of a stream, and how far it is behind its queues.

    ``messages`` and ``behind`` are sums over the ``queues``, None if one of them is None; ``behind_max`` is
    the largest that is known.
    """

    query: str
    batch: int
    time: str
    duration_ms: int
    messages: int | None
    behind: int | None
    behind_max: int
    queues: tuple[QueueProgress, ...]


def stream_progress(progress: StreamingQueryProgress) -> StreamProgress:
    """Return the progress of each queue from a query's progress (``lastProgress``, ``recentProgress``).

    Sources of other formats are left out.

    >>> stream_progress(query.lastProgress).behind  # doctest: +SKIP
    """
    queues = tuple(queue for source in progress.sources for queue in _queues(source))
    return StreamProgress(
        query=progress.name or str(progress.id),
        batch=progress.batchId,
        time=progress.timestamp,
        duration_ms=progress.batchDuration,
        messages=_sum([queue.messages for queue in queues]),
        behind=_sum([queue.behind for queue in queues]),
        behind_max=max((queue.behind or 0 for queue in queues), default=0),
        queues=queues,
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _queues(source: SourceProgress) -> list[QueueProgress]:
    start, end, latest = map(_offsets, (source.startOffset, source.endOffset, source.latestOffset))
    return [
        QueueProgress(
            name=name,
            start=None if start is None else start.get(name),
            end=reached,
            latest=None if latest is None else latest.get(name),
            # A queue that has just been found enters with its first message; nothing of it is read yet.
            messages=None if start is None else _between(start.get(name, reached), reached),
            behind=None if latest is None else _between(reached, latest.get(name, reached)),
        )
        for name, reached in sorted((end or {}).items())
    ]


def _offsets(text: str) -> dict[str, int] | None:
    """Return the offsets of queues; None if there are none, or not of queues."""
    try:
        return _OFFSETS.decode(text)
    except msgspec.DecodeError:
        return None


def _between(start: int, end: int) -> int | None:
    return max(0, end - start) if start >> CYCLE_SHIFT == end >> CYCLE_SHIFT else None


class ProgressListener(StreamingQueryListener):
    """Calls a function with the progress of each batch of each stream over queues.

    The function is called in a thread of Spark's, one batch after the other, also while the next one runs.
    Spark logs its exceptions, which have no other effect. For streams without queues it is not called.

    >>> listener = ProgressListener(lambda progress: print(progress.query, progress.behind))
    >>> spark.streams.addListener(listener)  # doctest: +SKIP
    """

    def __init__(self, tell: Callable[[StreamProgress], Any]) -> None:
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a batch."""
        found = stream_progress(event.progress)
        if found.queues:
            self._tell(found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: there was no batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
