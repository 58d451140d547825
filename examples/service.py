"""A service that follows a queue of orders, writes a queue of fills, and stops cleanly on SIGTERM.

    service.py DIRECTORY    # reads DIRECTORY/orders, which may appear later; writes DIRECTORY/fills

A stop or a crash does no harm, even in the middle of an order: each fill names its order as
its cause, so after a restart the service recognises an order that has a fill but was not committed.
A power cut does no harm: orders are committed when their fills are on disk, so orders whose fills were
lost are read again.
"""

import asyncio
import signal
import sys
from pathlib import Path

import aiochronicle
from aiochronicle import Message, Reader, Writer


async def price(order: Message) -> bytes:
    """Do the actual work, which may await something."""
    await asyncio.sleep(0.001)
    return b"filled " + order.payload


async def fill_orders(orders: Reader, fills: Writer) -> None:
    filled = fills.last_causes()  # which orders have their fill
    async for batch in orders.batches(max_messages=100):
        for order in batch:
            if not filled.covers(order):
                fills.append(await price(order), cause=order)
        await fills.flush()
        orders.commit(batch[-1])


async def report(orders: Reader, fills: Writer) -> None:
    while True:
        await asyncio.sleep(1)
        print(f"{fills.next_seq} fills, {orders.lag.messages} orders unread", flush=True)


async def serve(directory: Path) -> None:
    loop = asyncio.get_running_loop()
    async with (
        aiochronicle.aopen_writer(directory / "fills") as fills,
        aiochronicle.aopen_reader(directory / "orders", "service", wait_for_queue=True) as orders,
    ):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(fill_orders(orders, fills)),
                group.create_task(report(orders, fills)),
            ]

            def stop() -> None:
                for task in tasks:
                    task.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            print("ready", flush=True)
        durable = await fills.flush()
    print(f"stopped with {durable} fills on disk")


if __name__ == "__main__":
    aiochronicle.run(serve(Path(sys.argv[1])))
