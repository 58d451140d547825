"""append and append_many: contents, batches, limits, errors."""

import array
import mmap
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiochronicle import ChronicleError
from aiochronicle.errors import ClosedError, MessageTooLarge
from contract.backend import SMALL_SEGMENT, Backend


def test_append_returns_gapless_seqs(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        assert [writer.append(b"x") for _ in range(100)] == list(range(100))


def test_what_is_appended_is_read_in_order(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 200, segment_size=SMALL_SEGMENT)
    with backend.open_reader(queue_path) as reader:
        found = [(message.seq, message.payload) for message in reader]
    assert found == [(number, b"%d" % number) for number in range(200)]


def test_append_is_visible_when_it_returns(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer, backend.open_reader(queue_path) as reader:
        for number in range(10):
            assert reader.poll() is None
            writer.append(b"%d" % number)
            message = reader.poll()
            assert message is not None
            assert message.payload == b"%d" % number


def test_payloads_of_every_size_up_to_a_few_lines(backend: Backend, queue_path: Path) -> None:
    payloads = [bytes(range(size)) for size in range(1, 200)]
    with backend.open_writer(queue_path) as writer:
        for payload in payloads:
            writer.append(payload)
    assert backend.payloads(queue_path) == payloads


def test_random_payloads_across_segments(
    backend: Backend, queue_path: Path, rng: random.Random
) -> None:
    payloads = [rng.randbytes(rng.randrange(1, 3000)) for _ in range(300)]
    highest = 0xFFFE if "types" in backend.features else 0
    types = [rng.randint(0, highest) for _ in payloads]
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for payload, type_id in zip(payloads, types, strict=True):
            writer.append(payload, type_id=type_id)
    with backend.open_reader(queue_path) as reader:
        messages = list(reader)
    assert [message.payload for message in messages] == payloads
    assert [message.type_id for message in messages] == types
    assert [message.seq for message in messages] == list(range(len(payloads)))


@pytest.mark.needs("empty payloads")
def test_empty_payload(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"")
        writer.append_many([b"", b"x", b""])
    assert backend.payloads(queue_path) == [b"", b"", b"x", b""]


def test_large_payload(backend: Backend, queue_path: Path, rng: random.Random) -> None:
    payload = rng.randbytes(3 << 20)
    with backend.open_writer(queue_path, segment_size=4 << 20) as writer:
        writer.append(payload)
        writer.append(payload[:100])
        writer.append(payload)
    assert backend.payloads(queue_path) == [payload, payload[:100], payload]


@pytest.mark.needs("segments")
def test_payload_that_just_fills_a_segment(backend: Backend, queue_path: Path) -> None:
    largest = bytes(SMALL_SEGMENT - 128)  # a header of the segment and one of the record
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        writer.append(b"before")
        writer.append(largest)
        with pytest.raises(MessageTooLarge):
            writer.append(largest + b"x")
        writer.append(b"after")
    assert backend.payloads(queue_path) == [b"before", largest, b"after"]


@pytest.mark.parametrize(
    "payload",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        memoryview(b"__12345678__")[2:10],
        array.array("I", [0x34333231, 0x38373635]),
        memoryview(array.array("Q", [0x3837363534333231])).cast("B", (2, 4)),
    ],
    ids=["bytes", "bytearray", "memoryview", "slice", "array", "two dimensions"],
)
def test_any_contiguous_buffer_is_a_payload(
    backend: Backend, queue_path: Path, payload: bytes
) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(payload)
        writer.append_many([payload, b"between", payload])
    expected = b"12345678"
    assert backend.payloads(queue_path) == [expected, expected, b"between", expected]


def test_mapped_memory_and_messages_are_payloads(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer, backend.open_reader(queue_path) as reader:
        with mmap.mmap(-1, 8) as memory:
            memory[:] = b"12345678"
            writer.append(memory)
        message = reader.poll()
        assert message is not None
        writer.append(message)
        copy = reader.poll()
        assert copy is not None
        assert copy.payload == b"12345678"


def test_append_copies_the_payload(backend: Backend, queue_path: Path) -> None:
    payload = bytearray(b"before")
    with backend.open_writer(queue_path) as writer:
        writer.append(payload)
        payload[:] = b"after!"
    assert backend.payloads(queue_path) == [b"before"]


@pytest.mark.parametrize("memory", [memoryview(b"12345678"), np.arange(8, dtype=np.uint8)])
def test_strided_memory_is_refused(backend: Backend, queue_path: Path, memory: Any) -> None:
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(BufferError, match="contiguous"):
            writer.append(memory[::2])
        with pytest.raises(BufferError, match="contiguous"):
            writer.append_many([b"ok", memory[::2]])
    assert backend.payloads(queue_path) == []


@pytest.mark.needs("types")
def test_type_ids_are_kept(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        writer.append(b"x")
        writer.append(b"x", type_id=7)
        writer.append_many([b"x", b"x"], type_id=0xFFFE)
    with backend.open_reader(queue_path) as reader:
        assert [message.type_id for message in reader] == [0, 7, 0xFFFE, 0xFFFE]


@pytest.mark.parametrize("type_id", [-1, 0xFFFF, 1 << 40])
def test_type_id_out_of_range(backend: Backend, queue_path: Path, type_id: int) -> None:
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(ValueError, match="type_id"):
            writer.append(b"x", type_id=type_id)
        with pytest.raises(ValueError, match="type_id"):
            writer.append_many([b"x"], type_id=type_id)
    assert backend.payloads(queue_path) == []


# batches


def test_append_many_returns_the_range_of_seqs(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        assert writer.append_many([b"a", b"b"]) == range(2)
        assert writer.append(b"c") == 2
        assert writer.append_many(iter([b"d", b"e", b"f"])) == range(3, 6)
        assert writer.append_many(()) == range(6, 6)
        assert writer.append(b"g") == 6
    assert b"".join(backend.payloads(queue_path)) == b"abcdefg"


def test_batch_that_fails_leaves_nothing(backend: Backend, queue_path: Path) -> None:
    def broken() -> object:
        yield b"a"
        raise RuntimeError("no more")

    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        with pytest.raises(TypeError):
            writer.append_many([b"a", 17])  # type: ignore[list-item]
        with pytest.raises(RuntimeError, match="no more"):
            writer.append_many(broken())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            writer.append_many(b"one payload is not a sequence of payloads")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timestamps"):
            writer.append_many([b"a", b"b"], timestamps_ns=[1])
        assert writer.append(b"only") == 0
    assert backend.payloads(queue_path) == [b"only"]


@pytest.mark.needs("segments", "atomic batches")
def test_batch_that_no_segment_has_room_for(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        with pytest.raises(MessageTooLarge):
            writer.append_many([bytes(1000)] * 4)
        assert writer.append(b"only") == 0
    assert backend.payloads(queue_path) == [b"only"]


def test_batches_mixed_with_single_messages_across_segments(
    backend: Backend, queue_path: Path, rng: random.Random
) -> None:
    expected: list[bytes] = []
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for _ in range(200):
            batch = [rng.randbytes(rng.randrange(1, 100)) for _ in range(rng.randrange(12))]
            first = len(expected)
            assert writer.append_many(batch) == range(first, first + len(batch))
            expected += batch
            if rng.random() < 0.3:
                assert writer.append(b"single") == len(expected)
                expected.append(b"single")
    assert backend.payloads(queue_path) == expected


@pytest.mark.needs("atomic batches")
def test_readers_never_see_part_of_a_batch(backend: Backend, queue_path: Path) -> None:
    """A process reads while batches are written; each time it runs dry at the end of a batch."""
    size, batches = 7, 2000
    code = f"""
with backend.open_reader(sys.argv[1]) as reader:
    print("ready", flush=True)
    seen = 0
    while seen < {size * batches}:
        while message := reader.poll():
            assert message.seq == seen
            seen += 1
        assert seen % {size} == 0, seen
"""
    with backend.open_writer(queue_path) as writer:
        child = backend.start(code, queue_path)
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            for number in range(batches):
                writer.append_many([b"%d" % number] * size)
            assert child.wait(60) == 0


def test_closed_writer_says_so(backend: Backend, queue_path: Path) -> None:
    writer = backend.open_writer(queue_path)
    writer.append(b"x")
    writer.close()
    writer.close()
    assert writer.closed
    with pytest.raises(ClosedError):
        writer.append(b"y")
    with pytest.raises(ClosedError):
        writer.append_many([b"y"])
    with pytest.raises(ClosedError):
        writer.heartbeat()
    assert writer.flush_now() == 1, "all of it was made durable by closing"
    assert "closed" in repr(writer)
    assert backend.payloads(queue_path) == [b"x"]


def test_wrong_calls_change_nothing(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        with pytest.raises(TypeError):
            writer.append()  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            writer.append(b"x", 1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            writer.append(b"x", kind=1)  # type: ignore[call-arg]
        with pytest.raises((TypeError, ValueError, OverflowError, ChronicleError)):
            writer.append(b"x", timestamp_ns=-1)
        with pytest.raises((TypeError, ValueError, OverflowError, ChronicleError)):
            writer.append(b"x", timestamp_ns=1 << 63)
        assert writer.next_seq == 0
