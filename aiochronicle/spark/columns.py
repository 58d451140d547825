"""The columns of a frame: which there are, and bringing what the engine gives into their shape."""

# The stubs of pyarrow leave much untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.options import ReadOptions

__all__ = ["Shape", "raw_schema"]

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
}


def raw_schema(options: ReadOptions) -> StructType:
    """Return the columns of a frame of messages that are not decoded."""
    wanted = dict(_RAW)
    if not options.include_late:
        del wanted["late"]
    if not options.include_cause:
        del wanted["cause"]
    return StructType(list(wanted.values()))


class Shape:
    """What a frame's schema asks for, checked, and how batches are made to fit it."""

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            _check(field)
        self._target = to_arrow_schema(schema, timezone="UTC")
        named = [field.name for field in schema.fields]
        # seq shows gaps; the name of the queue is ours to put in.
        self.columns = list(dict.fromkeys([*(n for n in named if n != "source"), "seq"]))
        self._names: dict[str, pa.Array[Any]] = {}

    def fit(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        """Return the batch with exactly the columns of the schema."""
        arrays = [
            self._name_column(source, batch.num_rows)
            if field.name == "source"
            else _as_type(batch.column(field.name), field.type)
            for field in self._target
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _name_column(self, source: str, rows: int) -> "pa.Array[Any]":
        made = self._names.get(source)
        if made is None or len(made) < rows:
            made = self._names[source] = pa.repeat(pa.scalar(source, pa.utf8()), rows)
        return made.slice(0, rows)


def _as_type(column: "pa.Array[Any]", wanted: pa.DataType) -> "pa.Array[Any]":
    return column if column.type == wanted else column.cast(wanted)


def _check(field: StructField) -> None:
    known = _RAW.get(field.name)
    if known is None:
        raise InvalidArgument(
            f"there is no column {field.name!r}: choose from {', '.join(_RAW)}, or give"
            " option type to have the fields of a message"
        )
    if known.dataType != field.dataType and not isinstance(known.dataType, StructType):
        raise InvalidArgument(
            f"column {field.name} is {known.dataType.simpleString()},"
            f" not {field.dataType.simpleString()}"
        )
