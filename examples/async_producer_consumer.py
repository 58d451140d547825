"""A producer and a consumer in one event loop: append, ``async for``, commit. Twenty lines."""

import asyncio
import tempfile
from pathlib import Path

import aiochronicle


async def produce(path: Path) -> None:
    async with aiochronicle.aopen_writer(path) as writer:
        for number in range(1_000):
            writer.append(f"order {number}".encode())
            await asyncio.sleep(0)  # where a real producer would wait for its next order
        await writer.flush()


async def consume(path: Path) -> None:
    async with aiochronicle.aopen_reader(path, "billing", wait_for_queue=True) as reader:
        async for message in reader:
            reader.commit(message)  # a restart continues after this one
            if message.payload == b"order 999":
                print(f"{message.seq + 1} orders received")
                break


async def main(path: Path) -> None:
    await asyncio.gather(consume(path), produce(path))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        aiochronicle.run(main(Path(directory) / "orders"))
