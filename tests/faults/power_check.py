"""Open the queue that a power cut left and compare it with what must be there."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from reference import format as fmt

import aiochronicle
from aiochronicle import Position, open_reader, open_writer
from aiochronicle.errors import CorruptionError, PositionLost

from .power_disk import Image
from .power_scenario import READER, Expectation

__all__ = ["Violation", "check_image", "lay_out"]


class Violation(AssertionError):
    """An image after which a promise is broken."""


def lay_out(image: Image, path: Path) -> None:
    """Write the image into the empty or missing directory ``path``."""
    path.mkdir(mode=0o700, exist_ok=True)
    for name in sorted(image):  # a directory comes before its entries
        content = image[name]
        target = f"{path}/{name}"
        if content is None:
            Path(target).mkdir(mode=0o700)
        else:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, content)
            if name == "control.meta":  # it is the disk that lost power, not a copy of its files
                os.pwrite(fd, bytes(8), fmt.CONTROL_HOME_OFFSET)
            os.close(fd)


def _require(condition: bool, text: str, *values: object) -> None:
    if not condition:
        raise Violation(text.format(*values))


class _Found:
    """Return the messages by seq, in the order of reading."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.at: dict[int, Position] = {}
        self.end = Position(0, 64)


def _read_all(path: Path, payloads: list[bytes]) -> _Found:
    found = _Found()
    with open_reader(path, start="first") as reader:
        while True:
            message = reader.poll()
            if message is None:
                break
            seq = message.seq
            _require(seq < len(payloads), "message {} was never appended", seq)
            _require(message.payload == payloads[seq], "wrong payload of {}", seq)
            _require(not found.seqs or seq > found.seqs[-1], "{} comes again", seq)
            found.seqs.append(seq)
            # Not the reader's earlier position: that may have been the end of another segment.
            size = -(-(64 + len(message.payload)) // 64) * 64
            found.at[seq] = Position(reader.position.segment, reader.position.offset - size)
        found.end = reader.position
    return found


def _check_extent(found: _Found, expected: Expectation, next_seq: int) -> None:
    present = set(found.seqs)
    missing = [seq for seq in range(expected.first, next_seq) if seq not in present]
    _require(not missing, "{} are missing", missing)
    _require(not present or max(present) < next_seq, "beyond the end {}", next_seq)
    _require(
        next_seq >= expected.durable, "ends at {}, {} were durable", next_seq, expected.durable
    )
    _require(
        next_seq in expected.ends or next_seq == 0,
        "ends at {}, inside a batch (ends {})",
        next_seq,
        sorted(expected.ends),
    )


def _check_reader(path: Path, expected: Expectation, found: _Found) -> None:
    if not expected.positions:
        return
    existed = (path / "readers" / f"{READER}.meta").exists()
    order = [*found.at.values(), found.end]
    try:
        reader = open_reader(path, READER)
    except PositionLost as lost:
        wanted = Position(*lost.wanted)
        _require(wanted in expected.positions, "never stood at {}", wanted)
        _require(wanted not in order, "told lost, but {} is there", wanted)
        # Recovery never reuses places before a lost position, so messages written after an earlier cut lie
        # in later segments. All of these are new to the reader, and nothing else is: from the nearest
        # position on it gets exactly these, without a gap or a repetition.
        new = [seq for seq, at in found.at.items() if at.segment > wanted.segment]
        with open_reader(path) as successor:
            successor.seek_position(Position(*lost.nearest))
            seqs = [message.seq for message in successor]
        _require(seqs == new, "from {} on it gets {} instead of {}", lost.nearest, seqs, new)
        return
    with reader:
        start = reader.committed
        # A reader that never committed starts at the first message left, whatever retention has removed.
        fresh = not existed or (expected.first > 0 and start == order[0])
        _require(fresh or start in expected.positions, "stands at {}", start)
        seqs = [message.seq for message in reader]
    key = (start.segment, start.offset)
    after = [seq for seq, at in found.at.items() if (at.segment, at.offset) >= key]
    _require(seqs == after, "after {} the reader gets {} instead of {}", start, seqs, after)


def _check_reader_much_later(path: Path, expected: Expectation) -> None:
    """Check that no message written from now on is skipped silently, however many there are."""
    last = max(position.segment for position in expected.positions)
    with open_writer(path, _inline_housekeeping=True) as writer:
        first = writer.next_seq
        while writer.position.segment <= last + 1:
            writer.append(bytes(2000))
        try:
            reader = open_reader(path, READER)
        except PositionLost:
            return
        with reader:
            seqs = [message.seq for message in reader if message.seq >= first]
        _require(seqs == list(range(first, writer.next_seq)), "later it only gets {}", seqs)


def check_image(path: Path, expected: Expectation, *, reader_first: bool) -> None:
    """Recover the queue at ``path``, read it, append to it, remove it. Raises Violation."""
    try:
        if reader_first and (path / "control.meta").exists():
            # No writer has repaired anything yet: a reader may see a torn record or a part of a batch, but
            # no wrong message.
            with suppress(CorruptionError):
                _read_all(path, expected.unrepaired or expected.payloads)
        with open_writer(path, segment_size=4096, _inline_housekeeping=True) as writer:
            next_seq = writer.next_seq
            found = _read_all(path, expected.payloads)
            _check_extent(found, expected, next_seq)
            _check_reader(path, expected, found)
            recovery = writer.recovery
            _require(recovery.corrupt_records == 0, "durable records are corrupt: {}", recovery)
            _require(writer.append(b"new") == next_seq, "the next message is not {}", next_seq)
        with open_reader(path, start=next_seq) as reader:
            message = reader.poll()
            _require(message is not None and message.payload == b"new", "the new message is lost")
            _require(reader.poll() is None, "something follows the newest message")
        if any(position.segment > found.end.segment for position in expected.positions):
            _check_reader_much_later(path, expected)
    except aiochronicle.ChronicleError as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
