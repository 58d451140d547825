"""Messages as Arrow columns.

The engine walks the records once, checks each as a reader does, and copies its parts to where Arrow
wants them (csrc/columns.c); no row ever is a Python object. Here are the schema, which is always the
same, and the buffers.

============== =========================== ====================================================
column         Arrow type
============== =========================== ====================================================
source         utf8                        name of the queue
seq            int64
timestamp_ns   int64                       the truth
timestamp      timestamp[us, UTC]          the same, for windows and for reading
type_id        int32
payload        binary                      read, and checked, only if it is asked for
late           bool                        on request; always false, a queue has no late messages
cause          struct<queue_id, seq>       on request; null for messages without a cause. Both are
                                           int64: ids of 2**63 and more appear as negative
============== =========================== ====================================================
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aiochronicle import _hot
from aiochronicle._arguments import expect_several
from aiochronicle._binding import check, ffi, lib, new_error
from aiochronicle.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "BATCH_ROWS",
    "COLUMNS",
    "ON_REQUEST",
    "PAYLOAD_BYTES_MAX",
    "ColumnReader",
    "arrow",
    "arrow_schema",
    "capsule",
    "check_columns",
    "handle_of",
]

COLUMNS = ("source", "seq", "timestamp_ns", "timestamp", "type_id", "payload")
ON_REQUEST = ("late", "cause")

# A batch ends early at this much payload, so that memory is bounded whatever the messages.
_BATCH_BYTES_MAX = 64 << 20
_FIRST_GUESS_BYTES = 128

PAYLOAD_BYTES_MAX = 2**31 - 1  # Arrow's binary type has offsets of 32 bits
BATCH_ROWS = 8192

_FIXED = {
    "seq": ("seq", "int64_t *", 8),
    "timestamp_ns": ("timestamp_ns", "int64_t *", 8),
    "timestamp": ("timestamp_us", "int64_t *", 8),
    "type_id": ("type_id", "int32_t *", 4),
}


def arrow() -> Any:
    """Return pyarrow, or say how to get it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            'Arrow columns need pyarrow: pip install "aiochronicle[arrow]"', name="pyarrow"
        ) from error
    return pyarrow


def check_columns(
    columns: Sequence[str] | None,
    usual: Sequence[str] = COLUMNS,
    on_request: Sequence[str] = ON_REQUEST,
) -> tuple[str, ...]:
    """Return the names of the columns that were asked for, or say which there are."""
    if columns is None:
        return tuple(usual)
    expect_several("columns", "a list of names", columns)
    known = (*usual, *on_request)
    names = tuple(columns)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        wrong = f"no column {unknown[0]!r}" if unknown else f"columns {list(names)!r}"
        raise InvalidArgument(f"{wrong}: choose some, each once, of {', '.join(known)}")
    return names


def arrow_schema(columns: Sequence[str] | None = None) -> "pyarrow.Schema":
    """Return the schema of these columns.

    >>> print(arrow_schema(["seq", "payload"]))
    seq: int64 not null
    payload: binary not null
    """
    pa = arrow()
    types = {
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
    }
    names = check_columns(columns)
    schema: pyarrow.Schema = pa.schema(
        [pa.field(name, types[name], nullable=name == "cause") for name in names]
    )
    return schema


def handle_of(reader: _hot.Reader) -> Any:
    """Return the engine's handle of a reader."""
    return ffi.cast("ac_reader_t *", reader._address)


def capsule(
    schema: "pyarrow.Schema", batches: "Iterator[pyarrow.RecordBatch]", requested_schema: object
) -> object:
    """Return the batches as the stream that libraries hand to each other."""
    return (
        arrow().RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)
    )


