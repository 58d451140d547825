"""Appending with back-pressure from tasks, and objects in batches and by topic."""

import array
import asyncio
from pathlib import Path

import msgspec
import pytest

import aiochronicle
from aiochronicle import Bus, Capacity, errors


class Trade(msgspec.Struct):
    price: float


class Quote(msgspec.Struct):
    bid: float
    ask: float


@pytest.mark.parametrize("policy", ["fail", "block"])
def test_a_producer_goes_as_fast_as_its_slowest_reader(queue_path: Path, policy: str) -> None:
    capacity = Capacity(8192, policy=policy)  # type: ignore[arg-type]

    async def main() -> None:
        with (
            aiochronicle.open_writer(queue_path, segment_size=1 << 20, capacity=capacity) as writer,
            aiochronicle.open_reader(queue_path, "slow") as reader,
        ):

            async def produce() -> None:
                for i in range(200):
                    assert await writer.append_async(b"%d" % i + bytes(200)) == i

            task = asyncio.create_task(produce())
            read = 0
            while read < 200:
                await asyncio.sleep(0.001)
                assert writer.reader_lag()[0] <= 8192
                for message in reader:
                    assert message.seq == read
                    read += 1
                reader.commit()
            await task

    asyncio.run(asyncio.wait_for(main(), 60))


def test_cancelled_while_it_waits_it_has_appended_nothing(queue_path: Path) -> None:
    async def main() -> None:
        with (
            aiochronicle.open_writer(queue_path, segment_size=1 << 20, capacity=4096) as writer,
            aiochronicle.open_reader(queue_path, "slow"),
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    while True:
                        await writer.append_async(bytes(500))
            assert writer.next_seq * 576 <= 4096
            with pytest.raises(errors.QueueFull):
                writer.append(bytes(500))
            with pytest.raises(errors.ChronicleError):  # no reader could ever make room for it
                await writer.append_async(bytes(5000))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_objects_in_a_batch_are_of_one_type_and_all_or_none(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, codec=[Trade, Quote]) as writer:
        assert writer.send_many([Trade(1.0), Trade(2.0)]) == range(2)
        assert writer.send_many([]) == range(2, 2)
        for mixed in ([Trade(1.0), Quote(1.0, 2.0)], [Trade(1.0), "text"]):
            with pytest.raises(errors.EncodeError):
                writer.send_many(mixed)
        assert writer.send_many(Quote(i, i + 1) for i in range(2)) == range(2, 4)
    with aiochronicle.open_reader(queue_path, codec=[Trade, Quote]) as reader:
        assert [message.decode() for message in reader] == [
            Trade(1.0),
            Trade(2.0),
            Quote(0, 1),
            Quote(1, 2),
        ]


def test_a_bus_sends_objects_and_learns_their_types(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        assert bus.send("trades", Trade(1.0)) == 0
        assert bus.send("trades", Quote(1.0, 2.0)) == 1
        assert bus.send("trades", Trade(3.0)) == 2
        bus.writer("typed", codec=Trade)
        with pytest.raises(errors.EncodeError):
            bus.send("typed", Quote(1.0, 2.0))
        with aiochronicle.open_reader(bus.path("trades"), codec=[Trade, Quote]) as reader:
            assert [type(message.decode()) for message in reader] == [Trade, Quote, Trade]


def test_any_buffer_is_appended_durably(queue_path: Path) -> None:
    async def main() -> None:
        with aiochronicle.open_writer(queue_path) as writer:
            numbers = array.array("d", [1.5, 2.5])
            assert await writer.append_durable(numbers) == 0
            assert await writer.append_durable(memoryview(bytearray(b"abc"))[1:]) == 1
            assert await writer.append_async(numbers) == 2
            assert writer.statistics().durable_seq >= 2

    asyncio.run(main())
    with aiochronicle.open_reader(queue_path) as reader:
        payloads = [message.payload for message in reader]
    assert payloads[0] == payloads[2] == array.array("d", [1.5, 2.5]).tobytes()
    assert payloads[1] == b"bc"
