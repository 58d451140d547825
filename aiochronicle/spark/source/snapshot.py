"""The queues of a frame at the moment of loading."""

from aiochronicle._base.spans import Span, Spans, count
from aiochronicle.errors import ChronicleError
from aiochronicle.spark.filters import Narrowing
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source import offsets
from aiochronicle.spark.source.damage import openable
from aiochronicle.spark.source.queues import Source, find_sources

__all__ = ["Snapshot"]


class Snapshot:
    """The queues of a frame, with the range of each.

    ``spans`` are the existing indexes of a Java queue in its range. One that cannot tell is an error; or it
    is left out, with the reason in ``failed``.
    """

    def __init__(
        self, options: ReadOptions, *, failed: dict[str, ChronicleError] | None = None
    ) -> None:
        self.sources: dict[str, Source] = {}
        self.start: dict[str, int] = {}
        self.end: dict[str, int] = {}
        self.spans: dict[str, Spans | None] = {}
        found = openable(find_sources(options), options, failed=failed)
        end_of, start_of = offsets.ends(found, options), offsets.starts(found, options, "earliest")
        for name, source in found.items():
            try:
                source.check_seqs()
                self.end[name], self.start[name] = end_of(source), start_of(source)
                if options.filter is not None:
                    start, end = self.start[name], self.end[name]
                    self.start[name], self.end[name] = _clip(options.filter, source, start, end)
                self.spans[name] = source.spans(self.start[name], self.end[name])
                self.sources[name] = source
            except ChronicleError as error:
                if failed is None:
                    raise
                failed[name] = error

    def messages(self, name: str) -> int:
        """Return the number of messages of a queue in it."""
        start, end, spans = self.start[name], self.end[name], self.spans[name]
        return count((Span(start, max(start, end)),) if spans is None else spans)


def _clip(passing: Narrowing, source: Source, start: int, end: int) -> tuple[int, int]:
    """Return the part of a range of seqs that can pass a filter.

    A field with the time of messages of a Java queue may have gone back, so it narrows nothing.
    """
    times = passing.time_ns
    start, end = max(start, passing.seq.start), min(end, passing.seq.end)
    if times.start >= times.end or times.end <= 0:
        return start, start
    if source.timestamp is not None or start >= end:
        return start, max(start, end)
    return source.clip(start, end, start_ns=times.start_ns, end_ns=times.end_ns)
