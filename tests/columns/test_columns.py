"""Columns hold exactly the values of the messages, for all messages, batch sizes and kinds of damage."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow
import pytest
from reference import format as fmt

import aiochronicle
from aiochronicle import errors, open_reader, open_writer
from aiochronicle._columns.column_reader import arrow_schema

TYPES: dict[str, pyarrow.DataType] = {
    "source": pyarrow.utf8(),
    "seq": pyarrow.int64(),
    "timestamp_ns": pyarrow.int64(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "type_id": pyarrow.int32(),
    "payload": pyarrow.binary(),
}
SCHEMA = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in TYPES.items()])
EVERYTHING = [*SCHEMA.names, "late", "cause"]


def rows_by_message(path: Path) -> list[dict[str, Any]]:
    """Return the rows that the columns should hold, read message by message."""
    with open_reader(path) as reader:
        return [
            {
                "source": message.source,
                "seq": message.seq,
                "timestamp_ns": message.timestamp_ns,
                "timestamp": datetime.fromtimestamp(message.timestamp_ns // 1000 / 1e6, UTC),
                "type_id": message.type_id,
                "payload": message.payload,
                "late": False,
                "cause": message.cause
                and {"queue_id": signed(message.cause[0]), "seq": message.cause[1]},
            }
            for message in reader
        ]


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def write_random(path: Path, count: int, rng: random.Random) -> None:
    """Append random payloads of all sizes, some empty, some with a cause, over several segments."""
    with open_writer(path.parent / "causes") as causes:
        causes.append(b"cause")
    with (
        open_reader(path.parent / "causes") as reader,
        open_writer(path, segment_size=1 << 16) as writer,
    ):
        cause = reader.poll()
        now_ns = 1_700_000_000_000_000_000
        for _ in range(count):
            now_ns += rng.randrange(5000)
            payload = rng.randbytes(rng.choice([0, 1, 63, 64, 65, 100, rng.randrange(3000)]))
            writer.append(
                payload,
                type_id=rng.randrange(0xFFFF),
                timestamp_ns=now_ns,
                cause=cause if rng.random() < 0.3 else None,
            )


def test_schema_is_always_the_same(queue: Path) -> None:
    assert arrow_schema() == SCHEMA
    with aiochronicle.Queue(queue) as whole, open_reader(queue) as reader:
        assert whole.slice().to_arrow().schema == SCHEMA
        assert whole.slice(5).to_arrow().schema == SCHEMA
        assert next(whole.slice().batches()).schema == SCHEMA
        assert reader.to_arrow().schema == SCHEMA
        assert reader.to_arrow().schema == SCHEMA
        assert pyarrow.RecordBatchReader.from_stream(reader).schema == SCHEMA


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 100_000])
def test_random_messages(queue_path: Path, rng: random.Random, rows: int) -> None:
    write_random(queue_path, 700, rng)
    expected = rows_by_message(queue_path)
    with aiochronicle.Queue(queue_path) as whole:
        batches = list(whole.slice().batches(rows, EVERYTHING))
    for batch in batches:
        batch.validate(full=True)
    assert [batch.num_rows for batch in batches[:-1]] == [rows] * (len(batches) - 1)
    assert [row for batch in batches for row in batch.to_pylist()] == expected


def test_columns_come_in_the_order_asked_for(queue_path: Path, rng: random.Random) -> None:
    write_random(queue_path, 50, rng)
    expected = rows_by_message(queue_path)
    for _ in range(20):
        names = rng.sample(EVERYTHING, rng.randrange(1, len(EVERYTHING) + 1))
        with aiochronicle.Queue(queue_path) as whole:
            table = whole.slice().to_arrow(names)
        assert table.schema.names == names
        assert table.to_pylist() == [{name: row[name] for name in names} for row in expected]


@pytest.mark.parametrize("columns", [["price"], [], ["seq", "seq"], "seq"])
def test_wrong_columns(queue: Path, columns: list[str]) -> None:
    with aiochronicle.Queue(queue) as whole:
        with pytest.raises(errors.InvalidArgument, match=r"columns must be|source, seq"):
            whole.slice().batches(columns=columns)
        with pytest.raises(errors.InvalidArgument):
            whole.slice().to_arrow(columns)


def test_large_payloads_end_a_batch(queue_path: Path) -> None:
    payload = bytes(40 << 20)
    with open_writer(queue_path, segment_size=128 << 20) as writer:
        for _ in range(3):
            writer.append(payload)
        writer.append(b"small")
    with aiochronicle.Queue(queue_path) as whole:
        assert [batch.num_rows for batch in whole.slice().batches()] == [1, 1, 2]
        assert sum(batch.num_rows for batch in whole.slice().batches(columns=["seq"])) == 4


@pytest.mark.parametrize("what", ["slice", "queue"])
def test_other_libraries_take_a_slice_or_a_queue(
    queue_path: Path, rng: random.Random, what: str
) -> None:
    write_random(queue_path, 300, rng)
    expected = rows_by_message(queue_path)
    payloads = [row["payload"] for row in expected]
    with aiochronicle.Queue(queue_path) as whole:
        part = whole.slice() if what == "slice" else whole
        assert pyarrow.table(part).column("payload").to_pylist() == payloads
        assert polars.DataFrame(part)["payload"].to_list() == payloads
        stream = pyarrow.RecordBatchReader.from_stream(part)
        frame = stream.read_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame["payload"].tolist() == payloads
        with duckdb.connect() as connection:
            found = connection.sql(
                "select count(*), max(seq), sum(octet_length(payload)) from part"
            )
            total = sum(len(row["payload"]) for row in expected)
            assert found.fetchall() == [(300, 299, total)]


def test_reader_gives_what_is_there_and_moves(queue_path: Path) -> None:
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        assert reader.to_arrow().num_rows == 0
        writer.append_many([b"%d" % number for number in range(10)])
        assert reader.to_arrow(3).column("seq").to_pylist() == [0, 1, 2]
        message = reader.poll()
        assert message is not None
        assert message.seq == 3
        assert reader.to_arrow().column("seq").to_pylist() == [4, 5, 6, 7, 8, 9]
        assert reader.to_arrow().num_rows == 0
        writer.append(b"later")
        assert pyarrow.table(reader).column("payload").to_pylist() == [b"later"]
        assert reader.poll() is None
        with pytest.raises(errors.InvalidArgument):
            reader.to_arrow(0)
    with pytest.raises(errors.ClosedError):
        reader.to_arrow()


def test_reader_that_waits_for_its_queue(queue_path: Path) -> None:
    with open_reader(queue_path, wait_for_queue=True) as reader:
        assert reader.to_arrow().num_rows == 0
        with open_writer(queue_path) as writer:
            writer.append(b"x")
        assert reader.to_arrow().num_rows == 1


def test_columns_are_committed_when_more_is_asked_for(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        writer.append_many([b"x"] * 10)
    with open_reader(queue_path, "auto", commit="auto") as reader:
        reader.to_arrow(4)
        assert reader.committed.offset == 64
        reader.to_arrow(1)
    with open_reader(queue_path, "auto") as reader:
        message = reader.poll()
        assert message is not None
        assert message.seq == 4


def test_rows_before_a_corrupt_record_come_first(queue_path: Path) -> None:
    with open_writer(queue_path) as writer:
        writer.append_many([b"%3d" % number for number in range(100)])
    with (queue_path / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * 40 + 64)
        segment.write(b"XXX")
    with aiochronicle.Queue(queue_path) as whole:
        batches = whole.slice().batches(30)
        assert next(batches).num_rows == 30
        assert next(batches).num_rows == 10
        with pytest.raises(errors.CorruptionError) as caught:
            next(batches)
        assert caught.value.offset == 64 + 128 * 40
        with pytest.raises(errors.CorruptionError):
            whole.slice().to_arrow()
        # A column that is not read is not checked.
        assert whole.slice().to_arrow(["seq"]).num_rows == 100
    with aiochronicle.Queue(queue_path, on_corrupt="skip") as whole:
        expected = [seq for seq in range(100) if seq != 40]
        assert whole.slice().to_arrow().column("seq").to_pylist() == expected
    with aiochronicle.Queue(queue_path, verify=False) as whole:
        assert whole.slice().to_arrow().column("payload")[40].as_py() == b"XXX"
    with open_reader(queue_path) as reader:
        assert reader.to_arrow().num_rows == 40
        with pytest.raises(errors.CorruptionError):
            reader.to_arrow()


@pytest.mark.parametrize("verify", [True, False])
def test_zeros_in_a_header_are_no_message_though_no_payload_is_read(
    queue_path: Path, verify: bool
) -> None:
    """A header without the checksum flag is not verified: records of other programs have no checksum."""
    with open_writer(queue_path) as writer:
        writer.append_many([b"%3d" % number for number in range(100)])
    offset = 64 + 128 * 40
    with (queue_path / "000000000.q").open("r+b") as segment:
        segment.seek(offset + 8)
        segment.write(bytes(56))
    with aiochronicle.Queue(queue_path, verify=verify) as whole:
        batches = whole.slice().batches(columns=["seq"])
        assert next(batches).num_rows == 40
        with pytest.raises(errors.CorruptionError, match="payload checksum fails") as caught:
            next(batches)
        assert caught.value.offset == offset
    with aiochronicle.Queue(queue_path, verify=verify, on_corrupt="skip") as whole:
        expected = [seq for seq in range(100) if seq != 40]
        assert whole.slice().to_arrow(["seq"]).column("seq").to_pylist() == expected


@pytest.mark.parametrize("columns", [None, ["seq"]])
@pytest.mark.parametrize("verify", [True, False])
def test_file_cut_under_the_reader(
    queue_path: Path, columns: list[str] | None, verify: bool
) -> None:
    with open_writer(queue_path, segment_size=4 << 20) as writer:
        writer.append_many([bytes(1000)] * 3000)
    with aiochronicle.Queue(queue_path, verify=verify) as whole:
        batches = whole.slice().batches(100, columns)
        assert next(batches).num_rows == 100
        with (queue_path / "000000000.q").open("r+b") as segment:
            segment.truncate(1 << 20)
        with pytest.raises(errors.QueueGone):
            list(batches)


def test_messages_of_other_programs(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, 4096) as writer:
        for number in range(100):
            writer.append(b"f%d" % number, 3, 1000 + 10 * number)
        writer.pad_and_seal()
        writer.append(b"last", 3, 5000)
    with aiochronicle.Queue(queue_path) as whole:
        part = whole.slice(7)
        assert part.count == 94
        payloads = part.to_arrow().column("payload").to_pylist()
    assert payloads == [b"f%d" % number for number in range(7, 100)] + [b"last"]
