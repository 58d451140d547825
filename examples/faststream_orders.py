"""A FastStream application over queues: it checks orders; those that fail too often become dead letters."""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path

from faststream import FastStream
from pydantic import BaseModel

from aiochronicle import list_dead_letters
from aiochronicle.errors import QueueNotFound
from aiochronicle.faststream import ChronicleBroker

ROOT = Path(tempfile.mkdtemp(prefix="faststream-"))

broker = ChronicleBroker(ROOT / "desk", logger=None)
app = FastStream(broker, logger=None)
logging.getLogger("aiochronicle").setLevel(logging.ERROR)  # a dead letter is a warning


class Order(BaseModel):
    number: int
    quantity: int


class Checked(BaseModel):
    number: int
    ok: bool


results: list[Checked] = []
finished = asyncio.Event()


@broker.subscriber("orders", "risk", max_deliver=2, dead_letter=ROOT / "dead")
@broker.publisher("checked")
async def check(order: Order) -> Checked:
    if order.quantity == 0:
        raise ValueError("an order for nothing")
    return Checked(number=order.number, ok=order.quantity < 91)


@broker.subscriber("checked", "report", max_workers=4)
async def report(checked: Checked) -> None:
    results.append(checked)
    if len(results) == 100:
        finished.set()


@app.after_startup
async def send() -> None:
    """Send orders, one of them without a quantity, and stop the application when all are checked."""
    for number in range(101):
        await broker.publish(Order(number=number, quantity=number), "orders")
    await finished.wait()
    while not dead_letters():
        await asyncio.sleep(0.01)
    app.exit()


def dead_letters() -> int:
    """Count the dead letters; the first one creates their queue."""
    try:
        return len(list_dead_letters(ROOT / "dead"))
    except QueueNotFound:
        return 0


asyncio.run(app.run())
refused = sum(not checked.ok for checked in results)
dead = dead_letters()
shutil.rmtree(ROOT)
print(f"{len(results)} orders checked, {refused} refused, {dead} dead letter")
