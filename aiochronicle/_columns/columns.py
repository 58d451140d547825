"""Messages as Arrow columns.

The engine reads the records once, checks each like a reader, and copies its parts into Arrow buffers
(csrc/columns.c); no row becomes a Python object. This module has the schema, which is always the same, and
the buffers.

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
key            binary                      on request; null for messages without a key
headers        map<utf8, binary>           on request; empty for messages without headers
============== =========================== ====================================================
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aiochronicle import _hot
from aiochronicle._base.arguments import expect_several
from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._base.printable import utf8_name
from aiochronicle._layout import TYPE_ID_MAX
from aiochronicle.errors import CorruptionError, InvalidArgument

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "BATCH_ROWS",
    "COLUMNS",
    "ON_REQUEST",
    "PAYLOAD_BYTES_MAX",
    "ColumnReader",
    "Stretch",
    "arrow",
    "arrow_schema",
    "capsule",
    "check_columns",
    "handle_of",
    "without_shadowed",
]

COLUMNS = ("source", "seq", "timestamp_ns", "timestamp", "type_id", "payload")
ON_REQUEST = ("late", "cause", "key", "headers")

# A batch ends early at this much payload, so that memory is bounded for any messages.
_BATCH_BYTES_MAX = 64 << 20
_FIRST_GUESS_BYTES = 128
_TRAILER_GUESS_BYTES = 64

PAYLOAD_BYTES_MAX = 2**31 - 1  # Arrow's binary type has offsets of 32 bits
BATCH_ROWS = 8192

_MAY_BE_FIELDS = ("key", "headers")  # columns that came later than the types of users

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


def without_shadowed(columns: Iterable[str], fields: Collection[str]) -> tuple[str, ...]:
    """Return the columns beside the fields of a type: a field called key or headers goes before.

    Of any other name that both have, it is the field that gets another one.
    """
    return tuple(name for name in columns if name not in _MAY_BE_FIELDS or name not in fields)


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
        "key": pa.binary(),
        "headers": pa.map_(pa.utf8(), pa.binary()),
    }
    names = check_columns(columns)
    schema: pyarrow.Schema = pa.schema(
        [pa.field(name, types[name], nullable=name in ("cause", "key")) for name in names]
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


class Stretch(NamedTuple):
    """Rows, and the seqs that they cover: those between that no row has are of other types."""

    rows: "pyarrow.RecordBatch"
    first_seq: int
    end_seq: int


class ColumnReader:
    """Reads record batches with a reader that stays its owner's.

    ``types`` are the type_ids of the messages to read. Of others the engine reads the headers only.
    """

    def __init__(
        self,
        reader: _hot.Reader,
        columns: Sequence[str] | None,
        types: Collection[int] | None = None,
    ) -> None:
        self.schema = arrow_schema(columns)
        self._wanted = None if types is None else _bits(types)
        self._pa = arrow()
        self._handle = handle_of(reader)
        self._source = reader.source
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        # Columns that never change are made once, and each batch has a slice of them.
        self._constants: dict[str, Any] = {}
        self._bytes_per_row: float = _FIRST_GUESS_BYTES

    def batches(self, rows: int) -> Iterator["pyarrow.RecordBatch"]:
        """Yield batches of this many rows; the last one may be shorter."""
        for stretch in self.stretches(rows, ends_at_gap=False):
            if stretch.rows.num_rows:
                yield stretch.rows

    def stretches(self, rows: int, *, ends_at_gap: bool = True) -> Iterator[Stretch]:
        """Yield batches of this many rows or fewer, perhaps none, and what they cover.

        One that ``ends_at_gap`` covers seqs that follow each other: the next one begins after the gap.
        """
        while (stretch := self._read(rows, _BATCH_BYTES_MAX, ends_at_gap)) is not None:
            yield stretch

    def read(self, rows: int, payload_bytes_max: int = _BATCH_BYTES_MAX) -> "pyarrow.RecordBatch":
        """Return the next rows: fewer at the end, or when their payloads are that large."""
        stretch = self._read(rows, payload_bytes_max, False)
        if stretch is not None:
            return stretch.rows
        nothing: pyarrow.RecordBatch = self._pa.RecordBatch.from_pylist([], schema=self.schema)
        return nothing

    def _read(self, rows: int, payload_bytes_max: int, ends_at_gap: bool) -> Stretch | None:
        guess = min(round(rows * self._bytes_per_row * 1.02) + 1024, payload_bytes_max)
        batch = _Batch(self._pa, self.schema.names, rows, guess)
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
        made: pyarrow.RecordBatch = self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return Stretch(made, int(batch.columns.first_seq), int(batch.columns.end_seq))

    def _array(self, batch: "_Batch", name: str, rows: int) -> Any:
        if name in ("source", "late"):
            return self._constant(name, rows)
        return batch.array(name, rows, self._types[name])

    def _constant(self, name: str, rows: int) -> Any:
        made = self._constants.get(name)
        if made is None or len(made) < rows:
            value = self._pa.scalar(
                utf8_name(self._source) if name == "source" else False, self._types[name]
            )
            made = self._constants[name] = self._pa.repeat(value, rows)
        return made.slice(0, rows)


def _bits(types: Collection[int]) -> Any:
    """Return a bit per type_id; a number that no type_id can have is of no message."""
    bits = ffi.new("uint8_t[]", TYPE_ID_MAX // 8 + 1)
    for number in types:
        if 0 <= number <= TYPE_ID_MAX:
            bits[number // 8] |= 1 << number % 8
    return bits


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
        self._trailers: _TrailerColumns | None = None
        if "key" in names or "headers" in names:
            self._allocate("trailer_offsets", "int32_t *", (rows + 1) * 4)
            self._allocate_trailers(rows * _TRAILER_GUESS_BYTES)

    def _allocate(self, field: str, pointer: str, size: int) -> None:
        buffer = self._buffers[field] = self._pa.allocate_buffer(size)
        setattr(self.columns, field, ffi.cast(pointer, buffer.address))

    def _allocate_payload(self, size: int) -> None:
        buffer = self._pa.allocate_buffer(size + lib.AC_COLUMNS_SLACK, resizable=True)
        self._buffers["payload"] = buffer
        self.columns.payload = ffi.cast("uint8_t *", buffer.address)
        self.columns.payload_bytes_max = size

    def _allocate_trailers(self, size: int) -> None:
        buffer = self._pa.allocate_buffer(size, resizable=True)
        self._buffers["trailers"] = buffer
        self.columns.trailers = ffi.cast("uint8_t *", buffer.address)
        self.columns.trailer_bytes_max = size

    def grow(self, bytes_max: int) -> bool:
        """Make room for what did not fit; False if the batch has as much as it may."""
        if self.columns.trailer_bytes_wanted:
            return self._grow_trailers(bytes_max)
        return self._grow_payload(bytes_max)

    def _grow_trailers(self, bytes_max: int) -> bool:
        used, wanted = int(self.columns.trailer_bytes), int(self.columns.trailer_bytes_wanted)
        if self.columns.rows and used + wanted > bytes_max:
            return False
        size = min(max(used + wanted, used * 2), max(bytes_max, used + wanted))
        buffer = self._buffers["trailers"]
        buffer.resize(size)
        self.columns.trailers = ffi.cast("uint8_t *", buffer.address)
        self.columns.trailer_bytes_max = size
        return True

    def split_trailers(self, source: str) -> None:
        """Make keys and headers of what the engine gave, if they are wanted."""
        if "trailers" in self._buffers:
            self._trailers = _TrailerColumns(self._pa, self.columns, source)

    def _grow_payload(self, payload_bytes_max: int) -> bool:
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
        if self._trailers is not None and name in _MAY_BE_FIELDS:
            return self._trailers.keys() if name == "key" else self._trailers.headers(kind)
        return make(kind, rows, [None, self._buffers[_FIXED[name][0]]])


class _TrailerColumns:
    """The trailers of a batch, taken apart by the engine."""

    def __init__(self, pa: Any, columns: Any, source: str) -> None:
        self._pa = pa
        self._rows, size = int(columns.rows), int(columns.trailer_bytes)
        headers_max = size // 4
        self._buffers: dict[str, Any] = {}
        self._out = ffi.new("ac_trailer_columns_t *")
        valid_bytes = (self._rows + 7) // 8
        for field, room in {
            "key_valid": valid_bytes,
            "key_offsets": (self._rows + 1) * 4,
            "keys": size,
            "header_offsets": (self._rows + 1) * 4,
            "name_offsets": (headers_max + 1) * 4,
            "names": size,
            "value_offsets": (headers_max + 1) * 4,
            "values": size,
        }.items():
            buffer = self._buffers[field] = pa.allocate_buffer(room)
            pointer = "int32_t *" if field.endswith("_offsets") else "uint8_t *"
            setattr(self._out, field, ffi.cast(pointer, buffer.address))
        ffi.buffer(self._out.key_valid, valid_bytes)[:] = bytes(valid_bytes)
        self._count = lib.ac_trailer_columns(
            columns.trailers, columns.trailer_offsets, self._rows, self._out
        )
        if self._count < 0:
            raise CorruptionError(
                f"{source}: key and headers were written over while they were read"
            )

    def keys(self) -> Any:
        fields = ("key_valid", "key_offsets", "keys")
        return self._pa.Array.from_buffers(
            self._pa.binary(), self._rows, [self._buffers[field] for field in fields]
        )

    def headers(self, kind: Any) -> Any:
        make = self._pa.Array.from_buffers
        names, values = (
            make(part, self._count, [None, self._buffers[offsets], self._buffers[content]])
            for part, offsets, content in (
                (kind.key_type, "name_offsets", "names"),
                (kind.item_type, "value_offsets", "values"),
            )
        )
        entries = self._pa.StructArray.from_arrays(
            [names, values], fields=[kind.key_field, kind.item_field]
        )
        return make(kind, self._rows, [None, self._buffers["header_offsets"]], children=[entries])
