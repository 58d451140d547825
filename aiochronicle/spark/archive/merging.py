"""Messages of one queue from several files, in the order of their seqs."""

from collections.abc import Iterator, Sequence

import numpy as np

from aiochronicle.spark.arrow import Batch, pa

__all__ = ["merged_by_seq"]


def merged_by_seq(files: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    """Merge files, each of which is sorted, into one sorted stream."""
    if len(files) == 1:
        yield from files[0]
        return
    waiting: dict[int, Batch] = {}
    left = dict(enumerate(files))
    while True:
        for number, batches in list(left.items()):
            if number not in waiting:
                for batch in batches:
                    waiting[number] = batch
                    break
                else:
                    del left[number]
        if not waiting:
            return
        # Everything later, from any file, has greater seqs than this one.
        horizon = min(int(_seqs(waiting[number])[-1]) for number in left)
        taken: list[Batch] = []
        for number in list(waiting):
            rows = waiting.pop(number)
            count: int = np.searchsorted(_seqs(rows), horizon, side="right").item()
            if count:
                taken.append(rows.slice(0, count))
            if count < rows.num_rows:
                waiting[number] = rows.slice(count)
        together = pa.concat_batches(taken)
        if len(taken) > 1:
            together = together.take(pa.array(np.argsort(_seqs(together), kind="stable")))
        yield together


def _seqs(batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = batch.column("seq").to_numpy()
    return numbers
