"""Every byte that our engine writes, checked with the independent decoder."""

import random
import struct
import time
from pathlib import Path

import pytest
from helpers.waiting import eventually
from reference import format as fmt

from aiochronicle import Message, Retention, Roll, open_reader, open_writer

SIZE = 4096


def decode(path: Path) -> fmt.QueueDump:
    dump = fmt.decode_queue(path)
    assert dump.errors == []
    assert dump.remarks == []
    assert dump.control.error is None
    return dump


def zero_behind_the_end(path: Path) -> None:
    for segment in sorted(path.glob("*.q")):
        data = segment.read_bytes()
        end = fmt.decode_segment(data).end_offset
        assert not any(data[end:]), f"{segment} has bytes behind its end at {end}"


def gaps_are_zero(path: Path) -> None:
    """Check that the bytes between each payload and the next multiple of 64 are zero."""
    for segment in sorted(path.glob("*.q")):
        data = segment.read_bytes()
        for record in fmt.decode_segment(data).records:
            payload_end = record.offset + 64 + record.commit_len - 1
            assert not any(data[payload_end : record.end])


def second_message(path: Path) -> Message:
    """Return a message of a queue's second writer."""
    for payload in (b"first", b"second"):
        with open_writer(path, segment_size=SIZE) as writer:
            writer.append(payload)
    with open_reader(path) as reader:
        *_, second = reader
    return second


def test_records_to_the_byte(queue_path: Path, rng: random.Random) -> None:
    """Records have the same bytes as those of the reference encoder."""
    order = second_message(queue_path.with_name("orders"))
    with open_writer(queue_path, segment_size=SIZE) as writer:
        for number in range(50):
            payload = rng.randbytes(rng.randrange(300))
            writer.append(payload, type_id=rng.randrange(0xFFFF), timestamp_ns=1000 + number)
        writer.append(b"caused", timestamp_ns=2000, cause=(0xABCDEF, 99))
        writer.append(b"by a message", timestamp_ns=2000, cause=order)
        writer.append_many([b"one", b"two", b""], timestamps_ns=[2000, 2001, 2001])
        with writer.reserve(5, timestamp_ns=3000) as room:
            room[:] = b"place"
        with writer.reserve(5, timestamp_ns=3000, cause=order) as room:
            room[:] = b"cause"
    dump = decode(queue_path)
    assert len(dump.records) == 57
    for segment_id, record in dump.records:
        own = record.own
        assert own is not None
        assert own.epoch == dump.control.writer_epoch
        cause = None
        if own.cause_source is not None:
            assert own.cause_seq is not None
            assert own.cause_epoch is not None
            cause = (own.cause_source, own.cause_seq, own.cause_epoch)
        expected = fmt.encode_own_record(
            record.payload,
            segment_id=segment_id,
            epoch=own.epoch,
            seq=record.seq,
            timestamp_ns=record.timestamp_ns,
            type_id=record.type_id,
            batch_left=own.batch_left,
            cause=cause,
        )
        data = (queue_path / fmt.segment_name(segment_id)).read_bytes()
        assert data[record.offset : record.end] == expected
    owns = [record.own for _, record in dump.records]
    assert [own.batch_left for own in owns if own][-5:] == [2, 1, 0, 0, 0]
    caused = [own for own in owns if own and own.cause_source is not None]
    assert [(own.cause_source, own.cause_seq, own.cause_epoch) for own in caused] == [
        (0xABCDEF, 99, 0),
        (order.queue_id, 1, order.epoch),
        (order.queue_id, 1, order.epoch),
    ]
    assert (dump.seq_gaps, dump.seq_restarts, dump.timestamp_regressions) == (0, 0, 0)
    zero_behind_the_end(queue_path)
    gaps_are_zero(queue_path)


def test_segments_and_control_block(queue_path: Path) -> None:
    before = time.time_ns()
    position = None
    for _ in range(3):
        with open_writer(queue_path, segment_size=SIZE) as writer:
            for _ in range(40):
                writer.append(bytes(64))
            position = writer.position
    assert position is not None
    dump = decode(queue_path)
    assert list(dump.segments) == [0, 1, 2, 3]
    assert [segment.sealed for segment in dump.segments.values()] == [True, True, True, False]
    for segment_id, segment in dump.segments.items():
        # The header of a sealed segment has the end of its records, in bytes that the format leaves free.
        end = segment.end_offset if segment.sealed else 0
        spare = end.to_bytes(8, "little") + bytes(40)
        assert segment.header == fmt.SegmentHeader(
            fmt.SEGMENT_MAGIC, 2, segment_id, int(segment_id < 3), spare
        )
        assert segment.size == SIZE
    control = dump.control
    assert (control.segment_size, control.segment_gen % 2) == (SIZE, 0)
    assert before // 10**9 <= control.writer_epoch <= time.time_ns() // 10**9 + 3
    assert (control.current_segment, control.write_offset) == (position.segment, position.offset)
    assert before <= control.writer_heartbeat_ns <= time.time_ns()
    assert control.waiters_pending == 0
    assert dump.end == (position.segment, position.offset)
    assert dump.lock is not None
    assert dump.lock.epoch == control.writer_epoch
    assert not list(queue_path.glob("*.tmp"))


