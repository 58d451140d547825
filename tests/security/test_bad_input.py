"""Bad input from outside raises an exception that says where it is, and nothing is lost."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.nobody import as_nobody
from reference import format as fmt

import aiochronicle
from aiochronicle import errors, open_reader, open_writer

SIZE = 4096
COUNT = 100


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A queue of four segments with the payloads b"0" to b"99"."""
    path = tmp_path / "filled"
    with open_writer(path, segment_size=SIZE) as writer:
        for number in range(COUNT):
            writer.append(b"%d" % number, timestamp_ns=1000 + number)
    return path


def payloads(path: Path, **options: Any) -> list[bytes]:
    with open_reader(path, **options) as reader:
        return [message.payload for message in reader]


EVERYTHING = [b"%d" % number for number in range(COUNT)]


def patch(path: Path, offset: int, new: bytes) -> bytes:
    """Overwrite some bytes; return the old ones."""
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(len(new))
        file.seek(offset)
        file.write(new)
    return old


def says_where(error: errors.ChronicleError, path: Path, offset: int | None = None) -> None:
    """Check that the exception and its text name the file, and the offset if there is one."""
    assert error.path == str(path)
    assert str(path) in str(error)
    if offset is not None:
        assert error.offset == offset
        assert f"offset {offset}" in str(error)


# payloads and timestamps


def test_payload_larger_than_a_segment(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SIZE) as writer:
        writer.append(b"before")
        for call in (
            lambda: writer.append(bytes(SIZE)),
            lambda: writer.append_many([b"x", bytes(SIZE)]),
            lambda: writer.append_many([bytes(100)] * 50),
            lambda: writer.reserve(SIZE).__enter__(),
        ):
            with pytest.raises(errors.MessageTooLarge, match="segment_size") as caught:
                call()
            says_where(caught.value, queue_path)
        assert writer.append(b"after") == 1
    assert payloads(queue_path) == [b"before", b"after"]


@pytest.mark.parametrize("payload", ["text", 17, None, 1.5, [b"x"], object()], ids=repr)
def test_payload_that_is_no_buffer(queue_path: Path, payload: Any) -> None:
    with open_writer(queue_path, segment_size=SIZE) as writer:
        with pytest.raises(TypeError):
            writer.append(payload)
        with pytest.raises(TypeError):
            writer.append_many([b"x", payload])
        assert writer.append(b"only") == 0
    assert payloads(queue_path) == [b"only"]


def test_timestamp_going_back(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SIZE) as writer:
        writer.append(b"a", timestamp_ns=100)
        with pytest.raises(errors.TimestampOrder, match=r"99 .* 100") as caught:
            writer.append(b"b", timestamp_ns=99)
        says_where(caught.value, queue_path)
        assert writer.append(b"c", timestamp_ns=100) == 1
    assert payloads(queue_path) == [b"a", b"c"]


def test_clock_stepping_back(queue_path: Path) -> None:
    readings = iter([100, 40, 200])
    with open_writer(queue_path, segment_size=SIZE, clock=lambda: next(readings)) as writer:
        for _ in range(3):
            writer.append(b"x")
        assert writer.statistics().clock_steps == 1
    with open_reader(queue_path) as reader:
        assert [message.timestamp_ns for message in reader] == [100, 100, 200]


@pytest.mark.parametrize("start", ["earliest", "", b"first", -1, 1 << 63, 2.5, None, False])
def test_unknown_start(filled: Path, start: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="start must be"):
        open_reader(filled, start=start)
    assert payloads(filled) == EVERYTHING


# paths


