"""Our reader returns what Java writes: every kind of document, with the JVM running and after it."""

import hashlib
from itertools import islice
from pathlib import Path

import pytest

from aiochronicle import open_reader

from .judge import Judge, JudgeQueue, pattern

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LARGEST = 16 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def ours(path: Path) -> list[tuple[int, bytes]]:
    with open_reader(path) as reader:
        return [(message.seq, bytes(message.payload)) for message in reader]


def java(queue: JudgeQueue) -> list[tuple[int, bytes]]:
    return [(message.index, message.payload) for message in queue.read_all()]


def test_documents_of_every_kind(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST4_DAILY", time_ms=NOON_MS) as queue:
        queue.append_text("one", "", "é😀", "x" * 500)
        queue.append_metadata(b"of a user")
        queue.append_bytes(*(bytes([length]) * length for length in range(1, 20)))
        queue.roll_back(b"never there")
        queue.append_empty()
        queue.append_fields([("px", ["f64", "1.5"]), ("12", ["i32", 1])])
        queue.append_calls([("two", [["text", "a"], ["i64", 7]])], [("none", [])])
        queue.set_time(NOON_MS + 3 * DAY_MS)
        queue.append_metadata(b"first of its cycle")
        queue.append_empty()
        listed = java(queue)
        assert ours(path) == listed
    assert len(listed) == 28
    assert ours(path) == listed
    assert (listed[23][1], listed[27][1]) == (b"\x8f", b"\x8f")


def test_the_largest_message(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue:
        indexes = [queue.append_pattern(LARGEST, seed) for seed in range(5)]
        with open_reader(path) as reader:
            for seed, (index, message) in enumerate(zip(indexes, reader, strict=True)):
                assert message.seq == index
                digest = hashlib.sha256(pattern(LARGEST, seed)).digest()
                assert hashlib.sha256(message.payload).digest() == digest


def test_larger_messages_of_larger_blocks(judge: Judge, path: Path) -> None:
    with judge.open(path, block_size=256 << 20) as queue:
        queue.append_pattern(LARGEST + 1, 1)
        queue.append_pattern(40 << 20, 2)
        assert [len(payload) for _, payload in ours(path)] == [LARGEST + 1, 40 << 20]


def test_a_reader_follows_a_live_jvm_over_rolls(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_SECONDLY") as queue, open_reader(path) as reader:
        queue.start_append(prefix="a", count=3000, rate_hz=1000)
        seen: list[tuple[int, bytes]] = []
        while len(seen) < 3000 and reader.wait(10):
            seen += [(message.seq, bytes(message.payload)) for message in reader]
        assert [payload for _, payload in seen] == [b"a:%d" % number for number in range(3000)]
        queue.stop_append(let_finish=True)
        assert java(queue) == seen
    assert len({index >> 32 for index, _ in seen}) >= 3


def test_a_message_that_is_being_written_is_not_there(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue, open_reader(path) as reader:
        queue.append_bytes(b"before")
        queue.hold_lock(b"half")
        assert [bytes(message.payload) for message in reader] == [b"before"]
        queue.release_lock(rollback=False)
        assert [bytes(message.payload) for message in reader] == [b"half"]


def test_a_killed_jvm_leaves_what_it_had_committed(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY", timeout_ms=500) as queue, Judge() as victim:
        killed = victim.open(path)
        killed.append_bytes(b"1", b"2")
        killed.hold_lock(b"half of a message")
        victim.kill()
        with open_reader(path) as reader:
            assert [bytes(message.payload) for message in reader] == [b"1", b"2"]
            queue.append_bytes(b"3")
            assert [bytes(message.payload) for message in reader] == [b"3"]


def test_named_tailers_are_shared(judge: Judge, path: Path) -> None:
    """Java and our readers share one position per name."""
    with judge.open(path, roll_cycle="TEST4_DAILY") as queue:
        queue.append_bytes(*(b"%d" % number for number in range(10)))
        with queue.tailer("shared") as tailer:
            assert [message.payload for message in tailer.read(3)] == [b"0", b"1", b"2"]
        with open_reader(path, "shared") as reader:
            read = [bytes(message.payload) for message in islice(reader, 4)]
            assert read == [b"3", b"4", b"5", b"6"]
            reader.commit()
        with queue.tailer("shared") as tailer:
            assert [message.payload for message in tailer.read(1)] == [b"7"]
        with open_reader(path, "shared") as reader:
            assert [bytes(message.payload) for message in reader] == [b"8", b"9"]
        with queue.tailer("shared") as tailer:
            assert tailer.read(1)[0].payload == b"8", "what was not committed is read again"
        with open_reader(path, "ours-only", start="first") as reader:
            reader.poll()
            reader.commit()
        with queue.tailer("ours-only") as tailer:
            assert tailer.read(1)[0].payload == b"1"
