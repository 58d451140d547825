"""A histogram of latencies, exact to three per cent, that costs one list access per value."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

__all__ = ["Histogram", "bucket_of", "buckets_of", "octave_of", "value_of"]

# Each power of two is divided into 32 buckets of equal width; values below 64 are exact.
_BITS = 5
_EXACT = 1 << (_BITS + 1)


def bucket_of(value_ns: int) -> int:
    """Return the number of the bucket that holds the value.

    >>> [bucket_of(value) for value in (0, 63, 64, 65, 66)]
    [0, 63, 64, 64, 65]
    """
    shift = value_ns.bit_length() - _BITS - 1
    return value_ns if shift <= 0 else (shift << _BITS) + (value_ns >> shift)


def buckets_of(values_ns: Any) -> Any:
    """Do the same for a numpy array of whole numbers below 2**53.

    >>> import numpy
    >>> values = numpy.array([0, 63, 64, 65, 66, 2**52 + 1])
    >>> buckets_of(values).tolist() == [bucket_of(int(value)) for value in values]
    True
    """
    import numpy as np

    bit_lengths = np.frexp(values_ns.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bit_lengths - _BITS - 1, 0)
    return (shifts << _BITS) + (values_ns >> shifts)


def value_of(bucket: int) -> int:
    """Return the largest value that falls into the bucket.

    >>> all(bucket_of(value_of(b)) == b and bucket_of(value_of(b) + 1) == b + 1 for b in range(900))
    True
    """
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    mantissa = bucket - (shift << _BITS)
    return (mantissa + 1 << shift) - 1


def octave_of(bucket: int) -> int:
    """Return the power of two at or below the values of the bucket."""
    return value_of(bucket).bit_length() - 1


class Histogram:
    """Counts by bucket.

    >>> histogram = Histogram()
    >>> for value in range(1, 101):
    ...     histogram.add(value)
    >>> histogram.total, histogram.percentile(50), histogram.percentile(99)
    (100, 50, 99)
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, value_ns: int) -> None:
        """Count one value; a clock that was set back gives 0."""
        self.counts[bucket_of(value_ns if value_ns > 0 else 0)] += 1

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        self.counts.update(counts)

    def take(self) -> dict[int, int]:
        """Return the counts and start again."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts

    @property
    def total(self) -> int:
        """Number of values."""
        return self.counts.total()

    def percentile(self, percent: float) -> int | None:
        """Return a value that so many per cent do not exceed; None if there are no values."""
        wanted = self.total * percent / 100
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return value_of(bucket)
        return None
