"""The other process: ``python -m asynchronous.peer ROLE PATH …``, commands on standard input.

It prints ``open`` when it is ready, and answers each command with a line.
"""

import asyncio
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from reference.format import ForeignWriter

import aiochronicle
from asynchronous.loops import LOOPS


def say(*words: object) -> None:
    print(*words, flush=True)


def run(loop_name: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(main)


def writer(path: str) -> None:
    """Obey ``append TEXT`` and ``readers`` (print how many readers are connected)."""
    with aiochronicle.open_writer(path, segment_size=1 << 20) as queue:
        say("open")
        for line in sys.stdin:
            command, _, text = line.rstrip("\n").partition(" ")
            if command == "append":
                say(queue.append(text.encode()))
            elif command == "readers":
                say(queue.statistics().readers_connected)


def foreign(path: str) -> None:
    """Obey the same commands as a writer of another program, which wakes no reader."""
    with ForeignWriter(path) as queue:
        say("open")
        for line in sys.stdin:
            _, _, text = line.rstrip("\n").partition(" ")
            say(queue.append(text.encode(), 0, time.time_ns())[1].seq)


def reader(path: str, name: str, loop_name: str, wait_for_queue: str = "") -> None:
    """Print each message on a line, until killed."""

    async def main() -> None:
        async with aiochronicle.open_reader(
            path,
            name or None,
            commit="auto" if name else "manual",
            wait_for_queue=bool(wait_for_queue),
        ) as queue:
            say("open")
            async for message in queue:
                say(message.payload.decode())

    run(loop_name, main())


def sleepy_thread(path: str) -> None:
    """Read with blocking calls, without an event loop."""
    with aiochronicle.open_reader(path) as queue:
        say("open")
        while queue.wait():
            for message in queue:
                say(message.payload.decode())


def ponger(incoming: str, outgoing: str, loop_name: str, seed: str) -> None:
    """Send every message back after a random delay; stop after an empty one."""
    rng = random.Random(seed)

    async def main() -> None:
        with aiochronicle.open_writer(outgoing, segment_size=1 << 20) as answers:
            async with aiochronicle.open_reader(incoming, "ponger") as questions:
                say("open")
                async for message in questions:
                    pause_ns = rng.randrange(40_000)
                    started = time.perf_counter_ns()
                    while time.perf_counter_ns() - started < pause_ns:
                        pass
                    answers.append(message.payload)
                    if not message.payload:
                        return

    run(loop_name, main())


def _switches() -> int:
    total = 0
    for status in Path("/proc/self/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt")):
                total += int(line.split()[1])
    return total


def idle(path: str, readers: str, seconds: str, loop_name: str) -> None:
    """Park named and anonymous readers; print the CPU seconds and context switches they cost."""

    async def main() -> None:
        names = [None if number % 2 else f"idle{number}" for number in range(int(readers))]
        queues = [aiochronicle.open_reader(path, name) for name in names]
        tasks = [asyncio.ensure_future(queue.next()) for queue in queues]
        while not all(queue.attended for queue in queues):
            await asyncio.sleep(0.01)
        say("open")
        await asyncio.sleep(0.5)  # the wake-up when the writer connected
        before, switches = resource.getrusage(resource.RUSAGE_SELF), _switches()
        await asyncio.sleep(float(seconds))
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        say(cpu_s, _switches() - switches)
        for queue in queues:
            queue.close()
        await asyncio.wait(tasks)
        for task in tasks:
            task.exception()

    run(loop_name, main())


def other_user(path: str, uid: str, name: str) -> None:
    """Read as another user; print each message and whether writers can find the reader."""
    os.setgid(int(uid))
    os.setuid(int(uid))

    async def main() -> None:
        async with aiochronicle.open_reader(path, name or None) as queue:
            say("open")
            async for message in queue:
                say(message.payload.decode(), queue.statistics().announced)

    run("asyncio", main())


ROLES: dict[str, Callable[..., None]] = {
    "foreign": foreign,
    "idle": idle,
    "other_user": other_user,
    "ponger": ponger,
    "reader": reader,
    "sleepy_thread": sleepy_thread,
    "writer": writer,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
