"""Slices, columns, Parquet files and digests of Java queues have the messages that Java lists."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pytest
from helpers.java_queues import NAMES, Listing, listing, unpack
from pyarrow import parquet

from aiochronicle import cq4, errors, open_reader, open_writer
from aiochronicle._base.spans import Span, count, seq_after
from aiochronicle._core.slices import Queue
from aiochronicle.cq4.columns import WireColumns
from aiochronicle.digest import StreamDigest

COMPLETE = [name for name in NAMES if name != "j26-noeof"]


def pairs(rows: Any) -> Listing:
    """Return the index and payload of each row."""
    return list(zip(rows["seq"].to_pylist(), rows["payload"].to_pylist(), strict=True))


@pytest.mark.parametrize("name", COMPLETE)
def test_columns_are_what_java_lists(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    expected = listing(path)
    with Queue(path) as queue:
        table = queue.slice().to_arrow()
        assert pairs(table) == expected
        assert queue.slice().count == len(expected)
        with open_reader(path) as reader:
            times = [message.timestamp_ns for message in reader]
        assert table["timestamp_ns"].to_pylist() == times
        assert set(table["type_id"].to_pylist()) <= {0}
        small = pyarrow.Table.from_batches(queue.slice().batches(rows=3), schema=table.schema)
        assert small.equals(table)


@pytest.mark.parametrize("name", COMPLETE)
def test_spans_are_the_runs_of_indexes(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    indexes = [index for index, _ in listing(path)]
    breaks = [b for a, b in pairwise(indexes) if b != a + 1]
    with Queue(path) as queue:
        spans = queue.spans()
        assert spans is not None
        assert [seq for span in spans for seq in range(span.start, span.end)] == indexes
        assert [span.start for span in spans[1:]] == breaks
        assert all(span.size_bytes > 0 for span in spans)


@pytest.mark.parametrize("name", ["j26-roll", "j26-pages", "j26-huge-daily-xsparse", "j416-v4"])
def test_slices_by_index(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    expected = listing(path)
    indexes = [index for index, _ in expected]
    chance = random.Random(7)
    around = [index + step for index in indexes for step in (-1, 0, 1)]
    with Queue(path) as queue:
        for _ in range(60):
            start, end = sorted(chance.sample(around, 2))
            wanted = [pair for pair in expected if start <= pair[0] < end]
            part = queue.slice(start, end)
            assert pairs(part.to_arrow()) == wanted, (start, end)
            assert [(message.seq, message.payload) for message in part] == wanted
            assert part.count == len(wanted)
            spans = queue.spans(start, end)
            assert spans is not None
            assert count(spans) == len(wanted)


def test_columns_without_end_mark(tmp_path: Path) -> None:
    path = unpack("j26-noeof", tmp_path)
    with open_reader(path) as reader:
        expected = [(message.seq, message.payload) for message in reader]
    assert expected[: len(listing(path))] == listing(path)
    assert len(expected) > len(listing(path))
    with Queue(path) as queue:
        assert pairs(queue.slice().to_arrow()) == expected
        assert queue.slice().count == len(expected)


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, list[int]]:
    """A queue of two cycles, large enough for several threads to read."""
    path = tmp_path / "large"
    now_s = 1_700_000_000
    indexes: list[int] = []
    with open_writer(
        path, format="cq4", roll_cycle="TEST_SECONDLY", clock=lambda: now_s * 10**9
    ) as writer:
        for number in range(700_000):
            now_s += 7 * (number == 400_000)
            indexes.append(writer.append(number.to_bytes(8, "little")))
    assert indexes[-1] - indexes[0] > len(indexes)
    return path, indexes


def test_threads_read_a_table(
    large: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, indexes = large
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    with Queue(path) as queue:
        part = queue.slice()
        assert len(part._parts()) == 2
        table = part.to_arrow()
    assert table["seq"].to_pylist() == indexes
    assert table["payload"].to_pylist() == [n.to_bytes(8, "little") for n in range(len(indexes))]


def test_export_is_what_java_lists(tmp_path: Path) -> None:
    path = unpack("j26-roll", tmp_path)
    with Queue(path) as queue:
        assert queue.slice().export(tmp_path / "out.parquet") == len(listing(path))
    assert pairs(parquet.read_table(tmp_path / "out.parquet")) == listing(path)


def test_digest_by_message_and_by_column(tmp_path: Path) -> None:
    path = unpack("j26-roll", tmp_path)
    one, other = StreamDigest([path.name]), StreamDigest([path.name])
    with open_reader(path) as reader:
        one.add(reader)
    with Queue(path) as queue:
        for batch in queue.slice().batches(rows=5):
            other.add_batch(batch)
    assert one.messages == other.messages == len(listing(path))
    assert one.hexdigest() == other.hexdigest()


def test_numpy_views_are_refused(tmp_path: Path) -> None:
    path = unpack("j26-text", tmp_path)
    with Queue(path) as queue, pytest.raises(errors.NotSupported, match="index pages"):
        queue.slice().to_numpy("u1")


def test_native_queues_have_no_spans(tmp_path: Path) -> None:
    with open_writer(tmp_path / "native") as writer:
        writer.append(b"one")
    with Queue(tmp_path / "native") as queue:
        assert queue.spans() is None


def test_seq_after_of_spans() -> None:
    spans = [Span(5, 7), Span(100, 101), Span(200, 210)]
    assert [seq_after(spans, messages) for messages in range(5)] == [5, 6, 100, 200, 201]


class Tick(msgspec.Struct):
    """A message whose fields match a Java object's."""

    symbol: str
    px: float
    size: int = 0


