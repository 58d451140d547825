"""The columns of a frame, and the conversion of the engine's batches to them."""

import logging
from collections.abc import Mapping

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiochronicle._columns.columns import without_shadowed
from aiochronicle._columns.typed import first_trouble
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.arrow import Batch, Column, pa
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.typed import (
    CORRUPT,
    TypedDecoder,
    WireDecoder,
    find_type,
    has_wire_fields,
    typed_fields,
)

__all__ = ["Shape", "check_schema", "frame_schema"]

_log = logging.getLogger(__name__)

_CAUSE = StructType(
    [StructField("queue_id", LongType(), False), StructField("seq", LongType(), False)]
)

_RAW = {
    "source": StructField("source", StringType(), False),
    "seq": StructField("seq", LongType(), False),
    "timestamp_ns": StructField("timestamp_ns", LongType(), False),
    "timestamp": StructField("timestamp", TimestampType(), False),
    "type_id": StructField("type_id", IntegerType(), False),
    "payload": StructField("payload", BinaryType(), False),
    "late": StructField("late", BooleanType(), False),
    "cause": StructField("cause", _CAUSE, True),
    "key": StructField("key", BinaryType(), True),
    "headers": StructField("headers", MapType(StringType(), BinaryType()), False),
}


def known_columns(options: ReadOptions, sources: Mapping[str, Source]) -> dict[str, StructField]:
    """Return every column that a frame over these queues may have, by name."""
    if options.type is None:
        return dict(_RAW)
    fields = typed_fields(sources, options.type, _taken())
    raw = {name: _RAW[name] for name in without_shadowed(_RAW, fields)}
    return {**raw, **{field.name: field for field in fields.values()}, CORRUPT.name: CORRUPT}


def _taken() -> tuple[str, ...]:
    """Return the names that fields of a type cannot have; key and headers are allowed."""
    return without_shadowed(_RAW, _RAW)


def frame_schema(options: ReadOptions, sources: Mapping[str, Source]) -> StructType:
    """Return the default columns of a frame."""
    wanted = known_columns(options, sources)
    if not options.include_late:
        del wanted["late"]
    if not options.include_cause:
        del wanted["cause"]
    if not options.include_headers:
        for name in ("key", "headers"):
            if wanted.get(name) == _RAW[name]:
                del wanted[name]
    if not options.permissive:
        wanted.pop(CORRUPT.name, None)
    return StructType(list(wanted.values()))


def check_schema(schema: StructType, options: ReadOptions, sources: Mapping[str, Source]) -> None:
    """Raise InvalidArgument if a chosen column does not exist, or has another type."""
    known = known_columns(options, sources)
    for field in schema.fields:
        column = known.get(field.name)
        if column is None and has_wire_fields(options, sources):
            continue
        if column is None and field.name == CORRUPT.name:
            column = CORRUPT
        if column is None:
            hint = "" if options.type else "; option type adds the fields of a message"
            raise InvalidArgument(
                f"there is no column {field.name!r}: choose from {', '.join(known)}{hint}"
            )
        # Nullability of parts is not compared, because a schema in words does not express it.
        if column.dataType.simpleString() != field.dataType.simpleString():
            raise InvalidArgument(
                f"column {field.name} is {column.dataType.simpleString()},"
                f" not {field.dataType.simpleString()}"
            )


class Shape:
    """Converts batches of one queue to a frame's schema."""

    def __init__(self, schema: StructType, options: ReadOptions, source: Source) -> None:
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._source = source
        self._names: Column = pa.array([], pa.utf8())
        self._has_told = False
        self._typed: dict[str, str] = {}  # column -> field
        self._decoder: TypedDecoder | WireDecoder | None = None
        if options.type is not None:
            self._decoder = self._prepare_decoding(options)
        elif source.is_java:
            self._decoder = self._prepare_wire(options)
        # Another queue of the frame has the type, this one does not.
        self.is_empty = options.type is not None and self._decoder is None
        raw = [
            name
            for name in self._target.names
            if name in _RAW and name != "source" and name not in self._typed
        ]
        # Errors name the seq; and a batch has a column at least. The name of the queue is ours to put in.
        needed = ["seq"] if self._decoder is None else ["seq", "payload"]
        self.columns = list(dict.fromkeys([*raw, *needed]))
        self.types = None if self._decoder is None else self._decoder.types

    def _prepare_decoding(self, options: ReadOptions) -> TypedDecoder | None:
        name = options.type or ""
        entry = find_type(self._source, name)
        if entry is None:
            return None
        fields = typed_fields({self._source.name: self._source}, name, _taken())
        raw = without_shadowed(_RAW, fields)
        renamed = {column.name: field for field, column in fields.items()}
        columns = self._target.names
        self._typed = {
            column: renamed.get(column, column)
            for column in columns
            if column not in raw and column != CORRUPT.name
        }
        wanted = {field: self._target.field(name).type for name, field in self._typed.items()}
        return TypedDecoder(entry, wanted, permissive=options.permissive)

    def _prepare_wire(self, options: ReadOptions) -> WireDecoder | None:
        """Decode the requested fields of messages in Java's wire format, if there are any."""
        columns = self._target.names
        self._typed = {name: name for name in columns if name not in _RAW and name != CORRUPT.name}
        if not self._typed:
            return None
        wanted = {name: self._target.field(name).type for name in self._typed}
        return WireDecoder(wanted, permissive=options.permissive)

    def fit(self, batch: Batch) -> Batch:
        """Return the batch, whose rows are of these ``types``, with exactly the columns of the schema."""
        decoded: dict[str, Column] = {}
        trouble: Column | None = None
        if self._decoder is not None:
            decoded, trouble = self._decoder.decode_rows(batch, self._source.place)
            if trouble is not None and CORRUPT.name not in self._target.names:
                self._tell(batch, trouble)
        arrays = [self._column(field, batch, decoded, trouble) for field in self._target]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def place(self, batch: Batch, fields: Mapping[str, str]) -> Batch:
        """Convert rows whose fields are already columns of these names to the columns of the schema."""
        decoded: dict[str, Column] = {}
        for name, field in self._typed.items():
            kind = self._target.field(name).type
            there = fields.get(field) in batch.schema.names
            decoded[field] = (
                batch.column(fields[field]).cast(kind) if there else pa.nulls(batch.num_rows, kind)
            )
        arrays = [self._column(field, batch, decoded, None) for field in self._target]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _tell(self, batch: Batch, troubles: Column) -> None:
        """Log once per task that there are nulls for which no column gives the reason."""
        if not self._has_told:
            seq, trouble = first_trouble(batch, troubles)
            _log.warning(
                "%s: message %d, and perhaps more, could not be decoded, and is null: %s. Column %s would"
                " say so in each row, mode=FAILFAST ends the query.",
                self._source.place,
                seq,
                trouble,
                CORRUPT.name,
            )
        self._has_told = True

    def _column(
        self,
        field: pa.Field,
        batch: Batch,
        decoded: dict[str, Column],
        trouble: Column | None,
    ) -> Column:
        if field.name == "source":
            return self._name_column(batch.num_rows)
        if field.name in self._typed:
            return decoded[self._typed[field.name]]
        if field.name == CORRUPT.name and self._decoder is not None:
            return pa.nulls(batch.num_rows, pa.utf8()) if trouble is None else trouble
        if field.name not in _RAW:  # of the Java queues in the frame
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        return column if column.type == field.type else column.cast(field.type)

    def _name_column(self, rows: int) -> Column:
        if len(self._names) < rows:
            self._names = pa.repeat(pa.scalar(self._source.name, pa.utf8()), rows)
        return self._names.slice(0, rows)
