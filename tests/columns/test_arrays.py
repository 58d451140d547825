"""Arrays over the mapping: correct values, no copy, no reading of payloads; mixed queues are refused."""

import gc
from pathlib import Path

import msgspec
import numpy
import pytest
from reference import format as fmt

import aiochronicle
from aiochronicle import errors, open_writer

LAYOUT = numpy.dtype([("number", "<i8"), ("price", "<f8"), ("side", "S3")])
COUNT = 20_000
SEGMENT = 1 << 20


def write(path: Path, start: int = 0, count: int = COUNT, type_id: int = 1) -> None:
    rows = numpy.zeros(count, LAYOUT)
    rows["number"] = range(start, start + count)
    rows["price"] = rows["number"] / 4
    rows["side"] = b"buy"
    with open_writer(path, segment_size=SEGMENT) as writer:
        for first in range(0, count, 1000):
            writer.append_many(
                [row.tobytes() for row in rows[first : first + 1000]], type_id=type_id
            )


class Order(msgspec.Struct):
    number: int
    price: float
    live: bool


def test_codec_is_a_layout(queue_path: Path) -> None:
    codec = aiochronicle.Codec(Order, format="struct")
    with open_writer(queue_path) as writer:
        writer.append_many([codec.encode(Order(n, n / 8, n % 2 == 0)) for n in range(100)])
    with aiochronicle.Queue(queue_path) as whole:
        (orders,) = whole.slice(1).to_numpy(codec)
    assert orders[0].tolist() == (1, 0.125, False)
    assert orders["number"].tolist() == list(range(1, 100))


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def refuses(path: Path, reason: str, layout: object = LAYOUT) -> None:
    with (
        aiochronicle.Queue(path) as whole,
        pytest.raises(errors.InvalidArgument, match=reason),
    ):
        whole.slice().to_numpy(layout)


def test_arrays_hold_the_messages_of_the_slice(queue_path: Path) -> None:
    write(queue_path)
    with aiochronicle.Queue(queue_path) as whole:
        for start, end in [(0, COUNT), (5, 6), (17, COUNT - 1), (9000, 15_000), (3, 3)]:
            found = whole.slice(start, end).to_numpy(LAYOUT)
            numbers = [int(number) for array in found for number in array["number"]]
            assert numbers == list(range(start, end))
            assert all((array["price"] == array["number"] / 4).all() for array in found)
        assert len(whole.slice().to_numpy(LAYOUT)) == 3
        assert whole.slice(COUNT).to_numpy(LAYOUT) == []


def test_arrays_outlive_the_queue_and_keep_only_what_they_need(queue_path: Path) -> None:
    write(queue_path)
    with aiochronicle.Queue(queue_path) as whole:
        found = whole.slice().to_numpy(LAYOUT)
    assert mappings(queue_path) == len(found)
    last = found[-1]["number"][-10:]
    del found
    gc.collect()
    assert mappings(queue_path) == 1
    assert last.tolist() == list(range(COUNT - 10, COUNT))
    with pytest.raises(ValueError, match="read-only"):
        last[0] = 1
    del last
    assert mappings(queue_path) == 0


def test_payloads_are_not_read(queue_path: Path) -> None:
    """Only the index and both ends of a sealed segment are read."""
    write(queue_path)
    with (queue_path / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * 4000)
        segment.write(b"\xff" * 64)  # a header in the middle
    with aiochronicle.Queue(queue_path) as whole:
        assert sum(len(array) for array in whole.slice().to_numpy(LAYOUT)) == COUNT


@pytest.mark.parametrize("sealed", [True, False])
def test_other_length_is_refused(queue_path: Path, sealed: bool) -> None:
    write(queue_path, count=100)
    with open_writer(queue_path) as writer:
        writer.append(bytes(LAYOUT.itemsize + 1), type_id=1)  # takes as many bytes on disk
        if sealed:
            while writer.position.segment == 0:
                writer.append(bytes(LAYOUT.itemsize), type_id=1)
    refuses(queue_path, "not all of one type and length")


def test_other_type_is_refused(queue_path: Path) -> None:
    write(queue_path, count=100)
    with open_writer(queue_path) as writer:
        writer.append(bytes(LAYOUT.itemsize), type_id=2)
    refuses(queue_path, "not all of one type and length")


def test_types_that_change_with_the_segment_are_refused(queue_path: Path) -> None:
    for type_id in (1, 2):
        with fmt.ForeignWriter(queue_path, 4096) as writer:
            for number in range(31):
                writer.append(b"%8d" % number, type_id, 1000)
            writer.seal()
    with aiochronicle.Queue(queue_path) as whole:
        assert len(whole.slice(0, 20).to_numpy("S8")[0]) == 20
        with pytest.raises(
            errors.InvalidArgument, match="have type_id 2, but those before it have 1"
        ):
            whole.slice().to_numpy("S8")


def test_layout_of_another_length_is_refused(queue_path: Path) -> None:
    write(queue_path, count=10)
    refuses(queue_path, "19 bytes long, but the layout has 8", "<i8")


def test_padding_between_records_is_noticed(queue_path: Path) -> None:
    write(queue_path, count=10)
    with open_writer(queue_path) as writer:
        reservation = writer.reserve(LAYOUT.itemsize)
        view = reservation.__enter__()
        held = memoryview(view)  # a writer may continue: the reserved room becomes padding
        with pytest.raises(RuntimeError):
            reservation.__exit__(RuntimeError, RuntimeError(), None)
            raise RuntimeError
        held.release()
        writer.append(bytes(LAYOUT.itemsize), type_id=1)
    with aiochronicle.Queue(queue_path) as whole:
        assert whole.slice().count == 11
    refuses(queue_path, "not all of one type and length")


def test_index_that_claims_too_much_is_not_believed(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SEGMENT) as writer:
        for number in range(9000):
            writer.append(bytes(300 if number % 4096 == 7 else 19), type_id=1)
    index = queue_path / "000000000.idx"
    content = bytearray(index.read_bytes())
    assert content[12:16] == bytes(4)
    content[15] = 0x80  # "all records are alike"
    index.write_bytes(content)
    refuses(queue_path, "not all of one type and length")


def test_lost_records_are_reported(queue_path: Path) -> None:
    write(queue_path)
    (queue_path / "000000000.idx").unlink()
    with (queue_path / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * 4000)
        segment.write(b"\xff" * 64)
    with aiochronicle.Queue(queue_path) as whole, pytest.raises(errors.CorruptionError):
        whole.slice().to_numpy(LAYOUT)
