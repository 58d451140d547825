"""Queues on failing disks: one program writes them and is killed, another one checks them."""

from pathlib import Path
from typing import Any

from reference import format as fmt

from .actor import Actor
from .oracle import payload

__all__ = [
    "SALT",
    "fill",
    "flip_a_bit",
    "kept_aside",
    "make_killed",
    "offset_of",
    "read",
    "recover",
    "segment",
]

SALT = 10

_FILL = """
for seq in range(first, first + count):
    assert writer.append(payload(salt, seq)) == seq
"""

_READ = """
with open_reader(path, name, **options) as reader:
    found = []
    for message in reader:
        assert message.payload == payload(salt, message.seq), message.seq
        found.append(message.seq)
message = None
"""


def segment(queue: Path, number: int) -> Path:
    """Return the path of a segment."""
    return queue / fmt.segment_name(number)


def fill(actor: Actor, first: int, count: int) -> None:
    """Append messages with the actor's ``writer``; their payloads follow from their seqs."""
    actor.do(_FILL, first=first, count=count, salt=SALT)


def make_killed(queue: Path, count: int, options: str, then: str = "") -> None:
    """Write a queue and kill its writer; the kernel has all of the data."""
    with Actor() as actor:
        actor.do(f"writer = open_writer(path, {options})", path=str(queue))
        fill(actor, 0, count)
        if then:
            actor.do(then)
        actor.kill()


def read(queue: Path, name: str | None = None, **options: Any) -> list[int]:
    """Return the seqs that a new program reads, after checking each payload."""
    with Actor() as actor:
        actor.do(_READ, path=str(queue), name=name, options=options, salt=SALT)
        found = actor.do("found")
    assert isinstance(found, list)
    return found


def recover(queue: Path) -> int:
    """Open the queue for writing and close it; return its next seq."""
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        next_seq = actor.do("writer.next_seq")
        actor.do("writer.close()")
    assert isinstance(next_seq, int)
    return next_seq


def offset_of(queue: Path, seq: int) -> tuple[int, int]:
    """Return the segment and the offset of the record with this seq."""
    records = fmt.decode_queue(queue).records
    return next((number, record.offset) for number, record in records if record.seq == seq)


def flip_a_bit(queue: Path, seq: int) -> None:
    """Damage the payload of a message, as a bad disk does."""
    assert payload(SALT, seq), "an empty payload has no bit"
    number, offset = offset_of(queue, seq)
    with segment(queue, number).open("r+b") as file:
        file.seek(offset + fmt.RECORD_HEADER_SIZE)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def kept_aside(queue: Path) -> list[str]:
    """Return the names of the files in which recovery kept what it cut off."""
    return sorted(path.name for path in (queue / "recovered").glob("*"))
