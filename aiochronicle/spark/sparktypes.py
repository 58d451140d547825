"""Which Spark type a field of a message becomes.

Spark has no unsigned numbers, so these take the next wider type. What has no counterpart (a union of
several types, an item of any type) becomes its JSON text.
"""

from enum import Enum

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiochronicle._description import Alternatives, Field, List, Map, OneOf, Record, Tuple, Type

__all__ = ["Handling", "handling", "spark_field"]

_FIXED: dict[str, DataType] = {
    "b1": BooleanType(),
    "i1": ByteType(),
    "i2": ShortType(),
    "i4": IntegerType(),
    "i8": LongType(),
    "u1": ShortType(),
    "u2": IntegerType(),
    "u4": LongType(),
    "u8": DecimalType(20, 0),
    "f4": FloatType(),
    "f8": DoubleType(),
}

_SCALARS: dict[str, DataType] = {
    "bool": BooleanType(),
    "int": LongType(),
    "float": DoubleType(),
    "str": StringType(),
    "bytes": BinaryType(),
    "datetime": TimestampType(),
    "date": DateType(),
    "timedelta": DayTimeIntervalType(),
    "decimal": DecimalType(38, 18),
}


class Handling(Enum):
    """What to do with decoded values before Arrow takes them."""

    NOTHING = "as they are"
    UNFOLD = "structs to dicts, and what Arrow does not know to text"
    JSON = "to JSON text"


def spark_field(field: Field) -> StructField:
    """Return the column of a field."""
    if field.width is not None and field.width.lstrip("<|") in _FIXED:
        return StructField(field.name, _FIXED[field.width.lstrip("<|")], True)
    return StructField(field.name, _counterpart(field.type)[0], True)


def handling(field: Field) -> Handling:
    """Return what has to be done with the field's values."""
    return _counterpart(field.type)[1]


_TEXT = (StringType(), Handling.JSON)


def _counterpart(described: Type) -> tuple[DataType, Handling]:
    match described:
        case Record(fields=fields):
            parts = [_counterpart(field.type) for field in fields]
            if any(how is Handling.JSON for _, how in parts):
                return _TEXT  # a part of it has no counterpart, so it has none
            columns = [
                StructField(field.encoded_name or field.name, kind, True)
                for field, (kind, _) in zip(fields, parts, strict=True)
            ]
            return StructType(columns), Handling.UNFOLD
        case List(of):
            kind, how = _counterpart(of)
            return _TEXT if how is Handling.JSON else (ArrayType(kind), how)
        case Map(key="str", value=value):
            kind, how = _counterpart(value)
            return _TEXT if how is Handling.JSON else (MapType(StringType(), kind), Handling.UNFOLD)
        case OneOf(values):
            kinds = {type(value) for value in values if value is not None}
            if len(kinds) != 1:
                return _TEXT
            return (LongType() if kinds == {int} else StringType()), Handling.NOTHING
        case Alternatives(of):
            others: list[Type] = [part for part in of if part != "null"]
            return _counterpart(others[0]) if len(others) == 1 else _TEXT
        case "time" | "uuid":
            return StringType(), Handling.UNFOLD
        case Tuple() | Map() | "any" | "null":
            return _TEXT
        case scalar:
            return _SCALARS[scalar], Handling.NOTHING
