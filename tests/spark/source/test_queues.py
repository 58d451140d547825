"""Where queues begin and end, for any writer and after any damage."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from reference import format as fmt

import aiochronicle
from aiochronicle import Retention, Roll
from aiochronicle.errors import ChronicleError
from aiochronicle.spark import count
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source.columns import frame_schema
from aiochronicle.spark.source.found import FoundDirectory
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.queues import Source, end_of
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.stream import StreamReader
from spark.filling import FIRST_NS, STEP_NS, fill


def bounds(path: Path) -> tuple[int, int]:
    source = Source(name=path.name, live=str(path), archive=None)
    return source.earliest(), source.latest()


def test_an_empty_queue_begins_and_ends_where_its_first_message_will_be(root: Path) -> None:
    aiochronicle.open_writer(root / "a", segment_size=1 << 20).close()
    assert bounds(root / "a") == (0, 0)


def test_a_queue_ends_behind_its_last_message(root: Path) -> None:
    fill(root / "a", 12_345)
    assert bounds(root / "a") == (0, 12_345)


def test_a_queue_that_retention_has_cut_begins_later(root: Path) -> None:
    with aiochronicle.open_writer(
        root / "a", segment_size=1 << 16, roll=Roll(messages=10)
    ) as writer:
        for number in range(35):
            writer.append(b"x", timestamp_ns=FIRST_NS + number * STEP_NS)
    with aiochronicle.open_writer(root / "a", retention=Retention(max_bytes=1)) as writer:
        writer.retain_now()
    assert bounds(root / "a") == (30, 35)


def test_what_the_control_block_promises_is_not_believed(root: Path) -> None:
    """After a power cut it may count messages that never reached the disk."""
    fill(root / "a", 10)
    with (root / "a" / "control.meta").open("r+b") as control:
        control.seek(256 + 24)
        control.write((99).to_bytes(8, "little"))
    assert bounds(root / "a") == (0, 10)
    with (root / "a" / "control.meta").open("r+b") as control:
        control.seek(128 + 4)
        control.write((7).to_bytes(4, "little"))  # said to be the active segment
    assert bounds(root / "a") == (0, 10)


def test_a_queue_of_another_program_is_found_by_its_messages(root: Path) -> None:
    with fmt.ForeignWriter(root / "a", 1 << 16) as writer:
        for number in range(1000):
            writer.append(b"%d" % number, 0, FIRST_NS + number)
    assert aiochronicle.inspect(root / "a").next_seq == 1000
    start, end = bounds(root / "a")
    assert end - start == 1000
    with aiochronicle.open_reader(root / "a") as reader:
        assert end_of(reader, FoundDirectory(str(root / "a")), known=end - 10) == end


def append_as_other_program(path: Path, messages: int) -> None:
    """Append as other programs do, which restart at seq 0 each time they open a queue."""
    with fmt.ForeignWriter(path, 1 << 16) as writer:
        for number in range(messages):
            writer.append(b"%d" % number, 0, FIRST_NS + number)


@pytest.mark.parametrize("ours", [0, 5])
def test_seqs_that_start_again_are_an_error_and_no_missing_rows(root: Path, ours: int) -> None:
    for messages in (100, 30):
        append_as_other_program(root / "a", messages)
    if ours:
        fill(root / "a", ours, first=200)
    with pytest.raises(ChronicleError, match=r"bus/a: its seqs start again.* Copy it into a new"):
        count(str(root))


def test_seqs_that_start_again_under_a_query_or_a_stream_are_an_error(root: Path) -> None:
    append_as_other_program(root / "a", 100)
    options = read_options({"path": str(root), "startingOffsets": "earliest"})
    stream = StreamReader(options, frame_schema(options, {}))
    assert stream.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 100}
    append_as_other_program(root / "a", 300)
    with pytest.raises(ChronicleError, match="its seqs start again"):
        stream.latestOffset({"a": 100}, ReadAllAvailable())
    stream.stop()
    part = Range(source=Source(name="a", live=str(root / "a"), archive=None), start=0, end=300)
    with pytest.raises(ChronicleError, match="its seqs start again"):
        list(read_range(part, ["seq"], options))
