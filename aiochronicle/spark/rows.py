"""Reading a range of messages as Arrow batches, and noticing what is missing.

Within a queue seq is gapless, so a batch that does not begin where the last one ended tells of
messages that are gone: corrupt ones that were stepped over, or segments that retention took away
under the running query. A segment that was moved to the archive meanwhile is found there.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Literal

from aiochronicle.columns import BATCH_ROWS
from aiochronicle.errors import PositionLost, QueueGone, QueueNotFound
from aiochronicle.slices import Queue
from aiochronicle.spark.arrow import Batch
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.plan import Range

__all__ = ["read_range"]

_log = logging.getLogger(__name__)


def read_range(
    part: Range, columns: Sequence[str], options: ReadOptions, *, batch_rows: int = BATCH_ROWS
) -> Iterator[Batch]:
    """Yield the messages of the range; ``seq`` must be among the columns.

    What is missing is an error (PositionLost), or is left out and told in the log, as
    ``failOnDataLoss`` and ``on_corrupt`` say.
    """
    expected = part.start
    corrupt = 0
    while expected < part.end:
        reached = expected
        for batch in _everywhere(part, expected, columns, options, batch_rows):
            first, last = batch.column("seq")[0].as_py(), batch.column("seq")[-1].as_py()
            if first > reached and reached > expected:
                break  # look around again before believing in a gap
            if first > reached:
                corrupt += _account_for(part, reached, first, options)
            corrupt += last - first + 1 - batch.num_rows
            yield batch
            reached = last + 1
        if reached == expected:
            corrupt += _account_for(part, reached, part.end, options)
            break
        expected = reached
    if corrupt:
        where = f"messages {part.start} to {part.end - 1} of {part.source.name}"
        _log.warning("%s: stepped over %d corrupt of %s", part.source.place, corrupt, where)


def _everywhere(
    part: Range, start: int, columns: Sequence[str], options: ReadOptions, batch_rows: int
) -> Iterator[Batch]:
    """Read on from ``start`` in each directory of the queue, oldest first."""
    for directory in part.source.parts():
        try:
            for batch in _batches(directory, start, part.end, columns, options, batch_rows):
                yield batch
                start = batch.column("seq")[-1].as_py() + 1
        except (PositionLost, QueueGone, QueueNotFound):
            continue  # removed or moved while it was read: the gap will tell
        if start >= part.end:
            return


def _account_for(part: Range, first: int, end: int, options: ReadOptions) -> int:
    """Decide about the messages from ``first`` to before ``end``; return how many are corrupt."""
    if options.skip_corrupt and first >= part.source.earliest():
        return end - first
    what = f"messages {first} to {end - 1} of {part.source.name} are gone"
    if options.fail_on_data_loss:
        raise PositionLost(
            f"{what}: retention removed them, or they were lost in a power cut;"
            " failOnDataLoss=false reads on without them",
            path=part.source.place,
        )
    _log.warning("%s: %s", part.source.place, what)
    return 0


def _batches(
    directory: str,
    start: int,
    end: int,
    columns: Sequence[str],
    options: ReadOptions,
    batch_rows: int,
) -> Iterator[Batch]:
    on_corrupt: Literal["raise", "skip"] = "skip" if options.skip_corrupt else "raise"
    with Queue(directory, verify=options.verify, on_corrupt=on_corrupt) as queue:
        yield from queue.slice(start, end).batches(batch_rows, columns)
