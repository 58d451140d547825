"""The large queue for the questions about opening and seeking: 80 full segments of 128 MiB.

Large payloads fill it fast. The results do not depend on the size of payloads but on the number of segments,
and for seeking on the records of one index stride; so the last records of every segment are small.
"""

from pathlib import Path

from aiochronicle import inspect, open_writer

__all__ = ["SEGMENT_BYTES", "build", "segments"]

SEGMENT_BYTES = 128 << 20
LARGE_BYTES = 1 << 20
SMALL_PER_SEGMENT = 20_000
START_NS = 1_000_000_000_000


def segments(quick: bool) -> int:
    """Return the number of segments of the queue: 10 GiB, or 1 GiB."""
    return 8 if quick else 80


def build(path: Path, quick: bool) -> int:
    """Fill the queue unless it exists; return the number of records: one per nanosecond."""
    if path.exists():
        return inspect(path).next_seq
    large = bytes(LARGE_BYTES)
    small = [bytes(100)] * 1000
    written = 0
    with open_writer(path, segment_size=SEGMENT_BYTES) as writer:
        for segment in range(segments(quick)):
            for _ in range(SMALL_PER_SEGMENT // len(small)):
                times = range(START_NS + written, START_NS + written + len(small))
                written = writer.append_many(small, timestamps_ns=list(times)).stop
            while writer.position.segment == segment and (
                writer.position.offset + 2 * LARGE_BYTES < SEGMENT_BYTES
            ):
                written = writer.append(large, timestamp_ns=START_NS + written) + 1
            if segment + 1 < segments(quick):
                rest = SEGMENT_BYTES - writer.position.offset
                written = writer.append(bytes(rest), timestamp_ns=START_NS + written) + 1
    return written