class Calls(msgspec.Struct):
    """A method call: a field with the method's name."""

    tick: Tick | None = None
    note: str | None = None


def test_struct_types_as_columns(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", format="cq4") as writer:
        first = writer.send(Tick("EURUSD", 1.25, 5))
        writer.send(cq4.Fields({"symbol": "GBPUSD", "px": 2}))
        writer.append(b"\xe3one")
    with Queue(tmp_path / "q") as queue:
        table = queue.slice(first, first + 2).to_arrow(["seq", "symbol", "px", "size"], codec=Tick)
        assert table.to_pylist() == [
            {"seq": first, "symbol": "EURUSD", "px": 1.25, "size": 5},
            {"seq": first + 1, "symbol": "GBPUSD", "px": 2.0, "size": 0},
        ]
        lenient = queue.slice().to_arrow(["px", "_corrupt"], codec=Tick, on_undecodable="null")
        assert lenient["px"].to_pylist() == [1.25, 2.0, None]
        assert lenient["_corrupt"].to_pylist()[:2] == [None, None]
        assert "not a Tick" in str(lenient["_corrupt"][2])
        with pytest.raises(errors.DecodeError, match=r"\.cq4") as raised:
            queue.slice().to_arrow(codec=Tick)
        assert raised.value.seq == first + 2
        with pytest.raises(errors.UnknownType, match="no schema"):
            queue.slice().to_arrow(codec="Tick")


def test_calls_as_columns(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", format="cq4") as writer:
        writer.method("tick", Tick("EURUSD", 1.25))
        writer.method("note", "hello")
    with Queue(tmp_path / "q") as queue:
        table = queue.slice().to_arrow(["tick", "note"], codec=Calls)
    assert table.to_pylist() == [
        {"tick": {"symbol": "EURUSD", "px": 1.25, "size": 0}, "note": None},
        {"tick": None, "note": "hello"},
    ]


def test_wire_columns_of_wrong_and_odd_values() -> None:
    payloads = [
        cq4.encode_fields({"n": 2**63 - 1, "names": ["a"], "by": {"x": 1, "y": 2}}),
        cq4.encode_fields({"n": "many"}),
        cq4.encode_fields({"n": 1.5}),
        b"\xb7",
        cq4.encode_text("text"),
        bytes.fromhex("c16e90ffff7f7f"),  # n is the largest float
    ]
    wanted = {
        "n": pyarrow.int64(),
        "names": pyarrow.list_(pyarrow.utf8()),
        "by": pyarrow.map_(pyarrow.utf8(), pyarrow.int32()),
    }
    columns, troubles = WireColumns(wanted).decode(pyarrow.array(payloads))
    assert columns["n"].to_pylist() == [2**63 - 1, None, None, None, None, None]
    assert columns["names"].to_pylist() == [["a"], None, None, None, None, None]
    assert columns["by"].to_pylist()[0] == [("x", 1), ("y", 2)]
    assert troubles is not None
    found = troubles.to_pylist()
    assert found[0] is None
    assert "n is 'many', which does not fit" in found[1]
    assert "n is 1.5, which does not fit" in found[2]
    assert "not in Java's wire format" in found[3]
    assert "neither fields nor a call, only a value: 'text'" in found[4]
    assert "which does not fit" in found[5]
