"""The input of a job: its queues, divided into ranges for its tasks."""

from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql.types import IntegralType

from aiochronicle._base.spans import Spans, seq_after
from aiochronicle.errors import ChronicleError, InvalidArgument
from aiochronicle.spark.options import Given, ReadOptions, Roots, read_options, roots_option
from aiochronicle.spark.source.plan import Range, plan
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.snapshot import Snapshot
from aiochronicle.spark.source.typed import find_type, typed_fields

__all__ = ["Input", "find_input"]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Queues, each from a seq up to, but not including, another. Later messages are not included."""

    options: ReadOptions
    sources: dict[str, Source]
    start: dict[str, int]
    end: dict[str, int]
    spans: dict[str, Spans | None]  # as in a Snapshot

    def parts(self) -> list[Range]:
        """Divide it into parts for tasks, queue by queue and in order."""
        return plan(
            self.sources,
            self.start,
            self.end,
            spans=self.spans,
            partitions_min=self.options.partitions_min,
        )

    def range(self, name: str, start: int, end: int) -> Range:
        """Return the part of a queue between two seqs."""
        whole = Range(
            source=self.sources[name],
            start=self.start[name],
            end=self.end[name],
            spans=self.spans[name],
        )
        return whole.part(start, max(start, end))

    def messages(self, name: str) -> int:
        """Return the number of messages of a queue in the input."""
        return self.range(name, self.start[name], self.end[name]).messages

    def seq_after(self, name: str, messages: int) -> int:
        """Return the seq this many messages after the first one of a queue in the input."""
        return seq_after(self.range(name, self.start[name], self.end[name]).gapless, messages)

    def describe(self) -> list[str]:
        """Describe the input, one line per queue."""
        return [
            f"{name}: {self.messages(name):,} messages, seq {self.start[name]} to"
            f" {self.end[name] - 1}"
            if self.messages(name)
            else f"{name}: nothing to read"
            for name in sorted(self.sources)
        ]


def find_input(
    root: Roots,
    options: Mapping[str, Given] | None = None,
    *,
    type_name: str | None = None,
    fields: Iterable[str] = (),
    whole: Iterable[str] = (),
    failed: dict[str, ChronicleError] | None = None,
) -> Input:
    """Find the queues under a root, or several, by the options of ``format("chronicle")``.

    With ``type_name``, those that have it, with these ``fields``, and those of ``whole`` numbers. One that
    cannot be examined is an error; or it is left out, with the reason in ``failed``.
    """
    chosen = read_options({**roots_option(root), **(options or {})})
    if chosen.filter is not None:
        raise InvalidArgument(
            "option filter is for frames, not for jobs: choose queues by subscribe, and times by"
            " startingTimestamp and endingTimestamp"
        )
    snapshot = Snapshot(chosen, failed=failed)
    sources = snapshot.sources
    if type_name is not None:
        sources = _with_type(sources, type_name, fields, whole)
    return Input(
        options=chosen,
        sources=sources,
        start={name: snapshot.start[name] for name in sources},
        end={name: snapshot.end[name] for name in sources},
        spans={name: snapshot.spans[name] for name in sources},
    )


def _with_type(
    sources: Mapping[str, Source], type_name: str, fields: Iterable[str], whole: Iterable[str]
) -> dict[str, Source]:
    known = typed_fields(sources, type_name, ())
    for field in [*fields, *whole]:
        if field not in known:
            raise InvalidArgument(
                f"{type_name} has no field {field!r}: choose from {', '.join(known)}"
            )
    for field in whole:
        if not isinstance(kind := known[field].dataType, IntegralType):
            raise InvalidArgument(
                f"{field} of {type_name} is of type {kind.simpleString()}, and has to be of whole numbers"
            )
    return {
        name: source for name, source in sources.items() if find_type(source, type_name) is not None
    }
