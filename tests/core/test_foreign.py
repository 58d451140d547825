"""Queues of other programs: our readers read them unchanged, and our writer continues them."""

import shutil
from pathlib import Path

import pytest
from reference import format as fmt

import aiochronicle
from aiochronicle import errors, open_reader, open_writer

SIZE = 4096
PER_SEGMENT = 31


def write(path: Path, count: int, **options: bool) -> list[bytes]:
    """Write a queue of another program with payloads b"f0", b"f1", …; seqs from 0, 10 ns apart."""
    with fmt.ForeignWriter(path, SIZE, **options) as writer:
        for number in range(count):
            writer.append(b"f%d" % number, 3, 1000 + 10 * number)
    return [b"f%d" % number for number in range(count)]


def payloads(path: Path) -> list[bytes]:
    with open_reader(path) as reader:
        return [message.payload for message in reader]


def test_read_in_order(queue_path: Path) -> None:
    expected = write(queue_path, 100)
    with open_reader(queue_path, "named") as reader:
        messages = list(reader)
        reader.commit(messages[49])
        assert reader.lag.messages == 0
        reader.seek_first()
        assert reader.lag.messages == 100
        assert (reader.statistics().seq_restarts, reader.statistics().timestamp_returns) == (0, 0)
    assert [message.payload for message in messages] == expected
    assert [message.seq for message in messages] == list(range(100))
    assert [message.timestamp_ns for message in messages] == [1000 + 10 * n for n in range(100)]
    assert {message.type_id for message in messages} == {3}
    with open_reader(queue_path, "named") as reader:
        message = reader.poll()
        assert message is not None
        assert message.payload == b"f50"


def test_both_ways_to_end_a_segment(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE) as writer:
        writer.append(b"a", 0, 1)
        writer.pad_and_seal()
        writer.append(b"b", 0, 2)
        writer.seal()
        writer.append(b"c", 0, 3)
        writer.append(bytes(SIZE - 128), 0, 4)  # leaves no room for a header
        writer.append(b"e", 0, 5)
    assert payloads(queue_path) == [b"a", b"b", b"c", bytes(SIZE - 128), b"e"]


def test_segments_need_not_start_at_zero(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE, first_segment=7) as writer:
        for number in range(40):
            writer.append(b"%d" % number, 0, number)
    assert payloads(queue_path) == [b"%d" % number for number in range(40)]
    with open_writer(queue_path) as ours:
        assert ours.append(b"40") == 40
    assert payloads(queue_path)[-1] == b"40"


def test_restarts_and_returning_time_are_counted(queue_path: Path) -> None:
    for round_ in range(3):
        with fmt.ForeignWriter(queue_path, SIZE) as writer:
            for number in range(20):
                writer.append(b"%d.%d" % (round_, number), 0, 5000 - 1000 * round_ + number)
    with open_reader(queue_path) as reader:
        messages = list(reader)
        statistics = reader.statistics()
    assert [message.seq for message in messages] == list(range(20)) * 3
    assert [message.payload for message in messages][20:22] == [b"1.0", b"1.1"]
    assert (statistics.seq_restarts, statistics.timestamp_returns) == (2, 2)
    assert statistics.skipped_records == 0


@pytest.mark.parametrize("write_index", [False, True])
def test_seek_finds_the_first_match(queue_path: Path, write_index: bool) -> None:
    """The first in file order, even if seqs and times start again in the middle of a segment."""
    seqs: list[int] = []
    times: list[int] = []
    for start in (0, 1000, 500):
        with fmt.ForeignWriter(queue_path, SIZE, write_index=write_index) as writer:
            for number in range(50):
                writer.append(b"%d" % len(seqs), 0, start + number)
                seqs.append(number)
                times.append(start + number)
    with open_reader(queue_path) as reader:
        for wanted in range(52):
            reader.seek(wanted)
            message = reader.poll()
            expected = next((i for i, seq in enumerate(seqs) if seq >= wanted), None)
            assert (message and message.payload) == (None if expected is None else b"%d" % expected)
        for wanted in (0, 49, 50, 400, 510, 999, 1000, 1049, 1050):
            reader.seek_time(wanted)
            message = reader.poll()
            expected = next((i for i, stamp in enumerate(times) if stamp >= wanted), None)
            assert (message and message.payload) == (None if expected is None else b"%d" % expected)


