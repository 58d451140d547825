"""A member in a separate process that logs each step as a line in a file.

python worker.py QUEUE NOTES HANDLER_MS
"""

import asyncio
import os
import sys

import aiochronicle


async def work(queue: str, notes: str, handler_s: float) -> None:
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with aiochronicle.aopen_group(queue, "workers", lease_s=60) as group:
        os.write(out, f"joined {os.getpid()}\n".encode())
        async for delivery in group:
            async with delivery:
                os.write(out, f"got {delivery.seq} {os.getpid()}\n".encode())
                await asyncio.sleep(handler_s)
                os.write(out, f"done {delivery.seq} {os.getpid()}\n".encode())


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000))