@pytest.mark.parametrize("opener", [open_reader, open_writer])
def test_path_that_is_a_file(tmp_path: Path, opener: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with pytest.raises(errors.NotAQueue) as caught:
        opener(path)
    says_where(caught.value, path)
    assert path.read_bytes() == b"precious"


def test_a_directory_of_queues_does_not_become_one(tmp_path: Path) -> None:
    (tmp_path / "root" / "notes").mkdir(parents=True)
    open_writer(tmp_path / "root" / "orders").close()
    with pytest.raises(
        errors.NotAQueue, match="directory of queues, for instance 'orders'"
    ) as caught:
        open_writer(tmp_path / "root")
    says_where(caught.value, tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["notes", "orders"]
    # A queue's directory may contain other queues; it is a queue already.
    open_writer(tmp_path / "outer").close()
    open_writer(tmp_path / "outer" / "inner").close()
    open_writer(tmp_path / "outer").close()


@pytest.mark.parametrize("wait_for_queue", [False, True])
def test_reader_of_a_directory_of_queues_is_told(tmp_path: Path, wait_for_queue: bool) -> None:
    with pytest.raises(errors.QueueNotFound):
        open_reader(tmp_path)
    open_writer(tmp_path / "orders", segment_size=1 << 16).close()
    with pytest.raises(
        errors.NotAQueue, match="directory of queues, for instance 'orders'"
    ) as caught:
        open_reader(tmp_path, "name", wait_for_queue=wait_for_queue)
    assert caught.value.path == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["orders"]


@pytest.mark.parametrize("opener", [open_reader, open_writer])
def test_path_without_a_parent(tmp_path: Path, opener: Callable[[Path], object]) -> None:
    path = tmp_path / "missing" / "queue"
    with pytest.raises(errors.QueueNotFound) as caught:
        opener(path)
    says_where(caught.value, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opener", [open_reader, open_writer])
def test_path_with_a_nul(opener: Callable[[str], object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        opener("a\0b")


def test_directory_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "control.meta").write_bytes(b"?" * 512)
    for opener in (open_reader, open_writer):
        with pytest.raises(errors.NotAQueue, match="magic") as caught:
            opener(tmp_path)
        says_where(caught.value, tmp_path / "control.meta")
    assert (tmp_path / "control.meta").read_bytes() == b"?" * 512


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.tmp").write_text("precious")
    open_writer(tmp_path).close()
    assert (tmp_path / "report.tmp").read_text() == "precious"


def test_queue_takes_no_new_name_when_it_has_4096(filled: Path) -> None:
    open_reader(filled, "first").close()
    position = (filled / "readers" / "first.meta").read_bytes()
    for number in range(4095):
        (filled / "readers" / f"run-{number}.meta").write_bytes(position)
    with pytest.raises(errors.TooManyReaders, match="has 4096 reader names") as caught:
        open_reader(filled, "late")
    says_where(caught.value, filled / "readers")
    open_reader(filled, "run-7").close()
    (filled / "readers" / "first.meta").unlink()
    open_reader(filled, "late").close()


def test_directory_without_rights(open_tmp: Path) -> None:
    with open_writer(open_tmp / "private", segment_size=SIZE) as writer:
        writer.append(b"secret")
    code = """
for opener, path in ((open_reader, sys.argv[1]), (open_writer, sys.argv[1]),
                     (open_writer, sys.argv[2])):
    try:
        opener(path)
    except errors.AccessDenied as error:
        assert isinstance(error, PermissionError)
        assert error.path.startswith(path) and path in str(error) and error.errno == 13, error
        assert "mode" in str(error), error
    else:
        raise AssertionError("no AccessDenied")
"""
    outcome = as_nobody(code, open_tmp / "private", open_tmp / "new")
    assert outcome.returncode == 0, outcome.stderr
    assert payloads(open_tmp / "private") == [b"secret"]
    assert not (open_tmp / "new").exists()


# versions and sizes


def test_newer_version_of_the_control_block(filled: Path) -> None:
    old = patch(filled / "control.meta", 4, struct.pack("<I", 4))
    for opener in (open_reader, open_writer):
        with pytest.raises(errors.UnsupportedVersion, match=r"version 4") as caught:
            opener(filled)
        says_where(caught.value, filled / "control.meta", 4)
    patch(filled / "control.meta", 4, old)
    assert payloads(filled) == EVERYTHING


def test_newer_version_of_a_segment(filled: Path) -> None:
    segment = filled / "000000001.q"
    old = patch(segment, 4, struct.pack("<I", 3))
    with open_reader(filled) as reader:
        assert len(reader.read_batch(1000)) == 31, "what comes before it"
        with pytest.raises(errors.UnsupportedVersion) as caught:
            reader.poll()
        says_where(caught.value, segment, 4)
    patch(segment, 4, old)
    assert payloads(filled) == EVERYTHING


def test_record_of_a_foreign_version(filled: Path) -> None:
    segment = filled / "000000000.q"
    old = patch(segment, 64 + 4, b"\2")
    with open_reader(filled) as reader, pytest.raises(errors.CorruptionError) as caught:
        reader.poll()
    says_where(caught.value, segment, 64)
    assert payloads(filled, on_corrupt="skip") == EVERYTHING[1:]
    patch(segment, 64 + 4, old)
    assert payloads(filled) == EVERYTHING


def test_seek_does_not_pass_a_corrupt_record_of_the_last_segment(filled: Path) -> None:
    segment = sorted(filled.glob("*.q"))[-1]
    patch(segment, 64 + 128 * 3, b"\xff" * 64)  # after the messages 93, 94, 95
    with open_reader(filled) as reader:
        for seq in (96, 98):
            reader.seek(seq)
            with pytest.raises(errors.CorruptionError) as caught:
                reader.poll()
            says_where(caught.value, segment, 64 + 128 * 3)
        reader.seek(95)
        assert reader.read_batch(1)[0].seq == 95


@pytest.mark.parametrize("size", [0, 1, 64, 4095, 4097, (1 << 32) + 64, (1 << 64) - 64])
def test_wrong_segment_size_in_control_meta(filled: Path, size: int) -> None:
    old = patch(filled / "control.meta", 24, struct.pack("<Q", size))
    for opener in (open_reader, open_writer):
        with pytest.raises(errors.CorruptionError) as caught:
            opener(filled)
        says_where(caught.value, filled / "control.meta", 24)
    patch(filled / "control.meta", 24, old)
    assert payloads(filled) == EVERYTHING


@pytest.mark.parametrize("size", [8192, 1 << 30])
def test_possible_but_wrong_segment_size(filled: Path, size: int) -> None:
    """Segments that are too short raise, and none of them is changed."""
    old = patch(filled / "control.meta", 24, struct.pack("<Q", size))
    assert payloads(filled) == EVERYTHING, "all there, however long the files should be"
    with pytest.raises(errors.CorruptionError) as caught:
        open_writer(filled)
    says_where(caught.value, sorted(filled.glob("*.q"))[-1], SIZE)
    patch(filled / "control.meta", 24, old)
    assert payloads(filled) == EVERYTHING


@pytest.mark.parametrize("length", [0, 1, 100, 511])
def test_short_control_meta(filled: Path, length: int) -> None:
    control = filled / "control.meta"
    whole = control.read_bytes()
    control.write_bytes(whole[:length])
    for opener in (open_reader, open_writer):
        with pytest.raises(errors.CorruptionError) as caught:
            opener(filled)
        says_where(caught.value, control)
    control.write_bytes(whole)
    assert payloads(filled) == EVERYTHING


@pytest.mark.parametrize("fault", ["positions", "seqlock"])
def test_lies_about_the_writer_in_control_meta(filled: Path, fault: str) -> None:
    """Positions in the control block are hints: wrong ones make no reader crash, hang or skip."""
    if fault == "positions":
        patch(filled / "control.meta", 132, b"\xff" * 4)
        patch(filled / "control.meta", 256, b"\xff" * 8)
    else:
        patch(filled / "control.meta", 128, struct.pack("<I", 7))
    assert payloads(filled) == EVERYTHING
    with open_reader(filled, start="last") as reader:
        reader.seek(50)
        message = reader.poll()
        assert message is not None
        assert message.seq == 50
    with open_writer(filled) as writer:
        assert writer.append(b"100") == COUNT
    assert payloads(filled) == [*EVERYTHING, b"100"]


# segments


@pytest.mark.parametrize("length", [0, 63, 64, 1000, 4095])
def test_truncated_segment(filled: Path, length: int) -> None:
    segment = filled / "000000001.q"
    whole = segment.read_bytes()
    os.truncate(segment, length)
    with open_reader(filled) as reader:
        with pytest.raises(errors.CorruptionError) as caught:
            list(reader)
        first = reader.statistics().messages
        says_where(caught.value, segment)
        with pytest.raises(errors.CorruptionError):
            reader.poll()  # the error stays when the reader tries again
    assert 31 <= first <= 62
    skipped = payloads(filled, on_corrupt="skip")
    assert skipped == EVERYTHING[:first] + EVERYTHING[62:]
    segment.write_bytes(whole)
    assert payloads(filled) == EVERYTHING


@pytest.mark.parametrize("length", [0, 64, 1000, 4095])
def test_truncated_last_segment_and_a_writer(filled: Path, length: int) -> None:
    segment = sorted(filled.glob("*.q"))[-1]
    whole = segment.read_bytes()
    os.truncate(segment, length)
    with pytest.raises(errors.CorruptionError) as caught:
        open_writer(filled)
    says_where(caught.value, segment)
    segment.write_bytes(whole)
    assert payloads(filled) == EVERYTHING


def test_zero_filled_segment(filled: Path) -> None:
    segment = filled / "000000001.q"
    whole = segment.read_bytes()
    segment.write_bytes(bytes(SIZE))
    with open_reader(filled) as reader:
        assert len(reader.read_batch(1000)) == 31
        with pytest.raises(errors.CorruptionError, match="zero") as caught:
            reader.poll()
        says_where(caught.value, segment)
    assert payloads(filled, on_corrupt="skip") == EVERYTHING[:31] + EVERYTHING[62:]
    segment.write_bytes(whole)
    assert payloads(filled) == EVERYTHING


def test_zero_filled_records_in_a_sealed_segment(filled: Path) -> None:
    """If the header survived and the records did not, later records must not pass for the next ones."""
    segment = filled / "000000001.q"
    whole = segment.read_bytes()
    patch(segment, 64 + 10 * 128, bytes(SIZE - 64 - 10 * 128))
    with open_reader(filled) as reader:
        assert len(reader.read_batch(1000)) == 41
        with pytest.raises(errors.CorruptionError, match="missing") as caught:
            reader.poll()
        assert str(filled) in str(caught.value)
    assert payloads(filled, on_corrupt="skip")[41:] == EVERYTHING[62:]
    segment.write_bytes(whole)
    assert payloads(filled) == EVERYTHING


def test_missing_segment(filled: Path, tmp_path: Path) -> None:
    (filled / "000000001.q").rename(tmp_path / "aside")
    with open_reader(filled) as reader:
        assert len(reader.read_batch(1000)) == 31
        with pytest.raises(errors.PositionLost) as caught:
            reader.poll()
        assert caught.value.wanted == (1, 64)
    (tmp_path / "aside").rename(filled / "000000001.q")
    assert payloads(filled) == EVERYTHING


def test_segment_of_another_number(filled: Path) -> None:
    shutil.copy(filled / "000000000.q", filled / "000000001.q")
    with open_reader(filled) as reader:
        assert len(reader.read_batch(1000)) == 31
        with pytest.raises(errors.CorruptionError) as caught:
            reader.poll()
        says_where(caught.value, filled / "000000001.q", 8)


def test_every_flipped_byte_of_a_record(filled: Path) -> None:
    """If one byte of a record changes, reading raises, and skipping misses only this record."""
    segment = filled / "000000000.q"
    record = 64 + 5 * 128
    for at in (*range(record, record + 65), record + 64):
        (value,) = segment.read_bytes()[at : at + 1]
        old = patch(segment, at, bytes([value ^ 0x55]))
        with open_reader(filled) as reader:
            batch = reader.read_batch(1000)
            found = [message.payload for message in batch]
            if found == EVERYTHING:
                pytest.fail(f"byte {at - record} of the record is not protected")
            assert found == EVERYTHING[:5]
            with pytest.raises(errors.CorruptionError) as caught:
                reader.poll()
            says_where(caught.value, segment, record)
        assert payloads(filled, on_corrupt="skip") == EVERYTHING[:5] + EVERYTHING[6:]
        patch(segment, at, old)
    assert payloads(filled) == EVERYTHING


def test_corruption_does_not_stop_the_writer(filled: Path) -> None:
    """A corrupt record before the durable position is counted and left in place; nothing is removed."""
    segment = sorted(filled.glob("*.q"))[-1]
    patch(segment, 64 + 64, b"?")
    with open_writer(filled, verify=True) as writer:
        assert writer.recovery.corrupt_records == 1
        assert writer.append(b"100") == COUNT
    report = aiochronicle.verify(filled)
    assert (report.records, report.corrupt) == (COUNT, 1)
    assert report.first_problem is not None
    assert str(segment) in report.first_problem
    assert "offset 64" in report.first_problem


def test_no_control_meta(filled: Path) -> None:
    whole = (filled / "control.meta").read_bytes()
    (filled / "control.meta").unlink()
    with pytest.raises(errors.QueueNotFound) as found:
        open_reader(filled)
    says_where(found.value, filled)
    with pytest.raises(errors.CorruptionError, match=r"though there are segments") as caught:
        open_writer(filled)
    says_where(caught.value, filled / "control.meta")
    (filled / "control.meta").write_bytes(whole)
    assert payloads(filled) == EVERYTHING


@pytest.mark.parametrize("removed", [0, 2], ids=["from the start", "without the first segments"])
def test_the_advice_about_a_lost_control_meta_helps(filled: Path, removed: int) -> None:
    for segment in sorted(filled.glob("*.q"))[:removed]:
        segment.unlink()
        segment.with_suffix(".idx").unlink()
    left = payloads(filled, start="first")
    patch(filled / "control.meta", 8, b"\0\0\0\0")
    with pytest.raises(
        errors.CorruptionError, match=r"control\.meta of a new queue with the same segment_size"
    ):
        open_reader(filled)
    patch(filled / "control.meta", 0, b"?")
    with pytest.raises(
        errors.NotAQueue, match=r"control\.meta of a new queue with the same segment_size"
    ):
        open_reader(filled)

    segment_size = min(segment.stat().st_size for segment in filled.glob("*.q"))
    open_writer(filled.parent / "new", segment_size=segment_size).close()
    shutil.copy(filled.parent / "new" / "control.meta", filled)
    assert payloads(filled, start="first") == left
    assert aiochronicle.verify(filled).corrupt == 0
    with open_writer(filled) as writer:
        assert writer.append(b"100") == COUNT
    assert payloads(filled, start="first") == [*left, b"100"]


# reader positions


@pytest.fixture
def position(filled: Path) -> Path:
    """Position file of a reader that committed after b"9"."""
    with open_reader(filled, "reader") as reader:
        reader.read_batch(5)
        reader.commit()
        reader.read_batch(5)
        reader.commit()
    return filled / "readers" / "reader.meta"


@pytest.mark.parametrize("content", [b"\xff" * 80, b"", b"x" * 79, bytes(80)], ids=len)
def test_both_slots_broken(filled: Path, position: Path, content: bytes) -> None:
    good = position.read_bytes()
    position.write_bytes(content)
    with pytest.raises(errors.PositionCorrupt, match="forget_reader") as caught:
        open_reader(filled, "reader")
    says_where(caught.value, position)
    assert position.read_bytes() == content, "left for its owner to look at"
    position.write_bytes(good)
    assert payloads(filled, name="reader") == EVERYTHING[10:]


def test_one_slot_broken(filled: Path, position: Path) -> None:
    good = position.read_bytes()
    newest = fmt.decode_position(good)
    assert newest is not None
    patch(position, newest.slot * 40 + 8, b"\xff")
    with open_reader(filled, "reader") as reader:
        message = reader.poll()
        assert message is not None
        assert message.seq in (5, 10), "the other slot holds an older commit or a heartbeat"


@pytest.mark.parametrize(
    ("segment", "offset"), [(9, 64), (3, 64 * 60), (1 << 40, 64), (0, 65), (0, 0), (0, 1 << 63)]
)
def test_position_outside_the_queue(
    filled: Path, position: Path, segment: int, offset: int
) -> None:
    body = struct.pack("<QQQQ", segment, offset, 0, 99)
    position.write_bytes(body + struct.pack("<II", zlib.crc32(body), 0) + bytes(40))
    with pytest.raises((errors.PositionLost, errors.InvalidArgument)) as caught:
        open_reader(filled, "reader")
    assert str(filled) in str(caught.value)
    with open_reader(filled, "reader", start="first") as reader:
        assert len(list(reader)) == COUNT
        reader.commit()
    assert payloads(filled, name="reader") == []


# indexes


def lying_index(path: Path, segment_id: int, **changes: int) -> bytes:
    """Return the valid index of a segment with some numbers replaced."""
    dump = fmt.decode_segment((path / f"{segment_id:09d}.q").read_bytes())
    flags = fmt.INDEX_UNIFORM if fmt.is_uniform(dump.records) else 0
    raw = bytearray(
        fmt.encode_index(dump.records, segment_id=segment_id, segment_size=SIZE, flags=flags)
    )
    places = {
        "min_seq": 40,
        "max_seq": 48,
        "min_ts_ns": 56,
        "max_ts_ns": 64,
        "entry_seq": 80,
        "entry_ts": 88,
        "entry_offset": 96,
    }
    for name, value in changes.items():
        struct.pack_into("<Q", raw, places[name], value)
    return bytes(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"entry_offset": 64 + 128 * 20},
        {"entry_offset": 64 + 128 * 20, "entry_seq": 20, "entry_ts": 1020},
        {"entry_offset": 64 + 64},
        {"entry_seq": 0, "entry_ts": 0},
        {"entry_seq": 1 << 63},
        {"max_seq": 32, "max_ts_ns": 1032},
        {"max_seq": 1 << 40, "max_ts_ns": 1 << 40},
        {"min_seq": 0, "min_ts_ns": 0},
        {"min_seq": 50, "min_ts_ns": 1050},
    ],
    ids=str,
)
def test_lying_index(filled: Path, changes: dict[str, int]) -> None:
    index = filled / "000000001.idx"
    honest = index.read_bytes()
    assert honest == lying_index(filled, 1)
    index.write_bytes(lying_index(filled, 1, **changes))
    with open_reader(filled) as reader:
        for seq in range(COUNT):
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq
            reader.seek_time(1000 + seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq
    with open_writer(filled) as writer:
        assert writer.append(b"100") == COUNT


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\xff" * 200, bytes(104)], ids=len)
def test_index_that_is_none(filled: Path, content: bytes) -> None:
    for number in range(3):
        (filled / f"{number:09d}.idx").write_bytes(content)
    with open_reader(filled) as reader:
        for seq in (0, 30, 31, 61, 62, 99):
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq


def flip_payload(queue: Path, number: int) -> None:
    segment = queue / "000000000.q"
    content = bytearray(segment.read_bytes())
    content[64 + number * 128 + 64] ^= 1
    segment.write_bytes(content)


def test_a_commit_after_step_over_lies_behind_the_damage(filled: Path) -> None:
    """After step_over and commit, the next reader of the name does not meet the record again."""
    flip_payload(filled, 2)
    with open_reader(filled, "risk") as reader:
        assert [message.seq for message in reader.read_batch(2)] == [0, 1]
        with pytest.raises(errors.CorruptionError):
            reader.poll()
        reader.step_over()
        reader.commit()
        assert reader.statistics().skipped_records == 1
    with open_reader(filled, "risk") as reader:
        following = reader.poll()
        assert following is not None
        assert following.seq == 3


def test_step_over_without_damage_changes_nothing(filled: Path) -> None:
    flip_payload(filled, 2)
    with open_reader(filled) as reader:
        reader.step_over()
        assert [message.seq for message in reader.read_batch(2)] == [0, 1]
        with pytest.raises(errors.CorruptionError):  # step_over was for another record
            reader.poll()


def zero(segment: Path, first: int, last: int) -> None:
    with segment.open("r+b") as file:
        file.seek(first)
        file.write(bytes(last - first))


@pytest.mark.parametrize(
    "zeros", [(64 + 3 * 128, 68 + 3 * 128), (4096, 8192)], ids=["word", "page"]
)
@pytest.mark.parametrize("is_open", [False, True], ids=["before", "while it reads"])
def test_records_that_became_zeros_under_a_live_writer(
    tmp_path: Path, zeros: tuple[int, int], is_open: bool
) -> None:
    """A damaged record that the writer has published does not count as "nothing there yet"."""
    path = tmp_path / "queue"
    lost = range((zeros[0] - 64) // 128, (zeros[1] - 64 + 127) // 128)
    with open_writer(path, segment_size=1 << 16) as writer, open_reader(path) as early:
        writer.append_many([b"x"] * 80)
        zero(path / "000000000.q", *zeros)
        reader = early if is_open else open_reader(path)
        seqs = []
        with pytest.raises(errors.CorruptionError) as caught, reader:
            for message in reader:
                seqs.append(message.seq)
        assert caught.value.offset is not None
        assert seqs == list(range(lost[0]))
    with open_writer(path) as writer, open_reader(path, on_corrupt="skip") as reader:
        seqs = [message.seq for message in reader]
        assert seqs == [seq for seq in range(80) if seq not in lost]


def test_the_last_record_that_became_zeros(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue", segment_size=1 << 16) as writer:
        writer.append_many([b"x"] * 3)
        with open_reader(tmp_path / "queue") as reader:
            assert len(reader.read_batch(2)) == 2
            zero(tmp_path / "queue" / "000000000.q", 64 + 2 * 128, 68 + 2 * 128)
            with pytest.raises(errors.CorruptionError):
                reader.poll()
            reader.step_over()
            writer.append(b"y")
            following = reader.poll()
            assert following is not None
            assert following.seq == 3
