"""All queues as one ordered stream, and its digest, which equals that of a strict fan-in over them.

Nothing is shuffled: time is cut into ranges of whole seconds, and each task merges what all queues
have in its range, in the order of the fan-in: by time, then by the name of the queue, then by seq.
The blocks of the digest never span two ranges (see ``aiochronicle.digest``).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from aiochronicle._base.locations import local_path
from aiochronicle._base.report import HtmlStruct, table, titled
from aiochronicle._columns.export import write_parquet
from aiochronicle._files import make_directory
from aiochronicle.digest import SECOND_NS, Block, StreamDigest, digest_of_blocks
from aiochronicle.errors import CorruptionError, InvalidArgument
from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.jobs.plots import Picture, plot_audit
from aiochronicle.spark.jobs.slices import FOREVER_NS, TimeSlice, cut_time
from aiochronicle.spark.options import Given, Roots
from aiochronicle.spark.private_files import directory_mode
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.tasks import run_tasks

__all__ = ["Audit", "audit"]

COLUMNS = ("seq", "timestamp_ns", "timestamp", "type_id", "payload")
DIGESTED = ("seq", "timestamp_ns", "type_id", "payload")
ROWS_PER_TASK = 1 << 21
BATCH_ROWS_TOTAL = 1 << 19  # of all queues together

Array = np.ndarray[Any, np.dtype[Any]]

_BLOCKS = "second long, messages long, digest binary"


class Audit(HtmlStruct, frozen=True, kw_only=True):
    """The digest of the stream and of each of its seconds, for comparing two streams."""

    sources: tuple[str, ...]
    messages: int
    digest: str
    blocks: tuple[Block, ...]

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw how many messages each second has.

        >>> audit(spark, "bus").plot()  # doctest: +SKIP
        """
        return plot_audit(self.blocks, path)

    def _repr_html_(self) -> str:
        rows = [
            ("sources", self.sources),
            ("messages", self.messages),
            ("digest", self.digest),
            ("blocks", len(self.blocks)),
        ]
        return titled("Audit", table(rows))


def audit(
    spark: SparkSession,
    root: Roots,
    *,
    out: str | None = None,
    options: Mapping[str, Given] | None = None,
) -> Audit:
    """Return the digest of all queues under a root as one ordered stream.

    With ``out``, also write the stream there as Parquet files whose names sort in its order. ``StreamDigest``
    over a strict FanIn gives the same digest if the queues were attached in the order of their names.

    >>> audit(spark, "bus").digest  # doctest: +SKIP
    """
    out = None if out is None else local_path(out)
    given = find_input(root, options)
    if out is not None:
        target = Path(out).absolute()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InvalidArgument("something is there already", path=str(target))
        make_directory(target, directory_mode(_readable_mode(given)))
        out = str(target)
    slices = cut_time([given], ROWS_PER_TASK, unit_ns=SECOND_NS)
    found = run_tasks(spark, slices, partial(_digest_slice, given, out), _BLOCKS).collect()
    blocks = tuple(Block(row.second, row.messages, bytes(row.digest)) for row in found)
    sources = tuple(sorted(given.sources))
    return Audit(
        sources=sources,
        messages=sum(block.messages for block in blocks),
        digest=digest_of_blocks(sources, blocks),
        blocks=blocks,
    )


def _readable_mode(given: Input) -> int:
    """Return the mode for users who may read all of the queues."""
    mode = 0o644
    for source in given.sources.values():
        mode &= source.readable_mode()
    return mode


