"""Batches: the legs of a spread become visible all at once or not at all, and durable by one flush."""

import sys
import tempfile
from pathlib import Path

import aiochronicle

LEGS = [b"buy 10 ALFA", b"sell 20 BRAVO", b"buy 5 DELTA"]
SPREADS = 200


def main(path: Path) -> None:
    with aiochronicle.open_writer(path) as writer:
        for _ in range(SPREADS):
            seqs = writer.append_many(LEGS, type_id=7)
            assert len(seqs) == len(LEGS)
        durable_seq = writer.flush_now()  # one sync for all of them
        assert durable_seq == SPREADS * len(LEGS)

    with aiochronicle.open_reader(path) as reader:
        batches = 0
        while batch := reader.read_batch(max_messages=len(LEGS)):
            assert [message.payload for message in batch] == LEGS
            batches += 1
    print(f"{batches} spreads, each with {len(LEGS)} legs, durable up to seq {durable_seq}")
    assert batches == SPREADS


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "spreads")
