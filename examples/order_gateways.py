"""Order routing: a strategy writes to one queue; several gateways follow it, each at its own pace.

Every gateway reads under its own name and sends the orders for its venue. One of them is
stopped half-way; after a restart it continues where it stopped.
"""

import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

GATEWAYS = ("XETR", "XLON", "XNAS")
ORDERS = 600


def strategy(root: Path) -> None:
    with aiochronicle.open_writer(root / "orders") as writer:
        for number in range(ORDERS):
            venue = GATEWAYS[number % len(GATEWAYS)]
            writer.append(f"{venue} buy {number}".encode(), type_id=number % len(GATEWAYS))


async def gateway(root: Path, venue: str, orders_max: int) -> None:
    """Send the orders for this venue, and commit each when it has been sent."""
    own_type = GATEWAYS.index(venue)
    sent = await aiochronicle.aopen_writer(root / f"sent-{venue}")
    async with sent, aiochronicle.aopen_reader(root / "orders", f"gateway-{venue}") as reader:
        async for order in reader:
            if order.type_id == own_type:
                sent.append(order.payload, cause=order)
                orders_max -= 1
            reader.commit(order)
            if orders_max == 0:
                return


def run_gateway(root: Path, venue: str, orders_max: int) -> None:
    aiochronicle.run(gateway(root, venue, orders_max))


def main(root: Path) -> None:
    root.mkdir(exist_ok=True)
    aiochronicle.open_writer(root / "orders").close()
    spawn = get_context("spawn").Process
    each = ORDERS // len(GATEWAYS)
    # The first gateway handles a third of its orders, ends, and is started again.
    first = spawn(target=run_gateway, args=(root, GATEWAYS[0], each // 3))
    others = [spawn(target=run_gateway, args=(root, venue, each)) for venue in GATEWAYS[1:]]
    for process in (first, *others):
        process.start()
    writer = spawn(target=strategy, args=(root,))
    writer.start()
    first.join()
    again = spawn(target=run_gateway, args=(root, GATEWAYS[0], each - each // 3))
    again.start()
    for process in (again, writer, *others):
        process.join()

    for venue in GATEWAYS:
        with aiochronicle.open_reader(root / f"sent-{venue}") as reader:
            numbers = [int(message.payload.split()[-1]) for message in reader]
        assert numbers == [*range(GATEWAYS.index(venue), ORDERS, len(GATEWAYS))], venue
    print(f"{ORDERS} orders, sent by {len(GATEWAYS)} gateways, each exactly once")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
