"""Columns decode everything that readers decode, with equal values for every shape of a field."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.shapes import REFUSED, SHAPES, Level, Shape, plain

import aiochronicle
from aiochronicle import Codec, Queue
from aiochronicle.codec import Format
from aiochronicle.errors import DecodeError, InvalidArgument


def codec_of(shape: Shape, form: Format = "msgpack", **kind: Any) -> Codec[Any]:
    fields = [("field", shape.type), ("last", int)]
    return Codec(msgspec.defstruct(f"Message_{shape.name}", fields, **kind), form)


def write(path: Path, shapes: list[Shape], codecs: list[Codec[Any]]) -> None:
    with aiochronicle.open_writer(path, segment_size=1 << 16, codec=codecs) as writer:
        for shape, codec in zip(shapes, codecs, strict=True):
            for number, value in enumerate(shape.values):
                writer.send(codec.type(value, number))


@pytest.mark.parametrize("form", ["msgpack", "json"])
@pytest.mark.parametrize("kind", [{}, {"array_like": True}, {"tag": "m"}, {"tag": 5}], ids=str)
def test_columns_have_what_a_reader_decodes(
    queue_path: Path, form: Format, kind: dict[str, Any]
) -> None:
    codecs = [codec_of(shape, form, **kind) for shape in SHAPES]
    write(queue_path, SHAPES, codecs)
    with aiochronicle.open_reader(queue_path, codec=codecs) as reader:
        decoded: dict[type, list[Any]] = {}
        for message in reader:
            decoded.setdefault(type(obj := message.decode()), []).append(obj)
    with Queue(queue_path) as queue:
        for shape, codec in zip(SHAPES, codecs, strict=True):
            messages = decoded[codec.type]
            assert len(messages) == len(shape.values)
            expected = [
                {"field": plain(each.field, is_json=shape.is_json), "last": each.last}
                for each in messages
            ]
            for asked in (codec, codec.name):
                table = queue.slice().to_arrow(["field", "last"], codec=asked)
                assert table.to_pylist() == expected, shape.name


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_what_no_column_can_hold_no_writer_takes(queue_path: Path, kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="no schema can describe"):
        codec = Codec(msgspec.defstruct("Message", [("field", kind)]))
        aiochronicle.open_writer(queue_path, segment_size=1 << 16, codec=codec)


@pytest.mark.parametrize("kind", [int, list[Level], dict[str, int], Any], ids=str)
def test_a_field_that_is_not_set_is_null(queue_path: Path, kind: Any) -> None:
    field = ("field", kind | msgspec.UnsetType, msgspec.UNSET)
    codec = Codec(msgspec.defstruct("Message", [field]))
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16, codec=codec) as writer:
        writer.send(codec.type())
    with Queue(queue_path) as queue:
        for asked in (codec, "Message"):
            table = queue.slice().to_arrow(["field"], codec=asked)
            assert table.to_pylist() == [{"field": None}]


def test_keys_that_json_lacks_are_told_of_their_row(queue_path: Path) -> None:
    shape = Shape("keys", dict[tuple[int, int], int] | Any, ({(1, 2): 3}, {"a": 1}), is_json=True)
    codec = codec_of(shape)
    write(queue_path, [shape], [codec])
    with Queue(queue_path) as queue:
        with pytest.raises(DecodeError, match="field"):
            queue.slice().to_arrow(["field"], codec=codec)
        rows = (
            queue.slice()
            .to_arrow(["field", "_corrupt"], codec=codec, on_undecodable="null")
            .to_pylist()
        )
    assert [row["field"] for row in rows] == [None, '{"a":1}']
    assert rows[0]["_corrupt"] is not None
    assert rows[1]["_corrupt"] is None


def test_levels_that_are_wrong_are_told_of_their_row(queue_path: Path) -> None:
    shape = Shape("levels", list[Level], ([Level(1.0, 2.0)], [Level(3.0, 4.0)]))
    codec = codec_of(shape)
    write(queue_path, [shape], [codec])
    with aiochronicle.open_writer(queue_path) as writer:
        for levels in ([[1.0]], [[1.0, "a"]], [[1.0, 2.0, 3.0]], [5], None, [[1, 2]]):
            payload = msgspec.msgpack.encode({"field": levels, "last": 9})
            writer.append(payload, type_id=1)
    with Queue(queue_path) as queue:
        table = queue.slice().to_arrow(["field", "_corrupt"], codec=codec, on_undecodable="null")
    rows = table.to_pylist()
    assert [row["_corrupt"] is None for row in rows] == [
        True,
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert rows[4]["field"] == [{"price": 1.0, "size": 2.0}]  # the items after that are ignored
    assert rows[7]["field"] == [{"price": 1.0, "size": 2.0}]
