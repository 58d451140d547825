"""R6: every single-bit flip in the files of a queue is detected or does no harm.

A flip does no harm when every message still comes out as it was written; ``_segment_map`` says where in a
segment this may be so, and why. Anywhere else the flip must cause an error, never a wrong or a missing
message.
"""

import mmap
import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.power_cut import copy_as_original

import aiochronicle
from aiochronicle import Position, open_reader, open_writer
from aiochronicle.errors import ChronicleError, PositionError

from .power_campaign import memory_directory

SEED = int(os.environ.get("AIOCHRONICLE_SEED") or random.SystemRandom().getrandbits(32))
SEGMENT_SIZE = 8192
HEADER = 64
READER = "audit"


def _payload(seq: int) -> bytes:
    # Some lengths make the commit word a power of two, which one flip turns into 0.
    lengths = (0, 1, 3, 100, 127, 31, 63, 400)
    return random.Random(seq).randbytes(lengths[seq % len(lengths)])


class Queue(NamedTuple):
    path: Path
    messages: int
    committed: int  # messages that the named reader has read

    @property
    def payloads(self) -> list[bytes]:
        return [_payload(seq) for seq in range(self.messages)]


@pytest.fixture
def queue() -> Iterator[Queue]:
    with memory_directory() as scratch:
        path = scratch / "queue"
        with open_writer(path, segment_size=SEGMENT_SIZE, _inline_housekeeping=True) as writer:
            seq = 0
            while writer.position.segment == 0 or writer.position.offset < SEGMENT_SIZE // 2:
                assert writer.append(_payload(seq)) == seq
                seq += 1
        with open_reader(path, READER) as reader:
            for _ in range(seq // 2):
                reader.poll()
            reader.commit()
        yield Queue(path, seq, seq // 2)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        yield view


def _flips(view: mmap.mmap, offsets: Iterator[int] | range) -> Iterator[tuple[int, int]]:
    """Flip each bit in turn, and restore it before the next one."""
    for offset in offsets:
        whole = view[offset]
        for bit in range(8):
            view[offset] = whole ^ (1 << bit)
            yield offset, bit
        view[offset] = whole


def _segment_map(view: mmap.mmap) -> dict[int, str]:
    """Return, for each byte of a segment in which a flip may do no harm, what it is."""
    kinds: dict[int, str] = {}
    kinds.update(dict.fromkeys(range(12, 16), "segment flags: only the seal bit is used"))
    kinds.update(dict.fromkeys(range(16, 24), "end of the records: if smaller, it tells less"))
    kinds.update(dict.fromkeys(range(24, HEADER), "spare bytes of the segment header"))
    offset = HEADER
    while offset + HEADER <= len(view):
        (commit_len,) = struct.unpack_from("<I", view, offset)
        if commit_len == 0:
            break
        end = offset + HEADER + commit_len - 1
        aligned = -(-end // HEADER) * HEADER
        kinds.update(dict.fromkeys(range(end, aligned), "padding after the payload"))
        offset = aligned
    kinds.update(dict.fromkeys(range(offset + 4, len(view)), "free space after the last record"))
    return kinds


def _read(reader: aiochronicle.Reader, queue: Queue, start: int = 0) -> bool:
    """Return whether all messages came, False after an error; fail on a wrong message."""
    seq = start
    try:
        for message in reader:
            assert message.seq == seq
            assert message.payload == _payload(seq), f"wrong payload of {seq}"
            seq += 1
    except ChronicleError:
        return False
    assert seq == queue.messages, f"ends at {seq} in silence"
    return True


def _positions(queue: Queue) -> list[Position]:
    positions = []
    with open_reader(queue.path, start="first") as reader:
        for _ in range(queue.messages):
            positions.append(reader.position)
            assert reader.poll() is not None
            reader.wait(0)  # enters the next segment if this one has ended
        positions.append(reader.position)
    return positions


def _read_around(reader: aiochronicle.Reader, queue: Queue, start: int) -> bool:
    """Read three messages from ``start`` on; otherwise as _read."""
    try:
        for seq in range(start, min(start + 3, queue.messages)):
            message = reader.poll()
            assert message is not None, f"ends at {seq} in silence"
            assert message.seq == seq
            assert message.payload == _payload(seq), f"wrong payload of {seq}"
        if start + 3 > queue.messages:
            assert reader.poll() is None
    except ChronicleError:
        return False
    return True


@pytest.mark.parametrize("segment", [0, 1])
def test_bitflip_in_a_segment_is_detected_or_harmless(queue: Queue, segment: int) -> None:
    detected = harmless = 0
    positions = _positions(queue)
    # The record before the one with this byte: reading from there would show a gap.
    before = [0] * SEGMENT_SIZE
    for seq, position in enumerate(positions):
        if position.segment == segment:
            before[position.offset :] = [max(seq - 1, 0)] * (SEGMENT_SIZE - position.offset)
    with (
        _mapped(queue.path / f"{segment:09}.q") as view,
        open_reader(queue.path, start="first") as reader,
    ):
        kinds = _segment_map(view)
        for offset, bit in _flips(view, range(12, len(view))):
            if offset < HEADER:
                reader.seek_first()
                unnoticed = _read(reader, queue)
            else:
                start = before[offset]
                reader.seek_position(positions[start])
                unnoticed = _read_around(reader, queue, start)
            assert not unnoticed or offset in kinds, f"byte {offset} bit {bit} was not noticed"
            harmless += unnoticed
            detected += not unnoticed
    assert detected + harmless == (SEGMENT_SIZE - 12) * 8
    assert detected > 20_000


def _read_afresh(queue: Queue, start: int | None) -> None:
    try:
        with open_reader(queue.path, start="first") as reader:
            if start is not None:
                reader.seek(start)
            _read(reader, queue, start or 0)
            reader.seek_time(1)
            _read(reader, queue)
    except ChronicleError:
        return


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("000000000.q", 192),
        ("000000001.q", 192),
        ("000000000.idx", 104),
        ("index.meta", 16),
        ("control.meta", 512),
    ],
)
def test_bitflip_is_survived_by_a_new_reader(queue: Queue, name: str, size: int) -> None:
    """A reader opened after the flip, also by seq and by time, gets the right messages or an error."""
    # Opening waits a second for the state word of the control block: two of its bits are enough.
    slow = {(byte, bit) for byte in range(8, 12) for bit in range(8)} - {(8, 0), (8, 1)}
    with _mapped(queue.path / name) as view:
        for offset, bit in _flips(view, range(size)):
            if name != "control.meta":
                _read_afresh(queue, None)
                _read_afresh(queue, 5)
            elif (offset, bit) not in slow:
                _read_afresh(queue, 5 if offset % 2 else None)


def test_bitflip_in_a_position_never_moves_the_reader(queue: Queue) -> None:
    """A slot with a flipped bit is not used: the reader takes the other slot or raises."""
    positions = []
    with open_reader(queue.path, READER, start="first") as reader:
        for _ in range(queue.messages):
            positions.append(reader.position)
            reader.poll()
    outcomes = {"resumed": 0, "told": 0}
    file = queue.path / "readers" / f"{READER}.meta"
    # Opening writes a heartbeat into the file, so each flip starts from a copy.
    original = file.read_bytes()
    for offset in range(len(original)):
        for bit in range(8):
            flipped = bytearray(original)
            flipped[offset] ^= 1 << bit
            file.write_bytes(flipped)
            try:
                with open_reader(queue.path, READER) as reader:
                    message = reader.poll()
                    # The other slot holds an older position of the same reader.
                    assert message is not None
                    assert message.seq <= queue.committed
                    assert message.payload == _payload(message.seq)
                outcomes["resumed"] += 1
            except PositionError:
                outcomes["told"] += 1
    assert outcomes["resumed"] > 0


def _recover(path: Path, queue: Queue) -> bool:
    """Open a copy with a flipped bit for writing; return False if the engine refuses."""
    try:
        with open_writer(path, _inline_housekeeping=True, verify=True) as writer:
            seq = writer.append(b"new")
        with open_reader(path, start="first") as reader:
            count = 0
            for message in reader:
                count += 1
                right = b"new" if message.seq == seq else _payload(message.seq)
                assert message.payload == right
            assert count == queue.messages + 1, f"{queue.messages + 1 - count} lost in silence"
            assert seq == queue.messages, f"goes on with {seq}"
    except ChronicleError:
        return False
    return True


def test_bitflip_before_recovery_is_detected_or_harmless(queue: Queue) -> None:
    print(f"AIOCHRONICLE_SEED={SEED}")
    count = int(os.environ.get("AIOCHRONICLE_BITFLIPS", "1500"))
    rng = random.Random(SEED)
    copy = queue.path.parent / "copy"
    files = [path for path in queue.path.rglob("*") if path.is_file() and path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        # Half of the flips hit small files and headers, where more depends on each bit.
        file = rng.choice(files) if rng.random() < 0.5 else rng.choices(files, sizes)[0]
        limit = file.stat().st_size
        offset = rng.randrange(min(limit, 512) if rng.random() < 0.5 else limit)
        if file.name == "control.meta" and 8 <= offset < 12:
            continue  # the state word: opening waits a second for it
        copy_as_original(queue.path, copy)
        with _mapped(copy / file.relative_to(queue.path)) as view:
            view[offset] ^= 1 << rng.randrange(8)
        try:
            outcomes[_recover(copy, queue)] += 1
        except AssertionError as error:
            raise AssertionError(f"{file.name} byte {offset}: {error}") from error
        shutil.rmtree(copy)
    assert min(outcomes.values()) > 0, outcomes
