"""Queues whose message contents follow from the message number."""

from collections.abc import Sequence
from pathlib import Path

import aiochronicle

FIRST_NS = 1_700_000_000_000_000_000
STEP_NS = 1_500  # timestamps are not whole microseconds


def fill(
    path: Path,
    rows: int,
    *,
    first: int = 0,
    types: Sequence[int] = (0,),
    segment_size: int = 1 << 20,
    ready: bool = False,
) -> None:
    """Append messages whose contents follow from their number."""
    with aiochronicle.open_writer(path, segment_size=segment_size, ready=ready) as writer:
        for number in range(first, first + rows):
            writer.append(
                f"{path.name} {number}".encode(),
                type_id=types[number % len(types)],
                timestamp_ns=FIRST_NS + number * STEP_NS,
            )
