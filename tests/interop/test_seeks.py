"""Both sides find every message by index, whichever side wrote it or created the index page."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiochronicle import open_reader, open_writer

from .judge import Judge, JudgeQueue, pattern

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def alternate(queue: JudgeQueue, path: Path, portions: list[int]) -> Iterator[tuple[int, bytes]]:
    """Append in turns with Java; yield the index and payload of each message."""
    number = 0
    with open_writer(path) as writer:
        for turn, portion in enumerate(portions):
            payloads = [b"%d" % (number + at) for at in range(portion)]
            number += portion
            if turn % 2:
                yield from zip([writer.append(each) for each in payloads], payloads, strict=True)
            else:
                yield from zip(queue.append_bytes(*payloads), payloads, strict=True)


def probe(queue: JudgeQueue, path: Path, indexes: list[int], after_last: int) -> None:
    """Check that both sides find these indexes and do not find after_last."""
    with queue.tailer() as tailer, open_reader(path) as reader:
        for index in indexes:
            assert tailer.seek(index) == [True]
            assert tailer.read(1)[0].index == index
            reader.seek(index)
            message = reader.poll()
            assert message is not None
            assert message.seq == index
        assert tailer.seek(after_last) == [False]
        reader.seek(after_last)
        assert reader.poll() is None


# Index count and spacing: 8 and 1, 16 and 2, 16 and 4, 32 and 4, 128 and 8.
@pytest.mark.parametrize(
    ("roll_cycle", "page", "spacing", "portions"),
    [
        ("TEST_DAILY", 8, 1, [5, 5, 1, 14, 30]),
        ("TEST2_DAILY", 32, 2, [31, 2, 40, 60, 100]),
        ("TEST_HOURLY", 64, 4, [63, 66, 64, 64, 200]),
        ("TEST4_DAILY", 128, 4, [127, 130, 3, 200]),
        ("TEST8_DAILY", 1024, 8, [1000, 30, 900, 200]),
    ],
)
def test_around_every_border(
    judge: Judge, path: Path, roll_cycle: str, page: int, spacing: int, portions: list[int]
) -> None:
    with judge.open(path, roll_cycle=roll_cycle) as queue:
        written = list(alternate(queue, path, portions))
        start, last = written[0][0], written[-1][0]
        assert [index for index, _ in written] == list(range(start, last + 1))
        borders = {0, last - start}
        for border in (spacing, *range(page, last - start, page)):
            borders |= {border - 1, border, border + 1}
        probe(queue, path, sorted(start + seq for seq in borders if seq <= last - start), last + 1)
        with queue.tailer(start="end", backward=True) as tailer:
            backward = [(each.index, each.payload) for each in tailer.read()]
        assert backward == written[::-1]
        assert queue.info().entry_count == len(written)


def test_beyond_the_first_chunk(judge: Judge, path: Path) -> None:
    """A file grows by 64 MiB at a time; messages cross the chunk borders."""
    with judge.open(path, roll_cycle="TEST8_DAILY") as queue, open_writer(path) as writer:
        indexes, hashes = [], []
        for number in range(100):
            payload = pattern(MIB + 13 * number, number)
            ours = number % 3 == 1
            index = writer.append(payload) if ours else queue.append_pattern(len(payload), number)
            indexes.append(index)
            hashes.append(hashlib.sha256(payload).hexdigest())
        probe(queue, path, indexes, indexes[-1] + 1)
        assert [message.sha256 for message in queue.read_all()] == hashes
        with open_reader(path) as reader:
            assert [hashlib.sha256(message.payload).hexdigest() for message in reader] == hashes
        with queue.tailer(start="end", backward=True) as tailer:
            assert [message.sha256 for message in tailer.read()] == hashes[::-1]


def test_over_rolls(judge: Judge, path: Path) -> None:
    """Neither side finds a sequence that its cycle lacks; our reader continues in the next cycle."""
    start_ms = 1_700_000_000_000
    with judge.open(path, roll_cycle="TEST4_SECONDLY", time_ms=start_ms) as queue:
        indexes = []
        for second in (0, 1, 5):
            queue.set_time(start_ms + 1000 * second)
            indexes += queue.append_bytes(*(b"%d" % number for number in range(200)))
        probe(queue, path, [indexes[at] for at in (0, 199, 200, 399, 400, 599)], indexes[-1] + 1)
        with queue.tailer() as tailer, open_reader(path) as reader:
            for missing, following in ((indexes[199] + 1, 200), (indexes[399] + 1, 400)):
                assert tailer.seek(missing) == [False]
                reader.seek(missing)
                message = reader.poll()
                assert message is not None
                assert message.seq == indexes[following]
