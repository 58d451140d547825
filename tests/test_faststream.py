"""The FastStream broker against the real FastStream: in memory, and over queues and processes."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faststream", reason="needs FastStream: pip install aiochronicle[faststream]")

from faststream import AckPolicy, FastStream, TestApp
from faststream.exceptions import FeatureNotSupportedException
from pydantic import BaseModel

import aiochronicle
from aiochronicle.errors import ReaderNotFound
from aiochronicle.faststream import (
    ChronicleBroker,
    ChronicleRouter,
    Envelope,
    TestChronicleBroker,
)
from aiochronicle.faststream.annotations import ChronicleMessage


class Order(BaseModel):
    symbol: str
    quantity: int


@pytest.fixture
def broker(tmp_path: Path) -> ChronicleBroker:
    return ChronicleBroker(tmp_path / "desk", logger=None)


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def test_in_memory_as_other_test_brokers(broker: ChronicleBroker, tmp_path: Path) -> None:
    router = ChronicleRouter(prefix="risk-")

    @broker.subscriber("orders")
    @broker.publisher("risk-checked")
    async def check(order: Order) -> dict[str, Any]:
        return {"symbol": order.symbol, "ok": order.quantity < 100}

    @router.subscriber("checked", "audit")
    async def audit(checked: dict[str, Any]) -> None:
        pass

    broker.include_router(router)

    async def main() -> None:
        async with TestChronicleBroker(broker) as br:
            await br.publish(Order(symbol="ALFA", quantity=5), "orders")
            check.mock.assert_called_once_with({"symbol": "ALFA", "quantity": 5})
            audit.mock.assert_called_once_with({"symbol": "ALFA", "ok": True})
            await br.publish_batch(
                Order(symbol="B", quantity=1), Order(symbol="C", quantity=500), topic="orders"
            )
            assert audit.mock.call_count == 3
            with pytest.raises(FeatureNotSupportedException):
                await br.request(Order(symbol="ALFA", quantity=5), "orders")

    run(main())
    assert not (tmp_path / "desk" / "orders").exists()


def test_over_queues_with_retries_and_dead_letters(broker: ChronicleBroker, tmp_path: Path) -> None:
    attempts: list[int] = []
    fine: list[str] = []

    async def main() -> None:
        done = asyncio.Event()

        @broker.subscriber("orders", max_deliver=2, dead_letter=tmp_path / "dead")
        async def check(order: Order, message: ChronicleMessage) -> None:
            if order.symbol == "BAD":
                attempts.append(message.raw_message.attempt)
                raise ValueError("no such symbol")
            fine.append(order.symbol)
            if order.symbol == "LAST":
                done.set()

        async with broker:
            await broker.start()
            for symbol in ("GOOD", "BAD", "LAST"):
                await broker.publish(
                    Order(symbol=symbol, quantity=1), "orders", headers={"trader": "x"}
                )
            await done.wait()
            place = broker.config.connected.path("orders")
            while aiochronicle.inspect_group(place, "faststream").pending:
                await asyncio.sleep(0.01)
            assert await broker.ping()

    run(main())
    assert fine == ["GOOD", "LAST"]
    assert attempts == [1, 2]
    ((_, letter),) = aiochronicle.list_dead_letters(tmp_path / "dead")
    assert letter.attempts == 2


def test_messages_of_other_writers_and_other_readers(
    broker: ChronicleBroker, tmp_path: Path
) -> None:
    """A plain append arrives as a body; a plain reader decodes messages of FastStream as Envelopes."""
    got: list[Any] = []

    async def main() -> None:
        there = asyncio.Event()

        @broker.subscriber("ticks", "charts", max_workers=4)
        async def show(tick: Any) -> None:
            got.append(tick)
            if len(got) == 2:
                there.set()

        with aiochronicle.Bus(tmp_path / "desk") as bus:
            bus.writer("ticks", shared=True).append(b'{"price": 1.5}')
            async with broker:
                await broker.start()
                await broker.publish({"price": 2.5}, "ticks", correlation_id="abc")
                await there.wait()

    run(main())
    assert sorted(one["price"] for one in got) == [1.5, 2.5]
    with aiochronicle.TopicReader(tmp_path / "desk" / "ticks") as reader:
        envelopes = [message.decode(Envelope) for message in reader if message.type_id == 0x4653]
    assert [one.correlation_id for one in envelopes] == ["abc"]


def test_get_one_and_manual_acknowledgement(broker: ChronicleBroker) -> None:
    async def main() -> None:
        subscriber = broker.subscriber("jobs", ack_policy=AckPolicy.MANUAL)
        async with broker:
            assert await subscriber.get_one(timeout=0.05) is None
            await broker.publish("work", "jobs")
            message = await subscriber.get_one(timeout=30)
            assert message is not None
            assert await message.decode() == "work"
            await message.nack(0)
            message = await subscriber.get_one(timeout=30)
            assert message is not None
            assert message.raw_message.attempt == 2
            await message.ack()
            await subscriber.stop()

    run(main())


def has_pending(place: Path) -> bool:
    try:
        return aiochronicle.inspect_group(place, "workers").pending > 0
    except ReaderNotFound:  # the workers have not found this writer's queue yet
        return True


def test_two_processes_of_one_application_share_the_messages(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from faststream import FastStream
from aiochronicle.faststream import ChronicleBroker

broker = ChronicleBroker(sys.argv[1], logger=None)
app = FastStream(broker)

@broker.subscriber("jobs", "workers")
async def work(number: int) -> None:
    await asyncio.sleep(0.002)
    with open(sys.argv[2], "a") as notes:
        notes.write(f"{number} {os.getpid()}\\n")

@app.after_startup
async def say() -> None:
    print("ready", flush=True)

asyncio.run(app.run())
"""
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", program, str(tmp_path / "desk"), str(notes)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"

        async def main() -> None:
            async with ChronicleBroker(tmp_path / "desk", durable=True, logger=None) as broker:
                await broker.publish_batch(*range(200), topic="jobs")
                place = broker.config.connected.path("jobs")
                while has_pending(place):
                    await asyncio.sleep(0.01)

        run(main())
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(200))
    assert len({pid for _, pid in lines}) == 2


def test_an_application_and_its_document(broker: ChronicleBroker) -> None:
    app = FastStream(broker)

    @broker.subscriber("orders", title="Orders")
    async def check(order: Order) -> None:
        pass

    async def main() -> None:
        async with TestApp(app), TestChronicleBroker(broker) as br:
            await br.publish(Order(symbol="ALFA", quantity=5), "orders")
            check.mock.assert_called_once()

    run(main())
    assert "Orders" in str(app.schema.to_specification().to_jsonable())
