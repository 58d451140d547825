"""Many messages without an object for each: Reader.read_block and Reader.blocks."""

import asyncio
from pathlib import Path

import numpy
import pytest

from aiochronicle import Block, open_reader, open_writer
from aiochronicle.errors import ClosedError, CorruptionError, InvalidArgument

SEGMENT_BYTES = 4096


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "queue", segment_size=SEGMENT_BYTES) as writer:
        for number in range(100):
            writer.append(b"%d" % number, type_id=number % 3, timestamp_ns=1000 + number)
    return tmp_path / "queue"


def test_a_block_ends_with_its_segment(queue: Path) -> None:
    with open_reader(queue) as reader:
        blocks = []
        while block := reader.read_block():
            blocks.append(block)
    assert len(blocks) == len(list(queue.glob("*.q")))
    assert [payload for block in blocks for payload in block] == [b"%d" % i for i in range(100)]


def test_arrays_are_for_numpy_without_copying(queue: Path) -> None:
    with open_reader(queue) as reader:
        block = reader.read_block(10)
    assert len(block) == 10
    assert numpy.asarray(block.timestamps_ns).tolist() == list(range(1000, 1010))
    assert numpy.asarray(block.type_ids).tolist() == [i % 3 for i in range(10)]
    assert numpy.asarray(block.lengths).dtype == numpy.uint32
    data = numpy.frombuffer(block.buffer, dtype=numpy.uint8)
    assert data[numpy.asarray(block.offsets)].tobytes() == b"0123456789"
    for view in (block.buffer, block.offsets, block.lengths, block.timestamps_ns, block.type_ids):
        assert view.readonly


def test_views_outlive_block_reader_and_file(queue: Path) -> None:
    with open_reader(queue) as reader:
        block = reader.read_block(3)
    buffer, offsets, lengths = block.buffer, block.offsets, block.lengths
    del block
    for file in queue.glob("*.q"):
        file.unlink()
    assert [bytes(buffer[at : at + n]) for at, n in zip(offsets, lengths, strict=True)] == [
        b"0",
        b"1",
        b"2",
    ]


def test_an_empty_block_has_empty_arrays(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue"), open_reader(tmp_path / "queue") as reader:
        block = reader.read_block()
    assert not block
    assert list(block) == []
    assert list(block.offsets) == list(block.lengths) == list(block.type_ids) == []
    assert len(block.buffer) == 0
    with pytest.raises(IndexError):
        block[0]


def test_payloads_end_before_keys_and_headers(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue") as writer:
        writer.append(b"plain")
        writer.append(b"keyed", key=b"k", headers={"name": b"value"})
    with open_reader(tmp_path / "queue") as reader:
        assert list(reader.read_block()) == [b"plain", b"keyed"]


def test_wrong_arguments_and_closed_readers(queue: Path) -> None:
    with open_reader(queue) as reader:
        for wrong in (0, -1, 1.5, "many"):
            with pytest.raises((InvalidArgument, TypeError)):
                reader.read_block(wrong)  # type: ignore[arg-type]
        block = reader.read_block(max_messages=2)
        with pytest.raises(IndexError):
            block[2]
        assert block[-1] == b"1"
    with pytest.raises(ClosedError):
        reader.read_block()
    with pytest.raises(TypeError):
        Block()


def damage(queue: Path, payload: bytes) -> None:
    file = next(file for file in sorted(queue.glob("*.q")) if payload in file.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(payload)] ^= 1
    file.write_bytes(content)


def test_damage_ends_a_block_and_is_raised_by_the_next(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue") as writer:
        for number in range(10):
            writer.append(b"payload %d" % number)
    damage(tmp_path / "queue", b"payload 5")
    with open_reader(tmp_path / "queue") as reader:
        assert list(reader.read_block()) == [b"payload %d" % i for i in range(5)]
        for _ in range(2):
            with pytest.raises(CorruptionError):
                reader.read_block()
        reader.step_over()
        assert reader.read_block().first_seq == 6
    with open_reader(tmp_path / "queue", on_corrupt="skip") as reader:
        first, second = reader.read_block(), reader.read_block()
    assert (first.first_seq, len(first)) == (0, 5)
    assert (second.first_seq, len(second)) == (6, 4)


def test_automatic_commits_follow_blocks(queue: Path) -> None:
    with open_reader(queue, "r", commit="auto") as reader:
        reader.read_block(10)
        first = reader.committed
        reader.read_block(10)
        assert reader.committed > first, "asking for more commits what was handed out"
        assert reader.committed_seq == 10
    with open_reader(queue, "by-hand") as reader:
        reader.read_block(5)
        reader.commit()
    with open_reader(queue, "by-hand") as reader:
        assert reader.read_block(1).first_seq == 5


def test_blocks_wait_for_more(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        found: list[bytes] = []
        with open_writer(tmp_path / "queue") as writer:
            writer.append_many([b"a", b"b"])
            async with open_reader(tmp_path / "queue", start="first") as reader:
                async for block in reader.blocks(max_messages=8):
                    found += block
                    if len(found) == 3:
                        break
                    asyncio.get_running_loop().call_soon(writer.append, b"c")
        return found

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [b"a", b"b", b"c"]


def test_cancelled_blocks_have_taken_nothing(tmp_path: Path) -> None:
    async def main() -> bytes:
        with open_writer(tmp_path / "queue") as writer:
            async with open_reader(tmp_path / "queue", start="first") as reader:

                async def first() -> Block:
                    async for block in reader.blocks():
                        return block
                    raise AssertionError

                task = asyncio.create_task(first())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                writer.append(b"kept")
                return (await first())[0]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == b"kept"
