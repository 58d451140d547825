"""Reads messages as Arrow columns.

The engine reads the records once, checks each as a reader does, and copies its fields into Arrow buffers
(csrc/columns.c); no row becomes a Python object. This module has the schema and allocates the buffers.

It needs pyarrow, so other modules import it only when they use it.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from aiochronicle import _hot
from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._base.printable import utf8_name
from aiochronicle._columns.columns import (
    MAY_BE_FIELDS,
    PAYLOAD_BYTES_MAX,
    check_columns,
    handle_of,
    require_arrow,
)
from aiochronicle._layout import TYPE_ID_MAX
from aiochronicle.errors import CorruptionError, InvalidArgument

require_arrow()

import pyarrow as pa  # noqa: E402 - with advice if it is missing

__all__ = ["ColumnReader", "Stretch", "arrow_schema", "capsule"]

# A batch ends early at this much payload, to limit memory.
_BATCH_BYTES_MAX = 64 << 20
_FIRST_GUESS_BYTES = 128
_TRAILER_GUESS_BYTES = 64

_HEADERS = pa.map_(pa.utf8(), pa.binary())

_FIXED = {
    "seq": ("seq", "int64_t *", 8),
    "timestamp_ns": ("timestamp_ns", "int64_t *", 8),
    "timestamp": ("timestamp_us", "int64_t *", 8),
    "type_id": ("type_id", "int32_t *", 4),
}


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of these columns.

    >>> print(arrow_schema(["seq", "payload"]))
    seq: int64 not null
    payload: binary not null
    """
    types: dict[str, pa.DataType] = {
        "source": pa.utf8(),
        "seq": pa.int64(),
        "timestamp_ns": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "type_id": pa.int32(),
        "payload": pa.binary(),
        "late": pa.bool_(),
        "cause": pa.struct(
            [pa.field(name, pa.int64(), nullable=False) for name in ("queue_id", "seq")]
        ),
        "key": pa.binary(),
        "headers": _HEADERS,
    }
    names = check_columns(columns)
    return pa.schema(
        [pa.field(name, types[name], nullable=name in ("cause", "key")) for name in names]
    )


def capsule(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], requested_schema: object
) -> object:
    """Return the batches as an Arrow C stream, which other libraries can import."""
    return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)


class Stretch(NamedTuple):
    """Rows, and the range of seqs that they cover. Seqs without a row are messages of other types."""

    rows: pa.RecordBatch
    first_seq: int
    end_seq: int