def test_our_writer_continues_after_the_largest_seq(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE, start_seq=500) as writer:
        for number in range(60):
            writer.append(b"x", 0, 9000 + number)
    with fmt.ForeignWriter(queue_path, SIZE) as writer:  # starts again at 0
        for number in range(60):
            writer.append(b"y", 0, 100 + number)
    with open_writer(queue_path) as ours:
        assert ours.append(b"ours") == 560
        assert ours.append(b"ours") == 561
        assert ours.statistics().last_timestamp_ns >= 9059
        with pytest.raises(errors.TimestampOrder):
            ours.append(b"late", timestamp_ns=9058)
    with open_reader(queue_path) as reader:
        assert [message.payload for message in reader] == [b"x"] * 60 + [b"y"] * 60 + [b"ours"] * 2
        reader.seek(560)
        message = reader.poll()
        assert message is not None
        assert message.seq == 560


def test_taking_turns(queue_path: Path) -> None:
    """Each writer continues where the other stopped, over several segments."""
    expected: list[bytes] = []
    for round_ in range(6):
        with fmt.ForeignWriter(queue_path, SIZE, start_seq=len(expected)) as foreign:
            for number in range(15):
                foreign.append(b"f%d.%d" % (round_, number), 0, 2000 + len(expected))
                expected.append(b"f%d.%d" % (round_, number))
        with open_writer(queue_path) as ours:
            for number in range(15):
                assert ours.append(b"o%d" % number, timestamp_ns=2000 + len(expected)) == len(
                    expected
                )
                expected.append(b"o%d" % number)
    assert payloads(queue_path) == expected
    dump = fmt.decode_queue(queue_path)
    assert (dump.errors, dump.seq_restarts, dump.seq_gaps) == ([], 0, 0)
    assert [record.payload for _, record in dump.records] == expected


@pytest.mark.parametrize("count", [0, 1, 20, 100])
def test_another_program_continues_ours(queue_path: Path, tmp_path: Path, count: int) -> None:
    """The other program leaves our writer's words in the control block as they were."""
    with open_writer(queue_path, segment_size=SIZE) as ours:
        ours.append_many([b"ours"] * 10, timestamps_ns=range(1, 11))
    with fmt.ForeignWriter(queue_path, SIZE, start_seq=10) as foreign:
        for number in range(count):
            foreign.append(b"theirs", 0, 100 + number)
        end = 10 + count
        info = aiochronicle.inspect(queue_path)
        assert (info.next_seq, info.last_timestamp_ns) == (end, 99 + count if count else 10)
        with open_reader(queue_path, "risk", start="first") as reader:
            assert reader.lag.messages == end
            list(reader)
            reader.commit()
            assert reader.committed_seq == end
            assert reader.seq_at(reader.position) == end
        (risk,) = aiochronicle.list_readers(queue_path)
        assert (risk.committed_seq, risk.lag.messages) == (end, 0)
        aiochronicle.backup(queue_path, tmp_path / "backups")
    aiochronicle.restore(tmp_path / "backups", tmp_path / "restored")
    for path in (tmp_path / "restored", queue_path):
        with open_writer(path) as ours:
            assert ours.append(b"ours again") == end
            assert aiochronicle.inspect(path).next_seq == end + 1
        assert len(payloads(path)) == end + 1


