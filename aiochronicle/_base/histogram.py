"""A histogram of times of either sign, accurate to three per cent. Adding a value is one dict update."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

__all__ = ["Histogram", "bucket_of", "buckets_of", "value_of"]

# Each power of two is divided into 32 buckets of equal width; values below 64 are exact. The bucket of a
# negative value is minus the bucket of its magnitude.
_BITS = 5
_EXACT = 1 << (_BITS + 1)


def bucket_of(value_ns: int) -> int:
    """Return the number of the bucket that holds the value.

    >>> [bucket_of(value) for value in (0, 63, 64, 65, 66, -66)]
    [0, 63, 64, 64, 65, -65]
    """
    if value_ns < 0:
        return -bucket_of(-value_ns)
    shift = value_ns.bit_length() - _BITS - 1
    return value_ns if shift <= 0 else (shift << _BITS) + (value_ns >> shift)


def buckets_of(values_ns: Any) -> Any:
    """Return the buckets of a numpy array of integers above -(2**63).

    >>> import numpy
    >>> values = numpy.array([0, 63, 64, 65, 66, 2**52 + 1, 2**62 - 1, 2**63 - 1, -1, -64, -(2**62)])
    >>> buckets_of(values).tolist() == [bucket_of(int(value)) for value in values]
    True
    """
    import numpy as np

    sizes = np.abs(values_ns)
    # Where the conversion rounds up to a power of two, the result is the same bucket.
    bit_lengths = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bit_lengths - _BITS - 1, 0)
    return np.sign(values_ns) * ((shifts << _BITS) + (sizes >> shifts))


def value_of(bucket: int) -> int:
    """Return the largest value that falls into the bucket.

    >>> buckets = range(-900, 900)
    >>> all(bucket_of(value_of(b)) == b and bucket_of(value_of(b) + 1) == b + 1 for b in buckets)
    True
    """
    if bucket < 0:
        return -(value_of(-bucket - 1) + 1)
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    mantissa = bucket - (shift << _BITS)
    return (mantissa + 1 << shift) - 1


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
        """Count a latency. A negative one, which a clock that was set back causes, counts as 0."""
        self.counts[bucket_of(value_ns if value_ns > 0 else 0)] += 1

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        self.counts.update(counts)

    def take(self) -> dict[int, int]:
        """Return the counts and reset them."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts

    @property
    def total(self) -> int:
        """Number of values."""
        return self.counts.total()

    def percentile(self, percent: float) -> int | None:
        """Return the value at this percentile; None if there are no values."""
        wanted = self.total * percent / 100
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return value_of(bucket)
        return None
