"""A process that follows a root and prints what it finds: ``discoverer.py ROOT RESCAN_S [alone]``."""

import asyncio
import contextlib
import errno
import sys

from faults.system_calls import injected

import aiochronicle


async def main() -> None:
    async with aiochronicle.discover(sys.argv[1], rescan_s=float(sys.argv[2])) as discovery:
        async for event in discovery:
            print(type(event).__name__, ascii(event.path), flush=True)


if __name__ == "__main__":
    with contextlib.ExitStack() as hooks:
        if "alone" in sys.argv:
            hooks.enter_context(injected("watch", errno.EMFILE))
        asyncio.run(main())