def test_foreign_writer_that_was_killed(queue_path: Path) -> None:
    """index.meta is behind, and the record that it was writing has no commit word yet."""
    writer = fmt.ForeignWriter(queue_path, SIZE)
    for number in range(40):
        writer.append(b"%d" % number, 0, number)
    writer.close(durable=False)
    segment = queue_path / "000000001.q"
    with segment.open("r+b") as file:
        file.seek(writer.offset + 4)
        file.write(b"\1" + bytes(3) + b"unfinished")
    with open_writer(queue_path) as ours:
        assert ours.append(b"40") == 40
    assert payloads(queue_path) == [b"%d" % number for number in range(41)]
    assert fmt.decode_queue(queue_path).errors == []


def test_live_foreign_writer_is_followed_by_polling(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE) as writer, open_reader(queue_path) as reader:
        for number in range(100):
            assert reader.wait(0) is False
            writer.append(b"%d" % number, 0, number)
            assert reader.wait(30) is True, "nobody signals, so it has to look"
            message = reader.poll()
            assert message is not None
            assert message.payload == b"%d" % number


def test_lock_of_a_foreign_writer_counts(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE) as writer:
        writer.append(b"x", 0, 1)
        with pytest.raises(errors.LockedError):
            open_writer(queue_path)
    with open_writer(queue_path), pytest.raises(BlockingIOError):
        fmt.ForeignWriter(queue_path, SIZE)


def damage_missing(index: Path) -> None:
    index.unlink()


def damage_short(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-7])


def damage_corrupt(index: Path) -> None:
    index.write_bytes(b"\xff" * index.stat().st_size)


@pytest.mark.parametrize("damage", [damage_missing, damage_short, damage_corrupt])
def test_damaged_index_is_rebuilt(queue_path: Path, damage: object) -> None:
    write(queue_path, 4 * PER_SEGMENT, write_index=True)
    for path in queue_path.glob("*.idx"):
        damage(path)  # type: ignore[operator]
    with open_reader(queue_path) as reader:
        for seq in (0, 30, 31, 62, 100, 123):
            reader.seek(seq)
            message = reader.poll()
            assert message is not None
            assert message.seq == seq
    with open_writer(queue_path) as ours:
        assert ours.append(b"next") == 4 * PER_SEGMENT
    for number in range(3):
        segment = fmt.decode_segment((queue_path / fmt.segment_name(number)).read_bytes())
        index = fmt.decode_index((queue_path / fmt.index_name(number)).read_bytes())
        assert fmt.check_index(index, segment) is None
        assert len(index.entries) == 1


def test_record_of_another_program_that_is_broken(queue_path: Path) -> None:
    write(queue_path, 10)
    segment = queue_path / "000000000.q"
    data = bytearray(segment.read_bytes())
    data[64 + 3 * 128 + 64] ^= 1
    segment.write_bytes(data)
    with open_reader(queue_path) as reader:
        assert len(reader.read_batch()) == 3
        with pytest.raises(errors.CorruptionError) as caught:
            reader.poll()
        assert (caught.value.path, caught.value.offset) == (str(segment), 64 + 3 * 128)
    with open_reader(queue_path, on_corrupt="skip") as reader:
        assert [message.seq for message in reader] == [0, 1, 2, *range(4, 10)]
        assert reader.statistics().skipped_records == 1
    with open_reader(queue_path, verify=False) as reader:
        assert len(list(reader)) == 10


def test_questions_about_a_foreign_queue(queue_path: Path, tmp_path: Path) -> None:
    write(queue_path, 40)
    info = aiochronicle.inspect(queue_path)
    assert (info.segments, info.next_seq, info.queue_id) == (2, 40, 0)
    assert info.last_timestamp_ns == 1390
    report = aiochronicle.verify(queue_path)
    assert (report.records, report.corrupt, report.first_problem) == (40, 0, None)
    shutil.copytree(queue_path, tmp_path / "copy")
    with open_reader(tmp_path / "copy") as reader, open_writer(tmp_path / "out") as writer:
        message = reader.poll()
        assert message is not None
        with pytest.raises(ValueError, match="no id"):
            writer.append(b"x", cause=message)
