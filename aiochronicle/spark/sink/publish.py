"""Appending staged rows to queues, exactly once: the driver's half of a sink."""

import contextlib
import errno
import logging
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np

from aiochronicle._core.slices import Queue
from aiochronicle._core.writer import Writer
from aiochronicle.errors import (
    ChronicleError,
    DiskFull,
    PositionLost,
    StorageError,
    TimestampOrder,
)
from aiochronicle.spark.arrow import Batch, pc
from aiochronicle.spark.options import WriteOptions
from aiochronicle.spark.sink import journal, staging
from aiochronicle.spark.sink.append import append_rows
from aiochronicle.spark.sink.journal import Journal, Pending, Target
from aiochronicle.spark.sink.merge import merge
from aiochronicle.spark.sink.runs import Run
from aiochronicle.spark.sink.staging import Place
from aiochronicle.spark.sink.targets import open_all, open_to_begin

__all__ = ["abandon", "complete_others", "publish"]

_log = logging.getLogger(__name__)


def publish(
    options: WriteOptions,
    place: Place,
    batch_id: int,
    runs: Sequence[Run],
    *,
    query: str | None = None,
) -> None:
    """Append a batch, of a query if it is part of a stream, unless it was appended before.

    Errors that can be detected in advance are raised before anything is written. If it fails halfway, or is
    killed, the next call for this root completes the batch first.
    """
    complete_others(options, place.writer_id, _queues(runs))
    with journal.open_exclusively(options.path, place.writer_id) as own:
        assert own is not None
        own.check_query(query)
        _complete(options, own)
        written = own.has_written(batch_id)
        if runs and not written:
            if lost := staging.find_lost_runs(options.path, runs):
                raise StorageError(
                    "is gone or damaged, with rows that were staged in it",
                    path=lost[0],
                    advice="Nothing was written: write it again.",
                )
            staging.sync_names(options.path, runs)
            with open_to_begin(options, runs) as writers:
                own.begin(_intend(options, batch_id, runs, writers))
                try:
                    _append_pending(options, own, writers)
                except Exception as error:
                    when = "after the batch had been begun"
                    raise _begun_batch_error(own, options.path, error, when) from error
        elif not written:
            own.end(batch_id)
        place.sweep()
        if journal.is_nameless(place.writer_id):
            own.delete()


def abandon(options: WriteOptions, place: Place, attempt: Path) -> None:
    """Delete the staged files of a failed attempt, unless its batch is already being written."""
    with journal.open_exclusively(options.path, place.writer_id) as own:
        assert own is not None
        runs = () if own.pending is None else own.pending.runs
        if (staged := place.location.child(attempt.name)) not in staging.attempts(place.root, runs):
            staging.discard([staged])
        if journal.is_nameless(place.writer_id) and own.pending is None:
            own.delete()


def _queues(runs: Sequence[Run]) -> Set[str]:
    return {share.queue for run in runs for share in run.shares}


def complete_others(options: WriteOptions, writer_id: str, queues: Set[str]) -> None:
    """Complete the half-written batches of dead writers, and clean up after them.

    A batch that cannot be finished is an error if it blocks this writer, which will write to ``queues``.
    """
    at_work = {writer_id}
    for other in journal.writers(options.path):
        if other != writer_id:
            with contextlib.ExitStack() as stack:
                try:
                    left = stack.enter_context(
                        journal.open_exclusively(options.path, other, wait=False)
                    )
                except (ChronicleError, OSError) as error:
                    _log.warning("left alone what writer %s may have begun: %s", other, error)
                    at_work.add(other)
                    continue
                if left is None or not _finish_other(options, left, writer_id, queues):
                    at_work.add(other)
    staging.sweep_old(options.path, at_work)