class ColumnReader:
    """Reads record batches with a reader, which the caller still owns and closes.

    ``types`` are the type_ids of the messages to read. Of other messages the engine reads only the record
    headers.
    """

    def __init__(
        self,
        reader: _hot.Reader,
        columns: Sequence[str] | None,
        types: Collection[int] | None = None,
    ) -> None:
        self.schema = arrow_schema(columns)
        self._wanted = None if types is None else _bits(types)
        self._handle = handle_of(reader)
        self._source = reader.source
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        # Constant columns are created once; each batch gets a slice.
        self._constants: dict[str, pa.Array] = {}
        self._bytes_per_row: float = _FIRST_GUESS_BYTES

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of this many rows; the last one may be shorter."""
        for stretch in self.stretches(rows, ends_at_gap=False):
            if stretch.rows.num_rows:
                yield stretch.rows

    def stretches(self, rows: int, *, ends_at_gap: bool = True) -> Iterator[Stretch]:
        """Yield batches of this many rows or fewer, possibly none, with the seqs that they cover.

        With ``ends_at_gap`` a batch covers consecutive seqs only, and the next one begins after the gap.
        """
        while (stretch := self._read(rows, _BATCH_BYTES_MAX, ends_at_gap)) is not None:
            yield stretch

    def read(self, rows: int, payload_bytes_max: int = _BATCH_BYTES_MAX) -> pa.RecordBatch:
        """Return the next rows: fewer at the end, or if their payloads would exceed the maximum."""
        stretch = self._read(rows, payload_bytes_max, False)
        if stretch is not None:
            return stretch.rows
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def _read(self, rows: int, payload_bytes_max: int, ends_at_gap: bool) -> Stretch | None:
        guess = min(round(rows * self._bytes_per_row * 1.02) + 1024, payload_bytes_max)
        batch = _Batch(self.schema.names, rows, guess)
        batch.columns.types = ffi.NULL if self._wanted is None else self._wanted
        batch.columns.ends_at_gap = ends_at_gap
        error = new_error()
        while True:
            outcome = check(lib.ac_reader_fill(self._handle, batch.columns, error), error)
            if outcome != lib.AC_FILL_BYTES or not batch.grow(payload_bytes_max):
                break
        if not batch.columns.messages:
            return None
        batch.split_trailers(self._source)
        taken = int(batch.columns.rows)
        if taken:
            self._bytes_per_row = batch.columns.payload_bytes / taken
        arrays = [self._array(batch, name, taken) for name in self.schema.names]
        batch_rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return Stretch(batch_rows, int(batch.columns.first_seq), int(batch.columns.end_seq))

    def _array(self, batch: "_Batch", name: str, rows: int) -> pa.Array:
        if name in ("source", "late"):
            return self._constant(name, rows)
        return batch.array(name, rows, self._types[name])

    def _constant(self, name: str, rows: int) -> pa.Array:
        column = self._constants.get(name)
        if column is None or len(column) < rows:
            value = pa.scalar(
                utf8_name(self._source) if name == "source" else False, self._types[name]
            )
            column = self._constants[name] = pa.repeat(value, rows)
        return column.slice(0, rows)


def _bits(types: Collection[int]) -> Any:
    """Return a bit set of type_ids; numbers that no type_id can have are ignored."""
    bits = ffi.new("uint8_t[]", TYPE_ID_MAX // 8 + 1)
    for number in types:
        if 0 <= number <= TYPE_ID_MAX:
            bits[number // 8] |= 1 << number % 8
    return bits


class _Batch:
    """The buffers of one record batch while the engine fills them."""

    def __init__(self, names: Sequence[str], rows: int, payload_bytes: int) -> None:
        self.columns = ffi.new("ac_columns_t *")
        self.columns.rows_max = rows
        self._buffers: dict[str, pa.Buffer] = {}
        for name in names:
            if name in _FIXED:
                field, pointer, width = _FIXED[name]
                self._allocate(field, pointer, rows * width)
        if "payload" in names:
            self._allocate("payload_offsets", "int32_t *", (rows + 1) * 4)
            self._allocate_payload(payload_bytes)
        if "cause" in names:
            self._allocate("cause_queue_id", "int64_t *", rows * 8)
            self._allocate("cause_seq", "int64_t *", rows * 8)
            self._allocate("cause_valid", "uint8_t *", (rows + 7) // 8)
            ffi.buffer(self.columns.cause_valid, (rows + 7) // 8)[:] = bytes((rows + 7) // 8)
        self._trailers: _TrailerColumns | None = None
        if "key" in names or "headers" in names:
            self._allocate("trailer_offsets", "int32_t *", (rows + 1) * 4)
            self._allocate_trailers(rows * _TRAILER_GUESS_BYTES)

    def _allocate(self, field: str, pointer: str, size: int) -> None:
        buffer = self._buffers[field] = pa.allocate_buffer(size)
        setattr(self.columns, field, ffi.cast(pointer, buffer.address))

    def _allocate_payload(self, size: int) -> None:
        buffer = pa.allocate_buffer(size + lib.AC_COLUMNS_SLACK, resizable=True)
        self._buffers["payload"] = self._payload = buffer
        self.columns.payload = ffi.cast("uint8_t *", buffer.address)
        self.columns.payload_bytes_max = size

    def _allocate_trailers(self, size: int) -> None:
        buffer = pa.allocate_buffer(size, resizable=True)
        self._buffers["trailers"] = self._trailer_bytes = buffer
        self.columns.trailers = ffi.cast("uint8_t *", buffer.address)
        self.columns.trailer_bytes_max = size

    def grow(self, bytes_max: int) -> bool:
        """Enlarge the buffer that was full; False if the batch has reached its maximum size."""
        if self.columns.trailer_bytes_wanted:
            return self._grow_trailers(bytes_max)
        return self._grow_payload(bytes_max)

    def _grow_trailers(self, bytes_max: int) -> bool:
        used, wanted = int(self.columns.trailer_bytes), int(self.columns.trailer_bytes_wanted)
        if self.columns.rows and used + wanted > bytes_max:
            return False
        size = min(max(used + wanted, used * 2), max(bytes_max, used + wanted))
        buffer = self._trailer_bytes
        buffer.resize(size)
        self.columns.trailers = ffi.cast("uint8_t *", buffer.address)
        self.columns.trailer_bytes_max = size
        return True

    def split_trailers(self, source: str) -> None:
        """Split the trailers into keys and headers, if these columns are requested."""
        if "trailers" in self._buffers:
            self._trailers = _TrailerColumns(self.columns, source)

    def _grow_payload(self, payload_bytes_max: int) -> bool:
        used, wanted = int(self.columns.payload_bytes), int(self.columns.payload_bytes_wanted)
        if self.columns.rows and used + wanted > payload_bytes_max:
            return False
        limit = max(payload_bytes_max, used + wanted)
        if limit > PAYLOAD_BYTES_MAX:
            raise InvalidArgument(
                f"a payload of {wanted} bytes does not fit into an Arrow column: the maximum is"
                f" {PAYLOAD_BYTES_MAX} bytes"
            )
        estimated = used / max(int(self.columns.rows), 1) * self.columns.rows_max * 1.02
        size = min(max(used + wanted, used * 2, round(estimated) + 1024), limit)
        buffer = self._payload
        buffer.resize(size + lib.AC_COLUMNS_SLACK)
        self.columns.payload = ffi.cast("uint8_t *", buffer.address)
        self.columns.payload_bytes_max = size
        return True

    def array(self, name: str, rows: int, kind: pa.DataType) -> pa.Array:
        """Return a column with the first rows."""
        make = pa.Array.from_buffers
        if name == "payload":
            offsets, data = self._buffers["payload_offsets"], self._buffers["payload"]
            return make(kind, rows, [None, offsets, data.slice(0, self.columns.payload_bytes)])
        if name == "cause":
            values = [
                make(pa.int64(), rows, [None, self._buffers[field]])
                for field in ("cause_queue_id", "cause_seq")
            ]
            return make(kind, rows, [self._buffers["cause_valid"]], children=values)
        if self._trailers is not None and name in MAY_BE_FIELDS:
            return self._trailers.keys() if name == "key" else self._trailers.headers()
        return make(kind, rows, [None, self._buffers[_FIXED[name][0]]])


class _TrailerColumns:
    """The trailers of a batch, which the engine splits into keys and headers."""

    def __init__(self, columns: Any, source: str) -> None:
        self._rows, size = int(columns.rows), int(columns.trailer_bytes)
        headers_max = size // 4
        self._buffers: dict[str, pa.Buffer] = {}
        self._out = ffi.new("ac_trailer_columns_t *")
        valid_bytes = (self._rows + 7) // 8
        for field, size_bytes in {
            "key_valid": valid_bytes,
            "key_offsets": (self._rows + 1) * 4,
            "keys": size,
            "header_offsets": (self._rows + 1) * 4,
            "name_offsets": (headers_max + 1) * 4,
            "names": size,
            "value_offsets": (headers_max + 1) * 4,
            "values": size,
        }.items():
            buffer = self._buffers[field] = pa.allocate_buffer(size_bytes)
            pointer = "int32_t *" if field.endswith("_offsets") else "uint8_t *"
            setattr(self._out, field, ffi.cast(pointer, buffer.address))
        ffi.buffer(self._out.key_valid, valid_bytes)[:] = bytes(valid_bytes)
        self._count = lib.ac_trailer_columns(
            columns.trailers, columns.trailer_offsets, self._rows, self._out
        )
        if self._count < 0:
            raise CorruptionError(
                f"{source}: key and headers were overwritten while they were read"
            )

    def keys(self) -> pa.Array:
        fields = ("key_valid", "key_offsets", "keys")
        return pa.Array.from_buffers(
            pa.binary(), self._rows, [self._buffers[field] for field in fields]
        )

    def headers(self) -> pa.Array:
        make = pa.Array.from_buffers
        names, values = (
            make(part, self._count, [None, self._buffers[offsets], self._buffers[content]])
            for part, offsets, content in (
                (_HEADERS.key_type, "name_offsets", "names"),
                (_HEADERS.item_type, "value_offsets", "values"),
            )
        )
        entries = pa.StructArray.from_arrays(
            [names, values], fields=[_HEADERS.key_field, _HEADERS.item_field]
        )
        return make(
            _HEADERS, self._rows, [None, self._buffers["header_offsets"]], children=[entries]
        )
