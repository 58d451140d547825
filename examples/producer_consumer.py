"""Two processes and one queue: one appends orders, the other follows and commits its position."""

import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

ORDERS = 1_000


def produce(path: Path) -> None:
    with aiochronicle.open_writer(path) as writer:
        for number in range(ORDERS):
            writer.append(f"order {number}".encode())


def consume(path: Path) -> int:
    """Read until all orders have arrived; return their number."""
    received = 0
    with aiochronicle.open_reader(path, "billing") as reader:
        while received < ORDERS and reader.wait(timeout=10):
            for message in reader:  # the messages that are available now
                assert message.payload == f"order {message.seq}".encode()
                received += 1
            reader.commit()  # a restart continues here
    return received


def main(path: Path) -> None:
    # The queue must exist before a reader opens it; opening a writer creates it.
    aiochronicle.open_writer(path).close()
    producer = get_context("spawn").Process(target=produce, args=(path,))
    producer.start()
    received = consume(path)
    producer.join()
    print(f"{received} orders received")
    assert received == ORDERS


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "orders")
