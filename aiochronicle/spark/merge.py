"""Bringing the runs of many tasks into one order, holding no more than a batch or two of each."""

from collections.abc import Iterable, Iterator

from aiochronicle.spark.arrow import Batch, pa, pc
from aiochronicle.spark.runs import BATCH_ROWS, CAUSE, ORDER, Run

__all__ = ["merge"]


class _Head:
    """Where the merge stands in one run: a batch, and what of it is left."""

    def __init__(self, run: Run, queue: str, caused: bool) -> None:
        self._numbers = iter(
            [number for share in run.shares if share.queue == queue for number in share.batches]
        )
        # Handing half a megabyte to other threads takes longer than unpacking it.
        alone = pa.ipc.IpcReadOptions(use_threads=False)
        self._file = pa.ipc.open_file(pa.memory_map(run.path), options=alone)
        self._lacks_causes = caused and not run.caused
        self.batch: Batch = None
        self.first_ns = self.last_ns = 0  # kept, since each step asks all heads for them
        self._advance()

    def take_before(self, bound_ns: int) -> Iterator[Batch]:
        """Yield what is older; all of it is in the batch at hand, since no head ends before it."""
        yield from self._take(pc.less(self.batch.column("timestamp_ns"), bound_ns).true_count)

    def take_all(self) -> Batch:
        """Return what is left of the batch at hand."""
        taken = self.batch
        self._advance()
        return taken

    def take_at(self, time_ns: int) -> Iterator[Batch]:
        """Yield what is of this time, from as many batches as it fills."""
        while self.batch is not None:
            count = pc.equal(self.batch.column("timestamp_ns"), time_ns).true_count
            if count == 0:
                return
            yield from self._take(count)

    def _take(self, count: int) -> Iterator[Batch]:
        if count:
            taken, self.batch = self.batch.slice(0, count), self.batch.slice(count)
            if self.batch.num_rows == 0:
                self._advance()
            else:
                self.first_ns = self.batch.column("timestamp_ns")[0].as_py()
            yield taken

    def _advance(self) -> None:
        number = next(self._numbers, None)
        self.batch = None if number is None else self._file.get_batch(number)
        if self.batch is None:
            return
        times_ns = self.batch.column("timestamp_ns")
        self.first_ns, self.last_ns = times_ns[0].as_py(), times_ns[-1].as_py()
        if self._lacks_causes:
            self.batch = self.batch.append_column("cause", pa.nulls(self.batch.num_rows, CAUSE))


def merge(runs: Iterable[Run], queue: str) -> Iterator[Batch]:
    """Yield the rows of one queue from all runs, in order of time, source and seq.

    They have the columns of a run but for cause, if none of the runs has any.
    """
    runs = list(runs)
    caused = any(run.caused for run in runs)
    heads: list[_Head] = [_Head(run, queue, caused) for run in runs]
    heads = [head for head in heads if head.batch is not None]
    while heads:
        bound = min(head.last_ns for head in heads)
        reaching = [head for head in heads if head.first_ns <= bound]
        if len(reaching) == 1:  # as between tasks that had one queue's times behind each other
            yield reaching[0].take_all()
            heads = [head for head in heads if head.batch is not None]
            continue
        taken = [part for head in heads for part in head.take_before(bound)]
        if not taken:  # all of them stand at this very time: their rows are to be sorted together
            taken = [part for head in heads for part in head.take_at(bound)]
        heads = [head for head in heads if head.batch is not None]
        rows = pa.Table.from_batches(taken)
        if len(taken) > 1:
            rows = rows.sort_by([(name, "ascending") for name in ORDER])
        yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
