"""A desk on a bus: topics by name, settings in a file, every delivery mode, one flush for all.

config.toml, not the code, has the settings of each topic: retention, flush mode and capacity.
"""

import sys
import tempfile
from pathlib import Path

import aiochronicle
from aiochronicle import Bus

CONFIG = """
[defaults]
segment_size = 1_048_576

[topics.orders]
flush = { bytes = 65_536, seconds = 0.05 }

[topics."ticks.*"]
roll = { messages = 5_000 }
retention = { reader_ttl_s = 10 }
"""
VENUES = ["ticks.lse", "ticks.xetra"]
ORDERS = 300


async def trade(bus: Bus) -> None:
    await bus.prepare("orders", *VENUES)
    for number in range(ORDERS):
        for venue in VENUES:
            bus.append_many(venue, [b"bid %d" % number, b"ask %d" % number])
        bus.append("orders", b"order %d" % number)
    durable = await bus.flush()  # all three queues together
    assert durable == {"orders": ORDERS, **dict.fromkeys(VENUES, 2 * ORDERS)}


def send(bus: Bus) -> int:
    """Read as a gateway that must not send an order twice: each order is committed before delivery."""
    sent = 0
    while batch := bus.read_batch("orders", "gateway", max_messages=50, commit="before"):
        sent += len(batch)
    return sent


def record(bus: Bus) -> int:
    """Read as a recorder that must not lose a tick: each is committed after processing, 4 kB at a time."""
    recorded = 0
    for venue in VENUES:
        while batch := bus.read_batch(venue, "recorder", max_bytes=4096, commit="after"):
            recorded += len(batch)
    return recorded


def main(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.toml").write_text(CONFIG, encoding="utf-8")
    with Bus(root) as bus:
        aiochronicle.run(trade(bus))
        first = bus.read_batch("orders", "gateway", max_messages=1, peek=True)
        assert first[0].payload == b"order 0"
        sent = send(bus)
    with Bus(root) as bus:  # as after a restart
        assert send(bus) == 0
        recorded = record(bus)
        assert all(reader.lag.messages == 0 for venue in VENUES for reader in bus.readers(venue))
        print(f"{sent} orders sent, {recorded} ticks recorded from {len(VENUES)} venues")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "desk")
