"""Merges the sorted runs of many tasks, with no more than a batch or two of each in memory."""

from collections.abc import Callable, Iterable, Iterator

from aiochronicle.spark.arrow import Batch, pa, pc
from aiochronicle.spark.sink.delta_encoding import decode_deltas
from aiochronicle.spark.sink.runs import BATCH_ROWS, CAUSE, HEADERS, ORDER, WRITTEN, Run

__all__ = ["merge"]

COMPARED = ("source", "seq")  # needed only where rows of several runs must be sorted


class _Head:
    """The position of the merge in one run: a batch, and its remaining rows."""

    def __init__(self, run: Run, queue: str, lacks: dict[str, pa.DataType]) -> None:
        self._numbers = iter(
            [number for share in run.shares if share.queue == queue for number in share.batches]
        )
        self._number = -1
        self._written = _open(run, lambda name: name not in COMPARED)
        self._compared = _open(run, lambda name: name in COMPARED)
        self._deltas = run.deltas
        self._lacks = lacks  # columns that only other runs have, and their types
        self.batch: Batch
        self.is_over = False
        self.first_ns = self.last_ns = 0  # kept, since each step asks all heads for them
        self._advance()

    def take_before(self, bound_ns: int) -> Iterator[Batch]:
        """Yield older rows; all of them are in the current batch, since no head ends before it."""
        yield from self._take(pc.less(self.batch.column("timestamp_ns"), bound_ns).true_count)

    def take_all(self) -> Batch:
        """Return the remaining rows of the current batch."""
        taken = self.batch
        self._advance()
        return taken

    def take_at(self, time_ns: int) -> Iterator[Batch]:
        """Yield the rows of this time, from as many batches as they fill."""
        while not self.is_over:
            count = pc.equal(self.batch.column("timestamp_ns"), time_ns).true_count
            if count == 0:
                return
            yield from self._take(count)

    def _take(self, count: int) -> Iterator[Batch]:
        if count:
            self._complete()
            taken, self.batch = self.batch.slice(0, count), self.batch.slice(count)
            if self.batch.num_rows == 0:
                self._advance()
            else:
                self.first_ns = self.batch.column("timestamp_ns")[0].as_py()
            yield taken

    def _advance(self) -> None:
        self._number = next(self._numbers, -1)
        if self._number < 0:
            self.is_over = True
            return
        self.batch = decode_deltas(self._written.get_batch(self._number), self._deltas)
        times_ns = self.batch.column("timestamp_ns")
        self.first_ns, self.last_ns = times_ns[0].as_py(), times_ns[-1].as_py()
        for name, kind in self._lacks.items():
            self.batch = self.batch.append_column(name, pa.nulls(self.batch.num_rows, kind))
        if self._lacks:  # and in the order that those have
            names = [name for name in WRITTEN if name in self.batch.schema.names]
            self.batch = self.batch.select(names)

    def _complete(self) -> None:
        """Add the columns that order rows of the same time."""
        if COMPARED[0] not in self.batch.schema.names:
            whole = decode_deltas(self._compared.get_batch(self._number), self._deltas)
            left = whole.slice(whole.num_rows - self.batch.num_rows)
            for name in COMPARED:
                self.batch = self.batch.append_column(name, left.column(name))


def _open(run: Run, chosen: Callable[[str], bool]) -> pa.ipc.RecordBatchFileReader:
    """Open a run to read some of its columns."""
    file = pa.memory_map(run.path)
    numbers = [at for at, name in enumerate(pa.ipc.open_file(file).schema.names) if chosen(name)]
    # Handing half a megabyte to other threads takes longer than unpacking it.
    some = pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
    return pa.ipc.open_file(file, options=some)


def _carried_columns(run: Run) -> dict[str, pa.DataType]:
    """Return the optional columns of a run."""
    causes = {"cause": CAUSE} if run.caused else {}
    return {**causes, **({"key": pa.binary(), "headers": HEADERS} if run.headed else {})}


def merge(runs: Iterable[Run], queue: str) -> Iterator[Batch]:
    """Yield the rows of one queue from all runs, in order of time, source and seq.

    They have the columns to be written; cause, key and headers only if one of the runs has any.
    """
    runs = list(runs)
    anywhere: dict[str, pa.DataType] = {}
    for run in runs:
        anywhere |= _carried_columns(run)
    heads: list[_Head] = [
        _Head(
            run, queue, {k: kind for k, kind in anywhere.items() if k not in _carried_columns(run)}
        )
        for run in runs
    ]
    heads = [head for head in heads if not head.is_over]
    while heads:
        bound = min(head.last_ns for head in heads)
        reaching = [head for head in heads if head.first_ns <= bound]
        if len(reaching) == 1:  # as between tasks with consecutive times of one queue
            yield reaching[0].take_all()
            heads = [head for head in heads if not head.is_over]
            continue
        taken = [part for head in heads for part in head.take_before(bound)]
        if not taken:  # all of them are at the same time: their rows must be sorted together
            taken = [part for head in heads for part in head.take_at(bound)]
        heads = [head for head in heads if not head.is_over]
        rows = pa.Table.from_batches(taken)
        if len(taken) > 1:
            rows = rows.sort_by([(name, "ascending") for name in ORDER])
        yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
