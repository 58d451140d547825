"""Typed messages: orders and cancels go to handlers by type; a damaged one does not stop the desk.

The gateway is a separate process. The answers of the exchange are decoded without its classes,
by the schema in the queue.
"""

import asyncio
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import msgspec

import aiochronicle

ORDERS = 300


class Order(msgspec.Struct):
    id: int
    symbol: str
    size: int
    venue: str = "XETR"  # added later: orders in older queues do not have it


class Cancel(msgspec.Struct):
    id: int


class Ack(msgspec.Struct):
    id: int
    accepted: bool


class Done(msgspec.Struct):
    pass


def gateway(root: Path) -> None:
    with aiochronicle.open_writer(root / "orders", codec=[Order, Cancel, Done]) as writer:
        for number in range(ORDERS):
            writer.send(Order(number, "ALFA", 100 + number))
            if number % 3 == 0:
                writer.send(Cancel(number))
            if number % 100 == 0:
                writer.append(b"\xc1 line noise", type_id=1)
        writer.send(Done())


async def exchange(root: Path) -> int:
    damaged = 0
    async with (
        aiochronicle.aopen_writer(root / "acks", codec=Ack) as acks,
        aiochronicle.aopen_reader(
            root / "orders", "exchange", codec=[Order, Cancel, Done], wait_for_queue=True
        ) as orders,
    ):

        @orders.on(Order)
        def on_order(order: Order, message: aiochronicle.Message[Order]) -> None:
            acks.send(Ack(order.id, accepted=order.size < 350), cause=message)

        @orders.on(Cancel)
        async def on_cancel(cancel: Cancel) -> None:
            await asyncio.sleep(0)  # a real handler would ask another service

        @orders.on(Done)
        def on_done(done: Done) -> None:
            orders.close()

        def on_error(error: aiochronicle.errors.DecodeError, message: aiochronicle.Message) -> None:
            nonlocal damaged
            damaged += 1
            print(f"skipped: {error.detail}")

        await orders.dispatch(on_error=on_error)
    return damaged


def main(root: Path) -> None:
    process = get_context("spawn").Process(target=gateway, args=(root,))
    process.start()
    damaged = aiochronicle.run(exchange(root))
    process.join()
    schema = aiochronicle.Registry.load(root / "acks")
    with aiochronicle.open_reader(root / "acks", codec=schema) as reader:
        accepted = sum(message.decode().accepted for message in reader)
    assert damaged == ORDERS // 100
    print(f"{accepted} of {ORDERS} orders accepted, {damaged} damaged messages skipped")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