def _digest_slice(given: Input, out: str | None, part: TimeSlice) -> Iterator[Batch]:
    """Merge one range of time, write it on request, and yield its blocks."""
    names = sorted(given.sources)
    digest = StreamDigest(names)
    merged = _merge(given, names, part, DIGESTED if out is None else COLUMNS)

    def rows() -> Iterator[Batch]:
        for numbers, batch in merged:
            digest.add_batch(batch, numbers)
            named = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(names, pa.utf8()))
            arrays = [named.cast(pa.utf8()), *batch.columns]
            yield pa.record_batch(arrays, names=["source", *COLUMNS])

    if out is None:
        for numbers, batch in merged:
            digest.add_batch(batch, numbers)
    elif (first := next(stream := rows(), None)) is not None:
        write_parquet(
            chain([first], stream),
            first.schema,
            Path(out) / f"part-{part.number:05d}.parquet",
            rows_total=0,
            row_group_rows=1 << 18,
            compression="zstd",
            progress=None,
            mode=_readable_mode(given),
        )
    blocks = digest.blocks()
    yield pa.record_batch(
        {
            "second": pa.array([block.second for block in blocks], pa.int64()),
            "messages": pa.array([block.messages for block in blocks], pa.int64()),
            "digest": pa.array([block.digest for block in blocks], pa.binary()),
        }
    )


class _Cursor:
    """One queue in a merge: the rows that were read and not yet returned."""

    def __init__(self, number: int, source: Source, batches: Iterator[Batch]) -> None:
        self.number = number
        self._source = source
        self._batches = batches
        self.exhausted = False
        self._rows: Batch | None = None

    @property
    def finished(self) -> bool:
        """Whether all rows were returned."""
        return self.exhausted and self._rows is None

    @property
    def last_ns(self) -> int:
        """The time before which all rows are known."""
        return FOREVER_NS if self.exhausted or self._rows is None else int(self._times()[-1])

    def fill(self, horizon_ns: int | None = None) -> None:
        """Read on if there are no rows left, or if this queue limits the merge."""
        while not self.exhausted and (self._rows is None or self.last_ns == horizon_ns):
            more = next(self._batches, None)
            if more is None:
                self.exhausted = True
            else:
                rows = more if self._rows is None else pa.concat_batches([self._rows, more])
                self._rows = rows
                if (np.diff(self._times()) < 0).any():
                    raise CorruptionError(
                        f"{self._source.name}: times go back before seq {more.column('seq')[-1]};"
                        " the quality job counts such messages",
                        path=self._source.place,
                    )
            horizon_ns = None

    def take(self, before_ns: int | None) -> Batch | None:
        """Return the rows before a time, or all rows."""
        if self._rows is None:
            return None
        count = self._rows.num_rows
        if before_ns is not None:
            count = int(np.searchsorted(self._times(), before_ns, side="left"))
        taken, rest = self._rows.slice(0, count), self._rows.slice(count)
        self._rows = rest if rest.num_rows else None
        return taken if count else None

    def _times(self) -> Array:
        assert self._rows is not None
        return self._rows.column("timestamp_ns").to_numpy()


def _merge(
    given: Input, names: list[str], part: TimeSlice, columns: Sequence[str]
) -> Iterator[tuple[Array, Batch]]:
    """Yield batches in the order of the stream, each with the numbers of the sources of its rows."""
    batch_rows = max(256, BATCH_ROWS_TOTAL // len(names))
    cursors = [
        _Cursor(
            number,
            given.sources[name],
            read_range(part.range_of(given, name), columns, given.options, batch_rows=batch_rows),
        )
        for number, name in enumerate(names)
    ]
    horizon_ns: int | None = None
    while True:
        for cursor in cursors:
            cursor.fill(horizon_ns)
        cursors = [cursor for cursor in cursors if not cursor.finished]
        if not cursors:
            return
        horizon_ns = min(cursor.last_ns for cursor in cursors)
        if all(cursor.exhausted for cursor in cursors):
            horizon_ns = None  # there may be messages with the timestamp FOREVER_NS
        taken = [
            (cursor, rows) for cursor in cursors if (rows := cursor.take(horizon_ns)) is not None
        ]
        if taken:
            yield _in_order(taken)


def _in_order(taken: list[tuple[_Cursor, Batch]]) -> tuple[Array, Batch]:
    together = pa.concat_batches([rows for _, rows in taken])
    numbers = np.repeat(
        np.array([cursor.number for cursor, _ in taken], np.uint32),
        [rows.num_rows for _, rows in taken],
    )
    if len(taken) == 1:
        return numbers, together
    # Stable, so rows of one time stay in the order of the sources, and of seq within a source.
    order = np.argsort(together.column("timestamp_ns").to_numpy(), kind="stable")
    return numbers[order], together.take(pa.array(order))
