"""A router is killed at random moments while strategies write: every order arrives exactly once.

Strategies are processes that append numbered orders. The router, a process too, copies them into the market
queue by the recipe of docs/guide/routing.md. It is forked from a process that has imported everything, so a
restart takes milliseconds. The market queue is checked at the end.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import aiochronicle

__all__ = ["RouterKillLoop"]

STRATEGY = """
import sys, threading, time, aiochronicle
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
number = 0
with aiochronicle.open_writer(sys.argv[1], segment_size=1 << 16, ready=True) as writer:
    while not stop.is_set():
        for _ in range(5):
            writer.append(b"%d" % number)
            number += 1
        time.sleep(0.002)
print(number)
"""

ROUTER = """
import asyncio, os, random, sys
from pathlib import Path
import watchfiles._rust_notify
from aiochronicle import Router, open_writer

async def route(root, seed):
    chance = random.Random(seed)
    market = open_writer(root / "market", segment_size=1 << 16)
    sent = market.last_causes()
    async with market, Router(root / "orders", name="router") as router:
        async for order in router:
            if not sent.covers(order):
                market.append(order.payload, cause=order)
                sent.add(order)
            if chance.random() < 0.02:
                await market.flush()
                router.commit()

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        asyncio.run(route(Path(sys.argv[1]), int(line)))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def start(program: str, argument: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, str(argument)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def pipe(end: IO[str] | None) -> IO[str]:
    assert end is not None
    return end


class RouterKillLoop:
    """Starts all processes; ``run`` kills this many routers and then checks the orders that arrived."""

    def __init__(self, root: Path, seed: int, strategies: int = 3) -> None:
        self._root = root
        self._chance = random.Random(seed)
        (root / "orders").mkdir()
        self._routers = start(ROUTER, root)
        self._strategies = [start(STRATEGY, root / "orders" / f"{n}") for n in range(strategies)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in (*self._strategies, self._routers):
            process.kill()
            process.wait()
            pipe(process.stdin).close()
            pipe(process.stdout).close()

    def run(self, kills: int, go_on: Callable[[int], bool] = lambda _: True) -> str:
        """Kill routers and check the result; return a summary for the log."""
        done = 0
        while done < kills and go_on(done):
            # Some die while they start, some while they attach, most while they work.
            self._live_for(self._chance.choice((0.02, 0.1, 0.2)) * self._chance.random())
            done += 1
        written = self._stop_strategies()
        routed = self._finish(sum(written.values()))
        for name, count in written.items():
            numbers = [int(payload) for source, payload in routed if source == name]
            assert numbers == [*range(count)], f"strategy {name}: {count} orders, got {numbers}"
        return f"{done:,} routers killed, {len(routed):,} orders of {len(written)} strategies"

    def _live_for(self, life_s: float) -> None:
        child = self._start_router()
        time.sleep(life_s)
        os.kill(child, signal.SIGKILL)
        assert int(pipe(self._routers.stdout).readline()) == -signal.SIGKILL

    def _start_router(self) -> int:
        pipe(self._routers.stdin).write(f"{self._chance.randrange(2**32)}\n")
        pipe(self._routers.stdin).flush()
        return int(pipe(self._routers.stdout).readline())

    def _stop_strategies(self) -> dict[str, int]:
        written: dict[str, int] = {}
        for number, process in enumerate(self._strategies):
            out, _ = process.communicate()
            written[f"{number}"] = int(out)
        return written

    def _finish(self, total: int) -> list[tuple[str, bytes]]:
        """Let a last router finish; return the market queue as (strategy, payload)."""
        child = self._start_router()
        names = {
            aiochronicle.inspect(path).queue_id: path.name
            for path in (self._root / "orders").iterdir()
        }
        routed: list[tuple[str, bytes]] = []
        deadline_s = time.monotonic() + 30
        while not (self._root / "market" / "control.meta").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        with aiochronicle.open_reader(self._root / "market") as reader:
            while len(routed) < total and reader.wait(timeout=30):
                for message in reader:
                    assert message.cause is not None
                    queue_id, seq = message.cause
                    assert message.payload == b"%d" % seq
                    routed.append((names[queue_id], message.payload))
            os.kill(child, signal.SIGKILL)
            assert int(pipe(self._routers.stdout).readline()) == -signal.SIGKILL
            routed += [(names[(m.cause or (0, 0))[0]], m.payload) for m in reader]
        return routed