class ColumnReader:
    """Reads record batches with a reader that stays its owner's."""

    def __init__(self, reader: _hot.Reader, columns: Sequence[str] | None) -> None:
        self.schema = arrow_schema(columns)
        self._pa = arrow()
        self._handle = handle_of(reader)
        self._source = reader.source
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        # Columns that never change are made once, and each batch has a slice of them.
        self._constants: dict[str, Any] = {}
        self._bytes_per_row: float = _FIRST_GUESS_BYTES

    def batches(self, rows: int) -> Iterator["pyarrow.RecordBatch"]:
        """Yield batches of so many rows, the last one of what is left, until there is no more."""
        while (batch := self.read(rows)).num_rows:
            yield batch

    def read(self, rows: int, payload_bytes_max: int = _BATCH_BYTES_MAX) -> "pyarrow.RecordBatch":
        """Return the next rows: fewer at the end, or when their payloads are that large."""
        guess = min(round(rows * self._bytes_per_row * 1.02) + 1024, payload_bytes_max)
        batch = _Batch(self._pa, self.schema.names, rows, guess)
        error = new_error()
        while True:
            outcome = check(lib.ac_reader_fill(self._handle, batch.columns, error), error)
            if outcome != lib.AC_FILL_BYTES or not batch.grow(payload_bytes_max):
                break
        taken = int(batch.columns.rows)
        if taken:
            self._bytes_per_row = batch.columns.payload_bytes / taken
        arrays = [self._array(batch, name, taken) for name in self.schema.names]
        made: pyarrow.RecordBatch = self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return made

    def _array(self, batch: "_Batch", name: str, rows: int) -> Any:
        if name in ("source", "late"):
            return self._constant(name, rows)
        return batch.array(name, rows, self._types[name])

    def _constant(self, name: str, rows: int) -> Any:
        made = self._constants.get(name)
        if made is None or len(made) < rows:
            value = self._pa.scalar(self._source if name == "source" else False, self._types[name])
            made = self._constants[name] = self._pa.repeat(value, rows)
        return made.slice(0, rows)


class _Batch:
    """The buffers of one record batch, while they are being filled."""

    def __init__(self, pa: Any, names: Sequence[str], rows: int, payload_bytes: int) -> None:
        self._pa = pa
        self.columns = ffi.new("ac_columns_t *")
        self.columns.rows_max = rows
        self._buffers: dict[str, Any] = {}
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

    def _allocate(self, field: str, pointer: str, size: int) -> None:
        buffer = self._buffers[field] = self._pa.allocate_buffer(size)
        setattr(self.columns, field, ffi.cast(pointer, buffer.address))

    def _allocate_payload(self, size: int) -> None:
        buffer = self._pa.allocate_buffer(size + lib.AC_COLUMNS_SLACK, resizable=True)
        self._buffers["payload"] = buffer
        self.columns.payload = ffi.cast("uint8_t *", buffer.address)
        self.columns.payload_bytes_max = size

    def grow(self, payload_bytes_max: int) -> bool:
        """Make room for more payload; False if the batch has as much as it may."""
        used, wanted = int(self.columns.payload_bytes), int(self.columns.payload_bytes_wanted)
        if self.columns.rows and used + wanted > payload_bytes_max:
            return False
        limit = max(payload_bytes_max, used + wanted)
        if limit > PAYLOAD_BYTES_MAX:
            raise InvalidArgument(f"a payload of {wanted} bytes does not fit into a column")
        estimated = used / max(int(self.columns.rows), 1) * self.columns.rows_max * 1.02
        size = min(max(used + wanted, used * 2, round(estimated) + 1024), limit)
        buffer = self._buffers["payload"]
        buffer.resize(size + lib.AC_COLUMNS_SLACK)
        self.columns.payload = ffi.cast("uint8_t *", buffer.address)
        self.columns.payload_bytes_max = size
        return True

    def array(self, name: str, rows: int, kind: Any) -> Any:
        """Return a column of the first rows."""
        make = self._pa.Array.from_buffers
        if name == "payload":
            offsets, data = self._buffers["payload_offsets"], self._buffers["payload"]
            return make(kind, rows, [None, offsets, data.slice(0, self.columns.payload_bytes)])
        if name == "cause":
            values = [
                make(self._pa.int64(), rows, [None, self._buffers[field]])
                for field in ("cause_queue_id", "cause_seq")
            ]
            return make(kind, rows, [self._buffers["cause_valid"]], children=values)
        return make(kind, rows, [None, self._buffers[_FIXED[name][0]]])
