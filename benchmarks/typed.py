"""What does decoding a typed message cost, compared with msgspec alone?

Measured are ``message.decode()`` on messages in memory, the whole loop over a reader of a queue on disk, and
Arrow columns of the fields, the last two with reading. The yardstick is ``Decoder.decode`` on a list of the
same payloads. The messages are MessagePack of about 100 bytes with seven fields.
"""

import time
from pathlib import Path

import msgspec

from aiochronicle import Queue, open_reader, open_writer
from benchmarks.measure import Best, Result

MESSAGES = 100_000
MESSAGES_QUICK = 20_000


class Trade(msgspec.Struct):
    symbol: str
    price: float
    size: int
    side: str
    venue: str
    order_id: int
    account: str


def fill(path: Path, count: int) -> list[bytes]:
    with open_writer(path, codec=Trade) as writer:
        for number in range(count):
            order_id = 10**9 + number
            writer.send(
                Trade("ALFA", 100.5 + number, 300, "buy", "XETR", order_id, "house account")
            )
    with open_reader(path) as reader:
        return [message.payload for message in reader]


def decode_alone(payloads: list[bytes]) -> float:
    decoder = msgspec.msgpack.Decoder(Trade)
    started_ns = time.thread_time_ns()
    for payload in payloads:
        decoder.decode(payload)
    return time.thread_time_ns() - started_ns


def decode_messages(path: Path) -> float:
    with open_reader(path, codec=Trade) as reader:
        messages = list(reader)
        started_ns = time.thread_time_ns()
        for message in messages:
            message.decode()
        return time.thread_time_ns() - started_ns


def read_and_decode(path: Path) -> float:
    with open_reader(path, codec=Trade) as reader:
        started_ns = time.thread_time_ns()
        for message in reader:
            message.decode()
        return time.thread_time_ns() - started_ns


def read_columns(path: Path) -> float:
    with Queue(path) as queue:
        part = queue.slice()
        started_ns = time.thread_time_ns()
        for _ in part.batches(codec=Trade):
            pass
        return time.thread_time_ns() - started_ns


def run(directory: Path, quick: bool) -> list[Result]:
    count = MESSAGES_QUICK if quick else MESSAGES
    path = directory / "typed"
    payloads = fill(path, count)
    best: dict[str, float] = {
        name: float("inf") for name in ("msgspec", "decode", "reader", "columns")
    }
    for _ in range(3 if quick else 20):
        best["msgspec"] = min(best["msgspec"], decode_alone(payloads) / count)
        best["decode"] = min(best["decode"], decode_messages(path) / count)
        best["reader"] = min(best["reader"], read_and_decode(path) / count)
        best["columns"] = min(best["columns"], read_columns(path) / count)
    times = Best(best)
    what = "message.decode() / msgspec alone on the same bytes"
    return [
        times.at_most(1.3, what, question="typed", pair=("decode", "msgspec")),
        times.at_most(1.5, "the same, and reading", question="typed", pair=("reader", "msgspec")),
        times.at_most(1.0, "reading, as columns", question="typed", pair=("columns", "msgspec")),
    ]
