"""Keys and headers of rows that are written: their sizes and limits."""

from typing import Any

import numpy as np

from aiochronicle._base.binding import lib
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, Column, Table, pa, pc

__all__ = ["Array", "area_bytes", "check_headers", "has_trailer", "trailer_bytes"]

Array = np.ndarray[Any, np.dtype[Any]]

_END_BYTES, _KEY_BYTES, _HEADER_BYTES = 4, 2, 3  # docs/guide/format.md


def _whole(column: Column | pa.ChunkedArray) -> Column:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lengths(column: Column) -> Array:
    found: Array = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _has_key(rows: Table | Batch) -> Array:
    found: Array = _whole(rows.column("key")).is_valid().to_numpy(zero_copy_only=False)
    return found


def _header_counts(rows: Table | Batch) -> tuple[pa.MapArray, Array]:
    """Return the headers of exactly these rows, and how many each row has."""
    headers = _whole(rows.column("headers"))
    assert isinstance(headers, pa.MapArray)
    counts: Array = np.zeros(len(headers), np.int64)
    offsets = headers.offsets.to_numpy()
    valid = headers.is_valid().to_numpy(zero_copy_only=False)
    counts[valid] = np.diff(offsets)[valid]
    return headers, counts


def has_trailer(rows: Table | Batch) -> Array:
    """Return which rows have a key or headers."""
    if "headers" not in rows.schema.names:
        return np.zeros(rows.num_rows, bool)
    return _has_key(rows) | (_header_counts(rows)[1] > 0)


def trailer_bytes(rows: Table | Batch) -> Array:
    """Return how many bytes key and headers of each row take."""
    if "headers" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    headers, counts = _header_counts(rows)
    has_key = _has_key(rows)
    key_bytes = np.where(has_key, _lengths(_whole(rows.column("key"))) + _KEY_BYTES, 0)
    of_each = _lengths(headers.keys) + _lengths(headers.items) + _HEADER_BYTES
    ends = np.concatenate([[0], np.cumsum(of_each)])
    starts = headers.offsets.to_numpy()[:-1].astype(np.int64)
    header_bytes = ends[starts + counts] - ends[starts]
    size: Array = np.where(has_key | (counts > 0), key_bytes + header_bytes + _END_BYTES, 0)
    return size


def area_bytes(rows: Table | Batch) -> Array:
    """Return the length of each row's record without its header."""
    size: Array = _lengths(_whole(rows.column("payload"))) + trailer_bytes(rows)
    return size


def check_headers(rows: Table | Batch) -> None:
    """Raise InvalidArgument if a row has keys or headers that no message can have."""
    headers, counts = _header_counts(rows)
    if counts.max(initial=0) > lib.AC_HEADERS_MAX:
        raise InvalidArgument(f"a row has {counts.max()} headers: must be at most 64")
    names, values = headers.keys, headers.items
    if len(names) and not 1 <= _lengths(names).min() <= _lengths(names).max() <= 255:
        raise InvalidArgument("a row has a header whose name does not have 1 to 255 bytes")
    if values.null_count:
        raise InvalidArgument("a row has a header whose value is null: leave the header out")
    largest = trailer_bytes(rows).max(initial=0)
    if largest > lib.AC_TRAILER_MAX:
        raise InvalidArgument(
            f"a row has key and headers of {largest} bytes: must be at most {lib.AC_TRAILER_MAX}"
        )
