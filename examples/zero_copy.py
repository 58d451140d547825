"""No copies: write the payload into the mapped segment, and read it there."""

import struct
import sys
import tempfile
from array import array
from pathlib import Path

import aiochronicle

HEADER = struct.Struct("<8sI4x")  # symbol, number of prices
BARS = 100
PRICES = 1_000


def write(path: Path) -> None:
    with aiochronicle.open_writer(path) as writer:
        for bar in range(BARS):
            with writer.reserve(HEADER.size + 8 * PRICES) as room:
                HEADER.pack_into(room, 0, b"ALFA", PRICES)
                room[HEADER.size :] = memoryview(array("d", [float(bar)] * PRICES)).cast("B")

        # If the block raises, nothing is written.
        try:
            with writer.reserve(64) as room:
                room[:4] = b"oops"
                raise RuntimeError("changed our mind")
        except RuntimeError:
            pass
        assert writer.next_seq == BARS


def read(path: Path) -> float:
    total = 0.0
    last = memoryview(b"").cast("d")
    with aiochronicle.open_reader(path) as reader:
        for message in reader:
            _, count = HEADER.unpack_from(message)  # a message is a buffer itself
            prices = message.view[HEADER.size :].cast("d")
            assert len(prices) == count
            total += prices[0] + prices[-1]
            last = prices
    # The reader is closed, but the view is still valid: it keeps its segment mapped.
    assert last[0] == BARS - 1
    return total


def main(path: Path) -> None:
    write(path)
    total = read(path)
    print(f"{BARS} bars of {PRICES} prices written and read in place, checksum {total:g}")
    assert total == sum(2 * bar for bar in range(BARS))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "bars")