def _finish_other(options: WriteOptions, left: Journal, writer_id: str, queues: Set[str]) -> bool:
    """Finish what another writer has begun; return whether it is finished.

    An obstacle is an error for writers to the same queues, and for that writer when it comes back; others
    continue. But a nameless writer will not come back.
    """
    if (pending := left.pending) is not None:
        lost, nameless = False, journal.is_nameless(left.writer_id)
        try:
            lost = bool(staging.find_lost_runs(options.path, pending.runs))
            _complete(options, left)
        except ChronicleError as error:
            if (lost and not nameless) or queues.isdisjoint(_queues(pending.runs)):
                _log.warning("left alone what writer %s has begun: %s", left.writer_id, error)
                return False
            if lost:
                left.delete()
            raise
    if journal.is_nameless(left.writer_id):
        left.delete()
        if pending is not None and journal.is_nameless(writer_id):
            _doubt(options, pending, queues)
    return True


def _doubt(options: WriteOptions, completed: Pending, queues: Set[str]) -> None:
    """Raise ChronicleError if a write may repeat one that has just been completed."""
    if queues & _queues(completed.runs):
        rows = sum(share.rows for run in completed.runs for share in run.shares)
        names = ", ".join(target.queue for target in completed.targets)
        raise ChronicleError(
            f"a write of {rows} rows to {names} that had ended halfway is complete now, and nothing"
            " of this one was written",
            path=options.path,
            advice="If this one was to repeat it, all is done; else write it again. With options"
            " writerId and batchId a repetition is recognised.",
        )


def _complete(options: WriteOptions, own: Journal) -> None:
    """Finish the batch that a predecessor has begun, if there is one."""
    if (pending := own.pending) is not None:
        if lost := staging.find_lost_runs(options.path, pending.runs):
            raise _lost_runs_error(own, pending, lost[0])
        batch = f"batch {pending.batch_id} of writer {own.writer_id}"
        with open_all(options, pending.runs) as writers:
            try:
                _append_pending(options, own, writers)
            except TimestampOrder as error:
                raise TimestampOrder(
                    f"{batch} was written in part, and another program has written newer messages since",
                    path=error.path,
                    advice="A write to this directory with option late=hold completes it with the time"
                    " of the last message.",
                ) from error
            except PositionLost:
                raise
            except Exception as error:
                when = f"while {batch}, which was written in part, was being completed"
                raise _begun_batch_error(own, options.path, error, when) from error
        staging.discard(staging.attempts(options.path, pending.runs))


def _lost_runs_error(own: Journal, pending: Pending, path: str) -> StorageError:
    """Return the error for a batch that was begun and cannot be completed."""
    places = ", ".join(
        f"{target.queue!r} from seq {target.start_seq} on"
        + (f" and in {target.done_rows} messages before" if target.done_rows else "")
        for target in pending.targets
    )
    what = (
        f"is gone or damaged, and with it rows of batch {pending.batch_id} of writer {own.writer_id},"
        f" which was being written; what of it is in the queues is in {places}"
    )
    if journal.is_nameless(own.writer_id):
        advice = "Compare that with the batch. Writing continues without the rest of it."
    else:
        advice = (
            f"Compare that with the batch, then delete {own.path}: the writer forgets"
            " this batch and all before it."
        )
    return StorageError(what, path=path, advice=advice)


def _intend(
    options: WriteOptions, batch_id: int, runs: Sequence[Run], writers: dict[str, Writer]
) -> Pending:
    """Record where the batch will be."""
    targets: list[Target] = []
    for name, writer in writers.items():
        statistics = writer.statistics()
        targets.append(
            Target(
                queue=name,
                start_seq=statistics.next_seq,
                floor_ns=statistics.last_timestamp_ns,
            )
        )
    return Pending(batch_id=batch_id, runs=list(runs), targets=targets, hold_late=options.hold_late)


