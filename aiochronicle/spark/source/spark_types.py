"""The Spark types of message fields: the counterparts of their Arrow types.

Spark has no unsigned numbers, so these take the next wider type.
"""

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField

from aiochronicle._columns.typed import arrow_type
from aiochronicle._typed.description import Field
from aiochronicle.spark.arrow import pa

__all__ = ["spark_field"]

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def spark_field(field: Field) -> StructField:
    """Return the column of a field."""
    kind = arrow_type(field)
    return StructField(field.name, from_arrow_type(_WIDER.get(kind, kind)), True)
