"""A service that doubles numbers, as a process that a test can kill: ``responder.py ROOT``."""

import asyncio
import sys
from pathlib import Path

import aiochronicle


async def main(root: Path) -> None:
    async with aiochronicle.Responder(root / "asked", root / "answered") as service:
        print("ready", flush=True)
        async for request in service:
            request.reply(b"%d" % (2 * int(request.payload)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
