"""Keys and headers: a recorder routes and counts orders without decoding a single payload.

Two desks send orders, each with the symbol as its key and the desk as a header. A process that does not
decode payloads copies the orders into a queue per desk and finds the newest order of every symbol. An
Arrow table has key and headers as columns.
"""

import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

DESKS = ("fx", "rates")
SYMBOLS = (b"ALFA", b"BRAVO", b"CHARLIE")
ORDERS = 900


def trade(root: Path) -> None:
    with aiochronicle.open_writer(root / "orders") as writer:
        for number in range(ORDERS):
            writer.append(
                b"payload that only the desk can read %d" % number,
                key=SYMBOLS[number % len(SYMBOLS)],
                headers={"desk": DESKS[number % len(DESKS)].encode(), "version": b"2"},
            )


def record(root: Path) -> None:
    """Copy each order to the queue of its desk, with key and headers."""
    with ExitStack() as opened, aiochronicle.open_reader(root / "orders", "recorder") as reader:
        desks = {
            desk.encode(): opened.enter_context(aiochronicle.open_writer(root / desk))
            for desk in DESKS
        }
        done = 0
        while done < ORDERS:
            reader.wait(timeout=60)
            for order in reader:
                headers = order.headers
                desks[headers["desk"]].append(order, key=order.key, headers=headers, cause=order)
                done += 1
            reader.commit()


def main(root: Path) -> None:
    root.mkdir(exist_ok=True)
    aiochronicle.open_writer(root / "orders").close()
    spawn = get_context("spawn").Process
    processes = [spawn(target=work, args=(root,)) for work in (trade, record)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0

    with aiochronicle.open_reader(root / "orders") as reader:
        newest = reader.snapshot_now(lambda order: order.key)
        assert [newest[symbol].seq for symbol in SYMBOLS] == [ORDERS - 3, ORDERS - 2, ORDERS - 1]
        newest.clear()

    counts: Counter[tuple[str, bytes]] = Counter()
    for desk in DESKS:
        with aiochronicle.open_reader(root / desk) as reader:
            for order in reader:
                assert order.headers == {"desk": desk.encode(), "version": b"2"}
                assert order.key is not None
                counts[desk, order.key] += 1
    assert set(counts.values()) == {ORDERS // len(SYMBOLS) // len(DESKS)}

    with aiochronicle.Queue(root / "fx") as queue:
        table = queue.slice().to_arrow(["seq", "key", "headers"])
    assert dict(table.column("headers")[0].as_py())["desk"] == b"fx"
    print(f"{ORDERS} orders of {len(DESKS)} desks, {counts['fx', b'ALFA']} of fx in ALFA")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
