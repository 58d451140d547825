"""Check a recovered queue with the decoder that shares no code with the engine.

A payload is a function of the queue's salt and the message's seq; csrc/tests/ledger.h computes the same in
C. So a check does not need to remember what was appended.
"""

from collections.abc import Collection
from pathlib import Path

from reference import format as fmt

__all__ = ["PAYLOAD_MAX", "BrokenPromiseError", "check_queue", "mix", "payload", "require"]

PAYLOAD_MAX = 900
_WORD = (1 << 64) - 1


class BrokenPromiseError(AssertionError):
    """A promise that was broken."""


def require(condition: bool, text: str, *values: object) -> None:
    """Raise BrokenPromiseError with the text if the condition does not hold."""
    if not condition:
        raise BrokenPromiseError(text.format(*values))


def mix(value: int) -> int:
    """Scatter a 64-bit number (the finaliser of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def payload(salt: int, seq: int) -> bytes:
    """Return the payload that the message with this seq has."""
    word = mix(salt ^ mix(seq))
    kind = word & 7
    limit = PAYLOAD_MAX if kind == 0 else 200 if kind < 4 else 40
    length = (word >> 8) % (limit + 1)
    pattern = mix(word).to_bytes(8, "little")
    return (pattern * (length // 8 + 1))[:length]


def _check_tail(path: Path, dump: fmt.QueueDump) -> None:
    """Check that only zeros follow the end of a queue that was just recovered."""
    assert dump.end is not None
    segment, offset = dump.end
    for segment_id in dump.segments:
        if segment_id >= segment:
            start = offset if segment_id == segment else fmt.DATA_OFFSET
            tail = (path / fmt.segment_name(segment_id)).read_bytes()[start:]
            require(not any(tail), "segment {} is not zero behind {}", segment_id, start)


def check_queue(
    path: Path, salt: int, *, tolerated: Collection[str] = (), torn: bool = False
) -> tuple[int, int, fmt.QueueDump]:
    """Decode a queue at rest and check all of it; return (first seq, next seq, the dump).

    The queue must just have been recovered or closed. Both numbers are 0 if it holds no message.
    ``tolerated`` lists remarks of the decoder that are expected; ``torn`` says that recovery had something
    to set aside.
    """
    dump = fmt.decode_queue(path)
    require(not dump.errors, "the decoder finds {}", dump.errors)
    remarks = set(dump.remarks) - set(tolerated)
    require(not remarks, "the decoder remarks {}", remarks)
    require(not dump.short_of_durable, "{} is short of {}", dump.end, dump.durable)
    require(dump.timestamp_regressions == 0, "timestamps go back")
    seqs = [record.seq for _, record in dump.records]
    first = seqs[0] if seqs else 0
    require(seqs == list(range(first, first + len(seqs))), "seqs are not gapless: {}", seqs)
    for segment_id, record in dump.records:
        require(
            record.payload == payload(salt, record.seq),
            "segment {} offset {}: not the payload of seq {}",
            segment_id,
            record.offset,
            record.seq,
        )
    _check_tail(path, dump)
    aside = list(path.glob("recovered/*.q"))  # bytes of an unfinished record may be there
    require(torn or not aside, "something was set aside, though nothing was torn")
    return first, first + len(seqs), dump