def test_index_meta_says_what_is_durable(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SIZE) as writer:
        for number in range(100):
            writer.append(b"%d" % number)
            if number % 20 == 19:
                writer.flush_now()
                position = writer.position
                eventually(lambda: writer.statistics().seals == writer.statistics().rolls)
                durable = fmt.decode_index_meta((queue_path / "index.meta").read_bytes())
                assert durable is not None
                stored = (durable.current_segment, durable.write_offset)
                assert stored == (position.segment, position.offset)
    dump = decode(queue_path)
    assert dump.durable is not None
    assert (dump.durable.current_segment, dump.durable.write_offset) == dump.end
    assert (queue_path / "index.meta").stat().st_size == 16


def test_seek_index_to_the_byte(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=1 << 20) as writer:
        for first in range(0, 40_000, 1000):
            stamps = [5 * seq for seq in range(first, first + 1000)]
            writer.append_many([b""] * 1000, timestamps_ns=stamps)
    dump = decode(queue_path)
    sealed = [segment_id for segment_id, segment in dump.segments.items() if segment.sealed]
    assert len(sealed) == 2
    for segment_id in sealed:
        records = dump.segments[segment_id].records
        expected = fmt.encode_index(
            records, segment_id=segment_id, segment_size=1 << 20, flags=fmt.INDEX_UNIFORM
        )
        assert (queue_path / fmt.index_name(segment_id)).read_bytes() == expected
        assert len(fmt.decode_index(expected).entries) == -(-len(records) // 4096)


def test_reader_position_slots(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SIZE) as writer:
        for number in range(50):
            writer.append(b"%d" % number)
        epoch = writer.statistics().epoch
    file = queue_path / "readers" / "slots.meta"
    with open_reader(queue_path, "slots") as reader:
        slots = set()
        previous = fmt.decode_position(file.read_bytes())
        assert previous is not None
        for _ in range(20):
            reader.read_batch(2)
            reader.commit()
            data = file.read_bytes()
            found = fmt.decode_position(data)
            assert found is not None
            assert len(data) == 80
            # Our extension: the epoch of a record next to the position, in bytes that the format leaves
            # free.
            at = 36 + 40 * found.slot
            assert int.from_bytes(data[at : at + 4], "little") == epoch
            assert (found.segment_id, found.offset) == (
                reader.position.segment,
                reader.position.offset,
            )
            assert found.generation > previous.generation
            # The slot is the one that the replaced generation number points to.
            assert found.slot == (found.generation - 1) % 2
            assert abs(found.last_heartbeat_ns - time.time_ns()) < 60 * 10**9
            slots.add(found.slot)
            previous = found
        assert slots == {0, 1}


def test_aborted_and_abandoned_room(queue_path: Path) -> None:
    kept: list[memoryview] = []
    with open_writer(queue_path, segment_size=SIZE) as writer:
        with pytest.raises(ZeroDivisionError), writer.reserve(500) as room:
            room[:], _ = b"x" * 500, 1 // len(room[500:])
        writer.append(b"short")
        zero_behind_the_end(queue_path)
        with pytest.raises(BufferError), writer.reserve(500) as room:
            kept.append(room[:10])
        kept.pop().release()
        writer.append(b"behind")
    dump = decode(queue_path)
    assert [record.payload for _, record in dump.records] == [b"short", b"behind"]
    assert dump.segments[0].padding == 1
    zero_behind_the_end(queue_path)
    with open_writer(queue_path) as writer:
        assert writer.append(b"next") == 2


def test_tail_is_zero_after_recovery(queue_path: Path) -> None:
    """A torn record after the durable position is saved to a file, and the space is zeroed."""
    with open_writer(queue_path, segment_size=SIZE) as writer:
        for number in range(10):
            writer.append(b"%d" % number)
        end = writer.position.offset
    segment = queue_path / "000000000.q"
    torn = fmt.encode_record(b"torn" * 50, seq=10, timestamp_ns=0, type_id=0, checksum=1)
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(torn)
    with (queue_path / "control.meta").open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<Q", 7))  # not the value at the clean close
    with open_writer(queue_path) as writer:
        assert writer.recovery.torn_records == 1
        assert writer.recovery.bytes_set_aside > 0
        assert writer.append(b"10") == 10
    assert any(file.read_bytes() in torn for file in (queue_path / "recovered").iterdir())
    dump = decode(queue_path)
    assert [record.payload for _, record in dump.records] == [b"%d" % n for n in range(11)]
    zero_behind_the_end(queue_path)


def test_random_work_decodes(queue_path: Path, rng: random.Random) -> None:
    """After random operations, the decoder finds the same records as our reader."""
    expected: list[bytes] = []
    for _ in range(8):
        roll = rng.choice([None, Roll(messages=5), Roll(bytes=700)])
        retention = rng.choice([None, Retention(check_interval_s=3600)])
        with open_writer(queue_path, segment_size=SIZE, roll=roll, retention=retention) as writer:
            for _ in range(30):
                action = rng.randrange(5)
                payload = rng.randbytes(rng.randrange(900))
                if action == 0:
                    batch = [payload[:50]] * rng.randrange(1, 8)
                    writer.append_many(batch)
                    expected += batch
                elif action == 1:
                    with writer.reserve(len(payload)) as room:
                        room[:] = payload
                    expected.append(payload)
                elif action == 2:
                    writer.flush_now()
                else:
                    writer.append(payload)
                    expected.append(payload)
    dump = decode(queue_path)
    assert [record.payload for _, record in dump.records] == expected
    assert [record.seq for _, record in dump.records] == list(range(len(expected)))
    assert (dump.seq_gaps, dump.timestamp_regressions) == (0, 0)
    with open_reader(queue_path) as reader:
        assert [message.payload for message in reader] == expected
    zero_behind_the_end(queue_path)
    gaps_are_zero(queue_path)
