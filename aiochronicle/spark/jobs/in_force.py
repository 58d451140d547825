"""Which quote is in force for each trade, and the last quote of each key, in one range of time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aiochronicle.spark.arrow import Table, pa

__all__ = ["Array", "InOrder"]

Array = np.ndarray[Any, np.dtype[Any]]

_RADIX_MAX = 1 << 16  # numpy sorts numbers of 16 bits without comparing them


class InOrder:
    """Quotes and trades in their common order: by (timestamp_ns, seq), quotes before trades, then by queue.

    If all of them are of one queue, that is the order of their seqs. Rows belong together if their ``keys``
    are equal; null equals null.
    """

    def __init__(
        self, quotes: Table, trades: Table, keys: Sequence[str], *, is_one_queue: bool
    ) -> None:
        self._count = quotes.num_rows
        codes = _codes(pa.concat_tables([one.select(list(keys)) for one in (quotes, trades)]))
        self._of_quotes, self._of_trades = codes[: self._count], codes[self._count :]
        self._order: Array | None = None  # of the quotes, if they are not in it
        seqs = _numbers(quotes, "seq")
        if is_one_queue and (np.diff(seqs) > 0).all():
            self._before = np.searchsorted(seqs, _numbers(trades, "seq"))
            return
        self._order = np.lexsort((_queues(quotes), seqs, _numbers(quotes, "timestamp_ns")))
        self._of_quotes = self._of_quotes[self._order]
        self._before = _count_before(quotes, trades)

    def find_quotes(self) -> pa.Array:
        """Return for each trade which of the quotes is in force; null if none is."""
        if self._count == 0:
            return pa.nulls(len(self._of_trades), pa.int64())
        # One number for the key and the place in the common order: the next smaller one of a quote is that
        # of the quote in force, or of another key. Numbers in order are found several times as fast.
        by_key = np.argsort(_small(self._of_quotes), kind="stable")
        numbers = self._of_quotes[by_key] * (self._count + 1) + by_key
        wanted = np.argsort(_small(self._of_trades), kind="stable")
        codes = self._of_trades[wanted]
        places = np.searchsorted(numbers, codes * (self._count + 1) + self._before[wanted]) - 1
        found = by_key[np.maximum(places, 0)]
        is_found = (places >= 0) & (self._of_quotes[found] == codes)
        chosen, is_missing = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.bool_)
        chosen[wanted], is_missing[wanted] = self._places(found), ~is_found
        return pa.array(chosen, mask=is_missing)

    def find_last(self) -> pa.Array:
        """Return which quotes are the last ones of their keys."""
        last = np.full(int(self._of_quotes.max(initial=-1)) + 1, -1, np.int64)
        last[self._of_quotes] = np.arange(self._count)  # of several assignments the last one stays
        return pa.array(np.sort(self._places(last[last >= 0])))

    def _places(self, in_order: Array) -> Array:
        return in_order if self._order is None else self._order[in_order]


def _count_before(quotes: Table, trades: Table) -> Array:
    """Return how many quotes precede each trade, of any key."""
    times_ns = np.concatenate([_numbers(one, "timestamp_ns") for one in (quotes, trades)])
    seqs = np.concatenate([_numbers(one, "seq") for one in (quotes, trades)])
    is_trade = np.arange(len(seqs)) >= quotes.num_rows
    together = np.lexsort((is_trade, seqs, times_ns))
    before = np.empty(len(together), np.int64)
    before[together] = np.cumsum(~is_trade[together])
    counts: Array = before[quotes.num_rows :]
    return counts


def _codes(keys: Table) -> Array:
    """Return a number for each row, the same for equal rows."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    return np.unique(codes, return_inverse=True)[1] if len(keys.columns) > 1 else codes


def _small(codes: Array) -> Array:
    return codes.astype(np.uint16) if codes.max(initial=0) < _RADIX_MAX else codes


def _numbers(rows: Table, name: str) -> Array:
    numbers: Array = rows.column(name).to_numpy()
    return numbers


def _queues(rows: Table) -> Array:
    """Return numbers that are in the order of the names of the queues."""
    encoded = rows.column("source").combine_chunks().dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    rank = {name: number for number, name in enumerate(sorted(names))}
    ranks: Array = np.array([rank[name] for name in names], np.int64)[encoded.indices.to_numpy()]
    return ranks
