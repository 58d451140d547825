"""The reference is the oracle of other tests, so it is checked against hand-written bytes."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest

from reference import format as fmt

SIZE = 1024


def segment(*records: bytes, segment_id: int = 0, sealed: bool = False, size: int = SIZE) -> bytes:
    data = fmt.encode_segment_header(segment_id, sealed=sealed) + b"".join(records)
    return data.ljust(size, b"\0")


def record(
    payload: bytes = b"abc", seq: int = 0, timestamp_ns: int = 10, type_id: int = 1
) -> bytes:
    return fmt.encode_record(payload, seq=seq, timestamp_ns=timestamp_ns, type_id=type_id)


def own(payload: bytes = b"abc", seq: int = 0, batch_left: int = 0, segment_id: int = 0) -> bytes:
    return fmt.encode_own_record(
        payload,
        segment_id=segment_id,
        epoch=7,
        seq=seq,
        timestamp_ns=10,
        type_id=1,
        batch_left=batch_left,
    )


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def patch_file(path: Path, offset: int, new: bytes) -> None:
    path.write_bytes(patched(path.read_bytes(), offset, new))


# layouts and checksums


def test_sizes() -> None:
    assert fmt.RECORD_HEADER.size == fmt.RECORD_HEADER_SIZE == 64
    assert fmt.SEGMENT_HEADER.size == fmt.SEGMENT_HEADER_SIZE == 64
    assert fmt.CONTROL.size == fmt.CONTROL_SIZE == 512
    assert fmt.INDEX_META.size == 16
    assert fmt.INDEX_HEADER.size == fmt.INDEX_HEADER_SIZE == 80
    assert fmt.INDEX_ENTRY.size == 24
    assert fmt.SLOT.size == fmt.SLOT_SIZE == 40
    assert fmt.OWN_SPARE.size == fmt.SPARE_SIZE == 32


@pytest.mark.parametrize(
    ("payload_len", "expected"), [(0, 64), (1, 128), (63, 128), (64, 128), (65, 192)]
)
def test_record_size(payload_len: int, expected: int) -> None:
    assert fmt.record_size(payload_len) == expected
    assert len(record(bytes(payload_len))) == expected


def test_known_checksums() -> None:
    assert fmt.crc32c(b"123456789") == 0xE3069283
    assert fmt.crc32c(b"") == 0
    assert fmt.crc32c(bytes(32)) == 0x8A9136AA
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_record_bytes_by_hand() -> None:
    raw = record(
        b"123456789", seq=0x0102030405060708, timestamp_ns=0x1112131415161718, type_id=0x2122
    )
    assert raw == bytes.fromhex(
        "0a000000 01 000000 0807060504030201 1817161514131211 2221 0000 2639f4cb"
    ) + bytes(32) + b"123456789" + bytes(55)


def test_segment_header_by_hand() -> None:
    raw = fmt.encode_segment_header(5, sealed=True)
    assert raw == bytes.fromhex("30474553 02000000 05000000 01000000") + bytes(48)


def test_control_by_hand() -> None:
    raw = bytearray(512)
    struct.pack_into("<III", raw, 0, 0x4348524E, 3, 2)
    struct.pack_into("<QQ", raw, 16, 4, 65536)
    struct.pack_into("<II", raw, 128, 6, 9)
    struct.pack_into("<QQ", raw, 256, 640, 77)
    struct.pack_into("<II", raw, 384, 11, 1)
    expected = fmt.Control(0x4348524E, 3, 2, 4, 65536, 6, 9, 640, 77, 11, 1)
    assert fmt.decode_control(bytes(raw)) == expected
    encoded = fmt.encode_control(
        segment_size=65536,
        writer_epoch=4,
        segment_gen=6,
        current_segment=9,
        write_offset=640,
        writer_heartbeat_ns=77,
        notify_seq=11,
        waiters_pending=1,
    )
    assert encoded == bytes(raw)


@pytest.mark.parametrize(
    ("offset", "new", "error"),
    [
        (0, b"\0", "bad control magic"),
        (4, b"\4", "bad control version"),
        (8, b"\1", "control block not initialised"),
        (24, b"\1", "bad segment size"),
    ],
)
def test_control_errors(offset: int, new: bytes, error: str) -> None:
    raw = fmt.encode_control(segment_size=SIZE)
    assert fmt.decode_control(raw).error is None
    assert fmt.decode_control(patched(raw, offset, new)).error == error


def test_short_control() -> None:
    assert fmt.decode_control(bytes(511)).error == "short control block"


# one segment


def test_segment_round_trip() -> None:
    raw = segment(record(b""), record(b"x" * 64, seq=1, timestamp_ns=11, type_id=0xFFFE))
    dump = fmt.decode_segment(raw)
    assert dump.error is None
    assert not dump.remarks
    assert not dump.sealed
    assert [(r.offset, r.commit_len, r.seq, r.payload) for r in dump.records] == [
        (64, 1, 0, b""),
        (128, 65, 1, b"x" * 64),
    ]
    assert dump.records[1].checksum == zlib.crc32(b"x" * 64)
    assert dump.end_offset == 256
    assert fmt.decode_segment(raw, first_offset=128).records == dump.records[1:]


@pytest.mark.parametrize("offset", [0, 63, 65])
def test_first_offset_must_be_a_record_start(offset: int) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        fmt.decode_segment(segment(), first_offset=offset)


def test_full_segment_leads_on_without_seal() -> None:
    dump = fmt.decode_segment(segment(record(bytes(SIZE - 128))))
    assert (dump.end_offset, dump.sealed, dump.leads_on) == (SIZE, False, True)


def test_uncommitted_header_hides_what_follows() -> None:
    hidden = patched(record(seq=1), 0, bytes(4))
    dump = fmt.decode_segment(segment(record(), hidden, record(seq=2)))
    assert [r.seq for r in dump.records] == [0]
    assert (dump.end_offset, dump.error, dump.leads_on) == (192, None, False)


SECOND = 64 + 128


@pytest.mark.parametrize(
    ("offset", "new", "error"),
    [
        (SECOND, struct.pack("<I", SIZE), "out of bounds"),
        (SECOND, b"\xff\xff\xff\xff", "out of bounds"),
        (SECOND + 4, b"\2", "bad version"),
        (SECOND + 4, b"\0", "bad version"),
        (SECOND + 28, b"\0\0\0\0", "crc mismatch"),
        (SECOND + 64, b"A", "crc mismatch"),
        (SECOND, struct.pack("<I", 3), "crc mismatch"),
    ],
)
def test_record_errors(offset: int, new: bytes, error: str) -> None:
    dump = fmt.decode_segment(patched(segment(record(), record(seq=1)), offset, new))
    assert dump.error == error
    assert [r.seq for r in dump.records] == [0]
    assert dump.end_offset == SECOND
    assert not dump.leads_on


def test_longest_record_is_within_bounds() -> None:
    longest = SIZE - 128
    assert fmt.decode_segment(segment(record(bytes(longest)))).error is None
    over = patched(segment(record(bytes(longest))), 64, struct.pack("<I", longest + 2))
    assert fmt.decode_segment(over).error == "out of bounds"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "short segment header"),
        (segment()[:63], "short segment header"),
        (patched(segment(record()), 0, b"X"), "bad segment magic"),
        (patched(segment(record()), 4, b"\1"), "bad segment version"),
    ],
)
def test_segment_header_errors(data: bytes, error: str) -> None:
    dump = fmt.decode_segment(data)
    assert (dump.error, dump.records) == (error, [])


def test_padding_is_counted_not_checked() -> None:
    padding = fmt.encode_record(b"zzz", seq=0, timestamp_ns=0, type_id=0xFFFF)
    dump = fmt.decode_segment(segment(record(), padding, record(seq=1)))
    assert (dump.error, dump.padding, [r.seq for r in dump.records]) == (None, 1, [0, 1])
    assert not dump.remarks


def test_padding_may_not_cross_the_end() -> None:
    padding = fmt.encode_record(bytes(SIZE), seq=0, timestamp_ns=0, type_id=0xFFFF)
    assert fmt.decode_segment(segment(padding)[:SIZE]).error == "out of bounds"


def test_remarks_on_untidy_headers() -> None:
    untidy = patched(record(), 5, b"\1")
    used = patched(record(), 32, b"\1")
    flagged = patched(record(), 26, b"\2")
    padding = fmt.encode_record(b"", seq=4, timestamp_ns=0, type_id=0xFFFF)
    dump = fmt.decode_segment(segment(untidy, used, flagged, padding))
    assert dump.error is None
    assert [text.partition(":")[0] for text in dump.remarks] == [
        "offset 64",
        "offset 192",
        "offset 320",
        "offset 448",
    ]


# our own records


def test_header_check_by_hand() -> None:
    raw = fmt.encode_own_record(
        b"abc",
        segment_id=3,
        epoch=0x1_0000_0009,
        seq=5,
        timestamp_ns=6,
        type_id=7,
        batch_left=2,
        cause=(0xAAAA, 0xBBBB, 0xCC),
    )
    head = struct.pack("<IB3xQQHHI", 4, 1, 5, 6, 7, 3, zlib.crc32(b"abc"))
    head += struct.pack("<QQIII", 0xAAAA, 0xBBBB, 2, 9, 0xCC)
    check = fmt.crc32c(struct.pack("<QQ", 3, 9) + head)
    assert raw[:64] == head + struct.pack("<I", check)
    assert fmt.header_check(3, raw[:64]) == check
    dump = fmt.decode_segment(segment(raw, segment_id=3))
    assert dump.error is None
    assert dump.records[0].own == fmt.OwnFields(0xAAAA, 0xBBBB, 2, 9, 0xCC, check)


def test_cause_needs_its_flag() -> None:
    found = fmt.decode_segment(segment(own())).records[0].own
    assert found is not None
    assert (found.cause_source, found.cause_seq, found.epoch) == (None, None, 7)
    assert fmt.decode_segment(segment(record())).records[0].own is None


@pytest.mark.parametrize("offset", [8, 16, 24, 32, 48, 52, 56, 60])
def test_header_check_catches_a_changed_byte(offset: int) -> None:
    raw = own()
    broken = patched(raw, offset, bytes([raw[offset] ^ 0x10]))
    assert fmt.decode_segment(segment(broken)).error == "header check"


def test_header_check_catches_a_record_of_another_segment() -> None:
    assert fmt.decode_segment(segment(own(segment_id=1), segment_id=0)).error == "header check"
    assert fmt.decode_segment(segment(own(segment_id=1), segment_id=1)).error is None


def test_header_check_wants_a_whole_header() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        fmt.header_check(0, bytes(60))


# reader positions


def test_position_by_hand() -> None:
    body = struct.pack("<QQQQ", 1, 192, 5, 1)
    expected = body + struct.pack("<II", zlib.crc32(body), 0) + bytes(40)
    raw = fmt.encode_position(1, 192, last_heartbeat_ns=5)
    assert raw == expected
    assert fmt.decode_position(raw) == fmt.Position(1, 192, 5, 1, slot=0)


def test_two_slots() -> None:
    first = fmt.encode_position(0, 64)
    second = fmt.encode_position(0, 128, generation=2, previous=first)
    third = fmt.encode_position(0, 192, generation=3, previous=second)
    assert len(third) == 80
    found = [fmt.decode_position(raw) for raw in (first, second, third)]
    assert [(p.offset, p.generation, p.slot) for p in found if p] == [
        (64, 1, 0),
        (128, 2, 1),
        (192, 3, 0),
    ]
    torn = fmt.decode_position(patched(third, 8, b"\1"))
    assert torn is not None
    assert (torn.offset, torn.generation) == (128, 2)


def test_higher_generation_wins_in_either_slot() -> None:
    for slot in (0, 1):
        old = fmt.encode_position(0, 64, generation=8, slot=1 - slot)
        new = fmt.decode_position(
            fmt.encode_position(0, 128, generation=9, slot=slot, previous=old)
        )
        assert new is not None
        assert (new.offset, new.slot) == (128, slot)


@pytest.mark.parametrize("data", [b"", bytes(80), fmt.encode_position(0, 64)[:39], b"\xff" * 80])
def test_no_valid_slot(data: bytes) -> None:
    assert fmt.decode_position(data) is None


# seek index


def test_index_by_hand() -> None:
    marks = [fmt.IndexEntry(10 + i, 100 + i, 64 + 64 * i) for i in range(5)]
    raw = fmt.encode_index(marks, segment_id=2, segment_size=SIZE, stride=2)
    header = b"CHRIDX1\0" + struct.pack("<HHIQQII", 1, 80, 0, 2, SIZE, 64, 2)
    header += struct.pack("<QQQQQ", 10, 14, 100, 104, 3)
    entries = struct.pack("<9Q", 10, 100, 64, 12, 102, 192, 14, 104, 320)
    assert raw == header + entries
    dump = fmt.decode_index(raw)
    assert dump.error is None
    assert dump.entries == tuple(marks[::2])
    assert (dump.entry_stride, dump.min_seq, dump.max_ts_ns) == (2, 10, 104)


def test_empty_index() -> None:
    dump = fmt.decode_index(fmt.encode_index([], segment_id=0, segment_size=SIZE))
    assert (dump.error, dump.entries, dump.entry_stride) == (None, (), 4096)


@pytest.mark.parametrize(
    ("offset", "new", "error"),
    [
        (0, b"X", "bad index magic"),
        (8, b"\2", "bad index version"),
        (10, b"\0", "bad index header length"),
        (72, b"\2", "short index"),
        (72, b"\xff" * 8, "short index"),
    ],
)
def test_index_errors(offset: int, new: bytes, error: str) -> None:
    raw = fmt.encode_index([fmt.IndexEntry(0, 0, 64)], segment_id=0, segment_size=SIZE)
    dump = fmt.decode_index(patched(raw, offset, new))
    assert dump.error == error
    assert len(dump.entries) == 1


def test_short_index_header() -> None:
    assert fmt.decode_index(bytes(79)).error == "short index header"


def test_index_against_its_segment() -> None:
    dump = fmt.decode_segment(segment(record(), record(seq=1)))

    def problem(marks: list[fmt.Record], segment_id: int = 0, flags: int = 0) -> str | None:
        raw = fmt.encode_index(marks, segment_id=segment_id, segment_size=SIZE, flags=flags)
        return fmt.check_index(fmt.decode_index(raw), dump)

    assert problem(dump.records) is None
    assert problem(dump.records, segment_id=1) == "index of another segment"
    assert problem(dump.records[1:]) == "index skips the first record"
    assert problem(dump.records[1:], flags=fmt.INDEX_PARTIAL) is None
    other = fmt.decode_segment(segment(record(seq=9))).records
    assert problem(other) == "index entry for offset 64 matches no record"


# whole queues


def test_queue_round_trip(tmp_path: Path) -> None:
    root = tmp_path / "queue"
    with fmt.ForeignWriter(root, segment_size=SIZE, write_index=True, index_stride=2) as writer:
        written = [writer.append(b"p" * (i * 7), 3, 1000 + i) for i in range(20)]
        end = (writer.segment_id, writer.offset)
    dump = fmt.decode_queue(root)
    assert not dump.errors
    assert not dump.remarks
    assert dump.records == written
    assert [r.seq for _, r in dump.records] == list(range(20))
    assert len(dump.segments) > 2
    assert dump.end == end == (dump.control.current_segment, dump.control.write_offset)
    assert dump.durable == fmt.DurablePosition(*end)
    assert not dump.short_of_durable
    assert dump.control.notify_seq == 20
    assert dump.control.writer_epoch == 1
    assert dump.control.segment_gen == 2 * end[0]
    assert dump.lock is not None
    assert (dump.lock.pid, dump.lock.epoch) == (os.getpid(), 1)
    assert {p.stat().st_size for p in root.glob("*.q")} == {SIZE}
    assert not list(root.glob("*.tmp"))
    assert list(dump.indexes) == list(dump.segments)
    for segment_id, part in dump.segments.items():
        assert part.sealed == (segment_id != end[0])
        assert dump.indexes[segment_id].entries == tuple(
            fmt.IndexEntry(r.seq, r.timestamp_ns, r.offset) for r in part.records[::2]
        )


def test_fresh_queue_is_empty(tmp_path: Path) -> None:
    fmt.ForeignWriter(tmp_path).close()
    dump = fmt.decode_queue(tmp_path)
    assert (dump.errors, dump.records, dump.end) == ([], [], (0, 64))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000000000.q",
        "control.meta",
        "index.meta",
        "writer.lock",
    ]


@pytest.mark.parametrize("padded", [False, True])
def test_both_kinds_of_segment_end(tmp_path: Path, padded: bool) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE) as writer:
        written = [writer.append(b"one", 1, 1)]
        if padded:
            writer.pad_and_seal()
        else:
            writer.seal()
        assert writer.sealed
        alone = fmt.decode_queue(tmp_path)
        written.append(writer.append(b"two", 1, 2))
    assert (alone.errors, alone.records) == ([], written[:1])
    assert alone.end == (0, SIZE if padded else 192)
    dump = fmt.decode_queue(tmp_path)
    assert (dump.errors, dump.remarks, dump.records) == ([], [], written)
    assert (dump.segments[0].padding, dump.segments[0].sealed) == (int(padded), True)
    assert dump.end == (1, 192)


def test_padding_a_full_segment_adds_nothing(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE) as writer:
        writer.append(bytes(SIZE - 128), 1, 1)
        writer.pad_and_seal()
    assert fmt.decode_queue(tmp_path).segments[0].padding == 0


def test_padding_of_one_header(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE) as writer:
        writer.append(bytes(SIZE - 192), 1, 1)
        writer.pad_and_seal()
    dump = fmt.decode_queue(tmp_path)
    assert (dump.errors, dump.segments[0].padding, dump.end) == ([], 1, (0, SIZE))


def test_restarted_seq_and_time_are_accepted(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE) as writer:
        written = [writer.append(b"a", 1, 100), writer.append(b"b", 1, 101)]
    with fmt.ForeignWriter(tmp_path) as writer:
        written += [writer.append(b"c", 1, 50), writer.append(b"d", 1, 51, seq=9)]
        assert writer.epoch == 2
    dump = fmt.decode_queue(tmp_path)
    assert (dump.errors, dump.remarks, dump.records) == ([], [], written)
    assert [r.seq for _, r in dump.records] == [0, 1, 0, 9]
    assert (dump.seq_restarts, dump.seq_gaps, dump.timestamp_regressions) == (1, 1, 1)
    assert (dump.control.writer_epoch, dump.control.notify_seq) == (2, 4)


def test_reopening_a_sealed_queue_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE) as writer:
        writer.append(b"a", 1, 1)
        writer.seal()
    with fmt.ForeignWriter(tmp_path, start_seq=1) as writer:
        assert writer.append(b"b", 1, 2)[0] == 1
    assert [r.seq for _, r in fmt.decode_queue(tmp_path).records] == [0, 1]


def test_reopening_zeroes_the_tail(tmp_path: Path) -> None:
    fmt.ForeignWriter(tmp_path, segment_size=SIZE).close()
    stale = patched(record(seq=8), 0, bytes(4)) + record(seq=9)
    patch_file(tmp_path / "000000000.q", 64, stale)
    with fmt.ForeignWriter(tmp_path) as writer:
        writer.append(b"abc", 1, 1)
    assert [r.seq for _, r in fmt.decode_queue(tmp_path).records] == [0]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path), pytest.raises(BlockingIOError):
        fmt.ForeignWriter(tmp_path)
    fmt.ForeignWriter(tmp_path).close()


def test_writer_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        fmt.ForeignWriter(tmp_path / "odd", segment_size=100)
    with fmt.ForeignWriter(tmp_path / "queue", segment_size=SIZE) as writer:
        with pytest.raises(ValueError, match="fit"):
            writer.append(bytes(SIZE - 127), 1, 1)
        with pytest.raises(ValueError, match="padding"):
            writer.append(b"", fmt.PADDING_TYPE, 1)
    with pytest.raises(ValueError, match="closed"):
        writer.append(b"", 1, 1)
    with pytest.raises(ValueError, match="another segment size"):
        fmt.ForeignWriter(tmp_path / "queue", segment_size=2 * SIZE)


def test_retention_leaves_later_segments(tmp_path: Path) -> None:
    with fmt.ForeignWriter(tmp_path, segment_size=SIZE, first_segment=7) as writer:
        writer.append(b"a", 1, 1)
        writer.roll()
        writer.append(b"b", 1, 2)
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "late.meta").write_bytes(fmt.encode_position(6, 64))
    dump = fmt.decode_queue(tmp_path)
    assert not dump.errors
    assert [i for i, _ in dump.records] == [7, 8]
    assert dump.remarks == ["reader late: segment removed"]


def test_unclean_tail_and_corruption_are_told_apart(tmp_path: Path) -> None:
    writer = fmt.ForeignWriter(tmp_path, segment_size=SIZE)
    writer.append(b"a", 1, 1)
    writer.sync()
    writer.append(b"b", 1, 2)
    writer.close(durable=False)
    file = tmp_path / "000000000.q"
    patch_file(file, 192 + 64, b"X")
    dump = fmt.decode_queue(tmp_path)
    assert dump.errors == ["segment 0 offset 192: crc mismatch"]
    assert (dump.end, dump.short_of_durable) == ((0, 192), False)
    patch_file(file, 64 + 64, b"X")
    assert fmt.decode_queue(tmp_path).short_of_durable


def three_segments(root: Path) -> None:
    with fmt.ForeignWriter(root, segment_size=SIZE) as writer:
        for number in range(3):
            writer.append(b"x", 1, number)
            if number < 2:
                writer.roll()


def test_missing_segment_stops_the_reader(tmp_path: Path) -> None:
    three_segments(tmp_path)
    (tmp_path / "000000001.q").unlink()
    dump = fmt.decode_queue(tmp_path)
    assert dump.errors == ["segment 1: missing"]
    assert [i for i, _ in dump.records] == [0]


def test_unsealed_segment_stops_the_reader(tmp_path: Path) -> None:
    three_segments(tmp_path)
    patch_file(tmp_path / "000000001.q", 12, b"\0")
    dump = fmt.decode_queue(tmp_path)
    assert dump.errors == ["segment 1: not sealed, but records follow it"]
    assert [i for i, _ in dump.records] == [0, 1]


def test_segment_under_a_wrong_name(tmp_path: Path) -> None:
    three_segments(tmp_path)
    (tmp_path / "000000002.q").rename(tmp_path / "000000001.q")
    assert fmt.decode_queue(tmp_path).errors == ["segment 1: header says 2"]


def test_segment_of_a_wrong_size(tmp_path: Path) -> None:
    three_segments(tmp_path)
    os.truncate(tmp_path / "000000000.q", 512)
    assert fmt.decode_queue(tmp_path).errors == ["segment 0: 512 bytes long"]


def test_directory_without_a_queue(tmp_path: Path) -> None:
    (tmp_path / "000000000.q.tmp").write_bytes(segment(record()))
    assert fmt.decode_queue(tmp_path).errors == ["control.meta: short control block", "no segment"]


def test_reader_positions_in_a_queue(tmp_path: Path) -> None:
    three_segments(tmp_path)
    readers = tmp_path / "readers"
    readers.mkdir()
    (readers / "good.meta").write_bytes(fmt.encode_position(1, 64, generation=4))
    (readers / "lost.meta").write_bytes(bytes(80))
    (readers / "far.meta").write_bytes(fmt.encode_position(2, 640))
    dump = fmt.decode_queue(tmp_path)
    assert dump.positions["good"] == fmt.Position(1, 64, 0, 4, slot=1)
    assert dump.positions["lost"] is None
    assert dump.errors == ["reader lost: no valid slot"]
    assert dump.remarks == ["reader far: beyond the end"]


def test_bad_index_is_only_a_remark(tmp_path: Path) -> None:
    three_segments(tmp_path)
    (tmp_path / "000000001.idx").write_bytes(b"CHR")
    (tmp_path / "000000009.idx").write_bytes(b"")
    dump = fmt.decode_queue(tmp_path)
    assert not dump.errors
    assert len(dump.records) == 3
    assert dump.remarks == ["index 1: short index header", "index 9: no such segment"]


def test_cut_batches_are_remarked(tmp_path: Path) -> None:
    fmt.ForeignWriter(tmp_path, segment_size=SIZE).close()
    file = tmp_path / "000000000.q"
    file.write_bytes(segment(own(batch_left=1), own(seq=1), own(seq=2)))
    assert not fmt.decode_queue(tmp_path).remarks
    file.write_bytes(segment(own(batch_left=2), own(seq=1), own(seq=2, batch_left=1)))
    assert fmt.decode_queue(tmp_path).remarks == [
        "segment 0 offset 192: batch broken off",
        "end of queue: 1 records of a batch missing",
    ]


@pytest.mark.parametrize("text", ["", "1 2", "1 2 x\n", "-1 2 3\n"])
def test_odd_lock_text(text: str) -> None:
    assert fmt.decode_writer_lock(text) is None


def test_short_index_meta(tmp_path: Path) -> None:
    three_segments(tmp_path)
    os.truncate(tmp_path / "index.meta", 8)
    assert fmt.decode_queue(tmp_path).errors == ["index.meta: short"]