def _begun_batch_error(own: Journal, root: str, error: Exception, when: str) -> StorageError:
    """Return the error for a batch that can be neither completed now nor taken back."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    kind = DiskFull if full else StorageError
    again = (
        "do not write it again"
        if journal.is_nameless(own.writer_id)
        else "writing it again, under the same ids, does that and doubles nothing"
    )
    return kind(
        f"{error.detail if isinstance(error, ChronicleError) else error}, {when}: some of its rows may"
        " be in the queues",
        path=root,
        errno=error.errno if isinstance(error, OSError) else None,
        advice="Once there is nothing in its way, the next write to this directory completes the batch,"
        f" whatever else it writes: {again}.",
    )


def _append_pending(options: WriteOptions, own: Journal, writers: dict[str, Writer]) -> None:
    """Append the part of the pending batch that is not in its queues yet, and record that it is done."""
    pending = own.pending
    assert pending is not None
    hold_late = options.hold_late or pending.hold_late
    with staging.open_runs(options.path, pending.runs) as runs:
        targets = [
            _find_reached(runs, target, writers[target.queue], hold_late)
            for target in pending.targets
        ]
        if targets != pending.targets:
            own.go_on(targets)
        for target in targets:
            writer = writers[target.queue]
            for batch in _skip_appended(merge(runs, target.queue), target):
                append_rows(writer, batch)
            writer.flush_now()
    own.end(pending.batch_id)


def _find_reached(runs: Sequence[Run], target: Target, writer: Writer, hold_late: bool) -> Target:
    """Return where the rest of a batch begins: at the present end of the queue."""
    more = _count_written(
        _skip_appended(merge(runs, target.queue), target), writer, target.start_seq
    )
    if more:
        writer.flush_now()  # they may be in memory only, and will not be compared again
    statistics = writer.statistics()
    return Target(
        queue=target.queue,
        start_seq=statistics.next_seq,
        floor_ns=statistics.last_timestamp_ns if hold_late else target.floor_ns,
        done_rows=target.done_rows + more,
    )


def _skip_appended(batches: Iterator[Batch], target: Target) -> Iterator[Batch]:
    """Yield the rows that are not known to be done, with their final times."""
    done = target.done_rows
    for batch in batches:
        if done < batch.num_rows:
            yield _raise_times(batch.slice(done), target.floor_ns)
        done = max(done - batch.num_rows, 0)


def _raise_times(batch: Batch, floor_ns: int) -> Batch:
    """Raise times below the floor to it."""
    times = batch.column("timestamp_ns")
    if times[0].as_py() >= floor_ns:
        return batch
    lifted = pc.max_element_wise(times, floor_ns)
    return batch.set_column(batch.schema.get_field_index("timestamp_ns"), "timestamp_ns", lifted)


def _count_written(rows: Iterator[Batch], writer: Writer, start_seq: int) -> int:
    """Count the rows that a predecessor appended before it died.

    They are the first ones, from ``start_seq`` on: while it wrote, it was the only writer.
    """
    seq = start_seq
    while seq < writer.next_seq and (batch := next(rows, None)) is not None:
        same = _common_prefix(batch, writer.path, seq)
        seq += same
        if same < batch.num_rows:
            break  # the following messages are from another writer
    return seq - start_seq


def _common_prefix(batch: Batch, path: str, seq: int) -> int:
    """Count the rows that are the messages of the queue from ``seq`` on, which it has reached."""
    compared = ["timestamp_ns", "type_id", "payload"]
    with Queue(path) as queue:
        there = queue.slice(seq, seq + batch.num_rows).to_arrow(["seq", *compared])
    count = there.num_rows
    if count == 0 or there.column("seq")[0].as_py() != seq:
        raise PositionLost(
            f"message {seq}, the first of a batch, is gone, so nobody can tell how much of the"
            " batch was written",
            path=path,
            advice="Compare its end with the batch; deleting the writer's journal in .sink"
            " gives the batch up.",
        )
    equal = np.ones(count, bool)
    for name in compared:
        same = pc.equal(batch.column(name).slice(0, count), there.column(name).combine_chunks())
        equal &= same.to_numpy(zero_copy_only=False)
    return count if equal.all() else int(equal.argmin())
