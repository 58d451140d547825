"""Spark sees the same value as a reader for every shape that a field can have."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.shapes import SHAPES, Level, plain
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import aiochronicle
from aiochronicle import Codec
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source.columns import Shape as FrameShape
from aiochronicle.spark.source.columns import check_schema, frame_schema
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.queues import find_sources
from aiochronicle.spark.source.rows import read_range
from spark.venues import Depth, record_venues


class Book(msgspec.Struct):
    bids: list[Level]


def write_shapes(root: Path) -> list[dict[str, Any]]:
    """Write messages with a field of each shape; return the expected columns."""
    fields = [(shape.name, shape.type) for shape in SHAPES]
    codec: Codec[Any] = Codec(msgspec.defstruct("Everything", fields))
    expected: list[dict[str, Any]] = []
    with aiochronicle.open_writer(root / "a", segment_size=1 << 16, codec=codec) as writer:
        for number in range(max(len(shape.values) for shape in SHAPES)):
            values = {shape.name: shape.values[number % len(shape.values)] for shape in SHAPES}
            writer.send(codec.type(**values))
            expected.append({s.name: plain(values[s.name], is_json=s.is_json) for s in SHAPES})
    return expected


def schema_of(words: str) -> StructType:
    schema = StructType.fromDDL(words)
    assert isinstance(schema, StructType)
    return schema


def write_books(root: Path) -> None:
    """Write one valid and one invalid book."""
    with aiochronicle.open_writer(root / "a", segment_size=1 << 16, codec=Book) as writer:
        writer.send(Book([Level(1.0, 2.0)]))
        writer.append(msgspec.msgpack.encode({"bids": [[1.0, "two"]]}), type_id=1)


def test_a_frame_has_what_readers_decode(spark: SparkSession, root: Path) -> None:
    expected = write_shapes(root)
    frame = (
        spark.read.format("chronicle").options(type="Everything", mode="FAILFAST").load(str(root))
    )
    names = [shape.name for shape in SHAPES]
    rows = frame.orderBy("seq").select(*names).toArrow().to_pylist()
    for name in names:
        assert [row[name] for row in rows] == [row[name] for row in expected], name


def test_levels_of_real_books(spark: SparkSession, root: Path) -> None:
    received = record_venues(root, 3, 60)
    depths = [each for each in received if isinstance(each.content, Depth)]
    schema = "source string, seq long, bids array<struct<price:double,size:double>>"
    frame = spark.read.format("chronicle").option("type", "Depth").schema(schema).load(str(root))
    rows = {(row.source, row.seq): row.bids for row in frame.collect()}
    assert len(rows) == len(depths)
    for each in depths:
        assert isinstance(each.content, Depth)
        found = [tuple(level) for level in rows[each.source, each.seq]]
        assert found == [(level.price, level.size) for level in each.content.bids]


@pytest.mark.parametrize(
    "column", ["best struct<price:double>", "best struct<price:double,size:string>", "best string"]
)
def test_a_struct_of_other_fields_is_refused_when_the_frame_is_made(
    spark: SparkSession, root: Path, column: str
) -> None:
    class Quote(msgspec.Struct):
        best: Level

    with aiochronicle.open_writer(root / "a", segment_size=1 << 16, codec=Quote) as writer:
        writer.send(Quote(Level(1.0, 2.0)))
    options = read_options({"path": str(root), "type": "Quote"})
    sources = find_sources(options)
    check_schema(schema_of("best struct<price:double,size:double>"), options, sources)
    with pytest.raises(InvalidArgument, match="column best is struct<price:double,size:double>"):
        check_schema(schema_of(column), options, sources)


def test_failfast_needs_no_column_for_the_reason(spark: SparkSession, root: Path) -> None:
    write_books(root)
    schema = "seq long, bids array<struct<price:double,size:double>>"
    reader = spark.read.format("chronicle").schema(schema).options(type="Book")
    assert [row.bids is None for row in reader.load(str(root)).collect()] == [False, True]
    with pytest.raises(Exception, match=r"message 1.*Expected `float`, got `str`"):
        reader.option("mode", "FAILFAST").load(str(root)).collect()


def test_nulls_without_a_reason_are_in_the_log(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_books(root)
    options = read_options({"path": str(root), "type": "Book"})
    source = find_sources(options)["a"]
    everything = frame_schema(options, {"a": source})
    pruned = type(everything)([f for f in everything.fields if f.name in ("seq", "bids")])
    part = Range(source=source, start=0, end=2)
    for schema, warnings in ((everything, 0), (pruned, 1)):
        shape = FrameShape(schema, options, source)
        with caplog.at_level(logging.WARNING):
            for batch in read_range(part, shape.columns, options):
                assert shape.fit(batch).num_rows == 2
        assert len(caplog.records) == warnings
    assert "message 1, and perhaps more, could not be decoded" in caplog.text
