"""Appends rows of an Arrow batch to a queue, without a Python object per row."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._core.writer import Writer
from aiochronicle.spark.arrow import Batch, Column
from aiochronicle.spark.carried import has_trailer, trailer_bytes

__all__ = ["RECORD_OVERHEAD_BYTES", "RECORD_UNIT_BYTES", "TOGETHER_BYTES_MAX", "append_rows"]

Array = np.ndarray[Any, np.dtype[Any]]

# Rows that are appended together become visible together; limits how long a reader waits for them.
TOGETHER_ROWS_MAX = 4096
TOGETHER_BYTES_MAX = 1 << 20
RECORD_UNIT_BYTES = 64  # of the header, and what records are padded to
RECORD_OVERHEAD_BYTES = 256  # headers and padding, generously


def append_rows(writer: Writer, batch: Batch) -> None:
    """Append a batch with columns timestamp_ns, type_id, payload and, if present, cause, key, headers.

    The times must be in order.
    """
    times: Array = np.ascontiguousarray(batch.column("timestamp_ns").to_numpy())
    types: Array = batch.column("type_id").to_numpy()
    caused: Array = np.zeros(batch.num_rows, bool)
    if "cause" in batch.schema.names:
        caused = batch.column("cause").is_valid().to_numpy(zero_copy_only=False)
    slices, sizes = _slices(batch.column("payload"))
    headed = has_trailer(batch)
    sizes = sizes + trailer_bytes(batch)
    times_ns = ffi.cast("uint64_t *", times.ctypes.data)
    handle = ffi.cast("ac_writer_t *", writer._address)
    known = ffi.new("ac_writer_stats_t *")
    lib.ac_writer_stats(handle, known)
    bytes_max = min(TOGETHER_BYTES_MAX, known.segment_size // 2)
    error = new_error()
    for first, end in _stretches(types, caused, headed, sizes, bytes_max):
        if caused[first] or headed[first]:
            _append_as_objects(writer, batch.slice(first, end - first))
            continue
        check(
            lib.ac_writer_append_many(
                handle, slices + first, end - first, int(types[first]), times_ns + first, error
            ),
            error,
        )


def _append_as_objects(writer: Writer, rows: Batch) -> None:
    """Append rows of one type that have more than a payload; if they have a cause, it is one row."""
    columns: dict[str, list[Any]] = rows.to_pydict()
    cause = columns.get("cause", [None])[0]
    writer.append_many(
        columns["payload"],
        type_id=columns["type_id"][0],
        timestamps_ns=columns["timestamp_ns"],
        cause=None if cause is None else (cause["queue_id"] % 2**64, cause["seq"] % 2**64),
        keys=columns.get("key"),
        headers=[dict(pairs or ()) for pairs in columns["headers"]]
        if "headers" in columns
        else None,
    )


def _slices(payloads: Column) -> tuple[Any, Array]:
    """Return the address and length of each payload, as the engine takes them."""
    count = len(payloads)
    _, offsets_buffer, data = payloads.buffers()
    assert offsets_buffer is not None
    offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)[payloads.offset :][: count + 1]
    sizes = np.diff(offsets)
    slices = ffi.new("ac_slice_t[]", count)
    parts = np.frombuffer(ffi.buffer(slices), np.uintp).reshape(count, 2)
    parts[:, 0] = offsets[:-1]
    parts[:, 0] += np.uintp(offsets_buffer.address if data is None else data.address)
    parts[:, 1] = sizes
    return slices, sizes


def _stretches(
    types: Array, caused: Array, headed: Array, sizes: Array, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Yield first and end of the rows that can be appended together.

    Of one type, without a cause, all with key or headers or all without.
    """
    changes = (np.diff(types) != 0) | caused[1:] | caused[:-1] | (headed[1:] != headed[:-1])
    ends_bytes = np.cumsum(sizes + np.int64(RECORD_OVERHEAD_BYTES))
    for first, last in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(types)]):
        while first < last:
            before = int(ends_bytes[first - 1]) if first else 0
            fit = int(np.searchsorted(ends_bytes, before + bytes_max, side="right"))
            end = max(min(last, first + TOGETHER_ROWS_MAX, fit), first + 1)
            yield first, end
            first = end
